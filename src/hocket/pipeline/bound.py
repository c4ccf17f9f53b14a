"""No order of a pipeline takes less than this."""

from __future__ import annotations

from collections.abc import Sequence

from hocket.pipeline.clock import Times
from hocket.pipeline.order import Action, Order


def least_makespan(
    placement: Sequence[Sequence[int]], microbatches: int, times: Times | None = None, halved: bool = False
) -> float:
    """A bound on the makespan of every order with these stages per rank; `halved`: backward passes are in halves.

    Of a rank's stages those from some stage on cannot start before a microbatch has come through all stages before
    it, and what they end with has to go back through as many. In between the rank does them for every microbatch.
    In halves, gradients of weights may be left for the time in which the rest goes back.
    """
    times = times or Times()
    least = 0.0
    for stages in placement:
        for first in stages:
            ahead = sum(times.of(Action(stage, "F", 0)) for stage in range(first))
            own = [stage for stage in stages if stage >= first]
            forward = microbatches * sum(times.of(Action(stage, "F", 0)) for stage in own)
            backward = microbatches * sum(times.of(Action(stage, "B", 0)) for stage in own)
            if not halved:
                behind = sum(times.of(Action(stage, "B", 0)) for stage in range(first))
                least = max(least, ahead + forward + backward + behind)
                continue
            inputs = microbatches * sum(times.of(Action(stage, "I", 0)) for stage in own)
            behind = sum(times.of(Action(stage, "I", 0)) for stage in range(first))
            least = max(least, ahead + forward + backward, ahead + forward + inputs + behind)
    return least


def bound_of(order: Order, times: Times | None = None) -> float:
    """A bound on the makespan of every order with the stages, ranks and microbatches of this one."""
    placement: list[list[int]] = [[] for _ in order.ranks]
    for stage, rank in sorted(order.places.items()):
        placement[rank].append(stage)
    halved = any(action.kind == "W" for todo in order.ranks for action in todo)
    return least_makespan(placement, order.microbatches, times, halved)
