"""From a pipeline that was found to a plan."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from math import inf

from hocket.cluster.types import Cluster
from hocket.graph.fingerprint import fingerprint
from hocket.graph.types import Graph
from hocket.plan.types import Plan, SearchRecord
from hocket.search.stages.auto import Search
from hocket.search.stages.given import Pipeline, Watcher, find_given, pipeline_bound
from hocket.search.stages.shape import Shape
from hocket.search.stages.solver import Solver


def plan_pipeline(
    graph: Graph,
    cluster: Cluster,
    shape: Shape,
    *,
    optimizer_bytes: float = 8.0,
    budget: float = inf,
    gap: float = 0.02,
    watcher: Watcher | None = None,
    stop: threading.Event | None = None,
    seed: int = 0,
) -> Plan:
    """The best plan found for a pipeline of a given shape; raises PlanError, ScheduleError, MemoryLimitError."""
    start = time.monotonic()
    solver = Solver(cluster, optimizer_bytes, min(5.0, budget), gap, stop or threading.Event())
    found = find_given(graph, cluster, shape, solver, watcher)
    return made_plan(graph, cluster, found, optimizer_bytes, time.monotonic() - start, seed)


def plan_best(
    graphs: Mapping[int, Graph],
    cluster: Cluster,
    *,
    optimizer_bytes: float = 8.0,
    budget: float = inf,
    gap: float = 0.02,
    watcher: Watcher | None = None,
    stop: threading.Event | None = None,
    seed: int = 0,
) -> Plan:
    """The best pipeline found; `graphs` are one microbatch each, by the number of microbatches that a step then
    has.

    Raises MemoryLimitError.
    """
    start = time.monotonic()
    solver = Solver(cluster, optimizer_bytes, min(5.0, budget), gap, stop or threading.Event())
    search = Search(graphs, cluster, solver, watcher or (lambda *_: None), start + budget)
    found = search.run()
    graph = graphs[found.shape.microbatches]
    plan = made_plan(graph, cluster, found, optimizer_bytes, time.monotonic() - start, seed)
    counts = ", ".join(map(str, graphs))
    record = replace(
        plan.search,
        searcher="stages, all shapes",
        space=f"pipelines of consecutive units on like parts of the cluster, {counts} microbatches, 1F1B or "
        "interleaved; every layout of every stage on meshes of up to two axes that follow the machines; blocks run "
        "again where memory is short",
        complete=search.complete,
        alternatives=tuple(sorted(search.alternatives, key=lambda a: a.seconds)),
    )
    return replace(plan, search=record, lower_bound=min(search.bound, plan.seconds))


def made_plan(
    graph: Graph, cluster: Cluster, found: Pipeline, optimizer_bytes: float, elapsed: float, seed: int
) -> Plan:
    """The plan of a pipeline."""
    record = SearchRecord(
        searcher="stages", space=f"every layout of every stage of {found.shape}, cut at {_cuts(found)}",
        seconds=elapsed, complete=True, seed=seed,
    )  # fmt: skip
    return Plan(
        graph=found.graph,
        cluster=cluster,
        stages=tuple(a.stage for a in found.answers),
        schedule=found.schedule,
        seconds=found.seconds,
        lower_bound=min(pipeline_bound(found), found.seconds),
        memory=found.memory,
        search=record,
        recompute=found.blocks,
        fingerprint=fingerprint(graph),
        optimizer_bytes=optimizer_bytes,
    )


def _cuts(found: Pipeline) -> str:
    return ", ".join(found.graph.operations[cut].module for cut in found.schedule.cuts) or "nothing"
