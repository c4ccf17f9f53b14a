"""What must hold of an order: everything is done once, where it belongs, and no rank waits for ever."""

from __future__ import annotations

from collections import Counter

from hocket.errors import ScheduleError
from hocket.pipeline.blocking import blocking_steps, check_blocking
from hocket.pipeline.order import Action, Order


def check_order(order: Order) -> None:
    """Raise ScheduleError unless every stage does every microbatch once, on one rank, without deadlock."""
    places: dict[int, int] = {}
    for rank, todo in enumerate(order.ranks):
        for action in todo:
            if places.setdefault(action.stage, rank) != rank:
                raise ScheduleError(
                    f"stage {action.stage}", "is on one rank", f"ranks {places[action.stage]} and {rank}"
                )
    absent = sorted(set(range(order.stages)) - set(places))
    if absent:
        raise ScheduleError(f"stage {absent[0]}", "is on one rank", "none does anything of it")
    counts = Counter(action for todo in order.ranks for action in todo)
    for stage in range(order.stages):
        for microbatch in range(order.microbatches):
            _once(counts, stage, microbatch, places[stage])
    check_blocking(blocking_steps(order))


def _once(counts: Counter[Action], stage: int, microbatch: int, rank: int) -> None:
    """Raise ScheduleError unless a stage does a microbatch forward once and backward once, whole or in halves."""
    forward, backward, inputs, weights = (counts[Action(stage, k, microbatch)] for k in ("F", "B", "I", "W"))
    found = f"{forward} forward, {backward} backward, {inputs} and {weights} halves on rank {rank}"
    whole = backward == 1 and inputs == weights == 0
    halves = backward == 0 and inputs == weights == 1
    if forward != 1 or not (whole or halves):
        raise ScheduleError(
            f"stage {stage}, microbatch {microbatch}", "is done forward once and backward once", found,
            f"{stage}F{microbatch} once, and {stage}B{microbatch} or both {stage}I{microbatch} and "
            f"{stage}W{microbatch} once",
        )  # fmt: skip
