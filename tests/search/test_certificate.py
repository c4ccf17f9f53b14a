"""The model is a bound of the judge: rows against program sums, folded against unfolded, cones against none."""

from __future__ import annotations

from functools import cache
from math import inf

import numpy as np
import pytest
from worlds import cluster_of, experts, perceptron, words

from hocket.capture import capture
from hocket.capture.models import load_model, tiny
from hocket.cluster.types import Cluster
from hocket.cost.prices import MeshPrices
from hocket.graph.recompute import find_blocks, recompute
from hocket.graph.types import Graph
from hocket.program.types import Collective, Compute, Program
from hocket.search.anytime import solve_model
from hocket.search.builder import build_problem
from hocket.search.cones import build_cones
from hocket.search.judge import judge
from hocket.search.model import BACKWARD, ROWS, TIMES, TRAFFIC, WORK, Model, held_of, time_of
from hocket.search.problem import Problem
from hocket.sharding.mesh import Mesh

CPUS = {
    "format": "hocket-cluster/1",
    "machines": [{"name": "m", "device": "CPU", "count": 2, "machines": 2}],
    "network": "1 GB/s",
    "overlap": 0.3,
}
CLUSTERS = {
    "fast": cluster_of(4),
    "slow": cluster_of(4, link="2GB/s", latency=20e-6),
    "cpus": Cluster.from_dict(CPUS),
}

SLACK = 1e-6
"""Relative: the solver's own tolerance, and the picosecond that a step without communication is given."""


@cache
def graph_of(name: str) -> Graph:
    if name == "perceptron":
        return capture(*perceptron(64, 128, 256, layers=2))
    if name == "experts":
        return capture(*experts(4, 8, 16, 32, 4, 4))
    if name == "words":
        return capture(*words(256, 32, 64))
    if name.endswith(" again"):
        graph = graph_of(name.removesuffix(" again"))
        return recompute(graph, find_blocks(graph))
    return capture(*tiny(name))


@cache
def problem_of(name: str, sizes: tuple[int, ...], cluster: str, folded: bool = True) -> Problem:
    mesh = Mesh(sizes)
    return build_problem(graph_of(name), mesh, MeshPrices(CLUSTERS[cluster], mesh), folded=folded)


def noisy(problem: Problem, seed: int) -> tuple[int, ...]:
    """An assignment that is best under random prices: every kind of layout appears."""
    draw = np.random.default_rng(seed)
    cones = build_cones(problem.model, problem.wishes)
    other = Model(labels=cones.model.labels)
    scale = draw.uniform(0.1, 1.0)
    for costs in cones.model.nodes:
        other.nodes.append(np.where(np.isfinite(costs), draw.uniform(0.0, 1.0, costs.shape), costs))
    for pair, costs in cones.model.edges.items():
        noise = draw.uniform(0.0, scale, costs.shape) * (costs > 0)
        other.edges[pair] = np.where(np.isfinite(costs), noise, costs)
    found = solve_model(other, seconds=20.0, gap=0.9)
    assert found.choice is not None
    return cones.expand(found.choice)


def rows_of(program: Program, overlap: float) -> np.ndarray:
    """What a program holds of either stream in each pass."""
    rows = np.zeros(ROWS)
    for index, instruction in enumerate(program.instructions):
        back = BACKWARD if index >= program.forward else 0
        if isinstance(instruction, Compute):
            rows[back + WORK] += instruction.seconds
        elif isinstance(instruction, Collective):
            share = 1.0 if instruction.blocking else 1.0 - overlap
            rows[back + WORK] += share * instruction.seconds
            rows[back + TRAFFIC] += instruction.seconds
    return rows


