"""Factors of operations that only move elements: view, permute, expand, repeat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import gcd

from hocket.sharding.call import Call, factor
from hocket.sharding.rule import Factor


def dim_groups(before: Sequence[int], after: Sequence[int]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Smallest groups of dims of two shapes that hold the same elements; dims of size 1 are in no group.

    Both shapes must have the same, non-zero number of elements.
    """
    left = [d for d, n in enumerate(before) if n != 1]
    right = [d for d, n in enumerate(after) if n != 1]
    i = j = 0
    while i < len(left) and j < len(right):
        first, second = i, j
        here, there = before[left[i]], after[right[j]]
        while here != there:
            if here < there:
                i += 1
                here *= before[left[i]]
            else:
                j += 1
                there *= after[right[j]]
        i, j = i + 1, j + 1
        yield tuple(left[first:i]), tuple(right[second:j])


def view(call: Call, words: tuple[str, ...]) -> tuple[Factor, ...]:
    """In each group of dims the outermost one may be split, into as many parts as divide both sides."""
    before, after = call.shape, call.result
    if not call.operands[0].elements:
        return ()
    factors = []
    for left, right in dim_groups(before, after):
        size = gcd(before[left[0]], after[right[0]])
        if size > 1:
            factors.append(factor(call, f"d{right[0]}", size, {0: left[0]}, {0: right[0]}))
    return tuple(factors)


def permute(call: Call, words: tuple[str, ...]) -> tuple[Factor, ...] | None:
    """Every dim is a factor and goes where the argument says."""
    order = call.numbers(1)
    if order is None:
        return None
    rank = len(call.shape)
    return tuple(
        factor(call, f"d{new}", call.shape[old], {0: old % rank}, {0: new})
        for new, old in enumerate(order)
        if call.shape[old] > 1
    )


def expand(call: Call, words: tuple[str, ...]) -> tuple[Factor, ...]:
    """Every dim of the result is a factor; the operand carries those that it really has."""
    shift = len(call.result) - len(call.shape)
    factors = []
    for dim, size in enumerate(call.result):
        carries = dim >= shift and call.shape[dim - shift] == size
        if size > 1:
            factors.append(factor(call, f"d{dim}", size, {0: dim - shift} if carries else {}, {0: dim}))
    return tuple(factors)


def repeat(call: Call, words: tuple[str, ...]) -> tuple[Factor, ...]:
    """As expand, but a dim that is tiled (longer than one and repeated) stays whole."""
    shift = len(call.result) - len(call.shape)
    factors = []
    for dim, size in enumerate(call.result):
        own = call.shape[dim - shift] if dim >= shift else 1
        if size > 1 and own in (1, size):
            factors.append(factor(call, f"d{dim}", size, {0: dim - shift} if own == size else {}, {0: dim}))
    return tuple(factors)
