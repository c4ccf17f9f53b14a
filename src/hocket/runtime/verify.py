"""All ranks in this one process, against the unsplit step: loss, every gradient, every buffer."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from hocket.errors import RuntimeFault
from hocket.graph.types import Graph
from hocket.program.types import Program
from hocket.runtime.batch import Sample as Sample
from hocket.runtime.batch import batch_values
from hocket.runtime.executor import Executor, shards_of
from hocket.runtime.shards import put_shard, take_shard
from hocket.runtime.transport import Meeting, ThreadTransport

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
    results: dict[int, tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]] = {}
    faults: list[BaseException] = []

    def work(program: Program) -> None:
        try:
            executor = Executor(program, ThreadTransport(meeting, program.rank), torch.device("cpu"), seed)
            held = {name: take_shard(values[name], parts) for name, parts in shards_of(program).items()}
            with torch.no_grad():
                run = executor.forward(held)
                results[program.rank] = (run.whole_loss, executor.backward(run), run.updates)
        except BaseException as error:
            faults.append(error)
            meeting.fail(f"rank {program.rank} failed: {error}")

    threads = [threading.Thread(target=work, args=(p,), daemon=True) for p in programs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise next((e for e in faults if not isinstance(e, RuntimeFault)), faults[0])
    return [results[p.rank] for p in programs]


def reference(
    model: nn.Module, sample: Sample, loss: Callable[[Any], Tensor] | None = None
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """The unsplit step by PyTorch itself, on a copy: loss, gradients by path, buffers by path."""
    whole = copy.deepcopy(model)
    whole.zero_grad(set_to_none=True)
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
    paths = {i.name: i.paths[0] for i in graph.inputs}
    loss_error, gradient_errors, buffer_errors = 0.0, dict[str, float](), dict[str, float]()
    first = 0.0
    largest = max((g.double().abs().max().item() for g in wanted.values() if g.numel()), default=0.0)
    results = run_ranks(graph, programs, values)
    for number, (program, (found, gradients, updates)) in enumerate(zip(programs, results, strict=True)):
        parts = shards_of(program)
        first = found.item() if number == 0 else first
        loss_error = max(loss_error, relative_error(found, wanted_loss))
        for name, gradient in gradients.items():
            part = take_shard(wanted[paths[name]], parts[name])
            scale = max(wanted[paths[name]].double().abs().max().item(), NOISE * largest)
            difference = (gradient.double() - part.double()).abs().max().item() if part.numel() else 0.0
            error = difference / max(scale, 1e-30) if difference else 0.0
            gradient_errors[paths[name]] = max(gradient_errors.get(paths[name], 0.0), error)
        for name, update in updates.items():
            error = relative_error(update, take_shard(buffers[paths[name]], parts[name]))
            buffer_errors[paths[name]] = max(buffer_errors.get(paths[name], 0.0), error)
    return Report(first, loss_error, gradient_errors, buffer_errors)


def gather_whole(programs: Sequence[Program], parts: Sequence[Tensor], name: str, shape: Sequence[int]) -> Tensor:
    """A whole tensor from what each rank holds of an input."""
    whole = parts[0].new_empty(list(shape))
    for program, part in zip(programs, parts, strict=True):
        put_shard(whole, part, shards_of(program)[name])
    return whole
