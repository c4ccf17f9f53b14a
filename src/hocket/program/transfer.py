"""What ranks of one stage send to ranks of another: every receiver exactly what it lacks, split among senders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

from hocket.errors import LayoutError
from hocket.graph.types import DTYPE_BYTES, TensorType
from hocket.sharding.layout import Interval, Layout, intervals
from hocket.sharding.mesh import Mesh

Box = tuple[tuple[Interval, ...], ...]
"""Per dim, intervals of a global tensor."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a value that one rank gives another; `source` and `target` may be the same rank."""

    source: int
    target: int
    box: Box

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the part."""
        return tuple(sum(length for _, length in dim) for dim in self.box)

    def bytes(self, dtype: str) -> int:
        """Bytes of the part."""
        return prod(self.shape) * DTYPE_BYTES[dtype]


@dataclass(frozen=True, slots=True)
class Transfer:
    """A value on its way from one stage to another, in pieces. `tied`: it is a `parameter` that both hold, which
    the first one gives the other before a step, or its `gradient`, which comes back after it."""

    value: str
    source: int
    target: int
    dtype: str
    pieces: tuple[Piece, ...]
    tied: Literal["", "parameter", "gradient"] = ""

    def of(self, rank: int) -> Transfer:
        """What of it concerns a rank."""
        own = tuple(p for p in self.pieces if rank in (p.source, p.target))
        return Transfer(self.value, self.source, self.target, self.dtype, own, self.tied)


def find_pieces(
    tensor: TensorType, source: tuple[Layout, Mesh], target: tuple[Layout, Mesh], places: Sequence[int] = ()
) -> tuple[Piece, ...]:
    """The pieces that bring a tensor from a layout on one mesh to a layout on another.

    Of ranks that hold the same, a receiver takes itself, else one of its own machine (`places` are the machines of
    the ranks), else they take turns. Raises LayoutError for sums.
    """
    for layout, mesh in (source, target):
        if layout.has_partial:
            rule = "travels between stages in a layout without sums"
            raise LayoutError("a value", rule, f"{layout} on mesh {mesh}")
    holders: dict[Box, list[int]] = {}
    for rank in source[1].ranks:
        holders.setdefault(intervals(source[0], tensor.shape, source[1], rank), []).append(rank)
    found = []
    turns: dict[Box, int] = {}
    for rank in target[1].ranks:
        wanted = intervals(target[0], tensor.shape, target[1], rank)
        for held, ranks in holders.items():
            box = _common(held, wanted)
            if box is None:
                continue
            near = [r for r in ranks if r == rank] or [r for r in ranks if _same_machine(places, r, rank)] or ranks
            turn = turns[held] = turns.get(held, -1) + 1
            found.append(Piece(near[turn % len(near)], rank, box))
    return tuple(found)


def _same_machine(places: Sequence[int], one: int, other: int) -> bool:
    return bool(places) and places[one] == places[other]


def _common(held: Box, wanted: Box) -> Box | None:
    """What two boxes have in common, in the order in which the second has it; None where that is nothing."""
    dims = []
    for mine, theirs in zip(held, wanted, strict=True):
        both = [_overlap(a, b) for b in theirs for a in mine]
        dims.append(tuple(i for i in both if i[1] > 0))
        if not dims[-1] and theirs:
            return None
    return tuple(dims)


def _overlap(one: Interval, other: Interval) -> Interval:
    start = max(one[0], other[0])
    return start, min(one[0] + one[1], other[0] + other[1]) - start


def positions(held: Box, box: Box) -> tuple[tuple[Interval, ...], ...]:
    """Where the intervals of a box lie in what a rank stores of a tensor, per dim."""
    found = []
    for mine, wanted in zip(held, box, strict=True):
        dim = []
        for start, length in wanted:
            offset = 0
            for first, size in mine:
                if first <= start and start + length <= first + size:
                    dim.append((offset + start - first, length))
                    break
                offset += size
        found.append(tuple(dim))
    return tuple(found)
