"""The whole search for a pipeline: how many stages, chunks and microbatches, which units where, on which meshes.

Every choice of them is estimated from the cells of the units (see `cells`); the most promising are laid out for
real and judged. Bounds are sums over units, so that the best found carries a certificate over all that was looked
at.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import inf

import numpy as np
from numpy.typing import NDArray

from hocket.cluster.types import Cluster
from hocket.errors import MemoryLimitError, ScheduleError
from hocket.graph.types import Graph
from hocket.plan.types import Alternative
from hocket.search.case import meshes as grids
from hocket.search.pricing import at_best
from hocket.search.stages.cells import Cells, Mode, Sums, Units, find_cells
from hocket.search.stages.given import Pipeline, Watcher, lay_out
from hocket.search.stages.partition import partition
from hocket.search.stages.shape import Shape
from hocket.search.stages.solver import Solver

CHUNKS = (1, 2, 3, 4)
"""Chunks per rank that are tried."""
JUDGED = 4
"""Most shapes that are laid out and judged."""
ENDLESS = 1 << 62
"""Bytes of a device whose memory does not count."""
LONG = 40_000
"""Most actions of an order that is put on the clock with several chunks per rank."""


@dataclass(frozen=True)
class Candidate:
    """A shape with its units per stage, the mode of every stage, the estimated and the least seconds."""

    shape: Shape
    again: bool
    sizes: tuple[int, ...]
    modes: tuple[Mode, ...]
    seconds: float

    def __str__(self) -> str:
        meshes = ", ".join(dict.fromkeys("x".join(map(str, m.mesh)) for m in self.modes))
        return f"{self.shape}, mesh {meshes}"


@dataclass
class Search:
    """A search under way: `graphs` by number of microbatches, candidates, the best pipeline, bounds by shape."""

    graphs: Mapping[int, Graph]
    cluster: Cluster
    solver: Solver
    watcher: Watcher
    end: float = inf
    units: dict[int, Units] = field(default_factory=dict)
    cells: dict[tuple[int, Mode, int], Cells | None] = field(default_factory=dict)
    single: dict[int, float] = field(default_factory=dict)
    candidates: list[Candidate] = field(default_factory=list)
    bounds: dict[tuple[int, int], float] = field(default_factory=dict)
    alternatives: list[Alternative] = field(default_factory=list)
    complete: bool = True
    free: Solver = field(init=False)

    def __post_init__(self) -> None:
        machines = at_best(self.cluster).machines
        endless = tuple(replace(m, device=replace(m.device, memory=ENDLESS)) for m in machines)
        self.free = Solver(
            replace(self.cluster, machines=endless), 0.0, self.solver.seconds, 0.01, self.solver.stop
        )

    def run(self) -> Pipeline:
        """The best pipeline found; raises MemoryLimitError where nothing fits."""
        pairs = [(count, ranks) for count in self.graphs for ranks in self._ranks()]
        pairs.sort(key=lambda pair: self._promise(*pair))
        for number, (count, ranks) in enumerate(pairs):
            best = min((c.seconds for c in self.candidates), default=inf)
            least = self._promise(count, ranks)
            self.bounds[count, ranks] = least
            if least >= best:
                continue
            if time.monotonic() > self.end:
                self.complete = False
                continue
            self.watcher("stages", number, len(pairs), f"{ranks} stages, {count} microbatches")
            self._shapes(count, ranks)
        return self._judged()

    @property
    def bound(self) -> float:
        """A bound on every pipeline that was looked at."""
        return min(self.bounds.values(), default=0.0)

    def _ranks(self) -> list[int]:
        """Numbers of pipeline ranks that divide the cluster into like parts."""
        size = self.cluster.size
        units = self._units(next(iter(self.graphs))).count
        return [p for p in range(1, min(size, units) + 1) if size % p == 0]

    def _units(self, count: int) -> Units:
        if count not in self.units:
            self.units[count] = Units(self.graphs[count])
        return self.units[count]

    def _promise(self, count: int, ranks: int) -> float:
        """A bound from single devices without limits of memory: work divided among all, and one microbatch through
        all stages. Where rates rise with size, work that is divided takes no fewer device seconds than
        undivided."""
        if count not in self.single:
            cells = find_cells(self._units(count), self.free, Mode((1,), False, False), 0, 1)
            self.single[count] = float(cells.bound.sum()) if cells is not None else 0.0
        return self.single[count] / (self.cluster.size // ranks) * max(1.0, count / ranks)

    def _cells(self, count: int, mode: Mode, first: int) -> Cells | None:
        key = (count, mode, first)
        if key not in self.cells:
            self.cells[key] = find_cells(self._units(count), self.solver, mode, first, count)
        return self.cells[key]

    def _kinds(self, ranks: int) -> list[int]:
        """Per rank along the pipeline the first device of the first rank whose devices are like its own."""
        size, known = self.cluster.size // ranks, dict[object, int]()
        found = []
        for first in range(0, self.cluster.size, size):
            places = self.cluster.places[first : first + size]
            kind = self.cluster.devices[first : first + size], tuple(p - places[0] for p in places)
            found.append(known.setdefault(kind, first))
        return found

    def _shapes(self, count: int, ranks: int) -> None:
        """Estimate every shape with so many microbatches and ranks."""
        size, kinds = self.cluster.size // ranks, self._kinds(ranks)
        least = inf
        for again in (False, True) if self._units(count).blocks else (False,):
            cells: dict[int, list[Cells]] = {}
            for first in dict.fromkeys(kinds):
                tried = (
                    self._cells(count, Mode(sizes, once, again), first)
                    for once in ((True, False) if count > 1 else (False,))
                    for sizes in self.meshes(size)
                )
                cells[first] = [c for c in tried if c is not None]
            if not all(cells.values()):
                continue
            units = np.min([c.bound for each in cells.values() for c in each], axis=0)
            least = min(least, float(units.sum()) * max(1.0, count / ranks))
            here = [cells[first] for first in kinds]
            fitting = [self._estimate(again, count, ranks, chunks, here) for chunks in CHUNKS]
            if any(fitting):
                break  # running blocks again only helps where memory is short
        self.bounds[count, ranks] = max(self.bounds[count, ranks], least)

    def meshes(self, size: int) -> list[tuple[int, ...]]:
        """Meshes of so many devices: inside a machine every grid of up to two axes; of whole machines one axis, or
        two of which the inner one lies inside a machine."""
        inside = self.cluster.machines[0].count
        regular = all(m.count == inside for m in self.cluster.machines)
        if not regular or (size > inside and size % inside):
            return [mesh.sizes for mesh in grids(size, 2)]
        inside = min(inside, size)
        return [(size,), *((size // b, b) for b in range(inside, 1, -1) if inside % b == 0 and b < size)]

    def _estimate(self, again: bool, count: int, ranks: int, chunks: int, cells: Sequence[list[Cells]]) -> bool:
        """Cut the units for one shape and note it as a candidate; whether it fits."""
        stages = ranks * chunks
        if stages > self._units(count).count or (chunks > 1 and (ranks == 1 or 2 * stages * count > LONG)):
            return False
        shape = Shape(ranks, chunks, count, "1f1b" if chunks == 1 else "vpp")
        seconds, modes = self._intervals(cells, chunks, count)
        found = partition(seconds, count * chunks)
        if found is None:
            return False
        sizes, _ = found
        edges = [0, *accumulate(sizes)]
        each = [float(seconds[s][edges[s], edges[s + 1]]) for s in range(stages)]
        chosen = tuple(cells[s % ranks][int(modes[s][edges[s], edges[s + 1]])].mode for s in range(stages))
        per_rank = [sum(each[r::ranks]) for r in range(ranks)]
        estimate = count * max(per_rank) + (sum(each) - max(per_rank)) / chunks
        self.candidates.append(Candidate(shape, again, sizes, chosen, estimate))
        return True

    def _intervals(
        self, cells: Sequence[list[Cells]], chunks: int, count: int
    ) -> tuple[list[NDArray[np.float64]], list[NDArray[np.intp]]]:
        """What every interval of units takes as each stage, in the mode that is best of those that fit."""
        ranks, size = len(cells), self.cluster.size // len(cells)
        seconds, modes = [], []
        known: dict[tuple[int, int], tuple[NDArray[np.float64], NDArray[np.intp]]] = {}
        for stage in range(ranks * chunks):
            rank = stage % ranks
            waiting = spread(ranks, chunks, count, rank)
            key = id(cells[rank]), waiting
            if key not in known:
                limit = min(self.cluster.memory_limit(rank * size + i) for i in range(size)) / chunks
                table = np.array([Sums(c, count).seconds(waiting, limit) for c in cells[rank]])
                known[key] = table.min(axis=0), table.argmin(axis=0)
            seconds.append(known[key][0])
            modes.append(known[key][1])
        return seconds, modes

    def _judged(self) -> Pipeline:
        """Lay out the most promising candidates; the best of them."""
        best: Pipeline | None = None
        self.candidates.sort(key=lambda c: c.seconds)
        for number, candidate in enumerate(self.candidates):
            if number >= JUDGED and best is not None:
                break
            self.watcher("judge", number, JUDGED, str(candidate))
            units = self._units(candidate.shape.microbatches)
            try:
                ways = [((mode.mesh, mode.once),) for mode in candidate.modes]
                found = lay_out(units, candidate.again, candidate.shape, candidate.sizes, self.solver, ways)
            except ScheduleError:
                continue
            title = str(candidate)
            if found is None:
                self.alternatives.append(Alternative(title, inf, 0.0, "does not fit once laid out"))
                continue
            self.alternatives.append(Alternative(title, found.seconds, 0.0, "slower"))
            if best is None or found.seconds < best.seconds:
                best = found
        if best is None:
            raise MemoryLimitError(
                f"a pipeline on {self.cluster.size} devices", "fits on the devices of each stage",
                "no number of stages and microbatches that does", "more or larger devices, or a smaller batch",
            )  # fmt: skip
        self.alternatives = [a for a in self.alternatives if a.seconds != best.seconds]
        return best


def spread(ranks: int, chunks: int, microbatches: int, rank: int) -> int:
    """Microbatches that wait in each chunk of a rank, if they are spread evenly (Narayanan et al. 2021, section
    2.2: forward passes before the first backward)."""
    ahead = ranks - rank if chunks == 1 else 2 * (ranks - rank - 1) + (chunks - 1) * ranks + 1
    return -(-min(ahead, microbatches * chunks) // chunks)
