"""Finding layouts of stages, each only once: what is found for one holds for all that are alike."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf

from hocket.cluster.types import Cluster
from hocket.graph.types import Graph
from hocket.search.case import meshes
from hocket.search.repeats import Repeats
from hocket.search.stages.alike import carried_over, likeness
from hocket.search.stages.answer import Answer, Question, ask
from hocket.search.structure import Structure, find_structure
from hocket.sharding.mesh import Mesh

Way = tuple[tuple[int, ...], bool, float]
"""Sizes of a mesh, whether parameters and gradients move once in a step (else with every microbatch), and the price
in seconds of a byte that is held (none: memory is a limit alone)."""

Outcome = tuple[Answer | None, float]
"""The best layout found, if any fits, and a bound on the seconds of a microbatch under all."""
FINE = 0.1
"""Part of the gap that is left where memory has a price: a small price must not be lost in it."""


@dataclass
class Solver:
    """Finds layouts of stages. `seconds` is the longest time for one, `gap` how near to its bound it must come,
    `end` (on the monotonic clock) when there is next to no time left for any."""

    cluster: Cluster
    optimizer_bytes: float
    seconds: float = 5.0
    gap: float = 0.02
    stop: threading.Event = field(default_factory=threading.Event)
    axes: int = 2
    end: float = inf
    known: dict[object, Outcome] = field(default_factory=dict)
    asked: dict[object, Question] = field(default_factory=dict)
    structures: dict[int, Structure] = field(default_factory=dict)
    texts: dict[int, tuple[Graph, str]] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """Whether the time is spent, or the user has stopped the search."""
        return self.stop.is_set() or time.monotonic() > self.end

    def best(
        self,
        graph: Graph,
        first: int,
        devices: int,
        repeats: Repeats,
        share: float = 1.0,
        ways: Sequence[Way] = (),
    ) -> Answer | None:
        """The best layout of a stage on some devices, within a share of their memory, in any of the ways given
        (none: in all there are), with a bound on all of these. Of ways on one mesh the first that fits counts."""
        best: Answer | None = None
        bound = inf
        every = [(mesh.sizes, once, 0.0) for mesh in meshes(devices, self.axes) for once in (True, False)]
        done: set[tuple[tuple[int, ...], bool]] = set()
        for sizes, once, price in ways or every:
            if (once and repeats.microbatches == 1) or (sizes, once) in done:
                continue
            found, least = self._on(graph, Mesh(sizes, first), replace(repeats, once=once), share, price)
            bound = min(bound, least)
            if found is None:
                continue
            done.add((sizes, once))
            if best is None or _total(found, repeats) < _total(best, repeats):
                best = found
        return best and replace(best, bound=bound)

    def _on(self, graph: Graph, mesh: Mesh, repeats: Repeats, share: float, price: float) -> Outcome:
        """The best layout of a stage on a mesh, within a share of the memory: under that limit, or at a price of
        memory, where what is best without a limit fits."""
        limit = share * min(self.cluster.memory_limit(rank) for rank in mesh.ranks)
        if not price:
            return self._outcome(graph, mesh, repeats, limit, 0.0)
        answer = self.priced(graph, mesh, replace(repeats, in_flight=1), price)
        held = answer and answer.with_waiting(repeats.in_flight)
        return (held if held is not None and held.memory.total <= limit else None), 0.0

    def priced(self, graph: Graph, mesh: Mesh, repeats: Repeats, price: float) -> Answer | None:
        """The best layout of a stage on a mesh where no memory is short, but a byte that is held has a price in
        seconds."""
        return self._outcome(graph, mesh, repeats, inf, price)[0]

    def _outcome(self, graph: Graph, mesh: Mesh, repeats: Repeats, limit: float, price: float) -> Outcome:
        devices = self.cluster.devices[mesh.first : mesh.first + mesh.devices]
        places = self.cluster.places[mesh.first : mesh.first + mesh.devices]
        pattern = tuple(place - places[0] for place in places)
        where = (self._text(graph), mesh.sizes, devices, pattern, repeats)
        if (*where, limit, price) not in self.known:
            if where not in self.asked:
                self.asked[where] = ask(
                    graph, self._structure(graph), self.cluster, mesh, repeats, self.optimizer_bytes
                )
            question = self.asked[where]
            left = min(self.seconds, max(0.5, self.end - time.monotonic()))
            gap = self.gap * (FINE if price else 1.0)
            self.known[*where, limit, price] = question.answer(limit, left, gap, self.stop, price)
        answer, bound = self.known[*where, limit, price]
        if answer is None or (answer.graph is graph and answer.stage.mesh == mesh):
            return answer, bound
        return replace(answer, graph=graph, stage=carried_over(answer.stage, answer.graph, graph, mesh)), bound

    def _structure(self, graph: Graph) -> Structure:
        if id(graph) not in self.structures:
            self.structures[id(graph)] = find_structure(graph)
        return self.structures[id(graph)]

    def source(self, graph: Graph) -> int:
        """A number that graphs share exactly when they are alike."""
        return hash(self._text(graph))

    def _text(self, graph: Graph) -> str:
        if id(graph) not in self.texts:
            self.texts[id(graph)] = graph, likeness(graph)
        return self.texts[id(graph)][1]


def _total(answer: Answer, repeats: Repeats) -> float:
    return answer.seconds + (answer.gather + answer.sync) / repeats.microbatches
