"""What the ranks of multi-process tests do; every function runs in a process of its own."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from small import Builder, batch, small
from torch import Tensor

from hocket.errors import HocketError
from hocket.plan.types import Plan
from hocket.program.types import Collective, Compute
from hocket.runtime.checkpoint import load, save
from hocket.runtime.module import Parallel, parallelize
from hocket.runtime.shards import put_shard

sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def whole_state(module: Parallel) -> dict[str, Tensor]:
    """Every parameter and buffer put together from all ranks' parts; replicas must agree."""
    state = {}
    for path, entry in module.held.items():
        parts: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(parts, (entry.tensor.detach(), entry.intervals))
        whole = torch.full(entry.shape, float("nan"))
        for part, intervals in parts:
            put_shard(whole, part, intervals)
        state[path] = whole
    return state


def train(plan: Plan, steps: int) -> tuple[list[float], dict[str, Tensor], list[str], bool]:
    model = small(seed=dist.get_rank())  # only rank 0's values may count
    names = list(dict(model.named_parameters(remove_duplicate=False)))
    module = parallelize(model, plan, Builder(plan))
    emptied = all(p.numel() == 0 for p in model.parameters())
    same = names == sorted(dict(module.named_parameters(remove_duplicate=False)), key=names.index)
    tied = module.get_parameter("head.weight") is module.get_parameter("embed.weight")
    optimizer = sgd(module.parameters())
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = module(*batch(step))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    state = whole_state(module)
    return losses, state, sorted(module.state_dict()), emptied and same and tied


def gradients(plan: Plan) -> dict[str, list[Tensor]]:
    """Local gradients after: one backward, two backwards, twice the loss, a step of two microbatches."""
    module = parallelize(small(), plan, Builder(plan), sync=False)
    found: dict[str, list[Tensor]] = {}

    def note(name: str) -> None:
        found[name] = [p.grad.clone() for p in module.parameters() if p.grad is not None]
        module.zero_grad()

    module(*batch(0)).backward()
    note("one")
    module(*batch(0)).backward()
    module(*batch(1)).backward()
    note("two")
    (2.0 * module(*batch(0))).backward()
    note("doubled")
    first = module(*batch(0))
    module(*batch(1)).backward()
    module.zero_grad()
    first.backward()
    note("late")
    with torch.no_grad():
        quiet = module(*batch(0))
    found["losses"] = [quiet, module(*batch(0)).detach()]
    loss = module(*batch(2))
    loss.backward()
    try:
        loss.backward()
    except (HocketError, RuntimeError) as error:
        found["again"] = [torch.tensor(float("freed" in str(error) or "call the module again" in str(error)))]
    return found


def recorded_step(plan: Plan) -> tuple[float, dict[str, Tensor], list[tuple[str, str]], list[tuple[str, str]]]:
    """Loss and whole gradients of a step of two microbatches; the spans found and those expected."""
    module = parallelize(small(), plan, Builder(plan), sync=False, record=True)
    loss = module.step(*batch(0, 16))
    for entry in module.held.values():
        if entry.tensor.grad is not None:
            entry.tensor.data = entry.tensor.grad
    found = sorted((s.stream, s.name) for s in module.timeline.spans)
    wanted = []
    for instruction in module.program.instructions:
        if isinstance(instruction, Compute):
            wanted.append(("compute", instruction.operation.kind))
        elif isinstance(instruction, Collective):
            wanted.append(("communication", instruction.kind))
    return loss.item(), whole_state(module), found, sorted(wanted)


def dropped(plan: Plan) -> tuple[list[float], list[float]]:
    """Losses of three steps with dropout, by two modules of the same seed, and by one of another."""
    found = []
    for seed in (1, 1, 2):
        module = parallelize(small(0, 0.5), plan, Builder(plan), seed=seed, sync=False)
        with torch.no_grad():
            found.append([module(*batch(0)).item() for _ in range(3)])
    assert found[0] == found[1]
    return found[0], found[2]


def lose_a_rank(plan: Plan) -> str:
    module = parallelize(small(), plan, Builder(plan), timeout=3.0)
    module(*batch(0)).backward()
    if dist.get_rank() == 1:
        time.sleep(9.0)  # in no collective for longer than the others wait
        return "gone"
    try:
        for _ in range(3):
            module(*batch(0)).backward()
    except HocketError as error:
        return str(error)
    return "no error"


def die(plan: Plan) -> str:
    """What rank 0 says where rank 1 ends without a word, in a file: the process's result is lost."""
    module = parallelize(small(), plan, Builder(plan), timeout=20.0)
    module(*batch(0)).backward()
    if dist.get_rank() == 1:
        os._exit(3)
    try:
        for _ in range(3):
            module(*batch(0)).backward()
    except HocketError as error:
        raise SystemExit(str(error)) from error
    return "no error"


def different_seeds(plan: Plan) -> str:
    try:
        parallelize(small(), plan, Builder(plan), seed=dist.get_rank())
    except HocketError as error:
        return str(error)
    return "no error"


def wrong_world(plan: Plan) -> str:
    try:
        parallelize(small(), plan, Builder(plan))
    except HocketError as error:
        return str(error)
    return "no error"


def fail(rank: int) -> int:
    if dist.get_rank() == rank:
        raise ValueError("this rank fails on purpose")
    dist.barrier()
    return dist.get_rank()


def adam(module: torch.nn.Module) -> torch.optim.Optimizer:
    decayed = [p for p in module.parameters() if p.dim() > 1]
    plain = [p for p in module.parameters() if p.dim() == 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "lr": 0.003}]
    return torch.optim.AdamW(groups, lr=0.01, betas=(0.8, 0.95))


def save_after(plan: Plan, steps: int, path: Path) -> list[float]:
    """Losses of two more steps after a checkpoint was saved."""
    module = parallelize(small(), plan, Builder(plan))
    optimizer = adam(module)
    _steps(module, optimizer, 0, steps)
    save(path, module, optimizer, {"epoch": 7})
    return _steps(module, optimizer, steps, steps + 2)


def load_and_go_on(plan: Plan, steps: int, path: Path) -> tuple[list[float], dict[str, Any]]:
    """The same two steps by ranks that load the checkpoint into another model."""
    module = parallelize(small(seed=99), plan, Builder(plan))
    optimizer = torch.optim.AdamW([dict(g) for g in adam(module).param_groups], lr=0.5)
    extra = load(path, module, optimizer)
    return _steps(module, optimizer, steps, steps + 2), {
        **extra,
        "seen": whole_state(module)["seen"].tolist(),
    }


def _steps(module: Parallel, optimizer: torch.optim.Optimizer, first: int, end: int) -> list[float]:
    losses = []
    for step in range(first, end):
        optimizer.zero_grad()
        loss = module(*batch(step))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
