"""Every search method as a function of one model: assignment and proven bound within a budget."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from math import inf, isfinite, prod

import numpy as np
from numpy.typing import NDArray

from hocket.errors import PlanError
from hocket.search.anytime import solve_model
from hocket.search.ilp import Solution
from hocket.search.model import BACKWARD, MEMORY, ROWS, TIMES, TRAFFIC, WORK, Model
from hocket.search.reduce import Reduced, reduce_model

Searcher = Callable[[Model, float, float, float, threading.Event | None], Solution]
"""(model, budget in seconds, relative gap, cutoff in seconds, stop) -> solution."""

EXHAUSTIVE_LIMIT = 2_000_000
"""Most assignments that the exhaustive searcher tries."""
CHUNK = 4096
"""Assignments that it tries at once."""

PRICES = (0.0, 1.0, 10.0, 100.0, 1e4)
"""What the greedy searcher lets a whole limit of memory cost, in rising order, in least times of a step."""
SWEEPS = 20
"""Most rounds of single changes."""
Pair = NDArray[np.float64]


def ilp(model: Model, seconds: float, gap: float, cutoff: float, stop: threading.Event | None) -> Solution:
    """Bounds by weights, integer program for the rest (see anytime)."""
    return solve_model(model, seconds, gap, cutoff, stop)


def exhaustive(model: Model, seconds: float, gap: float, cutoff: float, stop: threading.Event | None) -> Solution:
    """Try every assignment that the exact reductions leave: the oracle for tiny problems.

    Proves no bound when time runs out. Raises PlanError where there are too many.
    """
    end = time.monotonic() + seconds
    reduced = reduce_model(model)
    smaller = reduced.model
    count = prod(c.shape[1] for c in smaller.nodes)
    if count > EXHAUSTIVE_LIMIT:
        raise PlanError(
            "search exhaustive",
            f"tries at most {EXHAUSTIVE_LIMIT:,} assignments",
            f"{count:.3g} of them",
            "use --search ilp, a smaller mesh or a smaller model",
        )
    best, value = -1, inf
    widths = [c.shape[1] for c in smaller.nodes]
    for low in range(0, count, CHUNK):
        if low and _over(end, stop):
            break
        numbers = np.arange(low, min(count, low + CHUNK))
        seconds_of = _seconds_of(smaller, np.unravel_index(numbers, widths)) if widths else np.zeros(1)
        place = int(np.argmin(seconds_of))
        if seconds_of[place] < value:
            best, value = low + place, float(seconds_of[place])
    else:
        return Solution(_expanded(reduced, best, widths), value, best < 0)
    return Solution(_expanded(reduced, best, widths), 0.0)


def _expanded(reduced: Reduced, number: int, widths: list[int]) -> tuple[int, ...] | None:
    if number < 0:
        return None
    return tuple(reduced.expand([int(k) for k in np.unravel_index(number, widths)] if widths else []))


def _seconds_of(model: Model, choices: tuple[NDArray[np.intp], ...]) -> NDArray[np.float64]:
    """Time of many assignments at once, infinite where they break the memory limit."""
    totals = np.zeros((ROWS, len(choices[0])))
    for costs, k in zip(model.nodes, choices, strict=True):
        totals += costs[:, k]
    for (u, v), costs in model.edges.items():
        totals[:TIMES] += costs[:, choices[u], choices[v]]
    forward = np.maximum(totals[WORK], totals[TRAFFIC])
    time = forward + np.maximum(totals[WORK + BACKWARD], totals[TRAFFIC + BACKWARD])
    result: NDArray[np.float64] = np.where(totals[MEMORY:].max(axis=0) > model.limit, inf, time)
    return result


def _over(end: float, stop: threading.Event | None) -> bool:
    return time.monotonic() > end or (stop is not None and stop.is_set())


def greedy(model: Model, seconds: float, gap: float, cutoff: float, stop: threading.Event | None) -> Solution:
    """Node by node the choice that costs least beside what is chosen already, then single changes.

    Proves no bound. Memory gets a price that rises until the limit is kept. The first round of choices is made
    whatever the budget.
    """
    end = time.monotonic() + seconds
    near: list[list[tuple[int, Pair]]] = [[] for _ in model.nodes]
    for (u, v), costs in model.edges.items():
        pair = costs.sum(axis=0)
        near[u].append((v, pair))
        near[v].append((u, pair.T))
    for price in PRICES if isfinite(model.limit) else PRICES[:1]:
        choice = _descend(model, near, price, end, stop)
        if choice is not None and model.seconds(choice) < inf:
            return Solution(tuple(choice), 0.0)
    return Solution(None, 0.0)


def _descend(
    model: Model, near: list[list[tuple[int, Pair]]], price: float, end: float, stop: threading.Event | None
) -> list[int] | None:
    """Least-cost choices in order, then sweeps of single changes until none helps or time is over."""
    scale = price / model.limit if isfinite(model.limit) else 0.0
    total = sum(float(np.min(c[:TIMES].sum(axis=0))) for c in model.nodes) or 1.0
    alone = [c[:TIMES].sum(axis=0) + c[MEMORY:].sum(axis=0) * scale * total for c in model.nodes]
    choice = [-1] * len(model.nodes)
    for sweep in range(SWEEPS):
        changed = False
        for u, value in enumerate(alone):
            for v, pair in near[u]:
                value = value + (pair[:, choice[v]] if choice[v] >= 0 else pair.min(axis=1))
            best = int(np.argmin(value))
            if not np.isfinite(value[best]):
                return None
            changed |= best != choice[u]
            choice[u] = best
        if (sweep and not changed) or _over(end, stop):
            break
    return choice


SEARCHERS: dict[str, Searcher] = {"ilp": ilp, "greedy": greedy, "exhaustive": exhaustive}
SYNTHESIS = "astar"
"""The searcher that works on graphs in place of models: HAP's program synthesis."""
NAMES = ("auto", *SEARCHERS, SYNTHESIS)
"""Every searcher that can be asked for."""
