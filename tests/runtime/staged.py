"""What ranks do in the tests of pipelines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from hocket import api
from hocket.capture.models import tiny
from hocket.plan.types import Plan
from hocket.runtime.checkpoint import load, save
from hocket.runtime.shards import put_shard

STEPS = 3


def batch_of(name: str, microbatches: int, seed: int) -> dict[str, torch.Tensor]:
    """A batch of so many different microbatches."""
    _, sample = tiny(name)
    torch.manual_seed(seed)
    parts = []
    for _ in range(microbatches):
        order = torch.randperm(next(iter(sample.values())).shape[-1]) if "input_ids" in sample else None
        parts.append({k: v[..., order] if order is not None and v.dim() == 2 else v for k, v in sample.items()})
    return {k: torch.cat([p[k] for p in parts]) for k in sample}


def optimizer_of(module: torch.nn.Module) -> torch.optim.Optimizer:
    """The optimizer of all runs."""
    return torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)


def train(plan: Plan, name: str) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Train on this rank: losses, and on rank 0 all parameters whole."""
    model, _ = tiny(name)
    module: Any = api.parallelize(model, plan, timeout=60.0)
    optimizer, losses = optimizer_of(module), []
    for step in range(STEPS):
        optimizer.zero_grad()
        losses.append(module.step(**batch_of(name, plan.schedule.microbatches, step)).item())
        optimizer.step()
    mine = {p: (h.tensor.detach(), h.intervals, h.shape) for p, h in module.held.items()}
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    whole: dict[str, torch.Tensor] = {}
    for held in everyone if dist.get_rank() == 0 else ():
        for path, (tensor, intervals, shape) in held.items():
            put_shard(
                whole.setdefault(path, torch.full(shape, float("nan"), dtype=tensor.dtype)), tensor, intervals
            )
    return losses, whole


def plain(name: str, microbatches: int) -> tuple[list[float], torch.nn.Module]:
    """The same training by PyTorch alone, with gradients added up over microbatches."""
    model, _ = tiny(name)
    optimizer, losses = optimizer_of(model), []
    for step in range(STEPS):
        optimizer.zero_grad()
        batch, total = batch_of(name, microbatches, step), 0.0
        parts = {k: v.chunk(microbatches) for k, v in batch.items()}
        for number in range(microbatches):
            loss = model(**{k: v[number] for k, v in parts.items()}).loss / microbatches
            loss.backward()
            total += loss.item()
        optimizer.step()
        losses.append(total)
    return losses, model


def save_some(plan: Plan, name: str, folder: Path) -> None:
    """Train one step and save."""
    model, _ = tiny(name)
    module: Any = api.parallelize(model, plan, timeout=60.0)
    optimizer = optimizer_of(module)
    module.step(**batch_of(name, plan.schedule.microbatches, 0))
    optimizer.step()
    save(folder, module, optimizer)


def go_on(plan: Plan, name: str, folder: Path) -> list[float]:
    """Load, perhaps under another plan, and train the steps left."""
    model, _ = tiny(name, seed=5)
    module: Any = api.parallelize(model, plan, timeout=60.0)
    optimizer, losses = optimizer_of(module), []
    load(folder, module, optimizer)
    for step in range(1, STEPS):
        optimizer.zero_grad()
        losses.append(module.step(**batch_of(name, plan.schedule.microbatches, step)).item())
        optimizer.step()
    return losses


def lose_one(plan: Plan, name: str) -> str:
    """Rank 0 leaves before the step; what the others are told."""
    model, _ = tiny(name)
    module: Any = api.parallelize(model, plan, timeout=5.0)
    if dist.get_rank() == 0:
        return ""
    try:
        module.step(**batch_of(name, plan.schedule.microbatches, 0))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"
