"""Interleaved schedules: several chunks of layers per rank, for any number of microbatches (seed 004).

Microbatches go through the chunks in groups. A group of at least as many as ranks lets no rank wait for it; the
textbook's groups are as many as ranks, and what is left over, done last in a group too small, stops all ranks. Here
what is left over is dealt to the other groups (the seed's symmetric arrangement, where there is one group), and of
all such arrangements the one that takes least is taken, then the one that holds least.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hocket.errors import ScheduleError
from hocket.pipeline.classic import alternate
from hocket.pipeline.clock import Times, run
from hocket.pipeline.order import Order, actions, loop


def interleaved(ranks: int, chunks: int, microbatches: int, times: Times | None = None) -> Order:
    """The best arrangement under these times (none: forward and backward take one slot each)."""
    found: list[tuple[float, int, Order]] = []
    for groups in arrangements(ranks, microbatches):
        for extra in (0, 1) if chunks > 1 else (0,):
            order = in_groups(ranks, chunks, groups, extra)
            try:
                timed = run(order, times)
            except ScheduleError:  # a last group that is too small may come too late for the passes ahead
                continue
            peak = max(timed.peak(rank) for rank in range(ranks))
            found.append((round(timed.makespan, 9), peak, order))
    return min(found, key=lambda f: f[:2])[2]


def textbook(ranks: int, chunks: int, microbatches: int) -> Order:
    """Groups of as many microbatches as ranks, what is left over last (Narayanan et al. 2021, section 2.2, with the
    remainder as the seed's first form has it). With three chunks and more it may not run at all."""
    whole, rest = divmod(microbatches, ranks)
    return in_groups(ranks, chunks, [ranks] * whole + [rest] * (rest > 0))


def arrangements(ranks: int, microbatches: int) -> Iterator[list[int]]:
    """Sizes of groups worth trying: of as many as ranks where that comes out even; what is left over in one group
    too small at the end; added to one of the groups; or dealt to several."""
    whole, rest = divmod(microbatches, ranks)
    if not whole:
        yield [microbatches]
        return
    if not rest:
        yield [ranks] * whole
    else:
        yield [ranks] * whole + [rest]
        for place in range(whole):
            yield [ranks + rest * (k == place) for k in range(whole)]
        if whole > 1:
            dealt = [ranks + rest // whole + (k < rest % whole) for k in range(whole)]
            yield dealt
            yield dealt[::-1]
    if whole > 1:
        yield [microbatches]


def in_groups(ranks: int, chunks: int, groups: Sequence[int], extra: int = 0) -> Order:
    """Microbatches in groups, each group through one chunk of a rank after the other.

    Forward passes go ahead as far as the largest group needs, and `extra` more.
    """
    starts = [sum(groups[:k]) for k in range(len(groups))]
    members = [range(start, start + size) for start, size in zip(starts, groups, strict=True)]
    made = []
    for rank, stages in enumerate(loop(ranks, chunks)):
        forwards = [a for group in members for stage in stages for a in actions("F", stage, group)]
        backwards = [a for group in members for stage in stages[::-1] for a in actions("B", stage, group)]
        factor = 2 if chunks > 1 else 1
        ahead = factor * (ranks - 1 - rank) + (chunks - 1) * max(groups) + extra
        made.append(alternate(forwards, backwards, ahead))
    return Order(tuple(made), f"interleaved, groups of {', '.join(map(str, groups))}" if chunks > 1 else "1F1B")
