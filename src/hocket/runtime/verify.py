"""All ranks in this one process, against the unsplit step: loss, every gradient, every buffer."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from hocket.errors import RuntimeFault
from hocket.graph.types import Graph
from hocket.program.staged import StagedProgram
from hocket.program.types import Program
from hocket.runtime.batch import Sample as Sample
from hocket.runtime.batch import batch_values
from hocket.runtime.executor import Executor, shards_of
from hocket.runtime.shards import Intervals, put_shard, take_shard
from hocket.runtime.transport import Meeting, ThreadTransport

T = TypeVar("T")
P = TypeVar("P", Program, StagedProgram)
NOISE = 1e-3
"""Gradients below this share of the model's largest are measured against that share: some are zero but for
rounding (a key's bias before a softmax), and have no magnitude of their own."""


@dataclass(frozen=True, slots=True)
class Report:
    """How far a split step is from the unsplit one; errors are relative to the largest magnitude.

    `gradient_errors` is by parameter path, `buffer_errors` by buffer path; `loss` is the split run's.
    """

    loss: float
    loss_error: float
    gradient_errors: dict[str, float] = field(default_factory=dict)
    buffer_errors: dict[str, float] = field(default_factory=dict)

    @property
    def worst(self) -> float:
        """The largest error of all."""
        return max([self.loss_error, *self.gradient_errors.values(), *self.buffer_errors.values()])


def relative_error(found: Tensor, wanted: Tensor) -> float:
    """Largest difference over largest magnitude; not-a-number where either has one."""
    scale = wanted.double().abs().max().item() if wanted.numel() else 0.0
    difference = (found.double() - wanted.double()).abs().max().item() if wanted.numel() else 0.0
    return difference / max(scale, 1e-30) if difference else 0.0


def model_values(graph: Graph, model: nn.Module) -> dict[str, Tensor]:
    """The model's own parameters and buffers by input name; raises RuntimeFault where one is missing."""
    named = {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }
    values = {}
    for entry in (*graph.parameters, *graph.buffers):
        path = entry.paths[0]
        tensor, expected = named.get(path), graph.types[entry.name]
        if tensor is None or tuple(tensor.shape) != expected.shape:
            found = "nothing" if tensor is None else f"shape {list(tensor.shape)}"
            raise RuntimeFault(
                f"{entry.role} {path!r}",
                "is in the model as it was captured",
                f"{found}, not {expected}",
                "use the model that the plan was made for",
            )
        values[entry.name] = tensor
    return values


def run_ranks(
    graph: Graph, programs: Sequence[Program], values: Mapping[str, Tensor], seed: int = 0
) -> list[tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]]:
    """Run every rank's program in a thread of its own; per rank loss, gradients and new buffers."""
    meeting = Meeting()

    def work(program: Program) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
        executor = Executor(program, ThreadTransport(meeting, program.rank), torch.device("cpu"), seed)
        held = {name: take_shard(values[name], parts) for name, parts in shards_of(program).items()}
        run = executor.forward(held)
        return run.whole_loss, executor.backward(run), run.updates

    return in_threads(programs, meeting, work)


