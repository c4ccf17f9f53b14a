"""From a pipeline that was found to a plan."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from hocket.cluster.types import Cluster
from hocket.graph.fingerprint import fingerprint
from hocket.graph.types import Graph
from hocket.plan.types import Plan, SearchRecord
from hocket.search.stages.auto import Search
from hocket.search.stages.given import Pipeline, Watcher, find_given, pipeline_bound
from hocket.search.stages.shape import Shape
from hocket.search.stages.solver import Solver

MOST_SECONDS = 5.0
"""Longest time for one layout of one stage."""


@dataclass(frozen=True)
class Terms:
    """On what terms a pipeline is searched: bytes of optimizer state per trained element, longest time, how near to
    its bound every layout must come, who is told, what stops it."""

    optimizer_bytes: float = 8.0
    budget: float = inf
    gap: float = 0.02
    watcher: Watcher = lambda *_: None
    stop: threading.Event = field(default_factory=threading.Event)
    seed: int = 0

    def solver(self, cluster: Cluster) -> Solver:
        """What finds the layouts of stages, from now on."""
        end = time.monotonic() + self.budget
        return Solver(cluster, self.optimizer_bytes, MOST_SECONDS, self.gap, self.stop, end=end)


def plan_pipeline(graph: Graph, cluster: Cluster, shape: Shape, terms: Terms) -> Plan:
    """The best plan found for a pipeline of a given shape; raises PlanError, ScheduleError, MemoryLimitError."""
    solver, start = terms.solver(cluster), time.monotonic()
    found = find_given(graph, cluster, shape, solver, terms.watcher)
    again = "all" if found.blocks else "no"
    record = SearchRecord(
        searcher="stages",
        space=f"every layout of every stage of {found.shape}, cut at {_cuts(found)}; {again} blocks recomputed",
        seconds=time.monotonic() - start,
        complete=not solver.over,
        seed=terms.seed,
    )
    return _made(graph, cluster, found, record, pipeline_bound(found, cluster), terms)


def plan_best(graphs: Mapping[int, Graph], cluster: Cluster, terms: Terms) -> Plan:
    """The best pipeline found; `graphs` are one microbatch each, by the number of microbatches that a step then
    has. Raises MemoryLimitError."""
    start = time.monotonic()
    search = Search(graphs, cluster, terms.solver(cluster), terms.watcher)
    found = search.run()
    counts = ", ".join(map(str, graphs))
    record = SearchRecord(
        searcher="stages, all shapes",
        space=f"pipelines of consecutive units on parts of the cluster of one size, {counts} microbatches, any "
        "schedule with whole backward passes",
        seconds=time.monotonic() - start,
        complete=search.complete,
        alternatives=tuple(sorted(search.alternatives, key=lambda a: a.seconds)),
        seed=terms.seed,
    )
    return _made(graphs[found.shape.microbatches], cluster, found, record, search.bound, terms)


def _made(
    graph: Graph, cluster: Cluster, found: Pipeline, record: SearchRecord, bound: float, terms: Terms
) -> Plan:
    """The plan of a pipeline."""
    return Plan(
        graph=found.graph,
        cluster=cluster,
        stages=tuple(a.stage for a in found.answers),
        schedule=found.schedule,
        seconds=found.seconds,
        lower_bound=min(bound, found.seconds),
        memory=found.memory,
        search=record,
        recompute=found.blocks,
        fingerprint=fingerprint(graph),
        optimizer_bytes=terms.optimizer_bytes,
    )


def _cuts(found: Pipeline) -> str:
    return ", ".join(found.graph.operations[cut].module for cut in found.schedule.cuts) or "nothing"
