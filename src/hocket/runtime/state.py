"""The parameters and buffers of one rank, as a module under the model's own names."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hocket.errors import RuntimeFault
from hocket.plan.types import Plan
from hocket.runtime.placement import Held
from hocket.runtime.shards import shard_shape, view_shard


class Shards(nn.Module):
    """One rank's shards under the model's own parameter names. `steps` counts the forward passes of microbatches so
    far, from which dropout draws."""

    def __init__(self, plan: Plan, held: Sequence[Held]) -> None:
        super().__init__()
        self._plan = plan
        self._held = {path: entry for entry in held for path in entry.paths}
        self.steps = 0
        for entry in held:
            for path in entry.paths:
                self._install(path, entry)
        inputs = [i for i in plan.graph.inputs if i.role in ("parameter", "buffer") and i.paths[0] in self._held]
        self._values = {i.name: self._held[i.paths[0]].tensor for i in inputs}

    @property
    def plan(self) -> Plan:
        """The plan it runs."""
        return self._plan

    @property
    def held(self) -> dict[str, Held]:
        """Every parameter and buffer of this rank by path, and which part of the whole it is."""
        return dict(self._held)

    def put(self, path: str, whole: Tensor) -> None:
        """Fill the shard at `path` from the whole tensor; raises RuntimeFault for another path or shape."""
        entry = self._held.get(path)
        if entry is None or entry.shape != tuple(whole.shape):
            wanted = "a parameter or buffer of the model" if entry is None else f"shape {list(entry.shape)}"
            raise RuntimeFault(f"{path}", f"is {wanted}", f"shape {list(whole.shape)}")
        with torch.no_grad():
            entry.tensor.copy_(view_shard(whole.to(entry.tensor.device), entry.intervals))

    def shard_of(self, path: str) -> tuple[int, ...]:
        """Local shape of a parameter or buffer."""
        return shard_shape(self._held[path].intervals)

    def _check_mode(self) -> None:
        graph = self._plan.graph
        if self.training or not (graph.updates or any(o.kind == "native_dropout" for o in graph.operations)):
            return
        raise RuntimeFault(
            "module in eval mode",
            "runs the training step that was captured, with its dropout and buffer updates",
            "module.eval() was called",
            "evaluate with a model captured in eval mode, or load the whole state into the original model",
        )

    def _install(self, path: str, entry: Held) -> None:
        """Put a tensor at its path, in plain modules made on the way."""
        *owners, name = path.split(".")
        module: nn.Module = self
        for owner in owners:
            known = module._modules.get(owner)
            if known is None:
                known = module._modules[owner] = _Container()
            module = known
        if isinstance(entry.tensor, nn.Parameter):
            module._parameters[name] = entry.tensor
            return
        module._buffers[name] = entry.tensor
        if not entry.persistent:
            module._non_persistent_buffers_set.add(name)


class _Container(nn.Module):
    """A level of the original model's tree; it holds parameters and computes nothing."""
