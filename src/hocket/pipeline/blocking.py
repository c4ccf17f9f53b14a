"""An order with sends and receives that block: both ranks stop until both are there.

Transfers happen in the order in which their values are made on the clock, on both ranks alike; since that is one
order for all, no rank waits for another that waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hocket.errors import ScheduleError
from hocket.pipeline.clock import run
from hocket.pipeline.order import Action, Order


@dataclass(frozen=True, slots=True)
class Step:
    """Work, or a transfer of what an action made, with the rank at the other end."""

    kind: Literal["work", "send", "receive"]
    action: Action
    peer: int = -1

    def __str__(self) -> str:
        return str(self.action) if self.kind == "work" else f"{self.kind} {self.action} ({self.peer})"


def blocking_steps(order: Order) -> tuple[tuple[Step, ...], ...]:
    """Every rank's work and transfers in turn. Raises ScheduleError where the order itself does not run."""
    places, timed = order.places, run(order)
    events: list[list[tuple[tuple[float, int, Action], Step]]] = [[] for _ in order.ranks]
    for rank, spans in enumerate(timed.spans):
        for span in spans:
            action = span.action
            events[rank].append(((span.start, 1, action), Step("work", action)))
            there = places.get(action.stage + (1 if action.kind == "F" else -1), rank)
            if there == rank or action.kind == "W":
                continue
            key = (span.end, 0, action)
            events[rank].append((key, Step("send", action, there)))
            events[there].append((key, Step("receive", action, rank)))
    return tuple(tuple(step for _, step in sorted(own, key=lambda e: e[0])) for own in events)


def check_blocking(ranks: Sequence[Sequence[Step]]) -> None:
    """Raise ScheduleError where ranks that block come to wait for each other."""
    at = [0] * len(ranks)
    moving = True
    while moving:
        moving = False
        for rank, steps in enumerate(ranks):
            while at[rank] < len(steps):
                step = steps[at[rank]]
                if step.kind != "work":
                    other = ranks[step.peer][at[step.peer] :][:1]
                    if not other or not _meet(rank, step, other[0]):
                        break
                    at[step.peer] += 1
                at[rank] += 1
                moving = True
    stuck = [f"rank {r} at {s[at[r]]}" for r, s in enumerate(ranks) if at[r] < len(s)]
    if stuck:
        raise ScheduleError("order with sends that block", "runs to its end", ", ".join(stuck))


def _meet(rank: int, step: Step, other: Step) -> bool:
    return other.action == step.action and other.peer == rank and {step.kind, other.kind} == {"send", "receive"}
