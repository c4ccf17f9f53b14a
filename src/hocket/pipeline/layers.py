"""Which layers each stage gets, when they do not divide (seed 004, part 2), or weighed by cost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise, product
from math import inf

from hocket.errors import ScheduleError


def deal_layers(layers: int, stages: int) -> tuple[int, ...]:
    """Number of layers per stage, dealt one after the other: the first stages get one more.

    Raises ScheduleError where a stage would get none.
    """
    if layers < stages:
        raise ScheduleError(
            f"{layers} layers", "are at least one per stage", f"{stages} stages", "use fewer chunks"
        )
    return tuple(layers // stages + (stage < layers % stages) for stage in range(stages))


def deal_by_rank(counts: Sequence[int], chunks: int, layers: int | None = None) -> tuple[int, ...]:
    """Number of layers per stage where every rank's own number is given: a rank deals its layers to its chunks.

    Stages go round the ranks. Raises ScheduleError where a chunk would get none, or where the numbers do not add up
    to `layers`.
    """
    if layers is not None and sum(counts) != layers:
        raise ScheduleError("layers per rank", f"add up to {layers}", f"{'+'.join(map(str, counts))}={sum(counts)}")
    for rank, count in enumerate(counts):
        if count < chunks:
            values, repair = f"{count} layers, {chunks} chunks", "give the rank more layers or use fewer chunks"
            raise ScheduleError(f"rank {rank}", "has at least one layer per chunk", values, repair)
    return tuple(count // chunks + (chunk < count % chunks) for chunk in range(chunks) for count in counts)


def cut_by_cost(costs: Sequence[float], stages: int) -> tuple[int, ...]:
    """Number of consecutive layers per stage such that the costliest stage costs least (dynamic programming).

    `costs` are those of the layers in order; what is not a layer (an embedding, a loss) goes into the cost of the
    first or last. Raises ScheduleError where a stage would get none.
    """
    if len(costs) < stages:
        raise ScheduleError(f"{len(costs)} layers", "are at least one per stage", f"{stages} stages")
    sums = [0.0, *accumulate(costs)]
    count = len(costs)
    best = [0.0] + [inf] * count
    starts: list[list[int]] = []
    for stage in range(1, stages + 1):
        fresh, start = [inf] * (count + 1), [0] * (count + 1)
        for end in range(stage, count - (stages - stage) + 1):
            options = ((max(best[at], sums[end] - sums[at]), at) for at in range(stage - 1, end))
            fresh[end], start[end] = min(options)
        best = fresh
        starts.append(start)
    sizes, end = [], count
    for start in reversed(starts):
        sizes.append(end - start[end])
        end = start[end]
    return tuple(reversed(sizes))


def balance_ranks(costs: Sequence[float], ranks: int, chunks: int) -> tuple[int, ...]:
    """Number of consecutive layers per stage, stages going round the ranks, such that the rank that costs most
    costs little: from the best single stages on, layers move across cuts as long as that helps.

    Raises ScheduleError where a stage would get none.
    """
    sizes = list(cut_by_cost(costs, ranks * chunks))
    if chunks == 1:
        return tuple(sizes)
    sums = [0.0, *accumulate(costs)]

    def worst(sizes: Sequence[int]) -> tuple[float, ...]:
        edges = [0, *accumulate(sizes)]
        each = [sums[b] - sums[a] for a, b in pairwise(edges)]
        return tuple(sorted((sum(each[rank::ranks]) for rank in range(ranks)), reverse=True))

    moving = True
    while moving:
        moving = False
        for giver, taker in product(range(len(sizes)), repeat=2):
            tried = list(sizes)
            tried[giver] -= 1
            tried[taker] += 1
            if tried[giver] > 0 and worst(tried) < worst(sizes):
                sizes, moving = tried, True
    return tuple(sizes)
