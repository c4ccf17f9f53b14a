"""What computation costs: the work of an operation, and its seconds on a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

from hocket.cluster.types import ANY_DTYPE, Cluster, Device
from hocket.graph.types import Graph, Operation, TensorType

ATTENTION_FLOPS = 4
"""Per (query, key, width): two products of 2 flops, queries by keys and probabilities by values."""

ATTENTION_BACKWARD_FLOPS = 10
"""Five products instead of two, the scores being computed again (FlashAttention-2, Dao 2023, section 4.1)."""

VIEWS = frozenset({"view", "permute", "expand", "slice", "split_with_sizes"})
"""Kinds that only reinterpret their input."""

PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm"})
"""Kinds that are one matrix product per batch entry."""

MAKERS = frozenset({"full", "arange", "constant"})
"""Kinds that write an output and read nothing."""


class Calibrated(Protocol):
    """A calibration's measured device (see `cost.calibration`)."""

    @property
    def device(self) -> Device:
        """One process's share of the machine while all run."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one operation does: flops of its matrix products, bytes it reads and writes, elements it visits.

    `written` is the part of the bytes that is written, `kind` the operation's short name; `launches` is 0 for
    an operation that only reinterprets its input.
    """

    flops: float
    bytes: float
    elements: float = 0.0
    kind: str = ""
    launches: int = 1
    written: float = 0.0


