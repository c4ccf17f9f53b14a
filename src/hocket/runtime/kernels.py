"""The code that runs one operation on local tensors: ATen's by name, and hocket's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from hocket.errors import ProgramError
from hocket.graph.types import Argument, Dtype
from hocket.runtime.attention import attention, attention_backward
from hocket.runtime.grouped import grouped_mm, grouped_mm_shard
from hocket.sharding.layout import Interval

Kernel = Callable[..., Any]

CREATES: frozenset[str] = frozenset({
    "aten.full.default", "aten.zeros.default", "aten.ones.default", "aten.empty.memory_format",
    "aten.rand.default", "aten.randn.default", "aten.arange.start_step", "aten.arange.start",
    "aten.arange.default", "hocket.constant.default",
})  # fmt: skip
"""Operations that make a tensor of nothing: their caller adds `device=`."""


def torch_argument(argument: Argument) -> Any:
    """A constant argument as torch wants it: Dtype as torch.dtype, tuples as lists; Ref is left as it is."""
    if isinstance(argument, Dtype):
        return getattr(torch, argument.name)
    if isinstance(argument, tuple):
        return [torch_argument(item) for item in argument]
    return argument


@cache
def kernel(op: str, traced: bool = False) -> Kernel:
    """The function that runs an operation by its full name; raises ProgramError where there is none.

    With `traced` it is one that torch.compile can look into.
    """
    if op in _OWN:
        return _OWN[op]
    namespace, kind, overload = (*op.split("."), "", "")[:3]
    found = getattr(getattr(getattr(torch.ops, namespace), kind, None), overload, None)
    if namespace != "aten" or not overload or found is None:
        raise ProgramError(f"operation {op}", "has a kernel: ATen's by its full name, or one of hocket's own",
                           f"torch {torch.__version__}; own: {', '.join(sorted(_OWN))}")  # fmt: skip
    return found if traced else getattr(found, "_op", found)  # without the overload's Python layer


def _constant(
    values: Sequence[Any], shape: Sequence[int], *, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=device).reshape(tuple(shape))


def _addend(value: Tensor, keep: bool) -> Tensor:
    """Turns a whole tensor into an addend: one rank keeps it, the others hold zeros."""
    return value if keep else torch.zeros_like(value)


def _pick(value: Tensor, dim: int, picks: Sequence[Interval]) -> Tensor:
    """Pieces (start, length) of a dim, one after the other."""
    pieces = [value.narrow(dim, start, length) for start, length in picks]
    return pieces[0].contiguous() if len(pieces) == 1 else torch.cat(pieces, dim)


def _take(value: Tensor, dim: int, picks: Sequence[Interval]) -> Tensor:
    """Pieces of a dim as a tensor with storage of its own."""
    picked = _pick(value, dim, picks)
    shared = picked.untyped_storage().data_ptr() == value.untyped_storage().data_ptr()
    return picked.clone() if shared else picked


def _here(index: Tensor, start: int, length: int) -> tuple[Tensor, Tensor]:
    """Indices relative to a shard's start (0 where they lie elsewhere), and whether they lie here."""
    near = index - start
    inside = (near >= 0) & (near < length)
    return torch.where(inside, near, torch.zeros_like(near)), inside


def _embedding_shard(weight: Tensor, index: Tensor, start: int) -> Tensor:
    near, inside = _here(index, start, weight.shape[0])
    if not weight.shape[0]:
        return weight.new_zeros((*index.shape, *weight.shape[1:]))
    return torch.embedding(weight, near).masked_fill(~inside.unsqueeze(-1), 0)


def _embedding_shard_backward(
    gradient: Tensor, index: Tensor, rows: int, padding: int, by_frequency: bool, start: int
) -> Tensor:
    near, inside = _here(index, start, rows)
    if padding >= 0:
        inside = inside & (index != padding)
    # Rows that lie elsewhere, and padding, go to one row too many, which is dropped.
    near = torch.where(inside, near, torch.full_like(near, rows))
    wide: Tensor = torch.ops.aten.embedding_dense_backward(gradient, near, rows + 1, -1, by_frequency)
    return wide[:rows].contiguous()


