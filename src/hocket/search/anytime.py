"""Solving a model step by step: bounds first, then ever better assignments, for as long as there is time.

Time is the larger of work and traffic in each pass, and memory is limited: five sums that compete. Any weights
that trade them (Lagrange multipliers) give a problem with one sum, whose optimum is a bound on the time of
every assignment; that problem reduces far and its linear relaxation is nearly always integral. Kelley's cutting
planes (1960) find the weights with the best bound; an integer program over the choices that came up on the way
finds the assignment.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, isfinite

import highspy
import numpy as np
from numpy.typing import NDArray

from hocket.search.ilp import Solution, quiet_solver, relax, solve
from hocket.search.model import MEMORY, MOMENTS, ROWS, TIMES, WORK, Model, time_of
from hocket.search.reduce import reduce_model

ROUNDS = 14
"""Most weights that are tried on one model."""


STALE = 3
"""Rounds after which the bound must have risen by a quarter of the gap for the search of weights to go on."""
SMALL_PAIRS = 5_000
"""Models with so many pairs of choices are also solved as they are."""
COMBINE_SECONDS = 1.0
"""Longest time for the integer program over the choices that came up."""


@dataclass(frozen=True, slots=True)
class Weights:
    """A trade: share of work against traffic in each pass; `memory` per moment, in seconds per limit of it."""

    forward: float
    backward: float
    memory: tuple[float, ...] = (0.0,) * MOMENTS

    def costs(self, limit: float) -> NDArray[np.float64]:
        """A factor for every row of costs."""
        memory = [price / limit if isfinite(limit) else 0.0 for price in self.memory]
        return np.array([self.forward, 1.0 - self.forward, self.backward, 1.0 - self.backward, *memory])


@dataclass
class Progress:
    """What is known of a model so far: the bound, the best assignment, and all that came up."""

    bound: float = 0.0
    choice: tuple[int, ...] | None = None
    seconds: float = inf
    seen: list[tuple[int, ...]] = field(default_factory=list)

    def offer(self, model: Model, choice: tuple[int, ...]) -> None:
        """Take an assignment that came up."""
        self.seen.append(choice)
        seconds = model.seconds(choice)
        if seconds < self.seconds:
            self.choice, self.seconds = choice, seconds


def solve_model(
    model: Model,
    seconds: float = inf,
    gap: float = 0.01,
    cutoff: float = inf,
    stop: threading.Event | None = None,
) -> Solution:
    """The best assignment found within a budget, and the bound proven so far.

    Ends once bound and assignment are within `gap`, or the bound reaches `cutoff` seconds.
    """
    end = time.monotonic() + seconds
    progress = Progress()
    if isfinite(model.limit) and not _least_memory(model, progress, end, stop):
        return Solution(None, inf, True)
    weights = _first_weights(model, progress)
    bounds: list[float] = []
    for _ in range(ROUNDS):
        if not _try(model, weights, progress, end, stop):
            break
        if progress.bound >= min(cutoff, progress.seconds * (1 - gap)):
            break
        if time.monotonic() > end or (stop is not None and stop.is_set()):
            break
        bounds.append(progress.bound)
        if len(bounds) > STALE and bounds[-1] < bounds[-1 - STALE] * (1 + gap / 4):
            break
        better = _next_weights(model, progress.seen)
        if better is None or better[1] <= progress.bound * (1 + gap / 10):
            break
        weights = better[0]
    if progress.bound < min(cutoff, progress.seconds * (1 - gap)):
        _combine(model, progress, end, gap, stop)
        if progress.bound < min(cutoff, progress.seconds * (1 - gap)):
            _in_full(model, progress, end, gap, stop)
    model.seen[:] = dict.fromkeys(progress.seen)
    return Solution(progress.choice, progress.bound)


def _first_weights(model: Model, progress: Progress) -> Weights:
    """Where the search starts: at the best weights for what came up in earlier searches, or at work alone."""
    for choice in model.seen:
        progress.offer(model, choice)
    better = _next_weights(model, progress.seen) if model.seen else None
    return better[0] if better is not None else Weights(1.0, 1.0)


def least_memory(model: Model) -> float:
    """The least bytes that any assignment holds on one device (a bound from below)."""
    moments = range(MEMORY, ROWS)
    return max(relax(reduce_model(_scalar(model, _memory_alone(m, 1e-9))).model)[0].bound for m in moments) * 1e9


def _least_memory(model: Model, progress: Progress, end: float, stop: threading.Event | None) -> bool:
    """Whether every moment's least memory is within the limit; its assignments are offered."""
    if model.least:
        return model.least <= model.limit * (1.0 + 1e-9)
    if most_memory(model) <= model.limit:
        return True
    least = 0.0
    for moment in range(MEMORY, ROWS):
        reduced = reduce_model(_scalar(model, _memory_alone(moment, 1.0 / model.limit)), end=end)
        if time.monotonic() > end:
            return True
        solution, _ = relax(reduced.model, max(0.1, end - time.monotonic()), stop)
        if solution.infeasible or solution.bound > 1.0 + 1e-9:
            return False
        least = max(least, solution.bound * model.limit)
        if solution.choice is not None:
            progress.offer(model, tuple(reduced.expand(solution.choice)))
    model.least = least
    return True


