"""Every search method as a function of one model: assignment and proven bound within a budget."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import product
from math import inf, prod

import numpy as np

from hocket.errors import PlanError
from hocket.search.anytime import solve_model
from hocket.search.ilp import Solution
from hocket.search.model import MEMORY, TIMES, Model

Searcher = Callable[[Model, float, float, float, threading.Event | None], Solution]
"""(model, budget in seconds, relative gap, cutoff in seconds, stop) -> solution."""

EXHAUSTIVE_LIMIT = 2_000_000
"""Most assignments that the exhaustive searcher tries."""


def ilp(model: Model, seconds: float, gap: float, cutoff: float, stop: threading.Event | None) -> Solution:
    """Bounds by weights, integer program for the rest (see anytime)."""
    return solve_model(model, seconds, gap, cutoff, stop)


def exhaustive(model: Model, seconds: float, gap: float, cutoff: float, stop: threading.Event | None) -> Solution:
    """Try every assignment: the oracle for tiny problems. Raises PlanError where there are too many."""
    count = prod(c.shape[1] for c in model.nodes)
    if count > EXHAUSTIVE_LIMIT:
        raise PlanError(
            "search exhaustive",
            f"tries at most {EXHAUSTIVE_LIMIT:,} assignments",
            f"{count:.3g} of them",
            "use --search ilp, a smaller mesh or a smaller model",
        )
    best, value = None, inf
    for choice in product(*(range(c.shape[1]) for c in model.nodes)):
        if stop is not None and stop.is_set():
            return Solution(best, 0.0)
        found = model.seconds(choice)
        if found < value:
            best, value = choice, found
    return Solution(best, value, best is None)


def greedy(model: Model, seconds: float, gap: float, cutoff: float, stop: threading.Event | None) -> Solution:
    """Node by node the choice that costs least beside what is chosen already, then single changes.

    Proves no bound. Keeps the memory limit only where single changes lead there.
    """
    near: list[list[tuple[int, np.ndarray]]] = [[] for _ in model.nodes]
    for (u, v), costs in model.edges.items():
        near[u].append((v, costs))
        near[v].append((u, costs.transpose(0, 2, 1)))
    for price in (0.0, 1.0, 10.0, 100.0, 1e4):
        choice = _descend(model, near, price)
        if choice is not None and model.seconds(choice) < inf:
            return Solution(tuple(choice), 0.0)
    return Solution(None, 0.0)


def _descend(model: Model, near: list[list[tuple[int, np.ndarray]]], price: float) -> list[int] | None:
    """Least-cost choices in order, then sweeps of single changes until none helps."""
    scale = price / model.limit if model.limit < inf else 0.0
    total = sum(float(np.min(c[:TIMES].sum(axis=0))) for c in model.nodes) or 1.0
    choice = [-1] * len(model.nodes)
    for sweep in range(20):
        changed = False
        for u, costs in enumerate(model.nodes):
            value = costs[:TIMES].sum(axis=0) + costs[MEMORY] * scale * total
            for v, pair in near[u]:
                seconds = pair.sum(axis=0)
                value = value + (seconds[:, choice[v]] if choice[v] >= 0 else seconds.min(axis=1))
            best = int(np.argmin(value))
            if not np.isfinite(value[best]):
                return None
            changed |= best != choice[u]
            choice[u] = best
        if sweep and not changed:
            break
    return choice


SEARCHERS: dict[str, Searcher] = {"ilp": ilp, "greedy": greedy, "exhaustive": exhaustive}
