"""One stage on one mesh: its best layout, and what that takes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np
from numpy.typing import NDArray

from hocket.cluster.types import Cluster
from hocket.cost.collective import LINK_SHARE
from hocket.cost.prices import MeshPrices
from hocket.graph.types import Graph
from hocket.plan.types import Memory, Stage
from hocket.program.blueprint import blueprint
from hocket.program.liveness import waiting_bytes
from hocket.program.staged import staged_memory
from hocket.program.types import Program
from hocket.search.anytime import solve_model
from hocket.search.builder import build_problem
from hocket.search.cones import build_cones
from hocket.search.judge import stage_programs
from hocket.search.model import MEMORY, WORK
from hocket.search.problem import Problem
from hocket.search.repeats import Repeats
from hocket.search.structure import Structure
from hocket.sharding.layout import shards
from hocket.sharding.mesh import Mesh
from hocket.simulate.engine import simulate

ATTEMPTS = 4
"""Most solutions of one stage that are judged until one fits."""


@dataclass(frozen=True)
class Answer:
    """A stage on its mesh, judged: seconds of its passes on one microbatch (`weights` is the second half of
    `backward`), seconds before and after all of them, memory on the fullest device, and a bound on forward and
    backward together."""

    graph: Graph
    stage: Stage
    forward: float
    backward: float
    weights: float
    gather: float
    sync: float
    memory: Memory
    waiting: int
    bound: float

    @property
    def seconds(self) -> float:
        """Seconds of a microbatch."""
        return self.forward + self.backward

    def with_waiting(self, in_flight: int) -> Answer:
        """The same where so many microbatches wait, in place of one."""
        more = (in_flight - 1) * self.waiting
        return replace(self, memory=replace(self.memory, activations=self.memory.activations + more))

    def held_by(self, units: float, in_flight: int) -> float:
        """Bytes that a stage of so many such units holds, of which one runs at a time."""
        memory = self.memory
        always = memory.parameters + memory.gradients + memory.optimizer + in_flight * self.waiting
        return units * always + max(0, memory.activations - self.waiting)


@dataclass(frozen=True)
class Question:
    """A stage on a mesh, ready to be laid out."""

    graph: Graph
    cluster: Cluster
    repeats: Repeats
    optimizer_bytes: float
    problem: Problem

    def answer(
        self, limit: float, seconds: float, gap: float, stop: threading.Event | None = None, price: float = 0.0
    ) -> tuple[Answer | None, float]:
        """The best layout found under a limit of bytes per device (None where there is none), and a bound on all.

        A byte held where the forward pass ends costs `price` seconds more, and what other stages send the time that
        it takes them; both count for nothing but the choice.
        """
        problem = self.problem
        nodes = [costs.copy() for costs in problem.model.nodes]
        for costs in nodes if price else ():
            costs[WORK] += price * costs[MEMORY]
        most = 0.0
        for number, extra in given_seconds(self.graph, problem, self.cluster).items():
            nodes[number][WORK] += extra
            most += float(extra.max())
        cones = build_cones(replace(problem.model, nodes=nodes, limit=limit, seen=[], least=0.0), problem.wishes)
        bound = 0.0
        for attempt in range(ATTEMPTS):
            solution = solve_model(cones.model, seconds, gap, inf, stop)
            if attempt == 0 and not price:
                bound = max(0.0, solution.bound - most)
            if solution.choice is None:
                return None, bound
            stage = problem.stage(cones.expand(solution.choice))
            args = (self.graph, stage, self.cluster, self.repeats, self.optimizer_bytes, problem.prices)
            answer = judge_stage(*args, bound=bound)
            excess = answer.memory.total - limit
            if excess <= 0:
                return answer, bound
            cones.model.limit -= 1.1 * excess
        return None, bound


def given_seconds(graph: Graph, problem: Problem, cluster: Cluster) -> dict[int, NDArray[np.float64]]:
    """Per node that decides how what other stages send is received, the seconds that each layout takes to
    arrive."""
    mesh = problem.mesh
    beyond = mesh.devices >= min(m.count for m in cluster.machines)
    far = beyond and len(cluster.machines) > 1
    link = cluster.network if far else cluster.machines[cluster.places[mesh.first]].link
    together = Counter(cluster.places[rank] for rank in mesh.ranks)
    sharing = max(together.values()) if link.per == "machine" else 1
    given = {entry.name for entry in graph.given}
    found = {}
    for number, node in enumerate(problem.nodes):
        if node.kind == "stored" and node.members[0] in given:
            size = sum(graph.types[name].bytes for name in node.members)
            shares = [1 / shards(layout, mesh) for layout in node.options]  # type: ignore[arg-type]
            found[number] = np.array(shares) * size * sharing / (link.bandwidth * LINK_SHARE)
    return found


def ask(
    graph: Graph, structure: Structure, cluster: Cluster, mesh: Mesh, repeats: Repeats, optimizer_bytes: float
) -> Question:
    """The question how a stage is laid out best on a mesh."""
    problem = build_problem(
        graph, mesh, MeshPrices(cluster, mesh), inf, optimizer_bytes, structure=structure, repeats=repeats
    )
    return Question(graph, cluster, repeats, optimizer_bytes, problem)


def judge_stage(
    graph: Graph,
    stage: Stage,
    cluster: Cluster,
    repeats: Repeats,
    optimizer_bytes: float,
    prices: MeshPrices | None = None,
    bound: float = 0.0,
) -> Answer:
    """What a stage takes, by simulating one rank of every kind."""
    prices = prices or MeshPrices(cluster, stage.mesh)
    plan = blueprint(graph, stage, prices)
    ranks = stage.unlike_ranks(cluster.devices)
    programs = [stage_programs(plan, rank, prices) for rank in ranks]
    memories = [staged_memory(p, repeats.in_flight, repeats.microbatches, optimizer_bytes) for p in programs]
    forward, backward, weights = pass_seconds([p.run for p in programs], cluster.overlap)
    return Answer(
        graph, stage, forward, backward, weights,
        once_seconds([p.gather for p in programs], cluster.overlap),
        once_seconds([p.sync for p in programs], cluster.overlap),
        max(memories, key=lambda m: m.total), max(waiting_bytes(p.run) for p in programs), bound,
    )  # fmt: skip


def pass_seconds(programs: Sequence[Program], overlap: float) -> tuple[float, float, float]:
    """Seconds of the forward pass, of the backward pass, and of the part of that which makes weights' gradients."""
    ends = []
    for last in (1, 2, 3):
        cut = [replace(p, instructions=p.instructions[: p.edges[last]]) for p in programs]
        ends.append(simulate(cut, overlap).seconds)
    return ends[0], ends[2] - ends[0], ends[2] - ends[1]


def once_seconds(programs: Sequence[Program | None], overlap: float) -> float:
    """Seconds of what is done once in a step."""
    there = [p for p in programs if p is not None]
    return simulate(there, overlap).seconds if there else 0.0
