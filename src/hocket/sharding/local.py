"""An operation on local shards: arguments that are sizes are rewritten to local ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hocket.graph.types import Argument, Dtype, Operation, Ref, TensorType

Types = Sequence[TensorType]
Rewrite = Callable[[Operation, Types, Types], tuple[Argument, ...]]


def local_operation(operation: Operation, inputs: Types, outputs: Types) -> Operation:
    """The operation for local operands and results of these types.

    `inputs` are the local types of `Operation.inputs`, in that order, `outputs` those of its outputs. Where a
    device without a share has nothing to work on, an operation that refuses this becomes its empty result.
    """
    if operation.kind in FRAGILE and any(not t.elements for t in inputs):
        return _nothing(operation, inputs, outputs)
    rewrite = _REWRITES.get(".".join(operation.op.split(".")[:2]))
    if rewrite is None:
        return operation
    args = rewrite(operation, inputs, outputs)
    if args == operation.args:
        return operation
    return Operation(operation.op, args, operation.kwargs, operation.outputs, operation.module)


FRAGILE = frozenset({
    "convolution", "convolution_backward", "native_group_norm", "native_group_norm_backward", "native_dropout",
    "max_pool2d_with_indices", "max_pool2d_with_indices_backward", "avg_pool2d", "avg_pool2d_backward",
    "_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward", "upsample_nearest2d", "upsample_bilinear2d",
})  # fmt: skip
"""Kinds whose kernels refuse empty tensors."""


def _nothing(operation: Operation, inputs: Types, outputs: Types) -> Operation:
    """What comes of an empty operand: empty results, sums over nothing, and a bias where one is added."""
    shapes = tuple(t.shape for t in outputs)
    dtypes = tuple(Dtype(t.dtype) for t in outputs)
    bias = operation.args[2] if operation.kind == "convolution" else None
    return Operation("hocket.nothing.default", (shapes, dtypes, bias, *_like(operation)), (), operation.outputs)


def _like(operation: Operation) -> tuple[Argument, ...]:
    """One operand, so that the result is made on its device."""
    return tuple(Ref(name) for name in operation.inputs[:1])


def _exchange(operation: Operation, changes: Mapping[int, Argument]) -> tuple[Argument, ...]:
    return tuple(changes.get(i, argument) for i, argument in enumerate(operation.args))


def _result_shape_at(position: int) -> Rewrite:
    return lambda operation, inputs, outputs: _exchange(operation, {position: outputs[0].shape})


def _repeats(operation: Operation, inputs: Types, outputs: Types) -> tuple[Argument, ...]:
    shape = (1,) * (len(outputs[0].shape) - len(inputs[0].shape)) + inputs[0].shape
    times = tuple(new // old if old else 1 for new, old in zip(outputs[0].shape, shape, strict=True))
    return _exchange(operation, {1: times})


def _slice(operation: Operation, inputs: Types, outputs: Types) -> tuple[Argument, ...]:
    # A dim that is split is taken in full, so its local end is its local length.
    dim, end = operation.args[1], operation.args[3]
    if not isinstance(dim, int) or not isinstance(end, int):
        return operation.args
    return _exchange(operation, {3: min(end, inputs[0].shape[dim])})


def _split(operation: Operation, inputs: Types, outputs: Types) -> tuple[Argument, ...]:
    dim = operation.args[2] if len(operation.args) > 2 else 0
    if not isinstance(dim, int):
        return operation.args
    return _exchange(operation, {1: tuple(output.shape[dim] for output in outputs)})


def _bias_sizes(operation: Operation, inputs: Types, outputs: Types) -> tuple[Argument, ...]:
    if not operation.args[3]:
        return operation.args
    return _exchange(operation, {3: (inputs[0].shape[1],)})


def _group_norm(operation: Operation, inputs: Types, outputs: Types) -> tuple[Argument, ...]:
    batch, channels, *_ = inputs[0].shape
    mean = outputs[1]
    return _exchange(operation, {3: batch, 4: channels, 6: mean.shape[1]})


def _group_norm_backward(operation: Operation, inputs: Types, outputs: Types) -> tuple[Argument, ...]:
    batch, channels, *_ = inputs[0].shape
    return _exchange(operation, {5: batch, 6: channels, 8: inputs[2].shape[1]})


def _rows(operation: Operation, inputs: Types, outputs: Types) -> tuple[Argument, ...]:
    return _exchange(operation, {2: outputs[0].shape[0]})


_REWRITES: Mapping[str, Rewrite] = {
    "aten.view": _result_shape_at(1),
    "aten.expand": _result_shape_at(1),
    "aten.full": _result_shape_at(0),
    "aten.zeros": _result_shape_at(0),
    "aten.ones": _result_shape_at(0),
    "aten.empty": _result_shape_at(0),
    "aten.rand": _result_shape_at(0),
    "aten.randn": _result_shape_at(0),
    "aten.slice_backward": _result_shape_at(1),
    "aten.select_backward": _result_shape_at(1),
    "aten.repeat": _repeats,
    "aten.slice": _slice,
    "aten.split_with_sizes": _split,
    "aten.convolution_backward": _bias_sizes,
    "aten.native_group_norm": _group_norm,
    "aten.native_group_norm_backward": _group_norm_backward,
    "aten.embedding_dense_backward": _rows,
}
