"""The integer program over a model's choices, solved by HiGHS.

One 0/1 variable per choice of a node, exactly one of which is 1; one variable per pair of choices of an edge,
whose sums over either side are the node's variables (the local polytope; Alpa, section 4.2 linearises its
quadratic program the same way). The time of each pass is a variable above its work and its traffic.
"""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import inf, isfinite

import highspy
import numpy as np
from numpy.typing import NDArray

from hocket.search.model import BACKWARD, MEMORY, ROWS, TIMES, TRAFFIC, WORK, Model

SCALE = 1e3
"""Times are given to the solver in milliseconds, near 1, where its tolerances are meant to be."""


@dataclass(frozen=True, slots=True)
class Solution:
    """What the solver found: an assignment (None when none was found), a proven bound in seconds on every
    assignment, and whether it is known that there is none at all."""

    choice: tuple[int, ...] | None
    bound: float
    infeasible: bool = False


class _Rows:
    """A sparse matrix under construction, row by row."""

    def __init__(self) -> None:
        self.lower: list[float] = []
        self.upper: list[float] = []
        self.starts: list[int] = []
        self.index: list[NDArray[np.int32]] = []
        self.value: list[NDArray[np.float64]] = []
        self.length = 0

    def add(self, index: NDArray[np.int64], value: NDArray[np.float64], lower: float, upper: float) -> None:
        self.starts.append(self.length)
        self.index.append(index.astype(np.int32))
        self.value.append(value)
        self.lower.append(lower)
        self.upper.append(upper)
        self.length += len(index)

    def add_sums(self, parts: NDArray[np.int64], counts: NDArray[np.int64], first: int) -> None:
        """Rows that say: the next counts[i] of `parts` add up to variable first + i."""
        ends, width = np.cumsum(counts), len(counts)
        self.index.append(np.insert(parts, ends, first + np.arange(width)).astype(np.int32))
        self.value.append(np.insert(np.ones(len(parts)), ends, -1.0))
        self.starts += (self.length + ends - counts + np.arange(width)).tolist()
        self.lower += [0.0] * width
        self.upper += [0.0] * width
        self.length += len(parts) + width


def solve(
    model: Model,
    seconds: float = inf,
    gap: float = 0.01,
    cutoff: float = inf,
    stop: threading.Event | None = None,
) -> Solution:
    """Solve a model exactly, to a relative gap, within a time budget.

    Assignments that take longer than `cutoff` seconds are of no interest. `stop` ends the search early from
    outside.
    """
    if not model.nodes:
        return Solution((), 0.0)
    solver, starts = _solver(model, seconds, cutoff, stop, integer=True)
    solver.setOptionValue("mip_rel_gap", gap)
    solver.run()
    return _read(solver, starts)


def relax(
    model: Model, seconds: float = inf, stop: threading.Event | None = None
) -> tuple[Solution, list[NDArray[np.float64]]]:
    """Solve the linear relaxation: its bound, an assignment where it is integral, and every node's shares."""
    if not model.nodes:
        return Solution((), 0.0), []
    solver, starts = _solver(model, seconds, inf, stop, integer=False)
    solver.setOptionValue("solver", "simplex")
    solver.setOptionValue("presolve", "off")  # the program is already reduced; presolving takes longer
    solver.run()
    status = solver.getModelStatus()
    if status in (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible):
        return Solution(None, inf, True), []
    if status != highspy.HighsModelStatus.kOptimal:
        return Solution(None, 0.0), []
    bound = solver.getInfo().objective_function_value / SCALE
    values = np.array(solver.getSolution().col_value[: starts[-1]])
    shares = [values[a:b] for a, b in pairwise(starts)]
    whole = all(share.max() > 1 - 1e-6 for share in shares)
    choice = tuple(int(np.argmax(share)) for share in shares) if whole else None
    return Solution(choice, max(0.0, bound)), shares


def quiet_solver() -> highspy.Highs:
    """A solver that prints nothing, on one thread: HiGHS refuses to change the number within a process."""
    _greet()
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    return solver


