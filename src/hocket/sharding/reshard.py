"""Resharding: single steps between layouts, and the cheapest way from one layout to another.

A step changes the placement of one mesh axis by one collective, or for free (taking a slice, or keeping the
tensor on the first position only as an addend). Where several axes split one dim, the outer axis cuts first;
so a step may touch a dim only if no inner axis splits it. Longer ways are sequences of steps: a hierarchical
all-reduce (reduce-scatter, all-reduce, all-gather) is one of them and needs no name of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf

import numpy as np
from numpy.typing import NDArray

from hocket.graph.types import DTYPE_BYTES, TensorType
from hocket.sharding.layout import (
    PARTIAL,
    REPLICATE,
    Layout,
    Partial,
    Placement,
    Replicate,
    Split,
    largest_share,
    share_at,
)
from hocket.sharding.mesh import Mesh
from hocket.sharding.strategy import divides

Price = Callable[[str, int, int], float]
"""Seconds of a collective: (kind, mesh axis, bytes)."""


@dataclass(frozen=True, slots=True)
class Step:
    """One change of placement along one axis; `kind` is a collective's name, `slice` or `addend`."""

    kind: str
    axis: int
    source: Layout
    target: Layout


def step_kind(source: Placement, target: Placement) -> str | None:
    """The single step that turns one placement into another, or None."""
    match source, target:
        case Replicate(), Split():
            return "slice"
        case Replicate(), Partial():
            return "addend"
        case Split(), Replicate():
            return "all_gather"
        case Partial(), Replicate():
            return "all_reduce"
        case Partial(), Split():
            return "reduce_scatter"
        case Split(), Split() if source.dim != target.dim:
            return "all_to_all"
        case Split(), Split() if source.sizes != target.sizes and source.segments == target.segments:
            return "resize"
    return None


def _reachable(layout: Layout, axis: int, placement: Placement) -> bool:
    """Whether no inner axis splits a dim that this change touches."""
    touched = {p.dim for p in (layout.placements[axis], placement) if isinstance(p, Split)}
    return not any(isinstance(p, Split) and p.dim in touched for p in layout.placements[axis + 1 :])


def _nests(layout: Layout) -> bool:
    """Whether splits of one dim by several axes use the same segments and are even."""
    seen: dict[int, Split] = {}
    for placement in layout.placements:
        if isinstance(placement, Split):
            other = seen.setdefault(placement.dim, placement)
            if other is not placement and (other.segments != placement.segments or other.sizes or placement.sizes):
                return False
    return True


def moved_bytes(
    kind: str, tensor: TensorType, source: Layout, target: Layout, mesh: Mesh, fair: bool = False
) -> int:
    """Bytes that a step's collective is priced by: the larger of what the fullest rank holds before and after.

    A padded all-gather or reduce-scatter moves as much as if every shard were the largest. `fair`: as if all
    shares were equal, which is the least that shares can make of it.
    """
    if fair:
        source, target = _even(source), _even(target)
        if source == target:
            return 0
    if kind in ("slice", "addend"):
        return 0
    held = max(_held(source, mesh, tensor.elements), _held(target, mesh, tensor.elements))
    axis = next(i for i, (p, q) in enumerate(zip(source.placements, target.placements, strict=True)) if p != q)
    parts = mesh.sizes[axis]
    if kind in ("all_gather", "reduce_scatter"):
        cut = source.placements[axis] if kind == "all_gather" else target.placements[axis]
        held *= parts * largest_share(cut, parts)
    if kind == "resize":
        held *= _changed(source.placements[axis], target.placements[axis], parts)
    return round(held) * DTYPE_BYTES[tensor.dtype]


def _even(layout: Layout) -> Layout:
    return Layout(tuple(replace(p, sizes=()) if isinstance(p, Split) else p for p in layout.placements))


def _held(layout: Layout, mesh: Mesh, elements: int) -> float:
    share = 1.0
    for parts, placement in zip(mesh.sizes, layout.placements, strict=True):
        share *= largest_share(placement, parts)
    return elements * share


def _changed(source: Placement, target: Placement, parts: int) -> float:
    """The largest part of a dim that a position sends or receives when sizes change, over the largest it holds."""
    most, start, end = 0.0, 0.0, 0.0
    for position in range(parts):
        before, after = share_at(source, parts, position), share_at(target, parts, position)
        both = max(0.0, min(start + before, end + after) - max(start, end))
        most = max(most, before - both, after - both)
        start, end = start + before, end + after
    return most / max(largest_share(source, parts), largest_share(target, parts))


