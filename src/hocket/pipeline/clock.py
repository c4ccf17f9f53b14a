"""A pipeline's order on a clock: when everything runs, where ranks idle, what they hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hocket.errors import ScheduleError
from hocket.pipeline.order import Action, Order


@dataclass(frozen=True)
class Times:
    """Seconds (or slots) of a stage's passes on one microbatch, the same for all stages or one each.

    `inputs` is the part of a backward that makes the gradients of inputs (I), where it is halved; `send` is what it
    takes from one rank to another, for the values of one stage's forward pass; `send_back` the same for its
    backward pass (none: as `send`).
    """

    forward: float | Sequence[float] = 1.0
    backward: float | Sequence[float] = 1.0
    inputs: float | Sequence[float] = 0.5
    send: float | Sequence[float] = 0.0
    send_back: float | Sequence[float] | None = None

    def of(self, action: Action) -> float:
        """What an action takes."""
        if action.kind == "F":
            return _at(self.forward, action.stage)
        whole = _at(self.backward, action.stage)
        inputs = _at(self.inputs, action.stage)
        return whole * {"B": 1.0, "I": inputs, "W": 1.0 - inputs}[action.kind]

    def sending(self, action: Action) -> float:
        """What it takes to send what an action makes to another rank."""
        back = self.send if self.send_back is None else self.send_back
        return _at(self.send if action.kind == "F" else back, action.stage)


def _at(value: float | Sequence[float], stage: int) -> float:
    return float(value[stage]) if isinstance(value, Sequence) else float(value)


@dataclass(frozen=True, slots=True)
class Span:
    """An action with its start and end."""

    action: Action
    start: float
    end: float


@dataclass(frozen=True)
class Run:
    """An order on a clock: the spans of every rank, and what follows from them."""

    order: Order
    spans: tuple[tuple[Span, ...], ...]
    makespan: float = field(init=False)

    def __post_init__(self) -> None:
        ends = [spans[-1].end for spans in self.spans if spans]
        object.__setattr__(self, "makespan", max(ends, default=0.0))

    def bubbles(self, rank: int) -> tuple[tuple[float, float], ...]:
        """Where a rank idles, as (start, length), from the first action of all to the last."""
        found, now = [], 0.0
        for span in self.spans[rank]:
            if span.start > now + 1e-9:
                found.append((now, span.start - now))
            now = span.end
        if self.makespan > now + 1e-9:
            found.append((now, self.makespan - now))
        return tuple(found)

    def bubble(self, rank: int) -> float:
        """How long a rank idles in all."""
        return sum(length for _, length in self.bubbles(rank))

    @property
    def worst(self) -> float:
        """How long the rank idles that idles most."""
        return max((self.bubble(rank) for rank in range(len(self.spans))), default=0.0)

    def held(self, rank: int) -> Iterator[tuple[float, int]]:
        """Activations that a rank holds, as (time, number from then on): from the start of a forward to the end of
        its backward, or of the weights' half."""
        changes = [(s.start, 1) for s in self.spans[rank] if s.action.kind == "F"]
        changes += [(s.end, -1) for s in self.spans[rank] if s.action.kind in ("B", "W")]
        number = 0
        for time, change in sorted(changes):
            number += change
            yield time, number

    def peak(self, rank: int) -> int:
        """Most activations (of one stage and microbatch) that a rank holds at once."""
        return max((number for _, number in self.held(rank)), default=0)


def waits_for(action: Action, stages: int) -> tuple[Action, ...]:
    """What must be done before an action of a pipeline of so many stages can start, beside what its rank does
    before."""
    stage, microbatch = action.stage, action.microbatch
    if action.kind == "F":
        return (Action(stage - 1, "F", microbatch),) if stage else ()
    if action.kind == "W":
        return (Action(stage, "I", microbatch),)
    own = Action(stage, "F", microbatch)
    if stage + 1 == stages:
        return (own,)
    return own, Action(stage + 1, "B", microbatch)


def run(order: Order, times: Times | None = None) -> Run:
    """Run every action as soon as its rank is free and what it needs is there.

    Raises ScheduleError where ranks wait for each other, or for what nobody does.
    """
    times = times or Times()
    places, stages = order.places, order.stages
    done: dict[Action, float] = {}
    spans: list[list[Span]] = [[] for _ in order.ranks]
    moving = True
    while moving:
        moving = False
        for rank, todo in enumerate(order.ranks):
            while len(spans[rank]) < len(todo):
                action = todo[len(spans[rank])]
                start = _start(action, rank, stages, places, done, times)
                if start is None:
                    break
                start = max(start, spans[rank][-1].end if spans[rank] else 0.0)
                span = Span(action, start, start + times.of(action))
                spans[rank].append(span)
                done[_whole(action)] = span.end
                moving = True
    stuck = {r: todo[len(spans[r])] for r, todo in enumerate(order.ranks) if len(spans[r]) < len(todo)}
    if stuck:
        raise _deadlock(stuck, order, done)
    return Run(order, tuple(map(tuple, spans)))


def _whole(action: Action) -> Action:
    """The first half of a backward is what the stage before waits for, as a whole one is."""
    return Action(action.stage, "B", action.microbatch) if action.kind == "I" else action


def _start(
    action: Action, rank: int, stages: int, places: dict[int, int], done: dict[Action, float], times: Times
) -> float | None:
    start = 0.0
    for needed in waits_for(action, stages):
        end = done.get(_whole(needed))
        if end is None:
            return None
        start = max(start, end + (times.sending(needed) if places[needed.stage] != rank else 0.0))
    return start


def _deadlock(stuck: dict[int, Action], order: Order, done: dict[Action, float]) -> ScheduleError:
    told = []
    for rank, action in stuck.items():
        missing = [str(n) for n in waits_for(action, order.stages) if _whole(n) not in done]
        told.append(f"rank {rank} waits at {action} for {' and '.join(missing)}")
    return ScheduleError("order", "lets every rank go on until all is done", "; ".join(told), "change the order")
