"""A pipeline whose number of stages, chunks, microbatches and kind of schedule are given: cut so that the costliest
stage costs least, devices divided evenly, every stage laid out as is best."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

from hocket.cluster.types import Cluster
from hocket.cost.compute import operation_seconds
from hocket.errors import MemoryLimitError, PlanError
from hocket.graph.assign import assign
from hocket.graph.cut import Parts, cut_graph
from hocket.graph.recompute import find_blocks, recompute
from hocket.graph.types import Graph
from hocket.pipeline.kinds import make_order
from hocket.pipeline.layers import cut_by_cost, deal_by_rank
from hocket.pipeline.order import Order
from hocket.pipeline.schedule import Schedule
from hocket.plan.types import Memory
from hocket.search.case import meshes
from hocket.search.repeats import Repeats
from hocket.search.stages.alike import carried_over, likeness
from hocket.search.stages.answer import Answer, judge_stage, solve_stage
from hocket.search.stages.shape import Shape
from hocket.search.stages.times import Pipelined, in_flight, on_the_clock
from hocket.search.stages.units import chosen, find_cuts
from hocket.sharding.mesh import Mesh

Watcher = Callable[[str, int, int, str], None]


@dataclass
class Pipeline:
    """A pipeline that was found: everything a plan says of it."""

    graph: Graph
    parts: Parts
    answers: tuple[Answer, ...]
    clock: Pipelined
    schedule: Schedule
    blocks: tuple[str, ...]
    shape: Shape

    @property
    def seconds(self) -> float:
        """Seconds of the step."""
        return self.clock.seconds

    @property
    def memory(self) -> Memory:
        """Bytes on the fullest device: of all its stages together."""
        places = self.clock.run.order.places
        ranks = [[a.memory for s, a in enumerate(self.answers) if places[s] == r] for r in set(places.values())]
        sums = [
            Memory(*(sum(getattr(m, name) for m in held) for name in
                     ("parameters", "gradients", "optimizer", "activations")))
            for held in ranks
        ]  # fmt: skip
        return max(sums, key=lambda m: m.total)


@dataclass
class Solver:
    """Finds layouts of stages, each only once."""

    cluster: Cluster
    optimizer_bytes: float
    seconds: float = 5.0
    gap: float = 0.02
    stop: threading.Event = field(default_factory=threading.Event)
    axes: int = 2
    known: dict[object, tuple[Graph, Answer | None]] = field(default_factory=dict)

    def best(self, graph: Graph, first: int, devices: int, repeats: Repeats, share: float = 1.0) -> Answer | None:
        """The best layout of a stage on some devices: over all meshes, with parameters and gradients moved once in
        a step or with every microbatch."""
        best: Answer | None = None
        for mesh in meshes(devices, self.axes):
            placed = Mesh(mesh.sizes, first)
            for once in (True, False) if repeats.microbatches > 1 else (False,):
                found = self.on(graph, placed, Repeats(repeats.microbatches, repeats.in_flight, once), share)
                if found is not None and (best is None or self._total(found, repeats) < self._total(best, repeats)):
                    best = found
        return best

    def _total(self, answer: Answer, repeats: Repeats) -> float:
        return answer.seconds + (answer.gather + answer.sync) / repeats.microbatches

    def on(self, graph: Graph, mesh: Mesh, repeats: Repeats, share: float) -> Answer | None:
        """The best layout of a stage on a mesh; what is known of a stage that is alike holds."""
        devices = tuple(self.cluster.devices[r] for r in mesh.ranks)
        places = [self.cluster.places[r] for r in mesh.ranks]
        pattern = tuple(p - places[0] for p in places)
        key = (likeness(graph), mesh.sizes, devices, pattern, repeats, share)
        if key not in self.known:
            found = solve_stage(
                graph,
                self.cluster,
                mesh,
                repeats,
                self.optimizer_bytes,
                share,
                self.seconds,
                self.gap,
                stop=self.stop,
            )
            self.known[key] = graph, found
        source, answer = self.known[key]
        if answer is None or (source is graph and answer.stage.mesh == mesh):
            return answer
        stage = carried_over(answer.stage, source, graph, mesh)
        return judge_stage(graph, stage, self.cluster, repeats, self.optimizer_bytes, bound=answer.bound)


def find_given(
    graph: Graph, cluster: Cluster, shape: Shape, solver: Solver, watcher: Watcher | None = None
) -> Pipeline:
    """The best pipeline of a given shape; blocks that repeat run their forward again where memory is short.

    Raises PlanError where devices or layers do not go round, MemoryLimitError where nothing fits.
    """
    blocks = find_blocks(graph)
    for again in dict.fromkeys(((), blocks)):
        found = _with_blocks(graph, cluster, shape, solver, again, watcher or (lambda *_: None))
        if found is not None:
            return found
    raise MemoryLimitError(
        f"{graph.name} in {shape}", "fits on the devices of each stage", "no layout of a stage that does",
        "more or other stages, more microbatches, or larger devices",
    )  # fmt: skip


def _with_blocks(
    whole: Graph, cluster: Cluster, shape: Shape, solver: Solver, blocks: tuple[str, ...], watcher: Watcher
) -> Pipeline | None:
    graph = recompute(whole, blocks)
    stages, size = shape.ranks * shape.chunks, cluster.size // shape.ranks
    if cluster.size % shape.ranks or not size:
        raise PlanError(f"{shape.ranks} stages", "divide the cluster's devices", str(cluster.size))
    cuts = stage_cuts(graph, cluster, shape)
    parts = cut_graph(graph, cuts)
    order = make_order(shape.kind, shape.ranks, shape.chunks, shape.microbatches)
    places, waiting = order.places, in_flight(order)
    answers = []
    for stage, part in enumerate(parts.graphs):
        watcher("stages", stage, stages, f"stage {stage} of {stages}")
        repeats = Repeats(shape.microbatches, waiting[stage])
        found = solver.best(part, places[stage] * size, size, repeats, 1.0 / shape.chunks)
        if found is None:
            return None
        answers.append(found)
    clock = on_the_clock(answers, parts, cluster, order)
    schedule = Schedule(order.title or shape.kind, shape.microbatches, tuple(cuts), str(order))
    return Pipeline(graph, parts, tuple(answers), clock, schedule, blocks, shape)


def stage_cuts(graph: Graph, cluster: Cluster, shape: Shape) -> tuple[int, ...]:
    """Where a graph is cut for a shape; raises ScheduleError where it has too few layers."""
    cuts = find_cuts(graph)
    if shape.layers:
        return chosen(cuts, deal_by_rank(shape.layers, shape.chunks, len(cuts) + 1))
    return chosen(cuts, cut_by_cost(costs_of_units(graph, cuts, cluster), shape.ranks * shape.chunks))


def costs_of_units(graph: Graph, cuts: Sequence[int], cluster: Cluster) -> list[float]:
    """Seconds that a single device would take for what lies between cuts, forward and backward."""
    device = cluster.devices[0]
    units = assign(graph, cuts).operations
    cost = [0.0] * (len(cuts) + 1)
    for operation, unit in zip(graph.operations, units, strict=True):
        inputs, outputs = ([graph.types[n] for n in names] for names in (operation.inputs, operation.outputs))
        cost[max(unit, 0)] += operation_seconds(operation, inputs, outputs, device)
    return cost


def pipeline_bound(pipeline: Pipeline) -> float:
    """No pipeline with these cuts and devices takes less: every stage at the bound of its layout."""
    least = [min(a.bound, a.seconds) for a in pipeline.answers]
    order: Order = pipeline.clock.run.order
    best = 0.0
    for rank in range(len(order.ranks)):
        own = [s for s, place in order.places.items() if place == rank]
        best = max(best, order.microbatches * sum(least[s] for s in own) + sum(least[: min(own)]))
    return best if best < inf else 0.0