def most_memory(model: Model) -> float:
    """No assignment holds more bytes than this at any moment."""
    most = np.zeros(ROWS - MEMORY)
    for costs in model.nodes:
        possible = costs[:, np.isfinite(costs[WORK])]
        most += possible[MEMORY:].max(axis=1, initial=-inf)
    return float(most.max())


def _memory_alone(moment: int, factor: float) -> NDArray[np.float64]:
    factors = np.zeros(ROWS)
    factors[moment] = factor
    return factors


def _scalar(model: Model, factors: NDArray[np.float64]) -> Model:
    """The model with one sum in place of three."""
    scalar = Model(rows=1)
    for label, costs in zip(model.labels, model.nodes, strict=True):
        one = np.zeros_like(costs)
        one[WORK] = _weighed(costs, factors)
        scalar.add_node(label, one)
    for (u, v), costs in model.edges.items():
        one = np.zeros_like(costs)
        one[WORK] = _weighed(costs, factors[:TIMES])
        scalar.edges[u, v] = one
    return scalar


def _weighed(costs: NDArray[np.float64], factors: NDArray[np.float64]) -> NDArray[np.float64]:
    finite = np.where(np.isfinite(costs), costs, 0.0)
    total = np.tensordot(factors, finite, axes=1)
    result: NDArray[np.float64] = np.where(np.isfinite(costs[WORK]), total, inf)
    return result


def _try(model: Model, weights: Weights, progress: Progress, end: float, stop: threading.Event | None) -> bool:
    """Solve the model under weights: better bound, another assignment. False when time ran out."""
    scalar = _scalar(model, weights.costs(model.limit))
    reduced = reduce_model(scalar, end=end)
    left = end - time.monotonic()
    if left < 0:
        return False
    solution, shares = relax(reduced.model, left, stop)
    if solution.infeasible:
        progress.bound = inf
        return False
    progress.bound = max(progress.bound, solution.bound - sum(weights.memory))
    choice = solution.choice
    if choice is None and shares:
        choice = _integral(reduced.model, shares, max(0.1, end - time.monotonic()), stop)
    if choice is None:
        return False
    progress.offer(model, tuple(reduced.expand(choice)))
    return True


def _integral(
    model: Model, shares: list[NDArray[np.float64]], seconds: float, stop: threading.Event | None
) -> tuple[int, ...] | None:
    """An assignment near a fractional one: the integer program with freedom around the fractional nodes."""
    split = {u for u, s in enumerate(shares) if s.max() < 1 - 1e-6}
    split |= {v for pair in model.edges for v in pair if split & set(pair)}
    keep = [s > 1e-7 if u not in split else np.ones(len(s), dtype=bool) for u, s in enumerate(shares)]
    choice = _solve_part(model, keep, min(seconds, 5.0), 0.001, inf, stop)
    return None if choice is None else tuple(choice)


