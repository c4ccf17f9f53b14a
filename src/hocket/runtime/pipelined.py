"""The module people train with where a plan has several stages: this rank's shards of its stages, and `step`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hocket.errors import PlanError, RuntimeFault
from hocket.plan.types import Plan
from hocket.program.staged import StagedProgram
from hocket.runtime.batch import microbatches
from hocket.runtime.pipe import Pipe
from hocket.runtime.placement import Held
from hocket.runtime.shards import Intervals
from hocket.runtime.state import Shards
from hocket.simulate.timeline import Timeline


class Pipelined(Shards):
    """One rank's shards of its stages under the model's own parameter names.

    `loss = module.step(*batch)` takes the whole batch on every rank, runs forward and backward of all microbatches,
    adds gradients to `.grad`, and gives the mean loss on every rank. There is no forward: a pipeline's ranks work
    at different times on different microbatches.
    """

    def __init__(self, plan: Plan, pipe: Pipe, held: Sequence[Held]) -> None:
        super().__init__(plan, held)
        self._pipe = pipe
        self._rank = pipe.program.rank

    @property
    def program(self) -> StagedProgram:
        """What this rank does."""
        return self._pipe.program

    @property
    def timeline(self) -> Timeline:
        """What the last step measured of this rank's passes; empty unless made with `record`."""
        return self._pipe.timeline

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Not there: raises RuntimeFault."""
        raise RuntimeFault(
            "forward of a pipeline",
            "is part of a whole step: ranks work at different times on different microbatches",
            repair="call module.step(*batch), which runs forward and backward and gives the loss",
        )

    def step(self, *args: Any, **kwargs: Any) -> Tensor:
        """Forward and backward of all the plan's microbatches; gradients are added to `.grad`.

        The batch is cut evenly on its first dim. Loss and gradients are means over the microbatches. Without
        gradients enabled it raises RuntimeFault.
        """
        self._check_mode()
        if not torch.is_grad_enabled():
            raise RuntimeFault("step", "runs forward and backward", "gradients are disabled", "leave no_grad")
        count, device = self._plan.schedule.microbatches, self._pipe.device
        parts = list(microbatches(self._plan.graph, kwargs or args, count, device))
        with torch.no_grad():
            stored = {stage: self._stored(stage) for stage in self._pipe.workers}
            result = self._pipe.step(stored, lambda number: parts[number], self.steps + 1)
            self.steps += count
            for updates in result.updates.values():
                for name, new in updates.items():
                    self._values[name].copy_(new)
            for gradients in result.gradients.values():
                for name, gradient in gradients.items():
                    _accumulate(self._values[name], gradient / count if count > 1 else gradient)
            loss = torch.zeros((), device=device) if result.loss is None else result.loss / count
            return self._pipe.mail.tell(loss.float(), self._pipe.program.last[0])

    def _stored(self, stage: int) -> dict[str, Tensor]:
        """This rank's shards for a stage; what is at home at another stage comes from there."""
        names = self._pipe.program.stages[stage].stored
        return {n: t.detach() for n, t in self._values.items() if n in names and self._pipe.program.home(stage, n)}

    def extra_repr(self) -> str:
        """The stages of this rank."""
        return f"stages {', '.join(map(str, self._pipe.workers))} of {len(self._plan.stages)}, rank={self._rank}"


def _accumulate(parameter: Tensor, gradient: Tensor) -> None:
    if parameter.requires_grad:
        parameter.grad = gradient.clone() if parameter.grad is None else parameter.grad.add_(gradient)


def held_by(program: StagedProgram) -> dict[str, Intervals]:
    """Intervals that a rank holds of every parameter and buffer that is at home with it."""
    found: dict[str, Intervals] = {}
    for stage, programs in program.stages.items():
        for name, shard in programs.stored.items():
            if program.home(stage, name) and found.setdefault(name, shard.intervals) != shard.intervals:
                raise PlanError(
                    f"parameter {name}",
                    "is held alike by all stages of a rank",
                    f"{found[name]}, {shard.intervals}",
                )
    return found


def absent_from(plan: Plan, program: StagedProgram) -> frozenset[str]:
    """Paths of the parameters that the step reads, but not on this rank."""
    own = held_by(program)
    return frozenset(p for i in plan.graph.parameters if i.name not in own for p in i.paths)
