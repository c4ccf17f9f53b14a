"""A pass: sums of pieces that zeros surround are the pieces side by side.

The gradient of a slice is a block among zeros; the gradient of a tensor that is used slice by slice is a
sum of these. Where the blocks do not overlap, one concatenation is the same and moves each element once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

from hocket.graph.types import Dtype, Operation, Ref, TensorType

Piece = tuple[int, int, str]


def join_padded(operations: Iterable[Operation], types: dict[str, TensorType]) -> list[Operation]:
    """The operations with every sum of non-overlapping padded blocks written as a concatenation."""
    made: dict[str, Operation] = {}
    result: list[Operation] = []
    for op in operations:
        fresh = _joined(op, made, types) or [op]
        for new in fresh:
            for output in new.outputs:
                made[output] = new
        result.extend(fresh)
    return result


def _joined(op: Operation, made: Mapping[str, Operation], types: dict[str, TensorType]) -> list[Operation] | None:
    """What replaces `op` when it adds two padded blocks, else None."""
    if op.op != "aten.add.Tensor" or op.kwargs or len(op.inputs) != 2:
        return None
    first, second = (made.get(name) for name in op.inputs)
    if first is None or second is None or first.op != "aten.cat.default" or second.op != first.op:
        return None
    type_, dim = types[op.outputs[0]], first.args[1]
    if first.args[1] != second.args[1] or any(types[name] != type_ for name in op.inputs):
        return None
    if not isinstance(dim, int):
        return None
    pieces = sorted(_pieces(first, dim, made, types) + _pieces(second, dim, made, types))
    if any(one[1] > two[0] for one, two in itertools.pairwise(pieces)):
        return None
    fresh: list[Operation] = []
    parts: list[Ref] = []
    position = 0
    for start, end, name in [*pieces, (type_.shape[dim], type_.shape[dim], "")]:
        if start > position:
            fresh.append(_zeros(f"{op.outputs[0]}_gap{position}", type_, dim, start - position, types))
            parts.append(Ref(fresh[-1].outputs[0]))
        if name:
            parts.append(Ref(name))
        position = end
    return [*fresh, Operation(first.op, (tuple(parts), dim), (), op.outputs, op.module)]


def _pieces(
    cat: Operation, dim: int, made: Mapping[str, Operation], types: Mapping[str, TensorType]
) -> list[Piece]:
    """Where the parts of a concatenation lie that are not zeros: start, end, value."""
    pieces: list[Piece] = []
    position = 0
    for name in cat.inputs:
        end = position + types[name].shape[dim]
        source = made.get(name)
        zeros = source is not None and source.op == "aten.full.default" and source.args[1] == 0
        if not zeros:
            pieces.append((position, end, name))
        position = end
    return pieces


def _zeros(name: str, like: TensorType, dim: int, rows: int, types: dict[str, TensorType]) -> Operation:
    shape = (*like.shape[:dim], rows, *like.shape[dim + 1 :])
    types[name] = TensorType(shape, like.dtype)
    return Operation("aten.full.default", (shape, 0), (("dtype", Dtype(like.dtype)),), (name,))