def _next_weights(model: Model, seen: Sequence[tuple[int, ...]]) -> tuple[Weights, float] | None:
    """The weights with the best bound if the assignments seen were all there are (a linear program), and that
    bound: no weights give a better one."""
    totals = np.array([model.totals(choice) for choice in dict.fromkeys(seen)])
    solver = quiet_solver()
    memory = isfinite(model.limit)
    scale = max(time_of(row) for row in totals) or 1.0
    solver.addVar(-inf, inf)
    solver.addVar(0.0, 1.0)
    solver.addVar(0.0, 1.0)
    for _ in range(MOMENTS):
        solver.addVar(0.0, 1e3 if memory else 0.0)
    solver.changeColCost(0, -1.0)
    width = 3 + MOMENTS
    for work, traffic, work_back, traffic_back, *held in totals:
        # bound <= traffic + share * (work - traffic) in both passes + price * (held / limit - 1) per moment
        gains = [(work - traffic) / scale, (work_back - traffic_back) / scale]
        excess = [h / model.limit - 1.0 if memory else 0.0 for h in held]
        row = np.array([1.0, -gains[0], -gains[1], *(-e for e in excess)])
        solver.addRow(-inf, float(traffic + traffic_back) / scale, width, np.arange(width, dtype=np.int32), row)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    value, forward, backward, *prices = (float(v) for v in solver.getSolution().col_value[:width])
    return Weights(forward, backward, tuple(price * scale for price in prices)), value * scale


def _combine(model: Model, progress: Progress, end: float, gap: float, stop: threading.Event | None) -> None:
    """The best mixture of all assignments that came up, under the true time and memory limit."""
    if not progress.seen:
        return
    keep = [np.zeros(c.shape[1], dtype=bool) for c in model.nodes]
    for choice in progress.seen:
        for u, k in enumerate(choice):
            keep[u][k] = True
    left = min(COMBINE_SECONDS, max(0.1, end - time.monotonic()))
    found = _solve_part(model, keep, left, gap / 4, progress.seconds, stop)
    if found is not None:
        progress.offer(model, tuple(found))


def _in_full(model: Model, progress: Progress, end: float, gap: float, stop: threading.Event | None) -> None:
    """The integer program itself, where the model is small enough for it."""
    reduced = reduce_model(model, end=end)
    if time.monotonic() > end:
        return
    if sum(costs[0].size for costs in reduced.model.edges.values()) > SMALL_PAIRS:
        return
    left = min(COMBINE_SECONDS, max(0.1, end - time.monotonic()))
    solution = solve(reduced.model, left, gap / 2, progress.seconds, stop)
    if solution.choice is not None:
        progress.offer(model, tuple(reduced.expand(solution.choice)))


def _solve_part(
    model: Model,
    keep: list[NDArray[np.bool_]],
    seconds: float,
    gap: float,
    cutoff: float,
    stop: threading.Event | None,
) -> list[int] | None:
    """The integer program over some of a model's choices."""
    part = Model(limit=model.limit)
    for u, costs in enumerate(model.nodes):
        part.add_node(model.labels[u], costs[:, keep[u]])
    for (u, v), costs in model.edges.items():
        part.add_edge(u, v, costs[:, keep[u]][:, :, keep[v]])
    end = time.monotonic() + seconds
    smaller = reduce_model(part, end=end)
    solution = solve(smaller.model, max(0.1, end - time.monotonic()), gap, cutoff, stop)
    if solution.choice is None:
        return None
    local = smaller.expand(solution.choice)
    return [int(np.flatnonzero(k)[c]) for k, c in zip(keep, local, strict=True)]
