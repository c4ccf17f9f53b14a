"""Reducing a model and solving it, against trying every assignment."""

from itertools import product
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.search.anytime import least_memory, solve_model
from hocket.search.ilp import solve
from hocket.search.model import MEMORY, ROWS, TIMES, Model, held_of
from hocket.search.reduce import reduce_model


def random_model(seed: int) -> Model:
    rng = np.random.default_rng(seed)
    model = Model()
    sizes = rng.integers(1, 5, size=rng.integers(2, 7))
    for u, size in enumerate(sizes):
        costs = rng.integers(0, 20, size=(ROWS, size)).astype(float)
        costs[[1, 3]] = 0.0
        if rng.random() < 0.5:
            costs[2] = costs[MEMORY:] = 0.0
        model.add_node(f"n{u}", costs)
    for _ in range(2 * len(sizes)):
        u, v = (int(n) for n in rng.integers(0, len(sizes), size=2))
        costs = rng.integers(0, 20, size=(TIMES, sizes[u], sizes[v])).astype(float)
        costs[1:] *= rng.random() < 0.4
        if u != v:
            costs[0][rng.random(costs[0].shape) < 0.1] = inf
        model.add_edge(u, v, costs)
    return model


def assignments(model: Model):
    return product(*(range(c.shape[1]) for c in model.nodes))


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9))
def test_reduction_keeps_the_optimum(seed: int) -> None:
    model = random_model(seed)
    memories = sorted({held_of(model.totals(c)) for c in assignments(model)})
    model.limit = memories[len(memories) // 2]
    best = min(model.seconds(c) for c in assignments(model))
    reduced = reduce_model(model)
    found = min((reduced.model.seconds(c) for c in assignments(reduced.model)), default=inf)
    assert found == pytest.approx(best)
    for choice in assignments(reduced.model):
        if reduced.model.seconds(choice) < inf:
            assert model.seconds(reduced.expand(choice)) == pytest.approx(reduced.model.seconds(choice))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9))
def test_the_integer_program_equals_trying_everything(seed: int) -> None:
    model = random_model(seed)
    memories = sorted({held_of(model.totals(c)) for c in assignments(model)})
    model.limit = memories[len(memories) // 2]
    best = min(model.seconds(c) for c in assignments(model))
    solution = solve(model, gap=0.0)
    if best == inf:
        assert solution.choice is None
        assert solution.infeasible
    else:
        assert solution.choice is not None
        assert model.seconds(solution.choice) == pytest.approx(best, rel=1e-6, abs=1e-6)
        assert solution.bound <= best * (1 + 1e-6) + 1e-9


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**9))
def test_least_memory_is_a_bound(seed: int) -> None:
    model = random_model(seed)
    possible = [c for c in assignments(model) if np.isfinite(model.totals(c)).all()]
    least = least_memory(model)
    if possible:
        assert least <= min(held_of(model.totals(c)) for c in possible) + 1e-6
        each = [min(model.totals(c)[m] for c in possible) for m in range(MEMORY, ROWS)]
        assert least <= max(each) + 1e-6


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9))
def test_the_anytime_search_keeps_its_bound_and_finds_the_optimum(seed: int) -> None:
    model = random_model(seed)
    memories = sorted({held_of(model.totals(c)) for c in assignments(model)})
    model.limit = memories[len(memories) // 2] + 1.0
    best = min(model.seconds(c) for c in assignments(model))
    solution = solve_model(model, gap=0.001)
    assert solution.bound <= best * (1 + 1e-6) + 1e-6
    if best < inf:
        assert solution.choice is not None
        found = model.seconds(solution.choice)
        assert found >= best * (1 - 1e-9)
        assert found <= best * 1.2 + 1e-6
    else:
        assert solution.choice is None
