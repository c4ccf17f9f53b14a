"""Factors of the families of operations whose factors depend on an argument: a dim, sizes, pads."""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd

from hocket.sharding.call import Call, factor
from hocket.sharding.layout import Split
from hocket.sharding.rule import Factor


def straight(call: Call, dims: Iterable[int], inputs: Iterable[int] | None = None) -> tuple[Factor, ...]:
    """Factors of dims that stand at the same place in the given operands (all by default) and all outputs."""
    carriers = tuple(range(len(call.operands)) if inputs is None else inputs)
    return tuple(
        factor(
            call,
            f"d{d}",
            call.result[d],
            dict.fromkeys(carriers, d),
            dict.fromkeys(range(len(call.outputs)), d),
        )
        for d in dims
        if call.result[d] > 1
    )


def _others(rank: int, dim: int) -> list[int]:
    return [d for d in range(rank) if d != dim]


def whole(call: Call, words: tuple[str, ...]) -> tuple[Factor, ...]:
    """No factor: every rank computes all of it."""
    return ()


def create(call: Call, words: tuple[str, ...]) -> tuple[Factor, ...]:
    """A tensor made of nothing, alike everywhere: every dim is a factor."""
    return straight(call, range(len(call.result)))


def reduce(call: Call, words: tuple[str, ...]) -> tuple[Factor, ...] | None:
    """Dims that are not reduced are factors; reduced ones too (as partial sums) where the words say sum."""
    rank = len(call.shape)
    position = int(words[0])
    given = call.argument(position, "dim")
    listed = call.numbers(position, "dim")
    if given is None or listed == ():
        listed = tuple(range(rank))
    if listed is None:
        return None
    gone = {d % rank for d in listed} if rank else set()
    keep = bool(rank) and len(call.result) == rank
    factors = []
    for dim, size in enumerate(call.shape):
        if size < 2 or (dim in gone and "sum" not in words):
            continue
        place = dim if keep else dim - sum(1 for d in gone if d < dim)
        outputs = {} if dim in gone else dict.fromkeys(range(len(call.outputs)), place)
        factors.append(factor(call, f"d{dim}", size, {0: dim}, outputs))
    return tuple(factors)


def row(call: Call, words: tuple[str, ...]) -> tuple[Factor, ...] | None:
    """Every dim but the row is a factor; the row is one with a recipe where the words name it."""
    name = "" if words[0].isdigit() else words[0]
    dim = call.dim(int(words[0]) if words[0].isdigit() else -1, name or "dim", len(call.shape))
    if dim is None:
        return () if not call.shape else None
    factors = straight(call, _others(len(call.shape), dim))
    if len(words) > 1 and call.shape[dim] > 1:
        places = dict.fromkeys(range(len(call.operands)), dim)
        factors += (factor(call, f"d{dim}", call.shape[dim], places, {0: dim}, words[1]),)
    return factors


def slice(call: Call, words: tuple[str, ...]) -> tuple[Factor, ...] | None:
    """Every dim that is kept whole is a factor."""
    dim = call.dim(1, "dim", len(call.shape))
    if dim is None:
        return None
    step = call.argument(4, "step", 1)
    full = call.shape[dim] == call.result[dim] and step == 1
    return straight(call, range(len(call.shape)) if full else _others(len(call.shape), dim))


def slice_backward(call: Call, words: tuple[str, ...]) -> tuple[Factor, ...] | None:
    """Every dim but the sliced one is a factor."""
    dim = call.dim(2, "dim", len(call.shape))
    return None if dim is None else straight(call, _others(len(call.shape), dim))


def select_backward(call: Call, words: tuple[str, ...]) -> tuple[Factor, ...] | None:
    """Every dim but the selected one, which the operand lacks, is a factor."""
    dim = call.dim(2, "dim", len(call.result))
    if dim is None:
        return None
    return tuple(
        factor(call, f"d{d}", call.result[d], {0: d - (d > dim)}, {0: d})
        for d in _others(len(call.result), dim)
        if call.result[d] > 1
    )


