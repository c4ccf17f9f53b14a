"""What no pipeline can fall short of: its work and its memory, divided by all devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf

from hocket.cluster.types import Cluster
from hocket.cost.prices import MeshPrices
from hocket.search.builder import build_problem
from hocket.search.model import BACKWARD, MEMORY, WORK
from hocket.search.pricing import at_best
from hocket.search.stages.cells import Units
from hocket.search.stages.solver import Solver
from hocket.search.structure import find_structure
from hocket.sharding.mesh import Mesh


@dataclass
class Floors:
    """Bounds from units on a single device of the best kind, by number of microbatches.

    Where rates rise with size, work that is divided takes no fewer device seconds than undivided; communication
    takes more. A step of B microbatches over P ranks is at least B times the mean work of a rank, and no shorter
    than the way of one microbatch through all stages.
    """

    units: Mapping[int, Units]
    cluster: Cluster
    solver: Solver
    known: dict[tuple[int, bool], tuple[float, float, float]] = field(default_factory=dict)

    def seconds(self, count: int, ranks: int) -> float:
        """No pipeline with so many microbatches and ranks takes less."""
        work = self._sums(count, False)[0]
        return work / (self.cluster.size // ranks) * max(1.0, count / ranks)

    def fits(self, count: int, ranks: int, again: bool) -> bool:
        """Whether memory could be enough if everything were divided by all devices; `again`: blocks run again."""
        limits = [self.cluster.memory_limit(rank) for rank in range(self.cluster.size)]
        return self._held(count, ranks, again) <= sum(limits)

    def _held(self, count: int, ranks: int, again: bool) -> float:
        """Bytes of all devices of a pipeline: 1F1B's rank r waits for min(B, P - r) microbatches."""
        _, fixed, waiting = self._sums(count, again)
        flight = sum(min(count, ranks - rank) for rank in range(ranks)) / ranks
        return fixed + flight * waiting

    def _sums(self, count: int, again: bool) -> tuple[float, float, float]:
        """Seconds of all units on one device, bytes that they hold all the time, and while they wait."""
        if (count, again) not in self.known:
            cluster = at_best(self.cluster)
            fastest = max(range(cluster.size), key=lambda r: cluster.devices[r].peak("float32"))
            device = Mesh((1,), fastest)
            prices = MeshPrices(replace(cluster), device)
            seen: dict[int, tuple[float, float, float]] = {}
            total = [0.0, 0.0, 0.0]
            for graph in self.units[count].of(again):
                key = self.solver.source(graph)
                if key not in seen:
                    problem = build_problem(
                        graph, device, prices, inf, self.solver.optimizer_bytes, structure=find_structure(graph)
                    )
                    nodes = problem.model.nodes
                    seconds = sum(float((c[WORK] + c[WORK + BACKWARD]).min()) for c in nodes)
                    moment = float(sum(c[MEMORY].min() for c in nodes))
                    trained = sum(graph.types[p].elements for p, _ in graph.gradients)
                    stored = sum(graph.types[i.name].bytes for i in graph.parameters)
                    fixed = stored + trained * self.solver.optimizer_bytes
                    seen[key] = seconds, fixed, max(0.0, moment - fixed)
                total = [a + b for a, b in zip(total, seen[key], strict=True)]
            self.known[count, again] = total[0], total[1], total[2]
        return self.known[count, again]
