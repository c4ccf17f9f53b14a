"""A plan of several stages for people: what each stage does where, and the pipeline's timeline."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table

from hocket.pipeline.clock import Run, Times, run
from hocket.plan.types import Plan
from hocket.report.explain import verdicts_of
from hocket.report.schedule import timeline_text
from hocket.report.tables import certificate, facts, search_words, table, verdict_table
from hocket.report.words import cluster_words, percent, shown
from hocket.search.stages.answer import Answer
from hocket.search.stages.times import Pipelined, clock_of, in_flight
from hocket.simulate.timeline import COMPUTE, Span, Timeline
from hocket.units import format_bytes, format_seconds

COLUMNS = 80
"""Width of a pipeline's timeline."""


def pipeline_parts(plan: Plan) -> list[RenderableType]:
    """A pipeline: the step in a few lines, its stages, its timeline in units of the shortest pass."""
    answers, clock = clock_of(plan)
    others = [verdict_table(verdicts_of(plan))] if plan.search.alternatives else []
    return [_summary(plan, clock), _stages(plan, answers, clock), *others, *timeline_text(*in_units(clock, plan))]


def timeline_of(plan: Plan) -> Timeline:
    """The predicted timeline: the passes of every part of the cluster, under its first rank."""
    _, clock = clock_of(plan)
    spans = [
        Span(
            plan.stages[s.action.stage].mesh.first,
            COMPUTE,
            str(s.action),
            clock.before + s.start,
            clock.before + s.end,
        )
        for own in clock.run.spans
        for s in own
    ]
    return Timeline(tuple(spans))


def in_units(clock: Pipelined, plan: Plan) -> tuple[Run, Times]:
    """The run with whole numbers in place of seconds, so that it can be drawn in about COLUMNS columns."""
    times = clock.times
    forward, backward = _list(times.forward), _list(times.backward)
    shortest = min(x for x in (*forward, *backward) if x > 0)
    digits = len(str(plan.schedule.microbatches - 1)) + 1
    unit = max(shortest, clock.run.makespan * digits / COLUMNS)
    rounded = Times(
        [max(1, round(x / unit)) for x in forward], [max(1, round(x / unit)) for x in backward], times.inputs
    )
    return run(plan.schedule.actions(), rounded), rounded


def _list(value: float | Sequence[float]) -> list[float]:
    return list(value) if isinstance(value, Sequence) else [value]


def _summary(plan: Plan, clock: Pipelined) -> Table:
    order = clock.run.order
    idle = clock.run.worst / clock.run.makespan
    ends = f", {format_seconds(clock.before)} before and {format_seconds(clock.after)} after all microbatches"
    rows = [
        ("cluster", cluster_words(plan.cluster) + (f" ({plan.cluster.name})" if plan.cluster.name else "")),
        ("pipeline", f"{len(plan.stages)} stages on {len(order.ranks)} parts of the cluster, "
                     f"{order.microbatches} microbatches, {plan.schedule.kind}"),
        ("step", f"{format_seconds(plan.seconds)} predicted{ends if clock.before + clock.after else ''}"),
        ("idle", f"{percent(idle)} of the pipeline's time on its idlest part"),
        ("proven", certificate(plan)),
        ("memory", f"{format_bytes(plan.memory.total)} on the fullest device"),
    ]  # fmt: skip
    if plan.recompute:
        rows.append(("recompute", f"{len(plan.recompute)} blocks: {shown(plan.recompute, 3)}"))
    rows.append(("search", search_words(plan)))
    return facts(rows)


def _stages(plan: Plan, answers: Sequence[Answer], clock: Pipelined) -> Table:
    made = table(
        "Stages", ["stage", "devices", "mesh", "begins at", ">forward", ">backward", ">waiting", ">memory"],
        "waiting: microbatches that a stage holds for their backward pass at most",
    )  # fmt: skip
    waiting = in_flight(clock.run.order)
    begins = ["", *(plan.graph.operations[cut].module for cut in plan.schedule.cuts)]
    for number, answer in enumerate(answers):
        mesh = answer.stage.mesh
        ranks = f"{mesh.first}-{mesh.ranks[-1]}" if mesh.devices > 1 else str(mesh.first)
        made.add_row(
            str(number), ranks, str(mesh), begins[number] or "the beginning", format_seconds(answer.forward),
            format_seconds(answer.backward), str(waiting[number]), format_bytes(answer.memory.total),
        )  # fmt: skip
    return made
