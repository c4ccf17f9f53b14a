"""The logical grid of devices that a stage runs on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from hocket.errors import LayoutError


@dataclass(frozen=True, slots=True)
class Mesh:
    """A grid of ranks, outermost axis first; rank = position in row-major order, plus `first`."""

    sizes: tuple[int, ...]
    first: int = 0

    def __post_init__(self) -> None:
        if not self.sizes or any(n < 1 for n in self.sizes):
            raise LayoutError(f"mesh {self.sizes}", "a mesh has at least one axis, each of size 1 or more")

    def __str__(self) -> str:
        return "x".join(map(str, self.sizes))

    @property
    def devices(self) -> int:
        """Number of ranks in the grid."""
        return prod(self.sizes)

    @property
    def ranks(self) -> range:
        """The ranks of the grid."""
        return range(self.first, self.first + self.devices)

    def stride(self, axis: int) -> int:
        """Distance in rank between neighbours along an axis."""
        return prod(self.sizes[axis + 1 :])

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """Position of a rank in the grid."""
        rest = rank - self.first
        return tuple(rest // self.stride(a) % n for a, n in enumerate(self.sizes))

    def group(self, axis: int, rank: int) -> tuple[int, ...]:
        """Ranks that differ from `rank` along `axis` only, in order of position."""
        start = rank - self.coordinates(rank)[axis] * self.stride(axis)
        return tuple(start + i * self.stride(axis) for i in range(self.sizes[axis]))

    def groups(self, axis: int) -> Iterator[tuple[int, ...]]:
        """Every group along an axis."""
        for rank in self.ranks:
            if self.coordinates(rank)[axis] == 0:
                yield self.group(axis, rank)

    @staticmethod
    def parse(text: str) -> Mesh:
        """Read the text form, as `4x2`; raises LayoutError."""
        try:
            return Mesh(tuple(int(n) for n in text.split("x")))
        except ValueError:
            raise LayoutError(f"mesh {text!r}", "is sizes joined by 'x', as 4x2") from None