def in_threads(programs: Sequence[P], meeting: Meeting, work: Callable[[P], T]) -> list[T]:
    """What every rank's work gives, each in a thread of its own; raises the fault that others are a consequence
    of."""
    results: dict[int, T] = {}
    faults: list[BaseException] = []

    def run(program: P) -> None:
        try:
            with torch.no_grad():
                results[program.rank] = work(program)
        except BaseException as error:
            faults.append(error)
            meeting.fail(f"rank {program.rank} failed: {error}")

    threads = [threading.Thread(target=run, args=(p,), daemon=True) for p in programs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise next((e for e in faults if not isinstance(e, RuntimeFault)), faults[0])
    return [results[p.rank] for p in programs]


def reference(
    model: nn.Module, sample: Sample, loss: Callable[[Any], Tensor] | None = None, times: int = 1
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """The unsplit step by PyTorch itself, on a copy: loss, gradients by path, buffers by path.

    With `times` the sample is that of every one of so many microbatches: buffers are updated by each.
    """
    whole = copy.deepcopy(model)
    whole.zero_grad(set_to_none=True)
    with torch.no_grad():
        for _ in range(times - 1):
            _ = whole(**sample) if isinstance(sample, Mapping) else whole(*sample)
    output = whole(**sample) if isinstance(sample, Mapping) else whole(*sample)
    value = loss(output) if loss else getattr(output, "loss", output)
    value = value[0] if isinstance(value, tuple) else value
    value.backward()
    gradients = {n: p.grad for n, p in whole.named_parameters() if p.grad is not None}
    return value.detach(), gradients, dict(whole.named_buffers())


def compare(
    graph: Graph,
    programs: Sequence[Program],
    model: nn.Module,
    sample: Sample,
    loss: Callable[[Any], Tensor] | None = None,
) -> Report:
    """Run all ranks and the unsplit step on the same numbers, and compare everything that leaves the step.

    Replicas must agree as well: each rank's part is held against its place in the unsplit result.
    """
    values = {**batch_values(graph, sample), **model_values(graph, model)}
    wanted_loss, wanted, buffers = reference(model, sample, loss)
    wanted_parts = Wanted(graph, wanted_loss, wanted, buffers)
    for program, (found, gradients, updates) in zip(programs, run_ranks(graph, programs, values), strict=True):
        wanted_parts.hold(shards_of(program), found, gradients, updates)
    return wanted_parts.report()


@dataclass
class Wanted:
    """The unsplit step's loss, gradients and buffers by path, and how far from them what ranks found has been."""

    graph: Graph
    loss: Tensor
    gradients: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    losses: list[Tensor] = field(default_factory=list)
    gradient_errors: dict[str, float] = field(default_factory=dict)
    buffer_errors: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.paths = {i.name: i.paths[0] for i in self.graph.inputs}
        sizes = (g.double().abs().max().item() for g in self.gradients.values() if g.numel())
        self.largest = max(sizes, default=0.0)

    def hold(
        self,
        parts: Mapping[str, Intervals],
        loss: Tensor | None,
        gradients: Mapping[str, Tensor],
        updates: Mapping[str, Tensor],
    ) -> None:
        """Hold what one rank found against it; `parts` say which part of every input the rank has."""
        if loss is not None:
            self.losses.append(loss)
        for name, gradient in gradients.items():
            path = self.paths[name]
            part = take_shard(self.gradients[path], parts[name]).double()
            scale = max(self.gradients[path].double().abs().max().item(), NOISE * self.largest)
            difference = (gradient.double() - part).abs().max().item() if part.numel() else 0.0
            error = difference / max(scale, 1e-30) if difference else 0.0
            self.gradient_errors[path] = max(self.gradient_errors.get(path, 0.0), error)
        for name, update in updates.items():
            path = self.paths[name]
            error = relative_error(update, take_shard(self.buffers[path], parts[name]))
            self.buffer_errors[path] = max(self.buffer_errors.get(path, 0.0), error)

    def report(self) -> Report:
        """All errors; raises RuntimeFault where no rank found a loss or a gradient."""
        missing = {self.paths[p] for p, _ in self.graph.gradients} - set(self.gradient_errors)
        if missing or not self.losses:
            told = ", ".join(sorted(missing)[:3]) or "the loss"
            raise RuntimeFault("step", "gives the loss and every parameter's gradient", f"nothing for {told}")
        loss_error = max(relative_error(found, self.loss) for found in self.losses)
        return Report(self.losses[0].item(), loss_error, self.gradient_errors, self.buffer_errors)


def gather_whole(programs: Sequence[Program], parts: Sequence[Tensor], name: str, shape: Sequence[int]) -> Tensor:
    """A whole tensor from what each rank holds of an input."""
    whole = parts[0].new_empty(list(shape))
    for program, part in zip(programs, parts, strict=True):
        put_shard(whole, part, shards_of(program)[name])
    return whole