def slice_scatter(call: Call, words: tuple[str, ...]) -> tuple[Factor, ...] | None:
    """Every dim but the sliced one is a factor."""
    dim = call.dim(2, "dim", len(call.shape))
    return None if dim is None else straight(call, _others(len(call.shape), dim))


def split(call: Call, words: tuple[str, ...]) -> tuple[Factor, ...] | None:
    """Along the cut dim every piece is split by itself: the long tensor's split has segments."""
    dim, sizes = call.dim(2, "dim", len(call.shape)), call.numbers(1)
    if dim is None or sizes is None:
        return None
    factors = straight(call, _others(len(call.shape), dim))
    size = gcd(*sizes)
    if size > 1 and all(sizes):
        segments = Split(dim, segments=sizes) if len(sizes) > 1 else dim
        pieces = dict.fromkeys(range(len(call.outputs)), dim)
        factors += (factor(call, f"d{dim}", size, {0: segments}, pieces),)
    return factors


def cat(call: Call, words: tuple[str, ...]) -> tuple[Factor, ...] | None:
    """Along the joined dim every piece is split by itself: the long tensor's split has segments."""
    rank = len(call.result)
    dim = call.dim(1, "dim", rank)
    if len(call.args) == 1 and not call.kwargs:
        dim = 0
    if dim is None or any(len(operand.shape) != rank for operand in call.operands):
        return None
    factors = straight(call, _others(rank, dim))
    sizes = tuple(operand.shape[dim] for operand in call.operands)
    size = gcd(*sizes)
    if size > 1 and all(sizes):
        segments = Split(dim, segments=sizes) if len(sizes) > 1 else dim
        pieces = dict.fromkeys(range(len(call.operands)), dim)
        factors += (factor(call, f"d{dim}", size, pieces, {0: segments}),)
    return factors


def pad(call: Call, words: tuple[str, ...]) -> tuple[Factor, ...] | None:
    """Every dim that is not padded is a factor."""
    pads, rank = call.numbers(1), len(call.shape)
    if pads is None:
        return None
    padded = {rank - 1 - i // 2 for i, n in enumerate(pads) if n}
    return straight(call, (d for d in range(rank) if d not in padded))


def flip(call: Call, words: tuple[str, ...]) -> tuple[Factor, ...] | None:
    """Every dim that is not flipped is a factor."""
    dims, rank = call.numbers(1), len(call.shape)
    if dims is None:
        return None
    return straight(call, (d for d in range(rank) if d not in {n % rank for n in dims}))


def roll(call: Call, words: tuple[str, ...]) -> tuple[Factor, ...] | None:
    """Every dim that is not rolled is a factor; without dims the flattened tensor is rolled."""
    dims, rank = call.numbers(2) or (), len(call.shape)
    if not dims:
        return ()
    return straight(call, (d for d in range(rank) if d not in {n % rank for n in dims}))


def grouped_mm(call: Call, words: tuple[str, ...]) -> tuple[Factor, ...] | None:
    """Rows in groups (experts) that offsets bound: `t k, g k j -> t j`, or per group `i t, t j -> g i j`.

    Rows stay whole, since a group may end anywhere; groups are a factor by recipe: in the first form a rank
    gives zeros for rows of other ranks' groups, in the second it gives its groups.
    """
    if len(call.operands) != 3 or call.operand(2) != 2:
        return None
    ranks = tuple(len(operand.shape) for operand in call.operands)
    left, right = call.operands[0].shape, call.operands[1].shape
    if ranks == (2, 3, 1):
        made = [
            factor(call, "k", left[1], {0: 1, 1: 1}, {}),
            factor(call, "j", right[2], {1: 2}, {0: 1}),
            factor(call, "g", right[0], {1: 0}, {}, "grouped_mm"),
        ]
    elif ranks == (2, 2, 1):
        made = [
            factor(call, "i", left[0], {0: 0}, {0: 1}),
            factor(call, "j", right[1], {1: 1}, {0: 2}),
            factor(call, "g", call.operands[2].shape[0], {}, {0: 0}, "grouped_mm"),
        ]
    else:
        return None
    return tuple(one for one in made if one.size > 1)
