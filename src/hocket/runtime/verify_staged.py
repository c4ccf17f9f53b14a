"""All ranks of a step of several stages in this one process, against the unsplit step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hocket.graph.types import Graph
from hocket.program.staged import StagedProgram
from hocket.runtime.batch import Sample, batch_values
from hocket.runtime.mail import ThreadMail
from hocket.runtime.pipe import Pipe, Result
from hocket.runtime.shards import take_shard
from hocket.runtime.transport import Meeting, ThreadTransport
from hocket.runtime.verify import Report, Wanted, in_threads, model_values, reference


def compare_staged(
    graph: Graph,
    programs: Sequence[StagedProgram],
    model: nn.Module,
    sample: Sample,
    loss: Callable[[Any], Tensor] | None = None,
) -> Report:
    """Run all ranks and the unsplit step on the same numbers, and compare everything that leaves the step.

    Every microbatch is the sample, so means over microbatches are what one gives.
    """
    batch, values = batch_values(graph, sample), model_values(graph, model)
    count = programs[0].order.microbatches
    wanted = Wanted(graph, *reference(model, sample, loss, count))
    for program, result in zip(programs, run_staged(programs, batch, values), strict=True):
        for number, stage in enumerate(result.gradients):
            found = None if result.loss is None or number else result.loss / count
            gradients = {name: gradient / count for name, gradient in result.gradients[stage].items()}
            held = {name: shard.intervals for name, shard in program.stages[stage].stored.items()}
            wanted.hold(held, found, gradients, result.updates[stage])
    return wanted.report()


def run_staged(
    programs: Sequence[StagedProgram], batch: Mapping[str, Tensor], values: Mapping[str, Tensor], seed: int = 0
) -> list[Result]:
    """Run every rank in a thread of its own; every microbatch is the same batch."""
    meeting = Meeting(everyone=tuple(p.rank for p in programs))

    def work(program: StagedProgram) -> Result:
        rank, cpu = program.rank, torch.device("cpu")
        pipe = Pipe(program, ThreadTransport(meeting, rank), ThreadMail(meeting, rank), cpu, seed)
        stored = {}
        for stage, programs_of in program.stages.items():
            own = {n: s for n, s in programs_of.stored.items() if n in values and program.home(stage, n)}
            stored[stage] = {name: take_shard(values[name], shard.intervals) for name, shard in own.items()}
        return pipe.step(stored, lambda _: batch)

    return in_threads(programs, meeting, work)