CASES = [
    ("perceptron", (2, 2), "fast"),
    ("perceptron", (4,), "cpus"),
    ("experts", (4,), "slow"),
    ("words", (4,), "fast"),
    ("words", (2, 2), "cpus"),
    ("gpt2", (4,), "slow"),
    ("gpt2 again", (2, 2), "fast"),
    pytest.param("llama", (2, 2), "fast", marks=pytest.mark.proof),
    pytest.param("resnet", (2, 2), "cpus", marks=pytest.mark.proof),
    pytest.param("mixtral", (4,), "slow", marks=pytest.mark.proof),
]


@pytest.mark.parametrize(("name", "sizes", "cluster"), CASES)
def test_the_model_bounds_the_judge(name: str, sizes: tuple[int, ...], cluster: str) -> None:
    problem = problem_of(name, sizes, cluster)
    machines = CLUSTERS[cluster]
    for seed in range(3):
        choice = noisy(problem, seed)
        totals = problem.model.totals(choice)
        judged = judge(problem.graph, problem.stage(choice), machines, 8.0, problem.prices)
        for program in judged.programs:
            sums = rows_of(program, machines.overlap)
            np.testing.assert_array_less(totals[:TIMES], sums[:TIMES] * (1 + SLACK) + 1e-11)
            # what the model leaves out is what bundles cost beyond their share
            assert sums[[WORK, WORK + BACKWARD]].sum() < 2.0 * totals[[WORK, WORK + BACKWARD]].sum() + 1e-3
        assert time_of(totals) <= judged.seconds * (1 + SLACK)
        assert held_of(totals) <= judged.memory.total


@pytest.mark.parametrize(("name", "sizes", "cluster"), CASES)
def test_the_bound_is_below_every_plan(name: str, sizes: tuple[int, ...], cluster: str) -> None:
    problem = problem_of(name, sizes, cluster)
    cones = build_cones(problem.model, problem.wishes)
    solution = solve_model(cones.model, seconds=30.0, gap=0.01)
    assert solution.choice is not None
    expanded = cones.expand(solution.choice)
    assert problem.model.seconds(expanded) == pytest.approx(cones.model.seconds(solution.choice))
    best = judge(problem.graph, problem.stage(expanded), CLUSTERS[cluster], 8.0, problem.prices)
    assert 0 < solution.bound <= problem.model.seconds(expanded) * (1 + 1e-6)
    assert solution.bound <= best.seconds * (1 + SLACK)
    for seed in range(3):
        other = judge(problem.graph, problem.stage(noisy(problem, seed)), CLUSTERS[cluster], 8.0, problem.prices)
        assert solution.bound <= other.seconds * (1 + SLACK)


@pytest.mark.parametrize("name", ["perceptron", "words"])
def test_cones_only_leave_out(name: str) -> None:
    problem = problem_of(name, (4,), "slow")
    cones = build_cones(problem.model, problem.wishes)
    within = solve_model(cones.model, seconds=30.0, gap=1e-4)
    whole = solve_model(problem.model, seconds=30.0, gap=1e-4)
    assert within.choice is not None
    assert len(cones.model.nodes) < len(problem.model.nodes)
    assert whole.bound <= cones.model.seconds(within.choice) * (1 + 1e-6)


@pytest.mark.proof
def test_folded_is_never_better_than_unfolded() -> None:
    model, sample = load_model("hf:gpt2", layers=3, batch=2, sequence=16, n_embd=32, heads=4, vocab=64)
    graph, mesh = capture(model, sample), Mesh((2,))
    prices = MeshPrices(cluster_of(2), mesh)
    best = {}
    for folded in (True, False):
        problem = build_problem(graph, mesh, prices, folded=folded)
        cones = build_cones(problem.model, problem.wishes)
        solution = solve_model(cones.model, seconds=60.0, gap=1e-4)
        assert solution.choice is not None
        best[folded] = (solution.bound, cones.model.seconds(solution.choice))
    assert best[False][0] <= best[True][1] * (1 + 1e-6)
    assert best[True][0] <= best[True][1] < inf
    # folding leaves out little
    assert best[True][1] <= best[False][1] * 1.02
