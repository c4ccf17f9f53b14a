"""What a caller gives as a batch, checked against what was captured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hocket.errors import RuntimeFault
from hocket.graph.types import Graph, TensorType

Sample = Sequence[Any] | Mapping[str, Any]


def batch_values(graph: Graph, sample: Sample, device: torch.device | None = None) -> dict[str, Tensor]:
    """The batch's tensors by input name; raises RuntimeFault where one is missing, or not as captured.

    With `device`, tensors elsewhere are refused.
    """
    named = _named(graph, sample)
    values: dict[str, Tensor] = {}
    for entry in graph.batch:
        tensor = _tensor(named, entry.paths[0], graph.types[entry.name])
        _check(entry.paths[0], tensor, graph.types[entry.name], tuple(tensor.shape), device)
        values[entry.name] = tensor
    return values


def microbatches(
    graph: Graph, sample: Sample, count: int, device: torch.device | None = None
) -> Iterator[dict[str, Tensor]]:
    """The batch of a whole step cut on dim 0 into the microbatches that were captured, one after the other.

    A tensor that has the captured shape already belongs to every microbatch. Raises RuntimeFault.
    """
    if count == 1:
        yield batch_values(graph, sample, device)
        return
    named = _named(graph, sample)
    parts: dict[str, Sequence[Tensor]] = {}
    for entry in graph.batch:
        path, expected = entry.paths[0], graph.types[entry.name]
        tensor = _tensor(named, path, expected)
        if tuple(tensor.shape) == expected.shape:
            parts[entry.name] = [tensor] * count
            _check(path, tensor, expected, expected.shape, device)
            continue
        whole = tuple(tensor.shape)
        first = whole[0] // count if whole and whole[0] % count == 0 else -1
        _check(path, tensor, expected, (first, *whole[1:]), device, count)
        parts[entry.name] = tensor.chunk(count)
    for number in range(count):
        yield {name: part[number] for name, part in parts.items()}


def _named(graph: Graph, sample: Sample) -> Mapping[str, Any]:
    named = sample if isinstance(sample, Mapping) else {str(i): t for i, t in enumerate(sample)}
    known = [entry.paths[0] for entry in graph.batch]
    unknown = [name for name in named if name not in known]
    if unknown:
        raise RuntimeFault(
            "batch",
            "has the tensors that were captured, by position or keyword as they were",
            f"{', '.join(map(str, unknown))} beside {', '.join(known)}",
            f"pass {', '.join(known)}",
        )
    return named


def _tensor(named: Mapping[str, Any], path: str, expected: TensorType) -> Tensor:
    tensor = named.get(path)
    if not isinstance(tensor, Tensor):
        raise RuntimeFault(
            f"batch {path!r}",
            "is a tensor of the batch that was captured",
            type(tensor).__name__ if tensor is not None else "nothing",
            f"pass a {expected}",
        )
    return tensor


def _check(
    path: str,
    tensor: Tensor,
    expected: TensorType,
    shape: tuple[int, ...],
    device: torch.device | None,
    count: int = 1,
) -> None:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype != expected.dtype or shape != expected.shape:
        found = f"{dtype}[{','.join(map(str, tensor.shape))}]"
        raise RuntimeFault(
            f"batch {path!r}",
            "has the shape and type that was captured" + (f", {count} times on dim 0" if count > 1 else ""),
            f"{found}, not {expected}",
            "capture and plan again with this batch",
        )
    if device is not None and tensor.device.type != device.type:
        raise RuntimeFault(
            f"batch {path!r}",
            "is on the rank's device",
            f"{tensor.device}, not {device}",
            f"move it with .to({str(device)!r})",
        )
