"""`hocket plan`: find the best plan, show it, save it, hold it against layouts picked by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hocket.cli.options import ModelOptions, read_cluster, read_model, read_seconds, read_share, read_shares
from hocket.cli.progress import screen, watched
from hocket.errors import PlanError
from hocket.plan.types import Alternative, Plan

if TYPE_CHECKING:
    from hocket.cluster.types import Cluster
    from hocket.graph.types import Graph

Model = Annotated[str, typer.Argument(help="hf:NAME (as hf:gpt2), tiny:NAME, or file.py:function", metavar="MODEL")]
Batch = Annotated[int, typer.Option(min=1, help="Samples in a microbatch, of all devices together.")]
Sequence_ = Annotated[int | None, typer.Option("--sequence", min=1, help="Tokens per sample.")]
Layers = Annotated[int | None, typer.Option(min=1, help="Number of layers, instead of the model's own.")]
Dtype = Annotated[str, typer.Option(help="Element type of the parameters, as bfloat16.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="A value of the model's configuration, as hidden=1024.")
]
ClusterText = Annotated[
    str, typer.Option("--cluster", "-c", help="A file, local:4, H100x8, or H100x2x8 (2 machines of 8).")
]
Network = Annotated[str, typer.Option(help="Bandwidth between machines, as '100 Gbit/s'.")]

FAMILY = (2, 3)
"""Batch sizes for which a step is captured where any number of samples is to be planned for."""


def plan(
    model: Model,
    cluster: ClusterText,
    batch: Batch = 8,
    sequence: Sequence_ = None,
    layers: Layers = None,
    dtype: Dtype = "float32",
    settings: Settings = None,
    network: Network = "",
    calibration: Annotated[
        Path | None, typer.Option(help="What `hocket probe` measured (local: clusters).")
    ] = None,
    microbatches: Annotated[int, typer.Option("--microbatches", "-m", min=1, help="Microbatches in a step.")] = 1,
    budget: Annotated[str, typer.Option(help="Longest time to search, as 10s or '2 min'.")] = "",
    search: Annotated[str, typer.Option(help="auto, ilp, greedy, exhaustive or astar.")] = "auto",
    like: Annotated[
        list[str] | None,
        typer.Option(help="Also judge a layout picked by hand, as tp=2,dp=2,zero=3 (also ep=1, tag=1)."),
    ] = None,
    pin: Annotated[
        list[str] | None,
        typer.Option(help="Keep a layout (h.*.c_fc.weight=split(0)) or the mesh (mesh=4x2)."),
    ] = None,
    shares: Annotated[
        str, typer.Option(help="What each device gets of the work, as 0.5,0.3,0.2 (or each machine).")
    ] = "",
    gap: Annotated[str, typer.Option(help="Stop when proven to be this near to the best.")] = "2%",
    optimizer: Annotated[str, typer.Option(help="sgd, momentum, adam or adam-mixed (its memory).")] = "adam",
    seed: Annotated[int, typer.Option(help="Seed of searchers that draw.")] = 0,
    pipeline: Annotated[
        str, typer.Option(help="Cut the model into stages: auto, or as stages=4,chunks=2,kind=vpp.")
    ] = "",
    samples: Annotated[
        int | None,
        typer.Option(min=1, help="Samples in a step, whose microbatches are searched (with --pipeline auto)."),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the plan to this file.")] = None,
) -> None:
    """Find the best plan for a model on a cluster, with a proof of how good it is."""
    seconds = read_seconds(budget, "budget") if budget else inf
    share = read_share(gap, "gap")
    fractions = read_shares(shares)
    machines = read_cluster(cluster, network, calibration)
    check_like(like or [], machines)
    options = ModelOptions(batch, sequence, layers, dtype, settings or [])
    terms = {"budget": seconds, "gap": share, "optimizer": optimizer, "seed": seed}
    if samples is not None:
        check_samples(pipeline, like or [], pin or [], fractions)
        _finish(_best_step(model, options, samples, machines, **terms), [], output)
        return
    terms |= {"search": search, "pins": pin or [], "microbatches": microbatches}
    graph = captured(model, options)

    def find(title: str, like: str = "") -> Plan:
        own = {"like": like} if like else {"shares": fractions, "pipeline": pipeline}
        return _searched(title, graph, machines, {**terms, **own})

    best = find("planning")
    others = _picked(like or [], find)
    _finish(with_better(best, others), others, output)


def _searched(title: str, graph: Graph, machines: Cluster, terms: dict[str, Any]) -> Plan:
    """The plan that the search finds, watched on the terminal; raises what planning raises."""

    def work(watcher: Any, stop: Any) -> Plan:
        from hocket import api

        return api.plan(graph, machines, watcher=watcher, stop=stop, **terms)

    return watched(title, work)


def _finish(best: Plan, others: Sequence[tuple[str, Plan | str]], output: Path | None) -> None:
    """Write a plan, and show it."""
    if output is not None:
        best.save(output)
    show(best, others)
    if output is not None:
        screen().print(f"written to {output}; see hocket explain {output}", soft_wrap=True)


def check_samples(pipeline: str, *others: Sequence[object]) -> None:
    """Raise PlanError where samples of a step are given to something else than a search for pipelines."""
    if pipeline != "auto" or any(others):
        rule = "goes with --pipeline auto, without --like, --pin and --shares"
        raise PlanError(
            "--samples", rule, pipeline or "no pipeline", "give --batch and --microbatches in its place"
        )


def _best_step(model: str, options: ModelOptions, samples: int, machines: Cluster, **terms: Any) -> Plan:
    """The best pipeline for a step of so many samples; raises what capturing and planning raise."""
    from hocket.graph.scale import Family

    one, two = (captured(model, replace(options, batch=batch)) for batch in FAMILY)
    family = Family(one, two, *FAMILY)

    def work(watcher: Any, stop: Any) -> Plan:
        from hocket import api

        return api.plan_step(family, samples, machines, watcher=watcher, stop=stop, **terms)

    return watched("planning", work)


def show(best: Plan, others: Sequence[tuple[str, Plan | str]]) -> None:
    """Print a plan, and what it is held against."""
    from hocket.report.compare import comparison_parts
    from hocket.report.explain import build_explanation
    from hocket.report.pipeline import pipeline_parts
    from hocket.report.tables import plan_parts

    parts = pipeline_parts(best) if best.staged else plan_parts(build_explanation(best, flips=False))
    console = screen()
    for part in [*parts, *(comparison_parts(best, others) if others else [])]:
        console.print(part)


def with_better(best: Plan, others: Sequence[tuple[str, Plan | str]]) -> Plan:
    """The fastest of the plans: a layout picked by hand can beat a search that had too little time.

    Keeps the bound of the whole search, which holds for these layouts too, and its record.
    """
    plans = [(text, plan) for text, plan in others if not isinstance(plan, str)]
    text, fastest = min(plans, key=lambda pair: pair[1].seconds, default=("", best))
    if fastest.seconds >= best.seconds:
        return best
    lost = Alternative(
        "what the search found",
        best.seconds / best.schedule.microbatches,
        0.0,
        "slower",
        None if best.staged else best.stage,
    )
    record = replace(
        best.search,
        searcher=f"{best.search.searcher}, then {text} as picked by hand",
        alternatives=(lost, *best.search.alternatives),
    )
    return replace(fastest, lower_bound=min(best.lower_bound, fastest.seconds), search=record)


def _picked(like: list[str], find: Callable[[str, str], Plan]) -> list[tuple[str, Plan | str]]:
    """Plans of layouts picked by hand, or why one has none."""
    from hocket.errors import MemoryLimitError

    found: list[tuple[str, Plan | str]] = []
    for text in like:
        try:
            found.append((text, find(f"planning {text}", text)))
        except MemoryLimitError as error:
            found.append((text, error.values))
    return found


def check_like(texts: list[str], machines: Cluster) -> None:
    """Raise PlanError for a layout picked by hand that cannot be on so many devices."""
    from hocket.search.known import Known

    for text in texts:
        Known.parse(text, machines.size)


def captured(model: str, options: ModelOptions) -> Graph:
    """The graph of a model by name; raises CaptureError."""

    def work(*_: object) -> Graph:
        from hocket import api

        module, sample = read_model(model, options)
        return api.capture(module, sample)

    return watched(f"capturing {model}", work)
