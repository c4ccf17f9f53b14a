"""From a whole model to one rank's shards of it, one tensor at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hocket.errors import RuntimeFault
from hocket.graph.types import Graph
from hocket.runtime.shards import Intervals, is_whole, shard_shape, take_shard


@dataclass(frozen=True, slots=True)
class Held:
    """One parameter or buffer as a rank holds it; `paths` are all its names in the model.

    `intervals` say which part of the whole (of shape `shape`) it is. `persistent` buffers are saved.
    """

    tensor: Tensor
    paths: tuple[str, ...]
    shape: tuple[int, ...]
    intervals: Intervals
    persistent: bool = True


def place(
    model: nn.Module,
    graph: Graph,
    held: Mapping[str, Intervals],
    device: torch.device,
    sync: bool,
    absent: frozenset[str] = frozenset(),
) -> list[Held]:
    """This rank's shards of every parameter and buffer; the model's own storage is released on the way.

    With `sync` every tensor is sent whole from rank 0, one at a time. What the model has on the meta device
    becomes an unfilled shard: not-a-number in every float, so that a forgotten one shows. Tensors that the
    step does not read stay whole; those at `absent` paths are other ranks' alone.
    """
    names = {path: entry.name for entry in graph.inputs if entry.role != "batch" for path in entry.paths}
    placed = []
    for tensor, paths, persistent in _tensors(model):
        shape = tuple(tensor.shape)
        parts = held.get(names.get(paths[0], ""), tuple(((0, n),) for n in shape))
        part = _part(tensor, parts, device, sync)
        _release(tensor)
        if paths[0] in absent:
            continue
        if isinstance(tensor, nn.Parameter):
            part = nn.Parameter(part, requires_grad=tensor.requires_grad)
        placed.append(Held(part, paths, shape, parts, persistent))
    return placed


def _tensors(model: nn.Module) -> Iterator[tuple[Tensor, tuple[str, ...], bool]]:
    """Every parameter and buffer once, with all its paths, and whether it is saved."""
    paths: dict[int, list[str]] = {}
    found: dict[int, Tensor] = {}
    named = chain(model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False))
    for path, tensor in named:
        paths.setdefault(id(tensor), []).append(path)
        found[id(tensor)] = tensor
    for key, tensor in found.items():
        owner, _, name = paths[key][0].rpartition(".")
        unsaved = model.get_submodule(owner)._non_persistent_buffers_set
        yield tensor, tuple(paths[key]), name not in unsaved


def _part(tensor: Tensor, parts: Intervals, device: torch.device, sync: bool) -> Tensor:
    source = tensor.detach()
    if source.is_meta and not sync:
        empty = torch.empty(shard_shape(parts), dtype=source.dtype, device=device)
        return empty.fill_(float("nan")) if empty.is_floating_point() else empty.zero_()
    whole = torch.empty_like(source, device=device) if source.is_meta else source.to(device).contiguous()
    if sync:
        dist.broadcast(whole.view(torch.uint8) if whole.dtype == torch.bool else whole, 0)
    own = whole.data_ptr() != source.data_ptr()
    return whole if own and is_whole(parts, tuple(whole.shape)) else take_shard(whole, parts)


def _release(tensor: Tensor) -> None:
    tensor.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)


def agree(what: tuple[object, ...], meta: bool) -> bool:
    """Whether rank 0 has values to send; raises RuntimeFault where ranks do not have the same plan and seed.

    Without any process group it only looks at its own.
    """
    if not dist.is_initialized():
        return not meta
    everyone: list[tuple[tuple[object, ...], bool]] = [((), False)] * dist.get_world_size()
    dist.all_gather_object(everyone, (what, meta))
    for rank, (theirs, _) in enumerate(everyone):
        if theirs != everyone[0][0]:
            raise RuntimeFault(
                f"rank {rank}",
                "has the plan and the seed that rank 0 has",
                f"{theirs}, not {everyone[0][0]}",
                "give every rank the same plan file and seed",
            )
    return not everyone[0][1]
