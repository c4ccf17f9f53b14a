"""The module people train with: parameters are this rank's shards, the forward gives the step's loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hocket.errors import PlanError, RuntimeFault
from hocket.plan.types import Plan
from hocket.program.staged import StagedProgram
from hocket.program.types import Program
from hocket.runtime.batch import batch_values, microbatches
from hocket.runtime.executor import Executor, Run, shards_of
from hocket.runtime.mail import DistributedMail
from hocket.runtime.pipe import Pipe
from hocket.runtime.pipelined import Pipelined, absent_from, held_by
from hocket.runtime.placement import Held, agree, place
from hocket.runtime.shards import is_whole, take_shard
from hocket.runtime.state import Shards
from hocket.runtime.transport import DistributedTransport, Transport
from hocket.simulate.timeline import Timeline


def parallelize(
    model: nn.Module,
    plan: Plan,
    build: Callable[[int], Program | StagedProgram],
    *,
    device: torch.device | None = None,
    seed: int = 0,
    compile: bool = False,
    timeout: float = 600.0,
    sync: bool = True,
    record: bool = False,
) -> Parallel | Pipelined:
    """This rank's part of the model under a plan; `build` gives a rank's program.

    torch.distributed must be initialised with the plan's world size (a plan for one rank needs nothing).
    The model is used up: its parameters move into the shards. With `sync` rank 0's values count, else every
    rank cuts its own copy. A model on the meta device gives unfilled shards, to be loaded from a checkpoint
    or with `put`. With `compile`, torch.compile joins local operations between communication (the first step
    takes long). `timeout` in seconds is how long a rank waits for the others in a collective. Raises
    PlanError where the world is not the plan's, RuntimeFault where ranks have different plans.
    """
    world = dist.get_world_size() if dist.is_initialized() else 1
    rank = dist.get_rank() if dist.is_initialized() else 0
    if world != plan.world_size:
        raise PlanError(
            "plan",
            "is made for as many ranks as there are",
            f"a plan for {plan.world_size}, {world} running",
            f"start {plan.world_size} ranks, or plan for {world}",
        )
    home = device or _device(model)
    meta = any(p.is_meta for p in model.parameters())
    strategies = tuple(stage.strategies for stage in plan.stages)
    full = agree((plan.fingerprint, strategies, plan.schedule, seed), meta)
    program = build(rank)
    transport = DistributedTransport(tuple(stage.mesh for stage in plan.stages), rank, timeout)
    shards, absent = (held_by(program), absent_from(plan, program)) if isinstance(program, StagedProgram) \
        else (shards_of(program), frozenset[str]())  # fmt: skip
    held = place(model, plan.graph, shards, home, sync and full and world > 1, absent)
    if isinstance(program, StagedProgram):
        pipe = Pipe(program, transport, DistributedMail(rank, timeout), home, seed, compile, record)
        return Pipelined(plan, pipe, held)
    return Parallel(plan, Executor(program, transport, home, seed, record, compile), held, transport)


def _device(model: nn.Module) -> torch.device:
    if dist.is_initialized() and dist.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    first = next(model.parameters(), None)
    return torch.device("cpu") if first is None or first.is_meta else first.device


class Parallel(Shards):
    """One rank's shards under the model's own parameter names, and the whole step as its forward.

    `loss = module(*batch)` takes the whole batch on every rank, by position or keyword as it was captured,
    and gives the whole step's loss, the same on all ranks. `step` runs all microbatches. `timeline` is what
    the last step measured, where it was made with `record`.
    """

    def __init__(self, plan: Plan, executor: Executor, held: Sequence[Held], transport: Transport) -> None:
        super().__init__(plan, held)
        self._executor, self._transport = executor, transport
        later = executor.program.instructions[executor.program.forward :]
        read = {name for instruction in later for name in instruction.inputs}
        self._copied = [name for name, _ in plan.graph.updates if name in read]
        self._trained = [p for p, _ in executor.program.gradients]
        self._shards = shards_of(executor.program)

    @property
    def program(self) -> Program:
        """What this rank does."""
        return self._executor.program

    @property
    def timeline(self) -> Timeline:
        """What the last step measured; empty unless made with `record`."""
        return self._executor.timeline

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """The loss of one microbatch of the plan; a scalar that `backward` can be called on."""
        loss, _ = self._forward(batch_values(self._plan.graph, kwargs or args, self._executor.device))
        return loss

    def step(self, *args: Any, **kwargs: Any) -> Tensor:
        """Forward and backward of all the plan's microbatches; gradients are added to `.grad`.

        The batch is cut evenly on its first dim. Loss and gradients are means over the microbatches.
        """
        count = self._plan.schedule.microbatches
        total: Tensor | None = None
        for part in microbatches(self._plan.graph, kwargs or args, count, self._executor.device):
            loss, run = self._forward(part)
            if torch.is_grad_enabled() and run is not None:
                (loss / count if count > 1 else loss).backward()
            total = loss.detach() if total is None else total + loss.detach()
        if total is None:
            raise PlanError("plan", "has at least one microbatch", str(count))
        return total / count if count > 1 else total

    def _forward(self, batch: dict[str, Tensor]) -> tuple[Tensor, Run | None]:
        self._check_mode()
        self.steps += 1
        parameters = [self._values[name] for name in self._trained]
        keep = torch.is_grad_enabled() and any(p.requires_grad for p in parameters)
        if not keep:
            run = self._run(batch)
            self._executor.drop(run)
            return run.whole_loss, None
        with torch.no_grad():
            run = self._run(batch)
        loss: Tensor = _Step.apply(self, run, *parameters)
        return loss, run

    def _run(self, batch: dict[str, Tensor]) -> Run:
        values = {name: tensor.detach() for name, tensor in self._values.items()}
        for name, tensor in batch.items():
            parts = self._shards[name]
            values[name] = tensor if is_whole(parts, tuple(tensor.shape)) else take_shard(tensor, parts)
        for name in self._copied:
            values[name] = values[name].clone()
        with torch.no_grad():
            run = self._executor.forward(values, self.steps)
            for name, new in run.updates.items():
                self._values[name].copy_(new)
        return run

    def extra_repr(self) -> str:
        """The mesh and this rank."""
        return f"mesh={self._plan.stage.mesh}, rank={self.program.rank}"


class _Step(torch.autograd.Function):
    """The step as one node of autograd: its inputs are the shards, its output is the loss."""

    @staticmethod
    def forward(ctx: Any, module: Parallel, run: Run, *parameters: Tensor) -> Tensor:
        ctx.module, ctx.run = module, run
        return run.whole_loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        module, run = ctx.module, ctx.run
        if run.done:
            raise RuntimeFault(
                "loss",
                "is used for one backward pass, which uses up what forward kept",
                "backward a second time",
                "call the module again",
            )
        with torch.no_grad():
            gradients = module._executor.backward(run)
            found = _apart([gradients[name] for name in module._trained], list(module._values.values()))
            scale = outer[0]
            if scale.is_cuda or scale.item() != 1.0:
                found = list(torch._foreach_mul(found, scale))
        wanted = ctx.needs_input_grad[2:]
        return None, None, *(g if w else None for g, w in zip(found, wanted, strict=True))


def _apart(gradients: list[Tensor], inputs: list[Tensor]) -> list[Tensor]:
    """Gradients that share no memory with each other or with parameters: autograd keeps them as `.grad`,
    which optimizers change in place."""
    seen: dict[int, list[tuple[int, int]]] = {}
    for tensor in inputs:
        seen.setdefault(tensor.untyped_storage().data_ptr(), []).append((0, 1 << 62))
    result = []
    for gradient in gradients:
        start = int(gradient.storage_offset())
        end = start + 1 + sum((n - 1) * s for n, s in zip(gradient.shape, gradient.stride(), strict=True))
        taken = seen.setdefault(gradient.untyped_storage().data_ptr(), [])
        if gradient.numel() and any(start < b and a < end for a, b in taken):
            gradient = gradient.clone()
        else:
            taken.append((start, end))
        result.append(gradient)
    return result
