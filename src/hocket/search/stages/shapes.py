"""The best cut of the units for one shape of a pipeline, estimated from their cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod

import numpy as np
from numpy.typing import NDArray

from hocket.cluster.types import Cluster
from hocket.search.stages.cells import Cells, Mode, Sums
from hocket.search.stages.partition import partition
from hocket.search.stages.shape import Shape
from hocket.search.stages.solver import Way

KINDS = (("1f1b", 1), ("eager", 1), ("vpp", 2), ("vpp", 3), ("vpp", 4))
"""Kinds of schedules and chunks per rank that are tried."""
DEARER = (1.0, 3.0, 10.0)
"""Prices of memory that are tried for a stage, in the price that its units were found at."""
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
        """How each stage is laid out: on its mesh, or on one axis alone; at higher prices of memory where what its
        units were found at is too low."""
        found = []
        for mode in self.modes:
            meshes = dict.fromkeys((mode.mesh, (prod(mode.mesh),)))
            found.append(tuple((mesh, mode.once, mode.price * more) for mesh in meshes for more in DEARER))
        return found

    def __str__(self) -> str:
        meshes = ", ".join(dict.fromkeys("x".join(map(str, m.mesh)) for m in self.modes))
        return f"{self.shape}, mesh {meshes}{', blocks recomputed' if self.again else ''}"


def estimate(
    cluster: Cluster, shape: Shape, again: bool, cells: Sequence[Sequence[Cells]], send: float
) -> Candidate | None:
    """Cut the units for one shape; `cells[rank]` are the modes of the units on each rank, `send` the seconds in
    which one stage's values reach the next. None where nothing fits, or where the shape is not tried."""
    ranks, chunks, count = shape.ranks, shape.chunks, shape.microbatches
    stages, units = ranks * chunks, len(cells[0][0].seconds)
    if stages > units or (ranks == 1 and shape.kind != "1f1b") or (chunks > 1 and 2 * stages * count > LONG):
        return None
    seconds, modes = _intervals(cluster, cells, shape)
    found = partition(seconds, count * chunks)
    if found is None:
        return None
    sizes, _ = found
    edges = [0, *accumulate(sizes)]
    each = [float(seconds[s][edges[s], edges[s + 1]]) for s in range(stages)]
    chosen = tuple(cells[s % ranks][int(modes[s][edges[s], edges[s + 1]])].mode for s in range(stages))
    busiest = max(sum(each[rank::ranks]) for rank in range(ranks))
    waits = 2 * send * (ranks - 1) / ranks  # 1F1B: a microbatch on its way there and back is one less to work on
    cycle = busiest + waits if shape.kind == "1f1b" else max(busiest, 2 * send * chunks)
    total = count * cycle + (sum(each) - busiest) / chunks + 2 * (stages - 1) * send
    return Candidate(shape, again, sizes, chosen, total)


def _intervals(
    cluster: Cluster, cells: Sequence[Sequence[Cells]], shape: Shape
) -> tuple[list[NDArray[np.float64]], list[NDArray[np.intp]]]:
    """What every interval of units takes as each stage, in the mode that is best of those that fit."""
    ranks, chunks, count, size = shape.ranks, shape.chunks, shape.microbatches, cluster.size // shape.ranks
    known: dict[object, tuple[NDArray[np.float64], NDArray[np.intp]]] = {}
    sums: dict[int, Sums] = {}
    found = []
    for stage in range(ranks * chunks):
        rank = stage % ranks
        waiting = spread(shape, rank)
        limit = min(cluster.memory_limit(rank * size + i) for i in range(size)) / chunks
        key = (tuple(map(id, cells[rank])), waiting, limit)
        if key not in known:
            each = [sums.setdefault(id(c), Sums(c, count)) for c in cells[rank]]
            table = np.array([s.seconds(waiting, limit) for s in each])
            known[key] = table.min(axis=0), table.argmin(axis=0)
        found.append(known[key])
    return [f[0] for f in found], [f[1] for f in found]


def spread(shape: Shape, rank: int) -> int:
    """Microbatches that wait in each chunk of a rank, if they are spread evenly (Narayanan et al. 2021, section
    2.2: forward passes before the first backward)."""
    behind = shape.ranks - rank - 1
    ahead = behind if shape.kind == "1f1b" else 2 * behind + (shape.chunks - 1) * shape.ranks
    return -(-min(ahead + 1, shape.microbatches * shape.chunks) // shape.chunks)