@cache
def _greet() -> None:
    """Make the first solver of the process while nobody listens: HiGHS 1.16 then prints its banner."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        highspy.Highs()  # type: ignore[no-untyped-call]
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def _solver(
    model: Model,
    seconds: float,
    cutoff: float,
    stop: threading.Event | None,
    integer: bool,
) -> tuple[highspy.Highs, list[int]]:
    solver = quiet_solver()
    if isfinite(seconds):
        solver.setOptionValue("time_limit", max(0.01, seconds))
    lp, starts = _program(model, cutoff)
    if not integer:
        lp.integrality_ = []
    solver.passModel(lp)
    if stop is not None:
        interrupts = (solver.cbMipInterrupt, solver.cbSimplexInterrupt)
        for event in interrupts:
            event.subscribe(lambda e: _interrupt(e, stop))
    return solver, starts


def _interrupt(event: object, stop: threading.Event) -> None:
    if stop.is_set():
        event.interrupt()  # type: ignore[attr-defined]


def _program(model: Model, cutoff: float) -> tuple[highspy.HighsLp, list[int]]:
    counts = [c.shape[1] for c in model.nodes]
    starts = [0, *np.cumsum(counts).tolist()]
    binaries = starts[-1]
    rows = _Rows()
    sums: dict[int, tuple[list[NDArray[np.int64]], list[NDArray[np.float64]]]] = {k: ([], []) for k in range(ROWS)}
    for u, costs in enumerate(model.nodes):
        columns = np.arange(starts[u], starts[u + 1])
        rows.add(columns, np.ones(len(columns)), 1.0, 1.0)
        for k in sums:
            sums[k][0].append(columns)
            sums[k][1].append(np.where(np.isfinite(costs[k]), costs[k], 0.0))
    upper = [np.where(np.isfinite(c[WORK]), 1.0, 0.0) for c in model.nodes]
    columns_so_far = binaries
    for (u, v), costs in model.edges.items():
        columns_so_far = _edge(rows, sums, costs, starts[u], starts[v], columns_so_far)
    times = {0: columns_so_far, BACKWARD: columns_so_far + 1}
    for back, time in times.items():
        for k in (WORK + back, TRAFFIC + back):
            index, value = _gathered(sums, k)
            used = value != 0.0
            rows.add(np.append(index[used], time), np.append(-SCALE * value[used], 1.0), 0.0, inf)
    for k in range(MEMORY, ROWS) if isfinite(model.limit) else ():
        index, value = _gathered(sums, k)
        unit = max(1.0, float(np.abs(value).max(initial=1.0)))
        used = value != 0.0
        rows.add(index[used], value[used] / unit, -inf, model.limit / unit)
    width = columns_so_far + 2
    goal = np.zeros(width)
    goal[list(times.values())] = 1.0
    if isfinite(cutoff):
        rows.add(np.array(list(times.values())), np.ones(2), -inf, cutoff * SCALE)
    bound = np.concatenate([*upper, np.ones(columns_so_far - binaries), [inf, inf]])
    return _assemble(rows, goal, bound, width, binaries), starts


def _edge(
    rows: _Rows,
    sums: dict[int, tuple[list[NDArray[np.int64]], list[NDArray[np.float64]]]],
    costs: NDArray[np.float64],
    first: int,
    second: int,
    columns: int,
) -> int:
    """Variables for the possible pairs of an edge and the rows that tie them to both nodes."""
    work = costs[WORK]
    possible = np.isfinite(work)
    count = int(possible.sum())
    number = np.full(work.shape, -1)
    number[possible] = columns + np.arange(count)
    rows.add_sums(number[possible], possible.sum(axis=1), first)
    rows.add_sums(number.T[possible.T], possible.sum(axis=0), second)
    for k in range(TIMES):
        sums[k][0].append(number[possible])
        sums[k][1].append(costs[k][possible])
    return columns + count


def _gathered(
    sums: dict[int, tuple[list[NDArray[np.int64]], list[NDArray[np.float64]]]], kind: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    return np.concatenate(sums[kind][0]), np.concatenate(sums[kind][1])


def _assemble(
    rows: _Rows, goal: NDArray[np.float64], upper: NDArray[np.float64], width: int, binaries: int
) -> highspy.HighsLp:
    lp = highspy.HighsLp()
    lp.num_col_ = width
    lp.num_row_ = len(rows.lower)
    lp.col_cost_ = goal
    lp.col_lower_ = np.zeros(width)
    lp.col_upper_ = upper
    lp.row_lower_ = np.array(rows.lower)
    lp.row_upper_ = np.array(rows.upper)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.array([*rows.starts, rows.length], dtype=np.int32)
    lp.a_matrix_.index_ = np.concatenate(rows.index)
    lp.a_matrix_.value_ = np.concatenate(rows.value)
    integer = [highspy.HighsVarType.kInteger] * binaries
    lp.integrality_ = integer + [highspy.HighsVarType.kContinuous] * (width - binaries)
    return lp


def _read(solver: highspy.Highs, starts: list[int]) -> Solution:
    status = solver.getModelStatus()
    info = solver.getInfo()
    if status in (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible):
        return Solution(None, inf, True)
    bound = info.mip_dual_bound / SCALE if isfinite(info.mip_dual_bound) else 0.0
    if info.primal_solution_status != 2:
        return Solution(None, max(0.0, bound))
    values = np.array(solver.getSolution().col_value[: starts[-1]])
    choice = tuple(int(np.argmax(values[a:b])) for a, b in pairwise(starts))
    return Solution(choice, bound)
