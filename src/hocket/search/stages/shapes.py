"""The best cut of the units for one shape of a pipeline, estimated from their cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from hocket.cluster.types import Cluster
from hocket.search.stages.cells import Cells, Mode, Sums
from hocket.search.stages.partition import partition
from hocket.search.stages.shape import Shape
from hocket.search.stages.solver import Way

CHUNKS = (1, 2, 3, 4)
"""Chunks per rank that are tried."""
LONG = 40_000
"""Most actions of an order with several chunks per rank: it is put on the clock action by action."""


@dataclass(frozen=True)
class Candidate:
    """A shape, whether blocks run again, units per stage, the mode of every stage, and the estimated seconds."""

    shape: Shape
    again: bool
    sizes: tuple[int, ...]
    modes: tuple[Mode, ...]
    seconds: float

    @property
    def ways(self) -> list[tuple[Way, ...]]:
        """How each stage is laid out."""
        return [((mode.mesh, mode.once, mode.price),) for mode in self.modes]

    def __str__(self) -> str:
        meshes = ", ".join(dict.fromkeys("x".join(map(str, m.mesh)) for m in self.modes))
        return f"{self.shape}, mesh {meshes}{', blocks recomputed' if self.again else ''}"


def estimate(
    cluster: Cluster, ranks: int, chunks: int, count: int, again: bool, cells: Sequence[Sequence[Cells]]
) -> Candidate | None:
    """Cut the units for one shape, `count` microbatches; `cells[rank]` are the modes of the units on each rank.
    None where nothing fits, or where the shape is not tried."""
    stages, units = ranks * chunks, len(cells[0][0].seconds)
    if stages > units or (chunks > 1 and (ranks == 1 or 2 * stages * count > LONG)):
        return None
    seconds, modes = _intervals(cluster, cells, chunks, count)
    found = partition(seconds, count * chunks)
    if found is None:
        return None
    sizes, _ = found
    edges = [0, *accumulate(sizes)]
    each = [float(seconds[s][edges[s], edges[s + 1]]) for s in range(stages)]
    chosen = tuple(cells[s % ranks][int(modes[s][edges[s], edges[s + 1]])].mode for s in range(stages))
    busiest = max(sum(each[rank::ranks]) for rank in range(ranks))
    total = count * busiest + (sum(each) - busiest) / chunks
    return Candidate(Shape(ranks, chunks, count, "1f1b" if chunks == 1 else "vpp"), again, sizes, chosen, total)


def _intervals(
    cluster: Cluster, cells: Sequence[Sequence[Cells]], chunks: int, count: int
) -> tuple[list[NDArray[np.float64]], list[NDArray[np.intp]]]:
    """What every interval of units takes as each stage, in the mode that is best of those that fit."""
    ranks, size = len(cells), cluster.size // len(cells)
    known: dict[object, tuple[NDArray[np.float64], NDArray[np.intp]]] = {}
    sums: dict[int, Sums] = {}
    found = []
    for stage in range(ranks * chunks):
        rank = stage % ranks
        waiting = spread(ranks, chunks, count, rank)
        limit = min(cluster.memory_limit(rank * size + i) for i in range(size)) / chunks
        key = (tuple(map(id, cells[rank])), waiting, limit)
        if key not in known:
            each = [sums.setdefault(id(c), Sums(c, count)) for c in cells[rank]]
            table = np.array([s.seconds(waiting, limit) for s in each])
            known[key] = table.min(axis=0), table.argmin(axis=0)
        found.append(known[key])
    return [f[0] for f in found], [f[1] for f in found]


def spread(ranks: int, chunks: int, microbatches: int, rank: int) -> int:
    """Microbatches that wait in each chunk of a rank, if they are spread evenly (Narayanan et al. 2021, section
    2.2: forward passes before the first backward)."""
    ahead = ranks - rank if chunks == 1 else 2 * (ranks - rank - 1) + (chunks - 1) * ranks + 1
    return -(-min(ahead, microbatches * chunks) // chunks)