@dataclass(frozen=True)
class Ways:
    """All layouts of one tensor on one mesh and the cheapest ways between them.

    `seconds[i, j]` is the price from layout i to layout j; `first[i, j]` the layout after the first step.
    `grouped` are the single steps on uneven shards that are cheaper piece by piece than padded.
    """

    tensor: TensorType
    mesh: Mesh
    layouts: tuple[Layout, ...]
    index: dict[Layout, int]
    seconds: NDArray[np.float64]
    first: NDArray[np.int64]
    grouped: frozenset[tuple[int, int]] = frozenset()

    def cost(self, source: Layout, target: Layout) -> float:
        """Seconds from one layout to another; infinite where there is no way."""
        return float(self.seconds[self.index[source], self.index[target]])

    def steps(self, source: Layout, target: Layout) -> tuple[Step, ...]:
        """The cheapest sequence of steps from one layout to another."""
        steps = []
        here, end = self.index[source], self.index[target]
        while here != end:
            there = int(self.first[here, end])
            a, b = self.layouts[here], self.layouts[there]
            axis = next(i for i, (p, q) in enumerate(zip(a.placements, b.placements, strict=True)) if p != q)
            kind = step_kind(a.placements[axis], b.placements[axis]) or ""
            steps.append(Step(GROUPED + kind if (here, there) in self.grouped else kind, axis, a, b))
            here = there
        return tuple(steps)


def all_layouts(tensor: TensorType, mesh: Mesh, wanted: Sequence[Layout]) -> tuple[Layout, ...]:
    """The layouts a way may pass through: every even split by a dim, and what `wanted` mentions besides.

    Splits that `wanted` has on one axis only (uneven ones, as a rule) are tried on that axis alone.
    """
    options: dict[Placement, None] = {REPLICATE: None}
    if any(layout.has_partial for layout in wanted):
        options[PARTIAL] = None
    options.update((Split(dim), None) for dim in range(len(tensor.shape)))
    for layout in wanted:
        options.update((p, None) for p in layout.placements if not (isinstance(p, Split) and p.sizes))
    found = dict.fromkeys(wanted)
    uneven = [
        dict.fromkeys(p for layout in wanted if isinstance(p := layout.placements[axis], Split) and p.sizes)
        for axis in range(len(mesh.sizes))
    ]
    for placements in product(*({**options, **own} for own in uneven)):
        layout = Layout(placements)
        if layout not in found and _nests(layout) and divides(layout, tensor.shape, mesh):
            found[layout] = None
    return tuple(found)


def find_ways(tensor: TensorType, mesh: Mesh, wanted: Sequence[Layout], price: Price, fair: bool = False) -> Ways:
    """Cheapest ways between layouts of a tensor, by shortest paths over single steps (`fair`: see moved_bytes)."""
    layouts = all_layouts(tensor, mesh, wanted)
    index = {layout: i for i, layout in enumerate(layouts)}
    count = len(layouts)
    seconds = np.full((count, count), inf)
    np.fill_diagonal(seconds, 0.0)
    first = np.tile(np.arange(count), (count, 1))
    memo: dict[tuple[str, int, int], float] = {}
    grouped: set[tuple[int, int]] = set()
    for i, source in enumerate(layouts):
        for axis in range(len(mesh.sizes)):
            for placement in {layout.placements[axis] for layout in layouts}:
                j = index.get(source.with_placement(axis, placement))
                kind = step_kind(source.placements[axis], placement)
                if j is None or kind is None or not _reachable(source, axis, placement):
                    continue
                key = (kind, axis, moved_bytes(kind, tensor, source, layouts[j], mesh, fair))
                if key not in memo:
                    memo[key] = FREE_STEP if kind in ("slice", "addend") else price(*key)
                seconds[i, j] = memo[key]
                if kind in ("all_gather", "reduce_scatter") and _is_uneven(source, layouts[j], axis):
                    other = (
                        GROUPED + kind,
                        axis,
                        moved_bytes(GROUPED + kind, tensor, source, layouts[j], mesh, fair),
                    )
                    apart = memo.setdefault(other, price(*other))
                    if apart < seconds[i, j]:
                        seconds[i, j] = apart
                        grouped.add((i, j))
    for middle in range(count):
        through = seconds[:, middle, None] + seconds[None, middle, :]
        better = through < seconds
        if better.any():
            seconds[better] = through[better]
            first[better] = np.broadcast_to(first[:, middle, None], first.shape)[better]
    return Ways(tensor, mesh, layouts, index, seconds, first, frozenset(grouped))


def _is_uneven(source: Layout, target: Layout, axis: int) -> bool:
    return any(isinstance(p, Split) and p.sizes for p in (source.placements[axis], target.placements[axis]))


GROUPED = "grouped_"
"""Prefix of a collective on uneven shards that is done piece by piece: a broadcast of, or a reduction to, each
position's shard (HAP, section 2.5.1)."""
FREE_STEP = 1e-12
"""Seconds of a step without communication: not zero, so that ways with fewer steps win ties."""
