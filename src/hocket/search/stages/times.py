"""A pipeline on the clock: stages with their seconds, what they send each other, what comes before and after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from hocket.cluster.types import Cluster
from hocket.cost.transfer import transfer_seconds
from hocket.graph.cut import Parts, cut_graph
from hocket.pipeline.bound import bound_of
from hocket.pipeline.clock import Run, Times, run
from hocket.pipeline.order import Order
from hocket.plan.types import Plan
from hocket.program.staged import find_transfers
from hocket.search.repeats import Repeats
from hocket.search.stages.answer import Answer, judge_stage


@dataclass(frozen=True)
class Pipelined:
    """A step on the clock: the run of all microbatches, the times it is made of, the seconds before and after."""

    run: Run
    times: Times
    before: float
    after: float

    @property
    def seconds(self) -> float:
        """Seconds of the step."""
        return self.before + self.run.makespan + self.after

    @property
    def least(self) -> float:
        """No order of these stages takes less."""
        return bound_of(self.run.order, self.times)


def find_times(answers: Sequence[Answer], parts: Parts, cluster: Cluster) -> tuple[Times, list[float]]:
    """The times of stages, and per stage the seconds in which it gives others what they hold too, or its
    gradient."""
    stages = [a.stage for a in answers]
    forward, back, tied = ([0.0] * len(answers) for _ in range(3))
    for transfer in find_transfers(parts, stages, cluster.places):
        seconds = transfer_seconds(
            cluster, [(p.source, p.target, p.bytes(transfer.dtype)) for p in transfer.pieces]
        )
        if transfer.tied:
            tied[transfer.source] += seconds
        elif transfer.target > transfer.source:
            forward[transfer.source] += seconds
        else:
            back[transfer.source] += seconds
    inputs = [1.0 - a.weights / a.backward if a.backward else 1.0 for a in answers]
    times = Times([a.forward for a in answers], [a.backward for a in answers], inputs, forward, back)
    return times, tied


def on_the_clock(answers: Sequence[Answer], parts: Parts, cluster: Cluster, order: Order) -> Pipelined:
    """A step with this order."""
    times, tied = find_times(answers, parts, cluster)
    timed = run(order, times)
    after = 0.0
    for rank, spans in enumerate(timed.spans):
        own = [s for s, place in order.places.items() if place == rank]
        late = sum(answers[s].sync + tied[s] for s in own)
        after = max(after, spans[-1].end + late - timed.makespan)
    before = max(sum(answers[s].gather for s, p in order.places.items() if p == r) for r in range(len(order.ranks)))
    return Pipelined(timed, times, before, after)


def in_flight(order: Order) -> dict[int, int]:
    """Per stage the most microbatches that wait for their backward pass at once."""
    now: Counter[int] = Counter()
    most: dict[int, int] = {}
    for todo in order.ranks:
        for action in todo:
            if action.kind == "F":
                now[action.stage] += 1
            elif action.kind in ("B", "W"):
                now[action.stage] -= 1
            most[action.stage] = max(most.get(action.stage, 0), now[action.stage])
    return most


def clock_of(plan: Plan) -> tuple[tuple[Answer, ...], Pipelined]:
    """The stages of a plan, judged, and its step on the clock."""
    order = plan.schedule.actions()
    parts = cut_graph(plan.graph, plan.schedule.cuts, plan.schedule.halved)
    waiting = in_flight(order)
    answers = tuple(
        judge_stage(
            graph, stage, plan.cluster, Repeats(order.microbatches, waiting[number], bool(stage.working)),
            plan.optimizer_bytes,
        )
        for number, (graph, stage) in enumerate(zip(parts.graphs, plan.stages, strict=True))
    )  # fmt: skip
    return answers, on_the_clock(answers, parts, plan.cluster, order)
