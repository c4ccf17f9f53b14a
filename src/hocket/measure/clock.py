"""Timing repeated calls while other processes are busy too."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter

import torch

HELD_BYTES = 16 * 2**20
"""Results of so many bytes are kept before they are dropped: a training step's allocator doesn't hand out
the block that was just freed, so results land in other memory than the last call's."""


def synchronize(device: str) -> None:
    """Wait for queued work of an accelerator; nothing on a CPU."""
    if device == "cuda":
        torch.cuda.synchronize()


def seconds_per_call(
    calls: Sequence[Callable[[], object]], device: str, window: float, windows: int
) -> float:
    """Mean seconds of a call in sustained repetition, the median over windows of `window` seconds.

    `calls` are the same operation on different data, taken in turn. A mean within a window and not a median:
    where processes share a core, one call is either undisturbed or interrupted, and only the mean says what
    a step will see.
    """
    held: deque[object] = deque(maxlen=_held(calls[0]()))
    calls[-1]()
    synchronize(device)
    batch, took = 1, 0.0
    while took < min(window / 8, 2e-3) and batch < 4096:
        batch *= 2
        took = _batch_seconds(calls, held, batch, device)
    return median(_window_seconds(calls, held, batch, device, window) for _ in range(windows))


def _held(result: object) -> int:
    size = sum(
        t.nbytes for t in (result if isinstance(result, tuple) else (result,)) if isinstance(t, torch.Tensor)
    )
    return max(1, min(8, HELD_BYTES // max(1, size)))


def _batch_seconds(
    calls: Sequence[Callable[[], object]], held: deque[object], batch: int, device: str
) -> float:
    start = perf_counter()
    for index in range(batch):
        held.append(calls[index % len(calls)]())
    synchronize(device)
    return perf_counter() - start


def _window_seconds(
    calls: Sequence[Callable[[], object]], held: deque[object], batch: int, device: str, window: float
) -> float:
    start = perf_counter()
    count = 0
    while perf_counter() - start < window:
        _batch_seconds(calls, held, batch, device)
        count += batch
    return (perf_counter() - start) / count
