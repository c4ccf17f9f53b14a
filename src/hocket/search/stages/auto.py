"""The whole search for a pipeline: how many stages, chunks and microbatches, which units where, on which meshes.

Every choice of them is estimated from the profiles of the units (see `cells`); the most promising are laid out for
real and judged, so that what is chosen is what was simulated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from hocket.cluster.types import Cluster
from hocket.cost.collective import LINK_SHARE
from hocket.errors import MemoryLimitError
from hocket.graph.types import Graph
from hocket.plan.types import Alternative
from hocket.search.case import meshes as grids
from hocket.search.stages.answer import Answer
from hocket.search.stages.cells import Cells, Mode, Profile, Units, find_profile, middle
from hocket.search.stages.floors import Floors
from hocket.search.stages.given import Pipeline, Watcher, lay_out
from hocket.search.stages.shape import Shape
from hocket.search.stages.shapes import KINDS, Candidate, estimate
from hocket.search.stages.solver import Solver

JUDGED = 3
"""Most shapes that are laid out and judged after the first that fits."""
CLOSE = 1.03
"""An estimate by so much above the best judged may still turn out better."""
FAR = 1.3
"""A mesh on which a unit takes so much longer than on the fastest, and holds so much more than on the one that
holds least, is left out."""
PRICES = (0.02, 0.1, 0.3, 1.0)
"""What the memory of a device costs, as shares of the time of its stage: from next to nothing to much."""
WORSE = 1.2
"""Larger or smaller parts of the cluster are not looked at beyond those whose best shape takes so much longer than
the best."""
NEARLY_ALL = 0.9
"""Share of the units that are at least as slow as the one in the middle."""
MICROBATCH = 4
"""Layouts are found for the smallest microbatches and for some of about so many times as many samples."""


@dataclass
class Search:
    """A search under way: `graphs` by number of microbatches; candidates."""

    graphs: Mapping[int, Graph]
    cluster: Cluster
    solver: Solver
    watcher: Watcher
    units: dict[int, Units] = field(init=False)
    floors: Floors = field(init=False)
    candidates: list[Candidate] = field(default_factory=list)
    alternatives: list[Alternative] = field(default_factory=list)
    looked: list[int] = field(default_factory=list)
    complete: bool = True

    def __post_init__(self) -> None:
        self.units = {count: Units(graph) for count, graph in self.graphs.items()}
        self.floors = Floors(self.units, self.cluster, self.solver.optimizer_bytes)

    def run(self) -> Pipeline:
        """The best pipeline found; raises MemoryLimitError where nothing fits."""
        ranks = self._ranks()
        for number, count in enumerate(sorted(ranks, key=self._order)):
            if self.solver.over:
                self.complete = False
                break
            if self._hopeless(count):
                continue
            self.watcher("stages", number, len(ranks), f"{count} stages")
            self._with_ranks(count)
            self.looked.append(count)
        return self._judged()

    @property
    def bound(self) -> float:
        """A bound on every pipeline: see Floors."""
        return min((self.floors.seconds(b, p) for b in self.units for p in self._ranks()), default=0.0)

    def _order(self, ranks: int) -> float:
        """Parts of the cluster that are about a machine first: what is seldom best comes last."""
        size = self.cluster.size / ranks
        inside = self.cluster.machines[0].count
        return max(size / inside, inside / size)

    def _hopeless(self, ranks: int) -> bool:
        """Whether the next larger or smaller number of ranks that was looked at was far from the best."""
        best = min((c.seconds for c in self.candidates), default=inf)
        middle = self.cluster.size / self.cluster.machines[0].count
        inner = [p for p in self.looked if min(ranks, middle) <= p <= max(ranks, middle)]
        nearest = min(inner, key=lambda p: max(p / ranks, ranks / p), default=0)
        own = min((c.seconds for c in self.candidates if c.shape.ranks == nearest), default=inf)
        return nearest != ranks and best < inf and nearest > 0 and own > best * WORSE

    def _ranks(self) -> list[int]:
        """Numbers of pipeline ranks that divide the cluster into parts of as many devices."""
        size = self.cluster.size
        units = next(iter(self.units.values())).count
        return [p for p in range(1, min(size, units) + 1) if size % p == 0]

    def _with_ranks(self, ranks: int) -> None:
        """Estimate every shape with so many ranks that could still be the best and may fit."""
        best = min((c.seconds for c in self.candidates), default=inf)
        worth = [b for b in self.units if self.floors.seconds(b, ranks) < best]
        kinds = self._kinds(ranks)
        for again in (False, True) if any(self.units[b].blocks for b in worth) else (False,):
            counts = [b for b in worth if self.floors.fits(b, ranks, again)]
            if not counts:
                continue
            cells = {first: self._profiles(ranks, first, again, counts) for first in dict.fromkeys(kinds)}
            for count in counts if all(cells.values()) else ():
                self._note(ranks, count, again, [_at(cells[first], count, self.units[count]) for first in kinds])

    def _note(self, ranks: int, count: int, again: bool, cells: list[list[Cells]]) -> None:
        """Note the best cut for every kind of schedule as a candidate, where one fits."""
        if not all(cells):
            return
        send = self._send(ranks, self.units[count].sent())
        shapes = (Shape(ranks, chunks, count, kind) for kind, chunks in KINDS)
        found = (estimate(self.cluster, shape, again, cells, send) for shape in shapes)
        self.candidates += [candidate for candidate in found if candidate is not None]

    def _send(self, ranks: int, size: int) -> float:
        """Seconds in which so many bytes reach the next rank along the pipeline, on average over the ranks."""
        cluster, each = self.cluster, self.cluster.size // ranks
        seconds = []
        for first in range(each, cluster.size, each):
            near = cluster.places[first - 1] == cluster.places[first]
            link = cluster.machines[cluster.places[first]].link if near else cluster.network
            seconds.append(link.latency + size / (link.bandwidth * LINK_SHARE))
        return sum(seconds) / len(seconds) if seconds else 0.0

    def _profiles(self, ranks: int, first: int, again: bool, counts: list[int]) -> list[Profile]:
        """The modes of the units on the devices of a rank that are worth it."""
        best, size = min((c.seconds for c in self.candidates), default=inf), self.cluster.size // ranks
        profiles: list[Profile] = []
        for count in self._references(counts):
            modes = (self._mode(sizes, ranks, first, again, count) for sizes in self.meshes(size))
            tried = [found for found in modes if found is not None]
            fastest = min((a.seconds for a, _ in tried), default=inf)
            if fastest * self.units[count].count / ranks * count * NEARLY_ALL > best:
                continue  # even if all units took as little as the one in the middle
            least = min((a.memory.total for a, _ in tried), default=0)
            for answer, mode in tried:
                if answer.seconds <= fastest * FAR or answer.memory.total <= least * FAR:
                    profile = find_profile(self.solver, self.units, mode, first, self._other(count))
                    profiles += [profile] if profile is not None else []
        return profiles

    def _mode(
        self, sizes: tuple[int, ...], ranks: int, first: int, again: bool, count: int
    ) -> tuple[Answer, Mode] | None:
        """The layout of the unit in the middle on a mesh at the lowest price of memory at which a stage of like
        units fits, if there is one."""
        size, units = self.cluster.size // ranks, self.units[count]
        limit = min(self.cluster.memory_limit(rank) for rank in range(first, first + size))
        for price in PRICES:
            each = price * self.floors.seconds(count, ranks) / count / limit
            mode = Mode(sizes, count > 1, again, count, each)
            answer = middle(self.solver, units, mode, first)
            if answer is not None and answer.held_by(units.count / ranks, min(count, ranks)) <= limit:
                return answer, mode
        return None

    def _references(self, counts: list[int]) -> list[int]:
        """Numbers of microbatches for which layouts are found: the most, and one with larger microbatches."""
        most = max(counts)
        larger = [b for b in counts if b * MICROBATCH <= most]
        return list(dict.fromkeys((most, *([max(larger)] if larger else [min(counts)]))))

    def _other(self, count: int) -> int:
        """Another number of microbatches, with a multiple of the samples in each; the same where there is none."""
        samples = self.units[count].samples
        if samples == 1:
            return count  # dims of one sample are no dims: other layouts
        others = [b for b in self.units if b < count and self.units[b].samples % samples == 0]
        return max(others, default=count)

    def _kinds(self, ranks: int) -> list[int]:
        """Per rank along the pipeline the first device of the first rank whose devices are like its own."""
        size, known = self.cluster.size // ranks, dict[object, int]()
        found = []
        for first in range(0, self.cluster.size, size):
            places = self.cluster.places[first : first + size]
            kind = self.cluster.devices[first : first + size], tuple(p - places[0] for p in places)
            found.append(known.setdefault(kind, first))
        return found

    def meshes(self, size: int) -> list[tuple[int, ...]]:
        """Meshes of so many devices: grids of two axes, of which the inner one lies inside a machine, as one axis
        alone is a grid with both axes for the same; one axis where there is no grid."""
        inside = self.cluster.machines[0].count
        regular = all(m.count == inside for m in self.cluster.machines)
        if not regular or (size > inside and size % inside):
            return [mesh.sizes for mesh in grids(size, 2)]
        inside = min(inside, size)
        found: list[tuple[int, ...]] = [
            (size // b, b) for b in range(inside, 1, -1) if inside % b == 0 and b < size
        ]
        return found or [(size,)]

    def _judged(self) -> Pipeline:
        """Lay out the most promising candidates; the best of them."""
        best: Pipeline | None = None
        fitting = 0
        for number, candidate in enumerate(sorted(self.candidates, key=lambda c: c.seconds)):
            if best is not None and (fitting >= JUDGED or candidate.seconds > best.seconds * CLOSE):
                break
            self.watcher("judge", number, JUDGED, str(candidate))
            units, ways = self.units[candidate.shape.microbatches], candidate.ways
            found = lay_out(units, candidate.again, candidate.shape, candidate.sizes, self.solver, ways)
            if found is None:
                self.alternatives.append(Alternative(str(candidate), inf, 0.0, "does not fit once laid out"))
                continue
            fitting += 1
            self.alternatives.append(Alternative(str(candidate), found.seconds, 0.0, "slower"))
            if best is None or found.seconds < best.seconds:
                best = found
        if best is None:
            raise MemoryLimitError(
                f"a pipeline on {self.cluster.size} devices", "fits on the devices of each stage",
                "no number of stages and microbatches that does", "more or larger devices, or a smaller batch",
            )  # fmt: skip
        self.alternatives = [a for a in self.alternatives if a.seconds != best.seconds]
        return best


def _at(profiles: list[Profile], count: int, units: Units) -> list[Cells]:
    """The cells of profiles for a number of microbatches, of those that its samples go round in."""
    return [p.at(count) for p in profiles if p.holds(count, units.samples)]
