"""What every searcher must keep: legal, deterministic, in budget, never below the oracle, bound below cost."""

from __future__ import annotations

import threading
import time
from functools import cache
from itertools import product
from math import inf, prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_reduce import random_model
from worlds import cluster_of, perceptron

from hocket.capture import capture
from hocket.capture.models import tiny
from hocket.cost.prices import MeshPrices
from hocket.errors import PlanError
from hocket.search.builder import build_problem
from hocket.search.cones import build_cones
from hocket.search.model import MEMORY, ROWS, Model
from hocket.search.pins import Pins
from hocket.search.problem import Problem
from hocket.search.searchers import SEARCHERS, exhaustive
from hocket.sharding.mesh import Mesh

ALL = pytest.mark.parametrize("name", sorted(SEARCHERS))


def best_of(model: Model) -> float:
    return min(model.seconds(c) for c in product(*(range(n.shape[1]) for n in model.nodes)))


def limited(seed: int, slack: float) -> Model:
    """A random model with a memory limit between what is needed at least and at most."""
    model = random_model(seed)
    low = max(sum(float(c[m].min()) for c in model.nodes) for m in range(MEMORY, ROWS))
    high = max(sum(float(c[m].max()) for c in model.nodes) for m in range(MEMORY, ROWS))
    model.limit = max(1.0, low + slack * (high - low))
    return model


@ALL
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from([0.0, 0.3, 0.7, 1.0]))
def test_random_models(name: str, seed: int, slack: float) -> None:
    model = limited(seed, slack)
    best = best_of(model)
    solution = SEARCHERS[name](model, 10.0, 0.001, inf, None)
    again = SEARCHERS[name](limited(seed, slack), 10.0, 0.001, inf, None)
    assert solution == again
    if solution.infeasible:
        assert best == inf
    if solution.choice is not None:
        seconds = model.seconds(solution.choice)
        assert seconds < inf
        assert seconds >= best * (1 - 1e-9)
    assert solution.bound <= best * (1 + 1e-6) + 1e-6


@cache
def small_problem() -> Problem:
    model, sample = perceptron(8, 16, 4)
    mesh = Mesh((2,))
    graph = capture(model, sample)
    products = [op.outputs[0] for op in graph.operations if op.kind == "mm"]
    pins = Pins.parse(["layers.0.0.weight=S(0)", "*.2.weight=S(1)", f"%{products[0]}=j", f"%{products[1]}=k"])
    return build_problem(graph, mesh, MeshPrices(cluster_of(2), mesh), pins=pins)


def tiny_real_model() -> Model:
    problem = small_problem()
    return build_cones(problem.model, problem.wishes).model


@ALL
def test_a_small_real_problem(name: str) -> None:
    model = tiny_real_model()
    assert prod(c.shape[1] for c in model.nodes) > 10**6
    best = exhaustive(model, inf, 0.0, inf, None)
    assert best.choice is not None
    optimum = model.seconds(best.choice)
    assert best.bound == optimum
    solution = SEARCHERS[name](model, 10.0, 1e-6, inf, None)
    assert solution.choice is not None
    assert model.seconds(solution.choice) >= optimum * (1 - 1e-9)
    assert solution.bound <= optimum * (1 + 1e-6)
    if name != "greedy":
        assert model.seconds(solution.choice) <= optimum * 1.001


@cache
def large_model() -> Model:
    model, sample = tiny("gpt2")
    mesh = Mesh((2, 2))
    problem = build_problem(capture(model, sample), mesh, MeshPrices(cluster_of(4), mesh))
    return build_cones(problem.model, problem.wishes).model


@pytest.mark.parametrize("name", ["greedy", "ilp"])
def test_a_large_problem_keeps_its_budget(name: str) -> None:
    model = large_model()
    start = time.monotonic()
    SEARCHERS[name](model, 0.3, 0.0, inf, None)
    # One reduction or one factorisation is not interrupted: the budget is kept up to those.
    assert time.monotonic() - start < 8.0


def test_exhaustive_keeps_its_budget() -> None:
    draw = np.random.default_rng(0)
    model = Model()
    for node in range(10):
        model.add_node(str(node), draw.uniform(1.0, 2.0, (ROWS, 4)))
    for first in range(9):
        for second in range(first + 1, 10):
            model.add_edge(first, second, draw.uniform(1.0, 2.0, (4, 4, 4)))
    start = time.monotonic()
    solution = exhaustive(model, 0.02, 0.0, inf, None)
    assert time.monotonic() - start < 3.0
    assert solution.choice is not None
    assert solution.bound == 0.0
    more = model.add_node("more", draw.uniform(1.0, 2.0, (ROWS, 4)))
    for node in range(more):
        model.add_edge(node, more, draw.uniform(1.0, 2.0, (4, 4, 4)))
    with pytest.raises(PlanError, match="at most"):
        exhaustive(model, 0.02, 0.0, inf, None)


@ALL
def test_a_stop_ends_the_search(name: str) -> None:
    stop = threading.Event()
    stop.set()
    model = tiny_real_model() if name == "exhaustive" else large_model()
    start = time.monotonic()
    solution = SEARCHERS[name](model, 60.0, 0.0, inf, stop)
    assert time.monotonic() - start < 8.0
    assert solution.choice is None or model.seconds(solution.choice) < inf


def test_greedy_is_never_better_than_the_program() -> None:
    model = large_model()
    greedy = SEARCHERS["greedy"](model, 30.0, 0.01, inf, None)
    ilp = SEARCHERS["ilp"](model, 30.0, 0.01, inf, None)
    assert greedy.choice is not None
    assert ilp.choice is not None
    assert model.seconds(greedy.choice) >= ilp.bound
    assert model.seconds(greedy.choice) >= model.seconds(ilp.choice) * 0.99
