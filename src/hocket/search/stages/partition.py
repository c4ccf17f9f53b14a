"""Which units each stage gets: dynamic programming over consecutive units (Alpa, section 5.2).

A step of B microbatches over stages of t_1, t_2 ... takes about sum t_i + (B - 1) max t_j. For every value that the
largest may have, from the least on, the least sum is found; a value is passed over that is nearly the one before,
and the search ends where B times the largest alone is more than the best (Alpa's early pruning).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np
from numpy.typing import NDArray

NEARLY = 1e-3
"""Values of the largest stage that differ by less than this share of it count as one."""


def partition(
    seconds: Sequence[NDArray[np.float64]], microbatches: int, cutoff: float = inf
) -> tuple[tuple[int, ...], float] | None:
    """Number of units per stage, and the seconds of the step; None where there is no way that takes less than
    `cutoff`.

    `seconds[s][i, k]` is what units i to k - 1 take as stage s (infinite where they do not fit).
    """
    count = seconds[0].shape[0] - 1
    if len(seconds) > count:
        return None
    least = sum(float(stage[np.isfinite(stage)].min(initial=inf)) for stage in seconds)
    values = np.unique(np.concatenate([stage[np.isfinite(stage)] for stage in seconds]))
    best: tuple[tuple[int, ...], float] | None = None
    limit, last = cutoff, -inf
    for value in values:
        if (microbatches - 1) * value + least >= limit:
            break
        if value < last * (1 + NEARLY):
            continue
        found = _within(seconds, float(value) * (1 + NEARLY), count)
        if found is None:
            continue
        last = float(value)
        total = found[1] + (microbatches - 1) * found[2]
        if total < limit:
            best, limit = (found[0], total), total
    return best


def _within(
    seconds: Sequence[NDArray[np.float64]], most: float, count: int
) -> tuple[tuple[int, ...], float, float] | None:
    """The sizes of stages none of which takes more than `most` with the least sum: sizes, sum, largest."""
    best = np.full(count + 1, inf)
    best[0] = 0.0
    starts = []
    for stage in seconds:
        totals = best[:, None] + np.where(stage <= most, stage, inf)
        starts.append(totals.argmin(axis=0))
        best = totals.min(axis=0)
    if not np.isfinite(best[count]):
        return None
    sizes, end, largest = [], count, 0.0
    for stage, start in zip(reversed(seconds), reversed(starts), strict=True):
        begin = int(start[end])
        largest = max(largest, float(stage[begin, end]))
        sizes.append(end - begin)
        end = begin
    return tuple(reversed(sizes)), float(best[count]), largest
