"""Layouts: who holds what of a tensor, per mesh axis; their text form and the intervals each rank holds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from hocket.errors import LayoutError
from hocket.sharding.mesh import Mesh

Interval = tuple[int, int]  # start and length along one dim


@dataclass(frozen=True, slots=True)
class Split:
    """The tensor's `dim` is cut along a mesh axis.

    `sizes` are the lengths per position of the axis, relative to their sum: (3, 5) is three eighths and five
    eighths of a dim of any length that 8 divides, so that tensors of different lengths are cut alike. Empty
    means as even as can be (the first positions get one more). `segments` are lengths that the dim falls into,
    each of which is cut by itself (a fused query-key-value weight): a rank then holds one piece of every
    segment, in order.
    """

    dim: int
    sizes: tuple[int, ...] = ()
    segments: tuple[int, ...] = ()

    def __str__(self) -> str:
        sizes = "|" + ",".join(map(str, self.sizes)) if self.sizes else ""
        segments = ":" + ",".join(map(str, self.segments)) if self.segments else ""
        return f"S({self.dim}{sizes}{segments})"


@dataclass(frozen=True, slots=True)
class Replicate:
    """Every position of the axis holds the whole tensor."""

    def __str__(self) -> str:
        return "R"


@dataclass(frozen=True, slots=True)
class Partial:
    """Every position of the axis holds an addend; the tensor is their sum."""

    def __str__(self) -> str:
        return "P"


Placement = Split | Replicate | Partial
REPLICATE = Replicate()
PARTIAL = Partial()
_PLACEMENT = re.compile(r"R|P|S\((\d+)(?:\|([\d,]+))?(?::([\d,]+))?\)")


@dataclass(frozen=True, slots=True)
class Layout:
    """One placement per mesh axis, outermost axis first. Two layouts are equal only if their sizes are."""

    placements: tuple[Placement, ...]

    def __str__(self) -> str:
        return "".join(map(str, self.placements))

    @staticmethod
    def parse(text: str) -> Layout:
        """Read the text form, as `S(0)RP`; raises LayoutError."""
        placements: list[Placement] = []
        position = 0
        while position < len(text):
            match = _PLACEMENT.match(text, position)
            if match is None:
                raise LayoutError(f"layout {text!r}", "is a sequence of R, P and S(dim)", text[position:])
            position = match.end()
            if match.group(0) == "R":
                placements.append(REPLICATE)
            elif match.group(0) == "P":
                placements.append(PARTIAL)
            else:
                dim, sizes, segments = match.groups()
                placements.append(Split(int(dim), _numbers(sizes), _numbers(segments)))
        return Layout(tuple(placements))

    @staticmethod
    def replicated(axes: int) -> Layout:
        """The layout that holds everything everywhere on a mesh with so many axes."""
        return Layout((REPLICATE,) * axes)

    @property
    def is_replicated(self) -> bool:
        """Whether every rank holds the whole tensor."""
        return all(isinstance(p, Replicate) for p in self.placements)

    @property
    def has_partial(self) -> bool:
        """Whether ranks hold addends."""
        return any(isinstance(p, Partial) for p in self.placements)

    def with_placement(self, axis: int, placement: Placement) -> Layout:
        """This layout with the placement of one axis exchanged."""
        return Layout((*self.placements[:axis], placement, *self.placements[axis + 1 :]))

    def splits_of(self, dim: int) -> tuple[int, ...]:
        """Axes that split `dim`, outermost first."""
        return tuple(a for a, p in enumerate(self.placements) if isinstance(p, Split) and p.dim == dim)


def _numbers(text: str | None) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split(",")) if text else ()


def even_sizes(length: int, parts: int) -> tuple[int, ...]:
    """Lengths of `parts` pieces of `length`, as even as can be, longer ones first."""
    short, longer = divmod(length, parts)
    return (short + 1,) * longer + (short,) * (parts - longer)


def intervals(layout: Layout, shape: Sequence[int], mesh: Mesh, rank: int) -> tuple[tuple[Interval, ...], ...]:
    """Per dim, the intervals of the global tensor that `rank` holds, in the order it stores them."""
    coordinates = mesh.coordinates(rank)
    held: list[tuple[Interval, ...]] = [((0, n),) for n in shape]
    for dim in range(len(shape)):
        axes = layout.splits_of(dim)
        if not axes:
            continue
        first = layout.placements[axes[0]]
        if isinstance(first, Split) and first.segments:
            starts = [sum(first.segments[:i]) for i in range(len(first.segments))]
            held[dim] = tuple(zip(starts, first.segments, strict=True))
        for axis in axes:
            placement = layout.placements[axis]
            sizes = placement.sizes if isinstance(placement, Split) else ()
            held[dim] = tuple(_piece(i, sizes, mesh.sizes[axis], coordinates[axis]) for i in held[dim])
    return tuple(held)


def _piece(interval: Interval, sizes: tuple[int, ...], parts: int, position: int) -> Interval:
    start, length = interval
    if sizes:
        unit = length // sum(sizes)
        cut = tuple(n * unit for n in sizes)
    else:
        cut = even_sizes(length, parts)
    return start + sum(cut[:position]), cut[position]


def local_shape(layout: Layout, shape: Sequence[int], mesh: Mesh, rank: int) -> tuple[int, ...]:
    """Shape of what `rank` holds."""
    return tuple(sum(n for _, n in dim) for dim in intervals(layout, shape, mesh, rank))


def largest_share(placement: Placement, positions: int) -> float:
    """The largest fraction of a tensor that some position of an axis holds."""
    if not isinstance(placement, Split):
        return 1.0
    return max(placement.sizes) / sum(placement.sizes) if placement.sizes else 1 / positions


def share_at(placement: Placement, positions: int, position: int) -> float:
    """The fraction of a tensor that a position of an axis holds."""
    if not isinstance(placement, Split):
        return 1.0
    return placement.sizes[position] / sum(placement.sizes) if placement.sizes else 1 / positions


def shards(layout: Layout, mesh: Mesh) -> int:
    """Number of different pieces the tensor is cut into (replicas and addends not counted)."""
    return prod(n for n, p in zip(mesh.sizes, layout.placements, strict=True) if isinstance(p, Split))


def check_layout(layout: Layout, shape: Sequence[int], mesh: Mesh, culprit: str) -> None:
    """Raise LayoutError unless the layout fits the tensor and the mesh."""
    if len(layout.placements) != len(mesh.sizes):
        raise LayoutError(culprit, "a layout has one placement per mesh axis", f"{layout} on mesh {mesh}")
    for axis, placement in enumerate(layout.placements):
        if not isinstance(placement, Split):
            continue
        if not 0 <= placement.dim < len(shape):
            raise LayoutError(culprit, "a split names a dim of the tensor", f"{layout} of shape {list(shape)}")
        if placement.sizes and len(placement.sizes) != mesh.sizes[axis]:
            raise LayoutError(culprit, "sizes are one per position of the axis", f"{layout} on mesh {mesh}")
        if placement.segments and sum(placement.segments) != shape[placement.dim]:
            raise LayoutError(culprit, "segments add up to the dim", f"{layout} of shape {list(shape)}")
        lengths = placement.segments or (shape[placement.dim],)
        if placement.sizes and (not sum(placement.sizes) or any(n % sum(placement.sizes) for n in lengths)):
            raise LayoutError(culprit, "the sum of sizes divides the dim", f"{layout} of shape {list(shape)}")
        if placement.sizes and len(layout.splits_of(placement.dim)) > 1:
            raise LayoutError(culprit, "a dim that two axes split is split evenly", str(layout))