def _gather_shard(source: Tensor, dim: int, index: Tensor, start: int) -> Tensor:
    near, inside = _here(index, start, source.shape[dim])
    if not source.shape[dim]:
        return source.new_zeros(index.shape)
    return source.gather(dim, near).masked_fill(~inside, 0)


def _index_shard(source: Tensor, dim: int, index: Tensor, start: int, size: int) -> Tensor:
    length = source.shape[dim]
    shape = (*source.shape[:dim], *index.shape, *source.shape[dim + 1 :])
    if not length:
        return source.new_zeros(shape)
    index = index.long()
    near, inside = _here(torch.where(index < 0, index + size, index), start, length)
    picked = source.index_select(dim, near.reshape(-1)).reshape(shape)
    mask = inside.reshape((*index.shape, *(1,) * (source.dim() - dim - 1)))
    return picked.masked_fill(~mask, 0)


def _scatter_shard(
    target: Tensor, dim: int, index: Tensor, source: Tensor | float, start: int, add: bool = False
) -> Tensor:
    rows = target.shape[dim]
    near, inside = _here(index, start, rows)
    # What lies elsewhere goes to one row too many, which is dropped.
    near = torch.where(inside, near, torch.full_like(near, rows))
    spare = list(target.shape)
    spare[dim] = 1
    wide = torch.cat([target, target.new_zeros(spare)], dim)
    if add and isinstance(source, Tensor):
        wide.scatter_add_(dim, near, source)
    elif isinstance(source, Tensor):
        wide.scatter_(dim, near, source)
    else:
        wide.scatter_(dim, near, float(source))
    return wide.narrow(dim, 0, rows).contiguous()


def _scatter_add_shard(target: Tensor, dim: int, index: Tensor, source: Tensor, start: int) -> Tensor:
    return _scatter_shard(target, dim, index, source, start, add=True)


def _to_copy(value: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    return value if dtype is None else value.to(dtype)


def _amax(value: Tensor, dims: Sequence[int] = (), keep: bool = False) -> Tensor:
    """The maximum over dims; of nothing (a device without a share) it is the least number there is."""
    if value.numel() or not any(value.shape[d] == 0 for d in dims):
        return torch.amax(value, list(dims), keep)
    least = -torch.inf if value.is_floating_point() else torch.iinfo(value.dtype).min
    shape = [1 if d in {n % value.dim() for n in dims} else n for d, n in enumerate(value.shape)]
    kept = value.new_full(shape, least)
    return kept if keep else kept.squeeze(list(dims))


def _nothing(
    shapes: Sequence[Sequence[int]], dtypes: Sequence[torch.dtype], bias: Tensor | None, like: Tensor
) -> Tensor | list[Tensor]:
    """Results of an operation on nothing: zeros, to which a convolution's bias is added."""
    made = [like.new_zeros(list(shape), dtype=dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    if bias is not None:
        made[0] += bias.view(-1, *(1,) * (made[0].dim() - 2))
    return made[0] if len(made) == 1 else made


_OWN: dict[str, Kernel] = {
    "hocket.nothing.default": _nothing,
    "aten.amax.default": _amax,
    "aten.view.default": torch.reshape,
    "aten._grouped_mm.default": grouped_mm,
    "aten.add.Tensor": torch.add,
    "aten.addmm.default": torch.addmm,
    "aten.bmm.default": torch.bmm,
    "aten.cat.default": torch.cat,
    "aten.mm.default": torch.mm,
    "aten.mul.Tensor": torch.mul,
    "aten.permute.default": torch.permute,
    "aten.sub.Tensor": torch.sub,
    "aten.sum.dim_IntList": torch.sum,
    "aten._to_copy.default": _to_copy,
    "hocket.constant.default": _constant,
    "hocket.addend.default": _addend,
    "hocket.pick.default": _pick,
    "hocket.take.default": _take,
    "hocket.attention.default": attention,
    "hocket.attention_backward.default": attention_backward,
    "hocket.embedding_shard.default": _embedding_shard,
    "hocket.embedding_shard_backward.default": _embedding_shard_backward,
    "hocket.gather_shard.default": _gather_shard,
    "hocket.grouped_mm_shard.default": grouped_mm_shard,
    "hocket.index_shard.default": _index_shard,
    "hocket.scatter_shard.default": _scatter_shard,
    "hocket.scatter_add_shard.default": _scatter_add_shard,
}
