"""What no pipeline can fall short of: its work and its memory, divided by all devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hocket.cluster.types import Cluster
from hocket.cost.prices import MeshPrices
from hocket.graph.flow import find_flow
from hocket.graph.types import Graph
from hocket.search.moments import find_moments
from hocket.search.pricing import at_best
from hocket.search.stages.cells import Units
from hocket.sharding.mesh import Mesh


class Fastest:
    """A cluster's devices, each operation on the one on which it is fastest, at rates that rise with size."""

    def __init__(self, cluster: Cluster) -> None:
        self.prices = MeshPrices(at_best(cluster), Mesh((1,)))
        self.ranks = [self.prices.devices.index(device) for device in dict.fromkeys(self.prices.devices)]

    def operations(self, graph: Graph) -> list[float]:
        """Seconds of every operation of a graph on a single device."""
        found = []
        for operation in graph.operations:
            given, made = ([graph.types[n] for n in names] for names in (operation.inputs, operation.outputs))
            found.append(min(self.prices.compute(operation, given, made, rank) for rank in self.ranks))
        return found


@dataclass
class Floors:
    """Bounds from the whole model on a single device of the best kind, by number of microbatches.

    Where rates rise with size, work that is divided takes no fewer device seconds than undivided; communication
    takes more. A step of B microbatches over P ranks is at least B times the mean work of a rank, and no shorter
    than the way of one microbatch through all stages. `optimizer_bytes` are per trained element.
    """

    units: Mapping[int, Units]
    cluster: Cluster
    optimizer_bytes: float
    known: dict[tuple[int, bool], tuple[float, float, float]] = field(default_factory=dict)
    fastest: Fastest = field(init=False)

    def __post_init__(self) -> None:
        self.fastest = Fastest(self.cluster)

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
        """Seconds of everything on one device, bytes that are held all the time, and while a microbatch waits."""
        if (count, again) not in self.known:
            graph = self.units[count].graphs[again]
            seconds = sum(self.fastest.operations(graph))
            trained = sum(graph.types[p].elements for p, _ in graph.gradients)
            fixed = sum(graph.types[i.name].bytes for i in graph.parameters) + trained * self.optimizer_bytes
            held = find_moments(graph, find_flow(graph))[0].held
            self.known[count, again] = seconds, fixed, sum(graph.types[name].bytes for name in held)
        return self.known[count, again]
