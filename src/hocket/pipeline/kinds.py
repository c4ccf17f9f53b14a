"""Schedules by name."""

from __future__ import annotations

from collections.abc import Callable

from hocket.errors import ScheduleError
from hocket.pipeline.classic import eager, forward_then_backward, one_forward_one_backward
from hocket.pipeline.clock import Times
from hocket.pipeline.interleaved import interleaved
from hocket.pipeline.order import Order, loop
from hocket.pipeline.zero_bubble import searched, zero_bubble_h1, zero_bubble_v

KINDS: dict[str, str] = {
    "fthenb": "all forward, then all backward (GPipe)",
    "1f1b": "one forward, one backward",
    "eager": "1F1B with more forward passes ahead, which gives sends time",
    "vpp": "interleaved 1F1B, any number of microbatches",
    "zb-h1": "zero bubble in the memory of 1F1B, one stage per rank",
    "zb-v": "zero bubble in the memory of 1F1B, two stages per rank",
    "zb": "zero bubble, searched under a limit of activations",
}
"""Every kind of schedule, and what it is."""


def make_order(
    kind: str,
    ranks: int,
    chunks: int = 1,
    microbatches: int = 1,
    times: Times | None = None,
    limit: int = 0,
) -> Order:
    """The schedule of a kind for ranks (pipeline stages), chunks of layers per rank, and microbatches.

    `limit` is the most activations that a rank may hold under `zb` (0: twice as many as there are stages). Raises
    ScheduleError for what does not go together.
    """
    if kind not in KINDS:
        raise ScheduleError(f"schedule {kind!r}", f"is one of {', '.join(KINDS)}", kind)
    if min(ranks, chunks, microbatches) < 1:
        values = f"{ranks} ranks, {chunks} chunks, {microbatches} microbatches"
        raise ScheduleError(f"schedule {kind}", "has at least one rank, chunk and microbatch", values)
    only = {"fthenb": 1, "1f1b": 1, "eager": 1, "zb-h1": 1, "zb-v": 2}.get(kind, chunks)
    if chunks not in (1, only):
        raise ScheduleError(f"schedule {kind}", f"has {only} chunks per rank", str(chunks), "use vpp or zb")
    makers: dict[str, Callable[[], Order]] = {
        "fthenb": lambda: forward_then_backward(ranks, microbatches),
        "eager": lambda: eager(ranks, microbatches),
        "1f1b": lambda: one_forward_one_backward(ranks, microbatches),
        "vpp": lambda: interleaved(ranks, chunks, microbatches, times),
        "zb-h1": lambda: zero_bubble_h1(ranks, microbatches, times),
        "zb-v": lambda: zero_bubble_v(ranks, microbatches, times),
        "zb": lambda: searched(loop(ranks, chunks), microbatches, limit or 2 * ranks * chunks, times),
    }
    return makers[kind]()
