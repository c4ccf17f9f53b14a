"""`hocket explain` and `hocket simulate`: why a plan is as it is, and its predicted timeline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hocket.cli.options import read_seconds
from hocket.cli.progress import screen, watched

if TYPE_CHECKING:
    from hocket.plan.types import Plan

PlanFile = Annotated[Path, typer.Argument(help="A file that `hocket plan -o` wrote.", metavar="PLAN")]


def explain(
    plan: PlanFile,
    parameter: Annotated[
        str, typer.Option("--parameter", "-p", help="Price every other layout of the parameters so named.")
    ] = "",
    known: Annotated[
        bool, typer.Option("--known/--no-known", help="Judge the layouts that people pick by hand, too.")
    ] = True,
    budget: Annotated[str, typer.Option(help="Longest time for those, as 10s.")] = "20s",
) -> None:
    """Say why these layouts: the alternatives, where time and memory go, what would change the choice."""
    from hocket.plan.file import load_plan
    from hocket.report.explain import build_explanation
    from hocket.report.tables import explanation_parts

    loaded = load_plan(plan)
    console = screen()
    if loaded.staged:
        from hocket.report.pipeline import pipeline_parts

        parts = watched("explaining", lambda *_: pipeline_parts(loaded))
    elif parameter:
        from hocket.report.parameter import parameter_parts

        parts = watched("pricing layouts", lambda *_: parameter_parts(loaded, parameter))
    else:
        from hocket.report.known import known_alternatives

        seconds = read_seconds(budget, "budget")
        others = (
            watched(
                "judging known layouts",
                lambda watcher, stop: known_alternatives(loaded, seconds, watcher, stop),
            )
            if known
            else ()
        )
        parts = watched("explaining", lambda *_: explanation_parts(build_explanation(loaded, others)))
    for part in parts:
        console.print(part)


def simulate(
    plan: PlanFile,
    trace: Annotated[
        Path | None, typer.Option("--trace", "-t", help="Write a trace that ui.perfetto.dev opens.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Simulate every rank, not one per kind.")] = False,
) -> None:
    """Show the predicted timeline of a plan."""
    from hocket.plan.file import load_plan
    from hocket.report.explain import predict
    from hocket.report.streams import stream_parts
    from hocket.report.trace import write_trace

    loaded = load_plan(plan)
    if loaded.staged:
        _simulate_pipeline(loaded, trace)
        return
    ranks = list(loaded.stage.mesh.ranks) if every else None
    _, timeline = watched("simulating", lambda *_: predict(loaded, ranks))
    console = screen()
    for part in stream_parts(loaded, timeline):
        console.print(part)
    if trace is not None:
        write_trace(timeline, trace)
        console.print(f"trace written to {trace}; open it in ui.perfetto.dev", soft_wrap=True)


def _simulate_pipeline(plan: Plan, trace: Path | None) -> None:
    """The timeline of a plan of several stages: every pass of every part of the cluster."""
    from hocket.report.pipeline import pipeline_parts, timeline_of
    from hocket.report.trace import write_trace

    console = screen()
    for part in watched("simulating", lambda *_: pipeline_parts(plan)):
        console.print(part)
    if trace is not None:
        write_trace(timeline_of(plan), trace)
        console.print(f"trace written to {trace}; open it in ui.perfetto.dev", soft_wrap=True)
