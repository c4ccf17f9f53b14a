"""Dropout as one operation whatever device the model will run on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

FUSED_ATTENTION = torch.nn.functional.scaled_dot_product_attention


@contextmanager
def fused_dropout() -> Iterator[None]:
    """While open, dropout is `native_dropout`, also inside scaled-dot-product attention.

    PyTorch itself fuses dropout on accelerators only, and a graph is captured for any device.
    """
    names: list[tuple[Any, str, Any]] = [
        (torch._VF, "dropout", _dropout),
        (torch._VF, "dropout_", _dropout_in_place),
        (torch, "dropout", _dropout),
        (torch.nn.functional, "scaled_dot_product_attention", _attention),
    ]
    before = [getattr(place, name) for place, name, _ in names]
    for place, name, function in names:
        setattr(place, name, function)
    try:
        yield
    finally:
        for (place, name, _), function in zip(names, before, strict=True):
            setattr(place, name, function)


def _dropout(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    if not train or p == 0.0 or input.numel() == 0:
        return input
    return torch.native_dropout(input, p, True)[0]


def _dropout_in_place(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    return input.copy_(_dropout(input, p, train))


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
    """Attention; spelled out when it has dropout, which no fused kernel of PyTorch's CPU has."""
    if dropout_p == 0.0:
        return FUSED_ATTENTION(query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)
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
