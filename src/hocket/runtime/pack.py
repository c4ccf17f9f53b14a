"""Turning the tensors of a collective into one flat buffer and back.

`pieces[position][segment]` are lengths along a dim: what each position of the axis holds of each segment.
A whole tensor has the segments one after the other, each cut into the positions' pieces; a shard has its own
piece of every segment. Shards of different length are padded to the longest.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Pieces = tuple[tuple[int, ...], ...]


def cut(whole: Tensor, dim: int, pieces: Pieces) -> list[Tensor]:
    """The shards of a whole tensor, one per position."""
    if len(pieces[0]) == 1:
        return list(torch.split(whole, [p[0] for p in pieces], dim))
    lengths = [pieces[p][s] for s in range(len(pieces[0])) for p in range(len(pieces))]
    parts = torch.split(whole, lengths, dim)
    return [torch.cat(parts[position :: len(pieces)], dim) for position in range(len(pieces))]


def join(shards: Sequence[Tensor], dim: int, pieces: Pieces) -> Tensor:
    """The whole tensor of its shards."""
    if len(pieces[0]) == 1:
        return torch.cat(list(shards), dim)
    parts = [torch.split(shard, list(p), dim) for shard, p in zip(shards, pieces, strict=True)]
    return torch.cat([part[s] for s in range(len(pieces[0])) for part in parts], dim)


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """One contiguous buffer with all elements in order; a copy unless there is one contiguous tensor."""
    if len(tensors) == 1:
        return tensors[0].reshape(-1)
    return torch.cat([t.reshape(-1) for t in tensors])


def longest(pieces: Pieces, shape: Sequence[int], dim: int) -> int:
    """Elements of the largest shard, given one shard's shape."""
    rest = 1
    for index, length in enumerate(shape):
        rest *= 1 if index == dim else length
    return rest * max(sum(p) for p in pieces)


def pad(flat: Tensor, length: int) -> Tensor:
    """The flat tensor, filled up with zeros."""
    return flat if flat.numel() == length else torch.nn.functional.pad(flat, (0, length - flat.numel()))


def regions(pieces: Pieces, position: int) -> list[tuple[int, int, int]]:
    """What a position holds of every segment: start in the whole, start in its shard, length."""
    found, here, base = [], 0, 0
    for segment in range(len(pieces[0])):
        start = base + sum(p[segment] for p in pieces[:position])
        found.append((start, here, pieces[position][segment]))
        here += pieces[position][segment]
        base += sum(p[segment] for p in pieces)
    return found


def common(before: Pieces, source: int, after: Pieces, target: int) -> list[tuple[int, int, int]]:
    """What position `source` has before and `target` has after: starts in both shards, and length."""
    found = []
    for first, here, length in regions(before, source):
        for second, there, wanted in regions(after, target):
            start, end = max(first, second), min(first + length, second + wanted)
            if start < end:
                found.append((here + start - first, there + start - second, end - start))
    return found


def shard_shape(shape: Sequence[int], dim: int, pieces: tuple[int, ...]) -> list[int]:
    """A shape with its length along `dim` exchanged for that of a shard."""
    return [sum(pieces) if index == dim else length for index, length in enumerate(shape)]
