"""ATen operations that capture takes apart, so that what they average over is global and explicit."""

from __future__ import annotations

from math import prod
from typing import Any

import torch

aten = torch.ops.aten
Tensor = torch.Tensor
MEAN, SUM = 1, 2


def _rows(log_probabilities: Tensor, target: Tensor, weight: Tensor | None, ignore: int) -> tuple[Tensor, ...]:
    """Which labels count, labels with ignored ones at 0, and the weight of every label (0 when ignored)."""
    counted = aten.ne.Scalar(target, ignore)
    zero = aten.full.default([], 0, dtype=target.dtype)
    labels = aten.where.self(counted, target, zero)
    if weight is None:
        weights = aten._to_copy.default(counted, dtype=log_probabilities.dtype)
    else:
        flat = aten.index.Tensor(weight, [labels])
        weights = aten.where.self(counted, flat, aten.full.default([], 0.0, dtype=flat.dtype))
    return counted, labels, weights


def nll_loss_forward(
    self: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """Negative log likelihood: the weighted sum over labels that count, over the sum of their weights."""
    dim = min(1, self.dim() - 1)
    _, labels, weights = _rows(self, target, weight, ignore_index)
    picked = aten.squeeze.dim(aten.gather.default(self, dim, aten.unsqueeze.default(labels, dim)), dim)
    losses = aten.neg.default(aten.mul.Tensor(picked, weights))
    total = aten.sum.default(weights)
    if reduction == MEAN:
        return aten.div.Tensor(aten.sum.default(losses), total), total
    if reduction == SUM:
        return aten.sum.default(losses), total
    return losses, aten.full.default([], 0.0, dtype=self.dtype)


def nll_loss_backward(
    grad_output: Tensor,
    self: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: Tensor,
) -> Tensor:
    """Gradient of the negative log likelihood: each row's gradient scattered to the place of its label."""
    dim = min(1, self.dim() - 1)
    _, labels, weights = _rows(self, target, weight, ignore_index)
    row = aten.div.Tensor(grad_output, total_weight) if reduction == MEAN else grad_output
    rows = aten.neg.default(aten.mul.Tensor(weights, row))
    zeros = aten.full.default(list(self.shape), 0.0, dtype=self.dtype)
    index, source = aten.unsqueeze.default(labels, dim), aten.unsqueeze.default(rows, dim)
    return aten.scatter.src(zeros, dim, index, source)


def _along_channels(value: Tensor, rank: int) -> Tensor:
    return aten.view.default(value, [1, value.shape[0], *([1] * (rank - 2))])


def _statistics(value: Tensor) -> tuple[Tensor, Tensor, list[int], int]:
    """Mean and biased variance per channel over batch and space, the dims summed, and how many elements."""
    dims = [d for d in range(value.dim()) if d != 1]
    count = prod(value.shape[d] for d in dims)
    mean = aten.mul.Tensor(aten.sum.dim_IntList(value, dims, True), 1.0 / count)
    centred = aten.sub.Tensor(value, mean)
    variance = aten.mul.Tensor(aten.sum.dim_IntList(aten.mul.Tensor(centred, centred), dims), 1.0 / count)
    return aten.view.default(mean, [value.shape[1]]), variance, dims, count


def native_batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Batch norm; in training with statistics of the whole batch, which update the running ones."""
    rank, dtype = input.dim(), input.dtype
    value = _wide(input)
    if training:
        mean, variance, _, count = _statistics(value)
        unbiased = aten.mul.Tensor(variance, count / max(1, count - 1))
        for running, fresh in ((running_mean, mean), (running_var, unbiased)):
            if running is not None:
                kept = aten.mul.Tensor(running, 1.0 - momentum)
                aten.copy_.default(running, aten.add.Tensor(kept, aten.mul.Tensor(fresh, momentum)))
    elif running_mean is None or running_var is None:
        raise ValueError("batch norm in evaluation needs running statistics")
    else:
        mean, variance = running_mean, running_var
    inverse = aten.rsqrt.default(aten.add.Tensor(variance, eps))
    out = aten.sub.Tensor(value, _along_channels(mean, rank))
    out = aten.mul.Tensor(out, _along_channels(inverse, rank))
    if weight is not None:
        out = aten.mul.Tensor(out, _along_channels(weight, rank))
    if bias is not None:
        out = aten.add.Tensor(out, _along_channels(bias, rank))
    out = out if out.dtype == dtype else aten._to_copy.default(out, dtype=dtype)
    if not training:
        empty = aten.full.default([0], 0.0, dtype=torch.float32)
        return out, empty, empty
    return out, mean, inverse


def native_batch_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_invstd: Tensor | None,
    train: bool,
    eps: float,
    output_mask: list[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of batch norm in its input, weight and bias, with sums over the whole batch."""
    rank, dtype = input.dim(), input.dtype
    value, gradient = _wide(input), _wide(grad_out)
    dims = [d for d in range(rank) if d != 1]
    count = prod(input.shape[d] for d in dims)
    mean, inverse = save_mean, save_invstd
    if not train and running_mean is not None and running_var is not None:
        mean, inverse = running_mean, aten.rsqrt.default(aten.add.Tensor(running_var, eps))
    if mean is None or inverse is None:
        raise ValueError("batch norm's backward needs statistics")
    inverse_c = _along_channels(inverse, rank)
    normal = aten.mul.Tensor(aten.sub.Tensor(value, _along_channels(mean, rank)), inverse_c)
    grad_bias = aten.sum.dim_IntList(gradient, dims)
    grad_weight = aten.sum.dim_IntList(aten.mul.Tensor(gradient, normal), dims)
    scale = inverse_c if weight is None else aten.mul.Tensor(inverse_c, _along_channels(weight, rank))
    inner = gradient
    if train:
        inner = aten.sub.Tensor(inner, _along_channels(aten.mul.Tensor(grad_bias, 1.0 / count), rank))
        shift = _along_channels(aten.mul.Tensor(grad_weight, 1.0 / count), rank)
        inner = aten.sub.Tensor(inner, aten.mul.Tensor(normal, shift))
    grad_input = aten.mul.Tensor(inner, scale)
    grad_input = grad_input if grad_input.dtype == dtype else aten._to_copy.default(grad_input, dtype=dtype)
    wanted = (output_mask[0], output_mask[1] and weight is not None, output_mask[2])
    results = (grad_input, grad_weight, grad_bias)
    grads = [result if want else None for result, want in zip(results, wanted, strict=True)]
    return grads[0], grads[1], grads[2]


def _wide(value: Tensor) -> Tensor:
    """Half-precision values as float32, others as they are."""
    narrow = value.dtype in (torch.float16, torch.bfloat16)
    return aten._to_copy.default(value, dtype=torch.float32) if narrow else value


def _variance(
    value: Tensor, dim: list[int] | None, correction: float | None, keepdim: bool
) -> tuple[Tensor, Tensor]:
    dims = [d % value.dim() for d in dim] if dim else list(range(value.dim()))
    count = prod(value.shape[d] for d in dims)
    mean = aten.mean.dim(value, dims, True)
    centred = aten.sub.Tensor(value, mean)
    total = aten.sum.dim_IntList(aten.mul.Tensor(centred, centred), dims, keepdim)
    divisor = max(0.0, count - (1.0 if correction is None else float(correction)))
    variance = aten.div.Tensor(total, divisor)
    if not keepdim:
        mean = aten.view.default(mean, list(variance.shape))
    return variance, mean


def var(
    self: Tensor, dim: list[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> Tensor:
    """Variance as sums."""
    return _variance(self, dim, correction, keepdim)[0]


def var_mean(
    self: Tensor, dim: list[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """Variance and mean as sums."""
    return _variance(self, dim, correction, keepdim)


def std(
    self: Tensor, dim: list[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> Tensor:
    """Standard deviation as sums."""
    return aten.sqrt.default(_variance(self, dim, correction, keepdim)[0])


def repeat(self: Tensor, repeats: list[int]) -> Tensor:
    """Copies side by side, as expand between views."""
    lead = len(repeats) - self.dim()
    shape = [1] * lead + list(self.shape)
    outer = [size for pair in zip([1] * len(shape), shape, strict=True) for size in pair]
    wide = [size for pair in zip(repeats, shape, strict=True) for size in pair]
    value = aten.expand.default(aten.view.default(self, outer), wide)
    return aten._unsafe_view.default(
        aten.clone.default(value, memory_format=torch.contiguous_format),
        [r * s for r, s in zip(repeats, shape, strict=True)],
    )


DECOMPOSITIONS: dict[Any, Any] = {
    aten.nll_loss_forward.default: nll_loss_forward,
    aten.nll_loss_backward.default: nll_loss_backward,
    aten.nll_loss2d_forward.default: nll_loss_forward,
    aten.nll_loss2d_backward.default: nll_loss_backward,
    aten.native_batch_norm.default: native_batch_norm,
    aten.native_batch_norm_backward.default: native_batch_norm_backward,
    aten.var.correction: var,
    aten.var_mean.correction: var_mean,
    aten.std.correction: std,
    aten.repeat.default: repeat,
}
