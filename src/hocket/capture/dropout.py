"""Dropout as one operation whatever device the model will run on."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class FusedDropout(TorchFunctionMode):
    """Calls of dropout become `native_dropout`, also inside scaled-dot-product attention."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replaces dropout and attention with dropout; passes everything else on."""
        kwargs = kwargs or {}
        if func is torch.dropout or func is torch.dropout_:
            return _dropout(func, *args, **kwargs)
        if func is torch.nn.functional.scaled_dot_product_attention:
            rate = args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0)
            if rate > 0.0:
                return _attention(*args, **kwargs)
        return func(*args, **kwargs)


def _dropout(func: Any, input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    if not train or p <= 0.0 or p >= 1.0 or input.numel() == 0:
        return func(input, p, train)
    out = torch.native_dropout(input, p, True)[0]
    return input.copy_(out) if func is torch.dropout_ else out


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Attention spelled out, since no fused kernel of PyTorch's CPU has dropout."""
    if enable_gqa:
        groups = query.size(-3) // key.size(-3)
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    factor = query.size(-1) ** -0.5 if scale is None else scale
    scores = (query * factor) @ key.transpose(-2, -1)
    if is_causal:
        rows, columns = torch.arange(query.size(-2)), torch.arange(key.size(-2))
        scores = scores.masked_fill(columns[None, :] > rows[:, None], float("-inf"))
    if attn_mask is not None:
        boolean = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, float("-inf")) if boolean else scores + attn_mask
    weights = torch.native_dropout(torch.softmax(scores, -1), dropout_p, True)[0]
    return weights @ value
