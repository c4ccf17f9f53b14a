"""Saving and loading what training needs, with torch.distributed.checkpoint, also into another plan.

Every rank writes its own pieces with their places in the whole tensors, replicas once; a load reads whatever
pieces overlap what the rank holds now. So ranks, meshes and layouts may differ between save and load.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from hocket.errors import FileError, RuntimeFault
from hocket.runtime.placement import Held
from hocket.runtime.shards import Intervals, shard_shape
from hocket.runtime.state import Shards


class Pieces:
    """A rank's part of a tensor as torch's checkpoint sees it: pieces with their offsets in the whole."""

    def __init__(self, tensor: Tensor, shape: tuple[int, ...], intervals: Intervals) -> None:
        self.tensor, self.shape, self.intervals = tensor.detach(), torch.Size(shape), intervals

    def size(self) -> torch.Size:
        """Shape of the whole tensor."""
        return self.shape

    def _chunks(self) -> Iterator[tuple[ChunkStorageMetadata, Tensor]]:
        """Each piece's place in the whole, and the piece."""
        places = []
        for held in self.intervals:
            starts = [sum(n for _, n in held[:i]) for i in range(len(held))]
            places.append([(g, n, s) for (g, n), s in zip(held, starts, strict=True) if n])
        for corner in product(*places):
            piece = self.tensor
            for dim, (_, length, start) in enumerate(corner):
                piece = piece.narrow(dim, start, length)
            offsets = torch.Size(g for g, _, _ in corner)
            yield ChunkStorageMetadata(offsets=offsets, sizes=piece.shape), piece

    def __create_write_items__(self, fqn: str, _: object) -> list[WriteItem]:
        properties = TensorProperties.create_from_tensor(self.tensor)
        return [
            WriteItem(
                index=MetadataIndex(fqn, chunk.offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk=chunk, properties=properties, size=self.shape),
            )
            for chunk, _ in self._chunks()
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [chunk for chunk, _ in self._chunks()]

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        return next(piece for chunk, piece in self._chunks() if chunk.offsets == index.offset)


class _SavePlanner(DefaultSavePlanner):
    """torch's planner, which looks for pieces in tensors only, told to look in Pieces."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def lookup_object(self, index: MetadataIndex) -> Any:
        """The tensor or value that an index means."""
        found = self.state_dict[index.fqn]
        return found.__get_tensor_shard__(index) if isinstance(found, Pieces) else super().lookup_object(index)


class _LoadPlanner(DefaultLoadPlanner):
    """The same for loading; what it loads other than tensors is put into the state it was given."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def set_up_planner(
        self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        """Take the state as it is."""
        self.state_dict, self.metadata, self.is_coordinator = state_dict, metadata, is_coordinator

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        """The tensor that an index means."""
        found = self.state_dict[index.fqn]
        return found.__get_tensor_shard__(index) if isinstance(found, Pieces) else super().lookup_tensor(index)


def save(
    path: Path,
    module: Shards,
    optimizer: torch.optim.Optimizer | None = None,
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Write a checkpoint folder; all ranks call it, `path` is the same folder for all.

    `extra` is anything picklable that `load` shall give back, the same on all ranks. Raises RuntimeFault
    for optimizer state that is neither a scalar nor of its parameter's shape.
    """
    state: dict[str, Any] = {**_model(module), "steps": module.steps, "extra": dict(extra or {})}
    if optimizer is not None:
        state |= _optimizer(module, optimizer)
    state_dict_saver.save(state, checkpoint_id=path, planner=_SavePlanner(), no_dist=not dist.is_initialized())


def load(path: Path, module: Shards, optimizer: torch.optim.Optimizer | None = None) -> dict[str, Any]:
    """Fill a module (and an optimizer over its parameters) from a checkpoint folder; what `extra` was.

    All ranks call it. Raises FileError where the folder is no checkpoint of this model.
    """
    known = _metadata(path)
    for place, entry in _saved(module).items():
        found = known.get(f"model.{place}")
        if not isinstance(found, TensorStorageMetadata) or tuple(found.size) != entry.shape:
            raise FileError(
                f"checkpoint {path}",
                "is of this model",
                f"{place}: {list(found.size) if isinstance(found, TensorStorageMetadata) else 'nothing'}, "
                f"not {list(entry.shape)}",
                "load it into the model that it was saved from",
            )
    state: dict[str, Any] = {**_model(module), "steps": 0, "extra": {}}
    if optimizer is not None:
        state |= _empty_optimizer(path, module, optimizer, known)
    state_dict_loader.load(state, checkpoint_id=path, planner=_LoadPlanner(), no_dist=not dist.is_initialized())
    module.steps = state["steps"]
    if optimizer is not None:
        _fill_optimizer(module, optimizer, state)
    return dict(state["extra"])


def _metadata(path: Path) -> Mapping[str, Any]:
    try:
        return FileSystemReader(path).read_metadata().state_dict_metadata
    except (OSError, EOFError, ValueError) as error:
        raise FileError(f"checkpoint {path}", "is a folder that `save` wrote", str(error)) from error


def _saved(module: Shards) -> dict[str, Held]:
    return {p: e for p, e in module.held.items() if p == e.paths[0] and e.persistent}


def _model(module: Shards) -> dict[str, Any]:
    return {f"model.{p}": Pieces(e.tensor, e.shape, e.intervals) for p, e in _saved(module).items()}


def _owners(module: Shards, optimizer: torch.optim.Optimizer) -> list[list[Held]]:
    """The parameters of every group of the optimizer."""
    owners = {id(entry.tensor): entry for entry in module.held.values()}
    groups = []
    for group in optimizer.param_groups:
        if any(id(p) not in owners for p in group["params"]):
            raise RuntimeFault(
                "optimizer",
                "is over the module's parameters",
                "a parameter that is not the module's",
                "make the optimizer of module.parameters()",
            )
        groups.append([owners[id(p)] for p in group["params"]])
    return groups


def _optimizer(module: Shards, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    groups = _owners(module, optimizer)
    state: dict[str, Any] = {"optimizer.groups": _groups(groups, optimizer)}
    for entry in (e for group in groups for e in group):
        for name, value in optimizer.state.get(entry.tensor, {}).items():
            state[_key(entry.paths[0], name)] = _entry(entry, name, value)
    return state


def _key(path: str, name: str) -> str:
    return f"optimizer.state.{path}.{name}"


def _groups(groups: list[list[Held]], optimizer: torch.optim.Optimizer) -> str:
    """Every group's settings and parameter paths (of all ranks), as one value; tuples and numbers survive as
    text."""
    settings: list[tuple[tuple[str, ...], dict[str, Any]]] = []
    for entries, group in zip(groups, optimizer.param_groups, strict=True):
        values = {k: v.item() if isinstance(v, Tensor) else v for k, v in group.items() if k != "params"}
        settings.append((tuple(e.paths[0] for e in entries), values))
    everyone = [settings]
    if dist.is_initialized():
        everyone = [settings] * dist.get_world_size()
        dist.all_gather_object(everyone, settings)
    paths = [dict.fromkeys(p for own in everyone for p in own[number][0]) for number in range(len(settings))]
    return repr([(tuple(found), values) for found, (_, values) in zip(paths, settings, strict=True)])


def _entry(entry: Held, name: str, value: Any) -> Any:
    if not isinstance(value, Tensor) or value.dim() == 0:
        return value
    if tuple(value.shape) != shard_shape(entry.intervals):
        raise RuntimeFault(
            f"optimizer state {name!r} of {entry.paths[0]}",
            "is a scalar or has its parameter's shape, so that it can be cut as the parameter is",
            f"shape {list(value.shape)}, parameter {list(entry.shape)}",
        )
    return Pieces(value, entry.shape, entry.intervals)


def _empty_optimizer(
    path: Path, module: Shards, optimizer: torch.optim.Optimizer, known: Mapping[str, Any]
) -> dict[str, Any]:
    """State to be read into, of the kinds that the checkpoint has."""
    if "optimizer.groups" not in known:
        raise FileError(f"checkpoint {path}", "has an optimizer's state", "none", "load without an optimizer")
    state: dict[str, Any] = {"optimizer.groups": ""}
    for entry in (e for group in _owners(module, optimizer) for e in group):
        for name in _names(entry, known):
            key = _key(entry.paths[0], name)
            meta = known[key]
            if not isinstance(meta, TensorStorageMetadata):
                state[key] = None
            elif len(meta.size):
                shape, dtype = shard_shape(entry.intervals), meta.properties.dtype
                part = torch.empty(shape, dtype=dtype, device=entry.tensor.device)
                state[key] = Pieces(part, entry.shape, entry.intervals)
            else:
                state[key] = torch.zeros((), dtype=meta.properties.dtype)
    return state


def _names(entry: Held, known: Mapping[str, Any]) -> list[str]:
    """Names of a parameter's optimizer state among the keys of a checkpoint."""
    start = _key(entry.paths[0], "")
    found = [key.removeprefix(start) for key in known if key.startswith(start)]
    return [name for name in found if "." not in name]


def _fill_optimizer(module: Shards, optimizer: torch.optim.Optimizer, found: Mapping[str, Any]) -> None:
    for entry in (e for group in _owners(module, optimizer) for e in group):
        values = {name: found[_key(entry.paths[0], name)] for name in _names(entry, found)}
        optimizer.state[entry.tensor] = {
            name: value.tensor if isinstance(value, Pieces) else value for name, value in values.items()
        }
    saved = [(frozenset(paths), values) for paths, values in ast.literal_eval(found["optimizer.groups"])]
    for group, held in zip(optimizer.param_groups, _owners(module, optimizer), strict=True):
        paths = frozenset(e.paths[0] for e in held)
        settings = next((values for all_paths, values in saved if paths <= all_paths), None)
        if settings is None:
            raise RuntimeFault(
                "optimizer",
                "has the groups that were saved",
                f"a group of {len(paths)} parameters that was not saved",
                "make the optimizer with the same groups",
            )
        for key, value in settings.items():
            if isinstance(group.get(key), Tensor):
                group[key].fill_(value)
            else:
                group[key] = value
