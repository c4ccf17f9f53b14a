"""Schedules that halve the backward pass: gradients of inputs first, those of weights where a rank would idle.

(Qi et al. 2023, Zero bubble pipeline parallelism; Qi et al. 2024, Pipeline parallelism with controllable memory.)
They are made on the clock: whenever a rank is free it takes what is there, the backward of inputs before a forward
before the backward of weights, and no forward beyond the activations it may hold. Some ways to prefer one chunk to
another are tried, and the best is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from hocket.errors import ScheduleError
from hocket.pipeline.clock import Times, run
from hocket.pipeline.order import Action, Order, loop, vee


def zero_bubble_h1(ranks: int, microbatches: int, times: Times | None = None) -> Order:
    """Zero bubble with one stage per rank and no more activations than 1F1B's fullest rank (ZB-H1)."""
    return searched(loop(ranks, 1), microbatches, ranks, times, "ZB-H1")


def zero_bubble_v(ranks: int, microbatches: int, times: Times | None = None) -> Order:
    """Zero bubble with two stages per rank, there and back: as much memory as 1F1B on every rank (ZB-V)."""
    return searched(vee(ranks), microbatches, 2 * ranks, times, "ZB-V")


def searched(
    placement: Sequence[Sequence[int]],
    microbatches: int,
    limit: int,
    times: Times | None = None,
    title: str = "zero bubble",
) -> Order:
    """The best order found in which no rank holds more activations (of a stage and microbatch) than `limit`.

    `placement` are the stages of every rank. Raises ScheduleError where the limit lets nothing run.
    """
    times = times or Times()
    best: tuple[float, Order] | None = None
    for forward_first, late_first, patient in product((False, True), repeat=3):
        order = _Maker(placement, microbatches, limit, times, forward_first, late_first, patient).order(title)
        if order is not None:
            makespan = run(order, times).makespan
            if best is None or makespan < best[0] - 1e-9:
                best = makespan, order
    if best is None:
        needed = max(len(stages) for stages in placement)
        raise ScheduleError(title, "may hold some activations on every rank", f"{limit}", f"at least {needed}")
    return best[1]


@dataclass
class _Maker:
    """Makes one order. `forward_first`: a forward comes before a backward of inputs while fewer than half of the
    limit is held. `late_first`: of forwards, that of the latest stage comes first. `patient`: no backward of
    weights is begun while a rank holds less than its limit, unless nothing else is to come."""

    placement: Sequence[Sequence[int]]
    microbatches: int
    limit: int
    times: Times
    forward_first: bool
    late_first: bool
    patient: bool

    def order(self, title: str) -> Order | None:
        """The order, or None where it comes to a stop."""
        places = {stage: rank for rank, stages in enumerate(self.placement) for stage in stages}
        count, last = len(self.placement), len(places) - 1
        ready: list[dict[Action, float]] = [{} for _ in range(count)]
        for microbatch in range(self.microbatches):
            ready[places[0]][Action(0, "F", microbatch)] = 0.0
        free, held = [0.0] * count, [0] * count
        done: list[list[Action]] = [[] for _ in range(count)]
        for _ in range(3 * (last + 1) * self.microbatches):
            picks = [self._pick(rank, ready[rank], free[rank], held[rank], last) for rank in range(count)]
            found = [(pick[0], rank, pick[1]) for rank, pick in enumerate(picks) if pick is not None]
            if not found:
                return None
            start, rank, action = min(found)
            end = start + self.times.of(action)
            del ready[rank][action]
            done[rank].append(action)
            free[rank] = end
            held[rank] += {"F": 1, "W": -1}.get(action.kind, 0)
            for after in self._opened(action, last):
                there = places[after.stage]
                ready[there][after] = end + (self.times.sending(action) if there != rank else 0.0)
        return Order(tuple(map(tuple, done)), title)

    def _opened(self, action: Action, last: int) -> list[Action]:
        """What can be done once an action is."""
        stage, microbatch = action.stage, action.microbatch
        if action.kind == "F":
            return [Action(stage + 1, "F", microbatch) if stage < last else Action(stage, "I", microbatch)]
        if action.kind == "I":
            before = [Action(stage - 1, "I", microbatch)] if stage else []
            return [Action(stage, "W", microbatch), *before]
        return []

    def _pick(
        self, rank: int, ready: dict[Action, float], free: float, held: int, last: int
    ) -> tuple[float, Action] | None:
        """What a rank does next, and when it starts."""
        best: tuple[tuple[float, float, int, int], Action] | None = None
        others = any(action.kind != "W" for action in ready)
        for action, time in ready.items():
            if action.kind == "F" and not self._may(action, rank, held):
                continue
            if action.kind == "W" and self.patient and held < self.limit and others:
                continue
            first = {"I": 1.0, "F": 2.0, "W": 3.0}[action.kind]
            if action.kind == "F" and self.forward_first and 2 * held < self.limit:
                first = 0.5
            side = -action.stage if self.late_first else action.stage
            key = (max(free, time), first, action.microbatch if action.kind != "F" else side, action.microbatch)
            if best is None or key < best[0]:
                best = key, action
        return None if best is None else (best[0][0], best[1])

    def _may(self, action: Action, rank: int, held: int) -> bool:
        """Whether a rank may hold what a forward leaves: room is kept for the stages of it still to come."""
        stages = self.placement[rank]
        later = sum(1 for stage in stages if stage > action.stage)
        return held + 1 + later <= self.limit
