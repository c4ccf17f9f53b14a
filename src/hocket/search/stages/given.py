"""A pipeline whose number of stages, chunks, microbatches and kind of schedule are given: cut so that the costliest
stage costs least, devices divided evenly, every stage laid out as is best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hocket.cluster.types import Cluster
from hocket.errors import MemoryLimitError, PlanError
from hocket.graph.assign import assign
from hocket.graph.cut import Parts, cut_graph
from hocket.graph.types import Graph
from hocket.pipeline.kinds import make_order
from hocket.pipeline.layers import balance_ranks, deal_by_rank
from hocket.pipeline.schedule import Schedule
from hocket.plan.types import Memory
from hocket.search.repeats import Repeats
from hocket.search.stages.answer import Answer
from hocket.search.stages.cells import Units
from hocket.search.stages.floors import Fastest
from hocket.search.stages.shape import Shape
from hocket.search.stages.solver import Solver, Way
from hocket.search.stages.times import Pipelined, in_flight, on_the_clock
from hocket.search.stages.units import chosen

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

    def fits(self, cluster: Cluster) -> bool:
        """Whether every rank has the memory for all its stages together."""
        size = cluster.size // self.shape.ranks
        limits = [min(cluster.memory_limit(r * size + i) for i in range(size)) for r in range(self.shape.ranks)]
        return all(m.total <= limit for m, limit in zip(self.memories, limits, strict=True))

    @property
    def memory(self) -> Memory:
        """Bytes on the fullest device: of all its stages together."""
        return max(self.memories, key=lambda m: m.total)

    @property
    def memories(self) -> list[Memory]:
        """The same per rank along the pipeline."""
        places = self.clock.run.order.places
        ranks = [[a.memory for s, a in enumerate(self.answers) if places[s] == r] for r in range(self.shape.ranks)]
        names = ("parameters", "gradients", "optimizer", "activations")
        return [Memory(*(sum(getattr(m, name) for m in held) for name in names)) for held in ranks]


def find_given(
    graph: Graph, cluster: Cluster, shape: Shape, solver: Solver, watcher: Watcher | None = None
) -> Pipeline:
    """The best pipeline of a given shape; blocks that repeat run their forward again where memory is short.

    Raises PlanError where devices do not go round, ScheduleError where layers do not, MemoryLimitError where
    nothing fits.
    """
    if cluster.size % shape.ranks or cluster.size < shape.ranks:
        divisors = ", ".join(str(n) for n in range(1, cluster.size + 1) if cluster.size % n == 0)
        repair = f"{divisors} stages" if cluster.size <= 64 else "another number of stages"
        raise PlanError(f"{shape.ranks} stages", "divide the cluster's devices", f"{cluster.size} devices", repair)
    units = Units(graph)
    fastest = Fastest(cluster)
    for again in (False, True) if units.blocks else (False,):
        costs = costs_of_units(units.graphs[again], units.cuts[again], fastest)
        if shape.layers:
            sizes = deal_by_rank(shape.layers, shape.chunks, units.count)
        else:
            sizes = balance_ranks(costs, shape.ranks, shape.chunks)
        found = lay_out(units, again, shape, sizes, solver, watcher=watcher)
        if found is not None:
            return found
    raise MemoryLimitError(
        f"{graph.name} in {shape}", "fits on the devices of each stage", "no layout of a stage that does",
        "more or other stages, more microbatches, or larger devices",
    )  # fmt: skip


def lay_out(
    units: Units,
    again: bool,
    shape: Shape,
    sizes: Sequence[int],
    solver: Solver,
    ways: Sequence[Sequence[Way]] = (),
    watcher: Watcher | None = None,
) -> Pipeline | None:
    """The pipeline with so many units per stage, every stage laid out as is best (in its `ways`, where given); None
    where it does not fit."""
    graph, cluster = units.graphs[again], solver.cluster
    cuts, size = chosen(units.cuts[again], sizes), cluster.size // shape.ranks
    order = make_order(shape.kind, shape.ranks, shape.chunks, shape.microbatches)
    schedule = Schedule(order.title or shape.kind, shape.microbatches, tuple(cuts), str(order))
    parts = cut_graph(graph, cuts, schedule.halved)
    places, waiting = order.places, in_flight(order)
    for share in dict.fromkeys((1.0, 1.0 / shape.chunks)):
        answers = []
        for stage, part in enumerate(parts.graphs):
            if watcher is not None:
                watcher("stages", stage, len(parts.graphs), f"stage {stage} of {len(parts.graphs)}")
            repeats = Repeats(shape.microbatches, waiting[stage])
            own = ways[stage] if ways else ()
            found = solver.best(part, places[stage] * size, size, repeats, share, own)
            if found is not None:
                answers.append(found)
        if len(answers) < len(parts.graphs):
            return None
        blocks = units.blocks if again else ()
        clock = on_the_clock(answers, parts, cluster, order)
        made = Pipeline(graph, parts, tuple(answers), clock, schedule, blocks, shape)
        if made.fits(cluster):
            return made
    return None


def costs_of_units(graph: Graph, cuts: Sequence[int], fastest: Fastest) -> list[float]:
    """Seconds that a single device would take for what lies between cuts, forward and backward."""
    cost = [0.0] * (len(cuts) + 1)
    for seconds, unit in zip(fastest.operations(graph), assign(graph, cuts).operations, strict=True):
        cost[max(unit, 0)] += seconds
    return cost


def pipeline_bound(pipeline: Pipeline, cluster: Cluster) -> float:
    """No pipeline with these cuts and devices takes less: a rank's stages at the bounds of their layouts for every
    microbatch, after one has come through the stages before, whose work is divided by all their devices. Where
    backward passes are halved, only the former: gradients of weights may be left for later."""
    shape, fastest = pipeline.shape, Fastest(cluster)
    least = [min(a.bound, a.seconds) for a in pipeline.answers]
    alone = [sum(fastest.operations(a.graph)) / a.stage.mesh.devices for a in pipeline.answers]
    best = 0.0
    for rank in range(shape.ranks):
        own = [s for s, place in pipeline.clock.run.order.places.items() if place == rank]
        ahead = 0.0 if pipeline.schedule.halved else sum(alone[: min(own)])
        best = max(best, shape.microbatches * sum(least[s] for s in own) + ahead)
    return best
