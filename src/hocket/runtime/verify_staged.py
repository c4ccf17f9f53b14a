"""All ranks of a step of several stages in this one process, against the unsplit step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hocket.errors import RuntimeFault
from hocket.graph.types import Graph
from hocket.program.staged import StagedProgram
from hocket.runtime.batch import Sample, batch_values
from hocket.runtime.mail import ThreadMail
from hocket.runtime.pipe import Pipe, Result
from hocket.runtime.shards import take_shard
from hocket.runtime.transport import Meeting, ThreadTransport
from hocket.runtime.verify import NOISE, Report, model_values, reference, relative_error


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
    wanted_loss, wanted, buffers = reference(model, sample, loss)
    paths = {i.name: i.paths[0] for i in graph.inputs}
    count = programs[0].order.microbatches
    largest = max((g.double().abs().max().item() for g in wanted.values() if g.numel()), default=0.0)
    report: dict[str, float] = {}
    buffer_errors: dict[str, float] = {}
    losses = []
    for program, result in zip(programs, run_staged(programs, batch, values), strict=True):
        if result.loss is not None:
            losses.append((result.loss / count).detach())
        for stage, gradients in result.gradients.items():
            boxes = stored_boxes(program, stage)
            for name, gradient in gradients.items():
                whole = wanted[paths[name]]
                part = take_shard(whole, boxes[name]).double()
                scale = max(whole.double().abs().max().item(), NOISE * largest)
                error = (gradient.double() / count - part).abs().max().item() if part.numel() else 0.0
                report[paths[name]] = max(report.get(paths[name], 0.0), error / max(scale, 1e-30))
            for name, update in result.updates[stage].items() if count == 1 else ():
                error = relative_error(update, take_shard(buffers[paths[name]], boxes[name]))
                buffer_errors[paths[name]] = max(buffer_errors.get(paths[name], 0.0), error)
    missing = {paths[p] for p, _ in graph.gradients} - set(report)
    if missing:
        raise RuntimeFault(
            "step", "gives every parameter's gradient", f"nothing for {', '.join(sorted(missing)[:3])}"
        )
    loss_error = max(relative_error(found, wanted_loss) for found in losses)
    return Report(losses[0].item(), loss_error, report, buffer_errors)


def run_staged(
    programs: Sequence[StagedProgram], batch: Mapping[str, Tensor], values: Mapping[str, Tensor], seed: int = 0
) -> list[Result]:
    """Run every rank in a thread of its own; every microbatch is the same batch."""
    meeting = Meeting(everyone=tuple(p.rank for p in programs))
    results: dict[int, Result] = {}
    faults: list[BaseException] = []

    def work(program: StagedProgram) -> None:
        try:
            rank, cpu = program.rank, torch.device("cpu")
            pipe = Pipe(program, ThreadTransport(meeting, rank), ThreadMail(meeting, rank), cpu, seed)
            stored = {}
            for stage in program.stages:
                held = stored_boxes(program, stage)
                own = {n: b for n, b in held.items() if n in values and program.home(stage, n)}
                stored[stage] = {name: take_shard(values[name], box) for name, box in own.items()}
            with torch.no_grad():
                results[rank] = pipe.step(stored, lambda _: batch)
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


def stored_boxes(program: StagedProgram, stage: int) -> dict[str, tuple[tuple[tuple[int, int], ...], ...]]:
    """What a rank stores of every input of a stage."""
    programs = program.stages[stage]
    found = {shard.name: shard.intervals for shard in programs.run.inputs}
    return {**found, **{s.name: s.intervals for s in (programs.gather.inputs if programs.gather else ())}}
