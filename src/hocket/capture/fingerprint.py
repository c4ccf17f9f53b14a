"""A short string that says whether two models have the same parameters and buffers."""

from __future__ import annotations

from hashlib import sha256

import torch


def model_fingerprint(model: torch.nn.Module) -> str:
    """SHA-256 (hexadecimal) of the paths, shapes, element types and ties of parameters and buffers.

    Values and devices do not matter.
    """
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    first: dict[int, str] = {}
    lines = []
    for path, tensor in tensors:
        owner = first.setdefault(id(tensor), path)
        role = "parameter" if isinstance(tensor, torch.nn.Parameter) else "buffer"
        lines.append(f"{role} {path} {tuple(tensor.shape)} {tensor.dtype} {tensor.requires_grad} {owner}")
    return sha256("\n".join(sorted(lines)).encode()).hexdigest()
