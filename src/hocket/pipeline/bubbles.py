"""Where ranks idle, in closed form (seed 004, part 2), for stages that all take the same.

Before its first pass a rank waits for the ranks before it, after its last one for the same ranks on the way back.
In between it idles as long as the ranks behind it take for one microbatch.
"""

from __future__ import annotations

from hocket.errors import ScheduleError
from hocket.pipeline.order import Action


def phases(ranks: int, rank: int, forward: float = 1.0, backward: float = 1.0) -> tuple[float, float, float]:
    """Idle time before a rank's first pass, between first and last, and after its last one.

    Holds for FThenB and 1F1B with any number of microbatches, and for interleaved schedules that reach their bound
    with at least as many microbatches as ranks.
    """
    behind = ranks - 1 - rank
    return rank * forward, behind * (forward + backward), rank * backward


def bubbles_before(
    kind: str, ranks: int, microbatches: int, rank: int, forward: float = 1.0, backward: float = 1.0
) -> dict[Action, float]:
    """How long a rank of an FThenB or 1F1B schedule idles right before which of its passes.

    What it idles after its last pass is the last of `phases`. Raises ScheduleError for another kind.
    """
    behind = ranks - 1 - rank
    found = {Action(rank, "F", 0): rank * forward}
    if kind == "FThenB":
        found[Action(rank, "B", 0)] = behind * (forward + backward)
    elif kind == "1F1B":
        late = max(0, ranks - rank - microbatches) * forward  # all forward passes are over before the first answer
        found[Action(rank, "B", 0)] = late + behind * backward
        for microbatch in range(max(1, microbatches - behind), microbatches):
            found[Action(rank, "B", microbatch)] = forward
    else:
        raise ScheduleError(f"schedule {kind!r}", "has idle times in closed form", kind, "FThenB or 1F1B")
    return {action: length for action, length in found.items() if length > 0}
