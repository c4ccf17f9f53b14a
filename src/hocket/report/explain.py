"""Why a plan is as it is: first as plain data, then as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from hocket.cost.prices import MeshPrices
from hocket.plan.types import Alternative, Plan
from hocket.program.blueprint import blueprint
from hocket.program.types import Program
from hocket.report.clock import Share, Traffic, compute_shares, exposed_total, traffic_shares
from hocket.report.flip import Flip, find_flips
from hocket.report.layers import Layer, find_layers
from hocket.search.judge import finish
from hocket.simulate.engine import simulate
from hocket.simulate.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Verdict:
    """A plan that was not chosen: seconds of a step, how much slower (a share), or why not."""

    title: str
    seconds: float
    slower: float
    reason: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything that is told of a plan.

    `work` and `traffic` are of the rank whose part of the step takes longest to compute; `exposed` its
    seconds without computation; all are of one microbatch.
    """

    plan: Plan
    layers: tuple[Layer, ...]
    verdicts: tuple[Verdict, ...]
    work: tuple[Share, ...]
    traffic: tuple[Traffic, ...]
    exposed: float
    microbatch: float
    flips: tuple[Flip, ...]


def build_explanation(plan: Plan, others: Sequence[Alternative] = (), flips: bool = True) -> Explanation:
    """Gather what is told of a plan; `others` are alternatives judged in addition, in seconds per step."""
    programs, timeline = predict(plan)
    rank = max(timeline.ranks, key=lambda r: timeline.busy(r, "compute"), default=plan.stage.mesh.first)
    program = next(p for p in programs if p.rank == rank)
    return Explanation(
        plan=plan,
        layers=find_layers(plan),
        verdicts=verdicts_of(plan, others),
        work=compute_shares(timeline, rank),
        traffic=traffic_shares(plan, program, timeline),
        exposed=exposed_total(timeline, rank),
        microbatch=timeline.seconds,
        flips=find_flips(plan, others) if flips else (),
    )


def predict(plan: Plan, ranks: Sequence[int] | None = None) -> tuple[list[Program], Timeline]:
    """Programs and predicted timeline of a microbatch: of one rank per kind of device, or of `ranks`."""
    stage = plan.stage
    if ranks is None:
        kinds = {plan.cluster.devices[rank]: rank for rank in reversed(stage.mesh.ranks)}
        ranks = sorted(kinds.values())
    prices = MeshPrices(plan.cluster, stage.mesh)
    prepared = blueprint(plan.graph, stage, prices)
    programs = [finish(prepared, rank, prices) for rank in ranks]
    return programs, simulate(programs, plan.cluster.overlap)


def verdicts_of(plan: Plan, others: Sequence[Alternative] = ()) -> tuple[Verdict, ...]:
    """Alternatives by time, those without one last; seconds of the search are of one microbatch, of a pipeline of a
    step."""
    times = 1 if plan.staged else plan.schedule.microbatches
    known = [(a, a.seconds * times) for a in plan.search.alternatives] + [(a, a.seconds) for a in others]
    verdicts = []
    for alternative, seconds in known:
        slower = seconds / plan.seconds - 1 if seconds < inf and plan.seconds > 0 else inf
        verdicts.append(Verdict(alternative.title, seconds, slower, alternative.reason))
    return tuple(sorted(verdicts, key=lambda v: v.seconds))


def explain(plan: Plan, flips: bool = True) -> str:
    """Why these layouts, as text of 100 columns."""
    from hocket.report.tables import as_text, explanation_parts

    return as_text(explanation_parts(build_explanation(plan, flips=flips)))
