"""Taking a rank's part out of a whole tensor and putting it back."""

from __future__ import annotations

from itertools import accumulate, product

import torch
from torch import Tensor

from hocket.sharding.layout import Interval

Intervals = tuple[tuple[Interval, ...], ...]
"""Per dim, the pieces (start, length) of the global tensor that a rank holds, in the order it stores them."""


def is_whole(intervals: Intervals, shape: tuple[int, ...]) -> bool:
    """Whether the intervals are everything there is."""
    return all(held == ((0, length),) for held, length in zip(intervals, shape, strict=True))


def shard_shape(intervals: Intervals) -> tuple[int, ...]:
    """Shape of the part that a rank holds."""
    return tuple(sum(length for _, length in held) for held in intervals)


def view_shard(whole: Tensor, intervals: Intervals) -> Tensor:
    """The part of a tensor that a rank holds; it shares the whole's memory where it can."""
    part = whole
    for dim, held in enumerate(intervals):
        if len(held) == 1:
            start, length = held[0]
            if length != whole.shape[dim]:
                part = part.narrow(dim, start, length)
        else:
            part = torch.cat([part.narrow(dim, start, length) for start, length in held], dim)
    return part.detach()


def take_shard(whole: Tensor, intervals: Intervals) -> Tensor:
    """A copy of the part of a tensor that a rank holds."""
    return view_shard(whole, intervals).clone(memory_format=torch.contiguous_format)


def put_shard(whole: Tensor, part: Tensor, intervals: Intervals) -> None:
    """Write a rank's part into its place in the whole tensor."""
    index = [torch.cat([torch.arange(s, s + n) for s, n in held]) for held in intervals]
    if index:
        whole[torch.meshgrid(*index, indexing="ij")] = part
    else:
        whole.copy_(part)


def take_part(held: Tensor, places: Intervals) -> Tensor:
    """A copy of a part of what a rank holds; `places` lie in what it stores."""
    return take_shard(held, places)


def put_part(held: Tensor, part: Tensor, places: Intervals) -> None:
    """Write a part to its places in what a rank holds."""
    offsets = [list(accumulate((n for _, n in dim), initial=0)) for dim in places]
    for index in product(*(range(len(dim)) for dim in places)):
        target, source = held, part
        for dim, i in enumerate(index):
            start, length = places[dim][i]
            target, source = target.narrow(dim, start, length), source.narrow(dim, offsets[dim][i], length)
        target.copy_(source)
