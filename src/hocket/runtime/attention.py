"""The attention kernels: one meaning, and whichever of torch's implementations the device has for it.

Shapes: q [batch, heads, rows, width], k [batch, heads, keys, width], v [batch, heads, keys, value width],
mask broadcast to [batch, heads, rows, keys], logsumexp [batch, heads, rows]. A mask is added to the scores
(a bool mask keeps what is true). Without a scale it is 1 / sqrt(width).
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor
from torch.nn.functional import pad

EFFICIENT = (torch.float32, torch.float16, torch.bfloat16)
ROW_BLOCK = 32
"""The memory-efficient CUDA kernel pads its logsumexp to this many rows (PyTorch, mem_eff_attention)."""
MASK_ALIGNMENT = 16
"""It wants a mask's rows to start at multiples of this many elements (PyTorch, sdp pad_bias)."""


def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool, scale: float | None
) -> tuple[Tensor, Tensor]:
    """Attention's output [batch, heads, rows, value width] and the logsumexp of its scores."""
    bias = _bias(q, k, mask)
    if not q.numel():  # a device without a share: torch's kernels divide by the number of rows
        wide = torch.promote_types(q.dtype, torch.float32)
        return q.new_zeros((*q.shape[:-1], v.shape[-1])), q.new_zeros(q.shape[:-1], dtype=wide)
    if q.device.type == "cpu" and k.shape[-1] == v.shape[-1]:
        op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
        out, logsumexp = op(q, k, v, 0.0, is_causal, attn_mask=bias, scale=scale)
        return out, logsumexp.contiguous()
    if _efficient(q, k, v):
        op = torch.ops.aten._scaled_dot_product_efficient_attention.default
        out, logsumexp, _, _ = op(q, k, v, _aligned(bias), True, 0.0, is_causal, scale=scale)
        return out, logsumexp[..., : q.shape[2]].contiguous()
    return _plain(q, k, v, bias, is_causal, scale)


def attention_backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v."""
    bias = _bias(q, k, mask)
    if not q.numel():
        return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    if q.device.type == "cpu" and k.shape[-1] == v.shape[-1]:
        op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
        found = op(grad_out, q, k, v, out, logsumexp, 0.0, is_causal, attn_mask=bias, scale=scale)
        return found[0], found[1], found[2]
    if _efficient(q, k, v):
        rows = q.shape[2]
        padded = pad(logsumexp, (0, -rows % ROW_BLOCK), value=float("inf")).contiguous()
        philox = torch.zeros((), dtype=torch.int64, device=q.device)
        op = torch.ops.aten._scaled_dot_product_efficient_attention_backward.default
        wanted = [True, True, True, False]
        found = op(grad_out, q, k, v, _aligned(bias), out, padded, philox, philox, 0.0, wanted, is_causal,
                   scale=scale)  # fmt: skip
        return found[0], found[1], found[2]
    return _plain_backward(grad_out, q, k, v, out, logsumexp, bias, is_causal, scale)


def _efficient(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the memory-efficient kernel takes these: rows of a width that is aligned to 16 bytes."""
    fits = all(t.shape[-1] * t.element_size() % 16 == 0 and t.dtype in EFFICIENT for t in (q, k, v))
    return q.device.type == "cuda" and fits


def _bias(q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor | None:
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill_(~mask, float("-inf"))
    return mask.to(q.dtype).expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])


def _aligned(bias: Tensor | None) -> Tensor | None:
    if bias is None:
        return None
    keys = bias.shape[-1]
    return pad(bias, (0, -keys % MASK_ALIGNMENT))[..., :keys]


def _scores(q: Tensor, k: Tensor, bias: Tensor | None, is_causal: bool, scale: float | None) -> Tensor:
    scores = q @ k.transpose(-1, -2) * (scale if scale is not None else 1 / sqrt(q.shape[-1]))
    if bias is not None:
        scores = scores + bias
    if is_causal:
        keep = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~keep, float("-inf"))
    return scores


def _plain(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, is_causal: bool, scale: float | None
) -> tuple[Tensor, Tensor]:
    scores = _scores(q, k, bias, is_causal, scale)
    wide = torch.promote_types(scores.dtype, torch.float32)
    logsumexp = scores.to(wide).logsumexp(-1)
    return torch.exp(scores.to(wide) - logsumexp.unsqueeze(-1)).to(q.dtype) @ v, logsumexp


def _plain_backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    bias: Tensor | None,
    is_causal: bool,
    scale: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    # Dao et al., FlashAttention (2022), algorithm 4: dS = P * (dO V^T - rowsum(dO * O)).
    factor = scale if scale is not None else 1 / sqrt(q.shape[-1])
    scores = _scores(q, k, bias, is_causal, scale)
    weights = torch.exp(scores - logsumexp.unsqueeze(-1)).to(q.dtype)
    grad_v = weights.transpose(-1, -2) @ grad_out
    delta = (grad_out * out).sum(-1, keepdim=True)
    grad_scores = weights * (grad_out @ v.transpose(-1, -2) - delta) * factor
    return grad_scores @ k, grad_scores.transpose(-1, -2) @ q, grad_v
