"""Timing repeated calls while other processes are busy too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter, process_time

import torch

HELD_BYTES = 32 * 2**20
HELD_RESULTS = 32
"""Every second result is kept, up to these limits, and then all are dropped together: as a step keeps about half
of what it computes for its backward pass, and drops it on the way back. The allocator returns that memory to the
system and has to get it again page by page; the other half reuses memory that is still warm."""


def synchronize(device: str) -> None:
    """Wait for queued work of an accelerator; nothing on a CPU."""
    if device == "cuda":
        torch.cuda.synchronize()


def share_clock(ranks: int, cores: int, device: str) -> Callable[[], float]:
    """The clock of a rank's computation when `ranks` processes share `cores` cores.

    Where every process computes with one thread, it is the processor time it used, as long as it takes when
    all others are busy: neither other programs nor ranks that ended earlier disturb it. Elsewhere wall time.
    """
    if device != "cpu" or ranks < cores:
        return perf_counter
    factor = ranks / cores
    return lambda: process_time() * factor


def seconds_per_call(
    calls: Sequence[Callable[[], object]],
    device: str,
    window: float,
    windows: int,
    clock: Callable[[], float] = perf_counter,
) -> float:
    """Mean seconds of a call in sustained repetition, the lower third of windows of `window` seconds.

    `calls` are the same operation on different data, taken in turn. A mean within a window and not a median:
    where processes share a core, one call is either undisturbed or interrupted, and only the mean says what
    a step will see. The lower third of the windows, as other programs can only slow a window down.
    """
    limit = _held(calls[0]())
    held: list[object] = []
    calls[-1]()
    synchronize(device)
    batch, took = 1, 0.0
    while took < min(window / 8, 2e-3) and batch < 4096:
        batch *= 2
        took = _batch_seconds(calls, held, limit, batch, device)
    means = [_window_seconds(calls, held, limit, batch, device, window, clock) for _ in range(windows)]
    return sorted(means)[windows // 3]


def _held(result: object) -> int:
    size = sum(
        t.nbytes for t in (result if isinstance(result, tuple) else (result,)) if isinstance(t, torch.Tensor)
    )
    return max(1, min(HELD_RESULTS, HELD_BYTES // max(1, size)))


def _batch_seconds(
    calls: Sequence[Callable[[], object]], held: list[object], limit: int, batch: int, device: str
) -> float:
    start = perf_counter()
    for index in range(batch):
        result = calls[index % len(calls)]()
        if index % 2:
            held.append(result)
        if len(held) >= limit:
            held.clear()
    synchronize(device)
    return perf_counter() - start


def _window_seconds(
    calls: Sequence[Callable[[], object]],
    held: list[object],
    limit: int,
    batch: int,
    device: str,
    window: float,
    clock: Callable[[], float],
) -> float:
    start, begun = perf_counter(), clock()
    count = 0
    while count == 0 or perf_counter() - start < window:
        _batch_seconds(calls, held, limit, batch, device)
        count += batch
    return (clock() - begun) / count