def work(operation: Operation, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> Work:
    """The work of one operation on (local) types: `inputs` as in `operation.inputs`, `outputs` likewise."""
    if operation.kind in VIEWS:
        return Work(0.0, 0.0, 0.0, operation.kind, 0)
    done = _work(operation, inputs, outputs)
    return Work(done.flops, done.bytes, done.elements, done.kind, 1, float(sum(t.bytes for t in outputs)))


def _work(operation: Operation, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> Work:
    kind = operation.kind
    if kind in PRODUCTS:
        flops = 2.0 * outputs[0].elements * inputs[-2].shape[-1]
        return Work(flops, _all_bytes(inputs, outputs), 0.0, kind)
    special = _SPECIAL.get(kind)
    if special is not None:
        return special(operation, inputs, outputs)
    if kind in MAKERS or not inputs:
        written = float(sum(t.bytes for t in outputs))
        return Work(0.0, written, float(sum(t.elements for t in outputs)), kind)
    return Work(0.0, _all_bytes(inputs, outputs), _visited(inputs, outputs), kind)


def compute_seconds(work: Work, dtype: str, device: Device, calibration: Calibrated | None = None) -> float:
    """Seconds of work on a device: the slowest of arithmetic and memory traffic, and the launch.

    `dtype` is that of the matrix products' operands. A roofline (Williams, Waterman, Patterson 2009) with
    measured rates in place of peaks. A calibration's device goes before `device`.
    """
    if calibration is not None:
        device = calibration.device
    if work.launches == 0:
        return device.view_seconds
    moved = work.bytes + (device.write_weight - 1.0) * work.written
    seconds = moved / device.bytes_per_second(moved) if moved else 0.0
    if work.flops:
        rate = device.rate(dtype, work.flops)
        for kind, factor in device.kind_rates:
            if kind == work.kind:
                rate *= factor
        seconds = max(seconds, work.flops / rate)
    for kind, each in device.element_seconds:
        if kind == work.kind:
            seconds = max(seconds, work.elements * each)
    for kind, more in device.kind_launches:
        if kind == work.kind:
            seconds += more
    return seconds + work.launches * device.launch_seconds


def operation_seconds(
    operation: Operation, inputs: Sequence[TensorType], outputs: Sequence[TensorType], device: Device
) -> float:
    """Seconds of one operation on a device, in the dtype of its first input."""
    dtype = inputs[0].dtype if inputs else outputs[0].dtype
    return compute_seconds(work(operation, inputs, outputs), dtype, device)


def _all_bytes(inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> float:
    return float(sum(t.bytes for t in inputs) + sum(t.bytes for t in outputs))


def _visited(inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> float:
    """Elements of the largest tensor: a reduction visits its input, a broadcast its output."""
    return float(max((t.elements for t in (*inputs, *outputs)), default=0))


def _attention(operation: Operation, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> Work:
    """Attention (q, k, v, mask, is_causal, scale): a causal one computes half of the scores."""
    query, key = inputs[0], inputs[1]
    return _attention_work(ATTENTION_FLOPS, query, key, operation.argument(4, "is_causal"), inputs, outputs)


def _attention_backward(operation: Operation, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> Work:
    """Its backward (grad_out, q, k, v, out, logsumexp, mask, is_causal, scale)."""
    query, key = inputs[1], inputs[2]
    causal = operation.argument(7, "is_causal")
    done = _attention_work(ATTENTION_BACKWARD_FLOPS, query, key, causal, inputs, outputs)
    return Work(done.flops, done.bytes, done.elements, "attention_backward")


def _attention_work(
    flops: int,
    query: TensorType,
    key: TensorType,
    causal: object,
    inputs: Sequence[TensorType],
    outputs: Sequence[TensorType],
) -> Work:
    scores = float(prod(query.shape[:-1]) * key.shape[-2])
    half = 0.5 if causal is True else 1.0
    total = half * flops * scores * query.shape[-1]
    return Work(total, _all_bytes(inputs, outputs), half * scores, "attention")


def _convolution_flops(weight: TensorType, spread: TensorType) -> float:
    """Every element of `spread` (the output, or the input when transposed) meets one filter of the weight."""
    return 2.0 * spread.elements * weight.elements / weight.shape[0] if weight.elements else 0.0


def _convolution(operation: Operation, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> Work:
    transposed = operation.argument(6, "transposed") is True
    flops = _convolution_flops(inputs[1], inputs[0] if transposed else outputs[0])
    return Work(flops, _all_bytes(inputs, outputs), 0.0, "convolution")


def _convolution_backward(
    operation: Operation, inputs: Sequence[TensorType], outputs: Sequence[TensorType]
) -> Work:
    """Gradients of the input and of the weight are one convolution's flops each."""
    grad, data, weight = inputs[:3]
    mask = operation.argument(10, "output_mask")
    wanted = sum(1 for m in mask[:2] if m) if isinstance(mask, tuple) else 2
    transposed = operation.argument(7, "transposed") is True
    flops = wanted * _convolution_flops(weight, data if transposed else grad)
    return Work(flops, _all_bytes(inputs, outputs), 0.0, "convolution_backward")


def _lookup(operation: Operation, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> Work:
    """Reads only the rows it takes: the indices, and the output's bytes twice."""
    indices = sum(t.bytes for t in inputs[1:])
    return Work(0.0, float(indices + 2 * outputs[0].bytes), float(outputs[0].elements), operation.kind)


def _scatter(operation: Operation, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> Work:
    """Copies its first input, then writes the source's elements to their places."""
    moved = inputs[0].bytes + outputs[0].bytes + sum(t.bytes for t in inputs[1:])
    return Work(0.0, float(moved), float(outputs[0].elements), operation.kind)


def _embedding_backward(operation: Operation, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> Work:
    """Writes zeros to the whole table, then adds a row (read and written) per index."""
    moved = outputs[0].bytes + sum(t.bytes for t in inputs) + 2 * inputs[0].bytes
    return Work(0.0, float(moved), float(outputs[0].elements), operation.kind)


_SPECIAL: dict[str, Callable[[Operation, Sequence[TensorType], Sequence[TensorType]], Work]] = {
    "attention": _attention,
    "attention_backward": _attention_backward,
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "embedding": _lookup,
    "gather": _lookup,
    "index": _lookup,
    "index_select": _lookup,
    "take": _lookup,
    "scatter": _scatter,
    "scatter_add": _scatter,
    "index_put": _scatter,
    "embedding_dense_backward": _embedding_backward,
}


def least_seconds(graph: Graph, cluster: Cluster) -> float:
    """Seconds that no way of dividing a step among the cluster's devices can beat: its matrix work alone, all
    devices busy at the best rate that any of their curves reaches."""
    rates: dict[str, float] = {}
    total = 0.0
    for operation in graph.operations:
        inputs = [graph.types[n] for n in operation.inputs]
        flops = work(operation, inputs, [graph.types[n] for n in operation.outputs]).flops
        if not flops:
            continue
        dtype = inputs[0].dtype
        if dtype not in rates:
            rates[dtype] = sum(_best_rate(device, dtype) for device in cluster.devices)
        total += flops / rates[dtype]
    return total


def _best_rate(device: Device, dtype: str) -> float:
    shares = [share for key, curve in device.products if key in (dtype, ANY_DTYPE) for _, share in curve]
    return device.peak(dtype) * max(shares, default=1.0) * max([1.0, *(f for _, f in device.kind_rates)])
