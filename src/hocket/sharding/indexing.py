"""Factors of operations that read or write where an index tensor says."""

from __future__ import annotations

from collections.abc import Sequence

from hocket.sharding.call import Call, Operand, factor
from hocket.sharding.rule import Factor


def gather(call: Call, words: tuple[str, ...]) -> tuple[Factor, ...] | None:
    """Dims of index and result are factors; the gathered dim of the source is one by recipe."""
    dim = call.dim(1, "dim", len(call.shape))
    if dim is None or len(call.operands) != 2:
        return None
    source, index = call.shape, call.operands[1].shape
    factors = []
    for d, size in enumerate(index):
        if d == dim and size > 1:
            factors.append(factor(call, f"d{d}", size, {1: d}, {0: d}))
        elif size > 1 and source[d] == size:
            factors.append(factor(call, f"d{d}", size, {0: d, 1: d}, {0: d}))
    if source[dim] > 1:
        factors.append(factor(call, "v", source[dim], {0: dim}, {}, "gather"))
    return tuple(factors)


def scatter(call: Call, words: tuple[str, ...]) -> tuple[Factor, ...] | None:
    """Dims that index and result share are factors; the written dim is one by the recipe in the words.

    With the word add, the rows of the index are a factor too: they sum.
    """
    dim = call.dim(1, "dim", len(call.shape))
    if dim is None or len(call.operands) < 2:
        return None
    written = tuple(range(1, len(call.operands)))
    factors = []
    for d, size in enumerate(call.shape):
        alike = all(call.operands[i].shape[d] == size for i in written)
        if d != dim and size > 1 and alike:
            factors.append(factor(call, f"d{d}", size, {0: d, **dict.fromkeys(written, d)}, {0: d}))
    if call.shape[dim] > 1:
        factors.append(factor(call, "v", call.shape[dim], {0: dim}, {0: dim}, words[0]))
    rows = {call.operands[i].shape[dim] for i in written}
    if "add" in words and len(rows) == 1 and max(rows) > 1:
        factors.append(factor(call, "s", max(rows), dict.fromkeys(written, dim), {}))
    return tuple(factors)


def _indices(call: Call) -> tuple[int | None, ...] | None:
    """Operand per indexed dim (None where a dim is taken whole); None where an index is a mask."""
    given = call.argument(1)
    if not isinstance(given, tuple):
        return None
    found = tuple(item.index if isinstance(item, Operand) else None for item in given)
    masks = any(i is not None and call.operands[i].dtype in ("bool", "uint8") for i in found)
    return None if masks or all(i is None for i in found) else found


def _places(shape: Sequence[int], found: Sequence[int | None], width: int) -> tuple[int, dict[int, int]]:
    """Where the indices' own dims start in the result, and where each dim taken whole goes."""
    indexed = [d for d, i in enumerate(found) if i is not None]
    adjacent = indexed == list(range(indexed[0], indexed[-1] + 1))
    start = indexed[0] if adjacent else 0
    kept = [d for d in range(len(shape)) if d not in indexed]
    return start, {d: n if n < start else n + width for n, d in enumerate(kept)}


def index(call: Call, words: tuple[str, ...]) -> tuple[Factor, ...] | None:
    """Dims taken whole and the indices' own dims are factors; a dim with the only index is one by recipe."""
    found = _indices(call)
    if found is None:
        return None
    tensors = [i for i in found if i is not None]
    width = max(len(call.operands[i].shape) for i in tensors)
    start, kept = _places(call.shape, found, width)
    factors = [
        factor(call, f"d{place}", call.shape[d], {0: d}, {0: place})
        for d, place in kept.items()
        if call.shape[d] > 1
    ]
    factors += _own(call, tensors, width, start, {0: start})
    if len(tensors) == 1 and call.shape[found.index(tensors[0])] > 1:
        dim = found.index(tensors[0])
        factors.append(factor(call, "v", call.shape[dim], {0: dim}, {}, f"index {call.shape[dim]}"))
    return tuple(factors)


def _own(call: Call, tensors: list[int], width: int, start: int, outputs: dict[int, int]) -> list[Factor]:
    """Factors of the indices' own dims, which broadcast among each other."""
    factors = []
    for n in range(width):
        inputs = {}
        sizes = set()
        for i in tensors:
            own = n - width + len(call.operands[i].shape)
            if own >= 0 and call.operands[i].shape[own] != 1:
                inputs[i] = own
                sizes.add(call.operands[i].shape[own])
        if len(sizes) == 1 and max(sizes) > 1:
            places = {j: place + n for j, place in outputs.items()}
            factors.append(factor(call, f"d{start + n}", max(sizes), inputs, places))
    return factors


def index_put(call: Call, words: tuple[str, ...]) -> tuple[Factor, ...] | None:
    """Dims taken whole are factors; where values accumulate, so are the indices' own dims, as sums."""
    found, values = _indices(call), call.operand(2)
    if found is None or values is None:
        return None
    tensors = [i for i in found if i is not None]
    width = max(len(call.operands[i].shape) for i in tensors)
    start, kept = _places(call.shape, found, width)
    shape = call.operands[values].shape
    rank = width + len(kept)

    def carry(place: int, size: int) -> dict[int, int]:
        own = place - rank + len(shape)
        return {values: own} if own >= 0 and shape[own] == size else {}

    factors = [
        factor(call, f"d{d}", call.shape[d], {0: d, **carry(place, call.shape[d])}, {0: d})
        for d, place in kept.items()
        if call.shape[d] > 1
    ]
    if call.argument(3, "accumulate") is True:
        for one in _own(call, tensors, width, 0, {}):
            n = int(one.name[1:])
            inputs = {i: s for i, s in enumerate(one.inputs) if s is not None} | carry(start + n, one.size)
            factors.append(factor(call, f"s{n}", one.size, inputs, {}))
    return tuple(factors)


def index_select(call: Call, words: tuple[str, ...]) -> tuple[Factor, ...] | None:
    """As index with one index along the given dim."""
    dim = call.dim(1, "dim", len(call.shape))
    if dim is None or len(call.operands[1].shape) != 1:
        return None
    factors = []
    for d, size in enumerate(call.result):
        if size > 1:
            factors.append(factor(call, f"d{d}", size, {1: 0} if d == dim else {0: d}, {0: d}))
    return tuple(factors)
