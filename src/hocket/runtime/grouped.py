"""Products of rows in groups (a mixture's experts), whole and for some of the groups only."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

ALIGNMENT = 16
"""ATen's grouped product wants strides and starts at multiples of so many bytes (PyTorch, GroupedBlas)."""
FUSED = (torch.float32, torch.float16, torch.bfloat16)


def grouped_mm(left: Tensor, right: Tensor, ends: Tensor) -> Tensor:
    """Per group of rows t, which end at `ends`: t k, g k j -> t j, or i t, t j -> g i j."""
    if _fused(left) and _fused(right):
        fused: Tensor = torch.ops.aten._grouped_mm(left, right, ends)
        return fused
    bounds = [0, *ends.tolist()]
    groups = list(pairwise(bounds))
    if right.dim() == 2:
        return torch.stack([left[:, a:b] @ right[a:b] for a, b in groups])
    out = left.new_zeros((left.shape[0], right.shape[2]))
    for index, (a, b) in enumerate(groups):
        out[a:b] = left[a:b] @ right[index]
    return out


def grouped_mm_shard(left: Tensor, right: Tensor, ends: Tensor, start: int, length: int) -> Tensor:
    """The groups `start : start + length` of a grouped product; rows of other groups are zeros."""
    first = int(ends[start - 1]) if start and length else 0
    last = int(ends[start + length - 1]) if length else first
    own = ends[start : start + length] - first
    if right.dim() == 2:
        if first == last:
            return left.new_zeros((length, left.shape[0], right.shape[1]))
        return grouped_mm(left[:, first:last], right[first:last], own)
    out = left.new_zeros((left.shape[0], right.shape[2]))
    if first < last:
        out[first:last] = grouped_mm(left[first:last], right, own)
    return out


def _fused(value: Tensor) -> bool:
    """Whether ATen's grouped product takes a tensor: its last two dims row- or column-major and aligned."""
    size = value.element_size()
    dense = [stride for stride in value.stride() if stride == 1]
    strides = [stride * size for stride in value.stride() if stride != 1]
    aligned = all(s % ALIGNMENT == 0 for s in strides) and value.data_ptr() % ALIGNMENT == 0
    return value.dtype in FUSED and len(dense) == 1 and 1 in value.stride()[-2:] and aligned
