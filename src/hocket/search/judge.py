"""The one judge: whatever a searcher believed, its stage is lowered, bundled and simulated."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from hocket.cluster.types import Cluster
from hocket.cost.prices import BUCKET_BYTES, MeshPrices
from hocket.graph.types import Graph
from hocket.plan.types import Memory, Stage
from hocket.program.blueprint import Blueprint, blueprint
from hocket.program.bundle import bundle
from hocket.program.liveness import memory_of, with_frees
from hocket.program.lower import lower, lower_moves
from hocket.program.staged import StagePrograms, gradient_layouts
from hocket.program.types import Program
from hocket.simulate.engine import simulate
from hocket.simulate.timeline import Timeline


@dataclass(frozen=True)
class Judgement:
    """What a stage takes: its timeline on one rank of every kind, and memory on the fullest of them."""

    programs: tuple[Program, ...]
    timeline: Timeline
    memory: Memory
    excess: int

    @cached_property
    def seconds(self) -> float:
        """Predicted step time."""
        return self.timeline.seconds

    @property
    def fits(self) -> bool:
        """Whether every device has the memory."""
        return self.excess <= 0


def judge(
    graph: Graph, stage: Stage, cluster: Cluster, optimizer_bytes: float, prices: MeshPrices | None = None
) -> Judgement:
    """Judge a stage on a cluster: one rank per kind of device stands for all of its kind."""
    prices = prices or MeshPrices(cluster, stage.mesh)
    plan = blueprint(graph, stage, prices)
    programs = tuple(finish(plan, rank, prices) for rank in stage.unlike_ranks(cluster.devices))
    memories = [memory_of(p, optimizer_bytes) for p in programs]
    excess = max(m.total - cluster.memory_limit(p.rank) for m, p in zip(memories, programs, strict=True))
    fullest = max(memories, key=lambda m: m.total)
    return Judgement(programs, simulate(programs, cluster.overlap), fullest, excess)


def finish(plan: Blueprint, rank: int, prices: MeshPrices) -> Program:
    """One rank's program as it runs: lowered, communication bundled and moved, values freed."""
    return with_frees(bundle(lower(plan, rank), prices.collective, BUCKET_BYTES))


def stage_programs(plan: Blueprint, rank: int, prices: MeshPrices) -> StagePrograms:
    """One rank's programs of a stage that runs for several microbatches, as they run."""
    run, stage, graph = finish(plan, rank, prices), plan.stage, plan.graph
    if not stage.working:
        return StagePrograms(run)
    names = [entry.name for entry in graph.parameters]
    made = gradient_layouts(plan)
    before = [(name, stage.stored[name], stage.working[name]) for name in names]
    after = [(name, made[value], stage.stored[name]) for name, value in graph.gradients]
    gather, sync = (with_frees(bundle(lower_moves(plan, rank, moves), prices.collective, BUCKET_BYTES))
                    for moves in (before, after))  # fmt: skip
    return StagePrograms(run, gather, sync)
