"""Finding layouts of stages, each only once: what is found for one holds for all that are alike."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf

from hocket.cluster.types import Cluster
from hocket.graph.types import Graph
from hocket.search.case import meshes
from hocket.search.repeats import Repeats
from hocket.search.stages.alike import carried_over, likeness
from hocket.search.stages.answer import Answer, solve_stage
from hocket.sharding.mesh import Mesh

Way = tuple[tuple[int, ...], bool]
"""Sizes of a mesh, and whether parameters and gradients move once in a step (else with every microbatch)."""


@dataclass
class Solver:
    """Finds layouts of stages. `seconds` is the longest time for one, `gap` how near to its bound it must come."""

    cluster: Cluster
    optimizer_bytes: float
    seconds: float = 5.0
    gap: float = 0.02
    stop: threading.Event = field(default_factory=threading.Event)
    axes: int = 2
    known: dict[object, tuple[Graph, Answer | None]] = field(default_factory=dict)
    texts: dict[int, tuple[Graph, str]] = field(default_factory=dict)

    def best(
        self,
        graph: Graph,
        first: int,
        devices: int,
        repeats: Repeats,
        share: float = 1.0,
        ways: Sequence[Way] = (),
    ) -> Answer | None:
        """The best layout of a stage on some devices in any of the ways given (none: in all there are)."""
        best: Answer | None = None
        every = [(mesh.sizes, once) for mesh in meshes(devices, self.axes) for once in (True, False)]
        for sizes, once in ways or every:
            if once and repeats.microbatches == 1:
                continue
            found = self.on(graph, Mesh(sizes, first), replace(repeats, once=once), share)
            if found is not None and (best is None or _total(found, repeats) < _total(best, repeats)):
                best = found
        return best

    def on(self, graph: Graph, mesh: Mesh, repeats: Repeats, share: float) -> Answer | None:
        """The best layout of a stage on a mesh, within a share of the memory; None where nothing fits."""
        devices = self.cluster.devices[mesh.first : mesh.first + mesh.devices]
        places = self.cluster.places[mesh.first : mesh.first + mesh.devices]
        pattern = tuple(place - places[0] for place in places)
        key = (self._text(graph), mesh.sizes, devices, pattern, repeats, share)
        if key not in self.known:
            bytes_, cluster = self.optimizer_bytes, self.cluster
            found = solve_stage(
                graph, cluster, mesh, repeats, bytes_, share, self.seconds, self.gap, stop=self.stop
            )
            self.known[key] = graph, found
        source, answer = self.known[key]
        if answer is None or (source is graph and answer.stage.mesh == mesh):
            return answer
        return replace(answer, graph=graph, stage=carried_over(answer.stage, source, graph, mesh))

    def priced(self, graph: Graph, mesh: Mesh, repeats: Repeats, price: float) -> Answer | None:
        """The best layout of a stage on a mesh where no memory is short, but a byte that is held has a price in
        seconds."""
        devices = self.cluster.devices[mesh.first : mesh.first + mesh.devices]
        key = (self._text(graph), mesh, devices, repeats, price, "priced")
        if key not in self.known:
            bytes_, cluster = self.optimizer_bytes, self.cluster
            found = solve_stage(
                graph, cluster, mesh, repeats, bytes_, inf, self.seconds, self.gap, stop=self.stop, price=price
            )
            self.known[key] = graph, found
        source, answer = self.known[key]
        if answer is None or source is graph:
            return answer
        return replace(answer, graph=graph, stage=carried_over(answer.stage, source, graph, mesh))

    def source(self, graph: Graph) -> int:
        """A number that graphs share exactly when they are alike."""
        return hash(self._text(graph))

    def _text(self, graph: Graph) -> str:
        if id(graph) not in self.texts:
            self.texts[id(graph)] = graph, likeness(graph)
        return self.texts[id(graph)][1]


def _total(answer: Answer, repeats: Repeats) -> float:
    return answer.seconds + (answer.gather + answer.sync) / repeats.microbatches
