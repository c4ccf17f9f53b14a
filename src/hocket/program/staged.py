"""What one rank does in a step of many microbatches, on one stage or several, as it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hocket.graph.cut import Parts
from hocket.pipeline.order import Action, Order
from hocket.plan.types import Memory, Stage
from hocket.program.blueprint import Blueprint
from hocket.program.liveness import memory_of, waiting_bytes
from hocket.program.transfer import Box, Transfer, find_pieces
from hocket.program.types import Program, Shard
from hocket.sharding.layout import Layout


@dataclass(frozen=True, slots=True)
class StagePrograms:
    """What a rank does of one stage: `run` for every microbatch, `gather` before the first one and `sync` after the
    last one (parameters to where they are worked with, gradients to where they are stored; None where a microbatch
    does that itself)."""

    run: Program
    gather: Program | None = None
    sync: Program | None = None

    @property
    def stored(self) -> dict[str, Shard]:
        """What the rank holds of every input between steps, by name."""
        inputs = (*self.run.inputs, *(self.gather.inputs if self.gather else ()))
        return {shard.name: shard for shard in inputs}


@dataclass(frozen=True)
class StagedProgram:
    """All that one rank does in a step: its stages, the `order` of all ranks along the pipeline, what it sends and
    receives, and per stage what is `arriving` for its backward pass. `boxes[stage, value]` say what this rank has
    of what it sends and of parameters that several stages hold. `last` are the ranks that make the loss,
    `tied[parameter]` the stages that hold it where there are several, its home first."""

    rank: int
    stages: Mapping[int, StagePrograms]
    order: Order
    transfers: tuple[Transfer, ...]
    arriving: Mapping[int, frozenset[str]]
    boxes: Mapping[tuple[int, str], Box]
    last: tuple[int, ...]
    tied: Mapping[str, tuple[int, ...]]

    @property
    def actions(self) -> tuple[Action, ...]:
        """What this rank does in turn."""
        return next((todo for todo in self.order.ranks if todo and todo[0].stage in self.stages), ())

    def home(self, stage: int, parameter: str) -> bool:
        """Whether a parameter of a stage is at home there."""
        return self.tied.get(parameter, (stage,))[0] == stage


def gradient_layouts(plan: Blueprint) -> dict[str, Layout]:
    """The layout in which every gradient of a stage is made, by value."""
    values = {value for _, value in plan.graph.gradients}
    found = {}
    for operation, strategy in zip(plan.graph.operations, plan.strategies, strict=True):
        for name, layout in zip(operation.outputs, strategy.outputs, strict=True):
            if name in values:
                found[name] = layout
    for entry in plan.graph.inputs:
        if entry.name in values:
            found[entry.name] = plan.stage.held(entry.name)
    return found


def find_transfers(parts: Parts, stages: Sequence[Stage], places: Sequence[int] = ()) -> tuple[Transfer, ...]:
    """Everything that stages send each other: values as they are made, and once what several of them hold.

    A parameter of several stages is at home at the first of them, which has its gradient and its optimizer state.
    """
    found = []
    for value, source in parts.makers.items():
        tensor = parts.graphs[source].types[value]
        for target in parts.readers(value):
            one, other = stages[source], stages[target]
            ends = (one.sent[value], one.mesh), (other.stored[value], other.mesh)
            found.append(Transfer(value, source, target, tensor.dtype, find_pieces(tensor, *ends, places)))
    for parameter, homes in parts.tied.items():
        tensor = parts.graphs[homes[0]].types[parameter]
        home = stages[homes[0]].stored[parameter], stages[homes[0]].mesh
        for stage in homes[1:]:
            away = stages[stage].stored[parameter], stages[stage].mesh
            there, back = find_pieces(tensor, home, away, places), find_pieces(tensor, away, home, places)
            found.append(Transfer(parameter, homes[0], stage, tensor.dtype, there, "parameter"))
            if any(name == parameter for name, _ in parts.graphs[stage].gradients):
                found.append(Transfer(parameter, stage, homes[0], tensor.dtype, back, "gradient"))
    return tuple(found)


def staged_memory(programs: StagePrograms, in_flight: int, microbatches: int, optimizer_bytes: float) -> Memory:
    """Peak memory of one stage of a rank that holds what so many microbatches need for their backward passes.

    Parameters that are worked with in another layout than they are stored in are there twice; so are gradients of
    several microbatches: those of one, and the sums that they are added to.
    """
    run = programs.run
    memory = memory_of(run, optimizer_bytes)
    waiting = waiting_bytes(run)
    activations = memory.activations + (in_flight - 1) * waiting
    if microbatches > 1:
        activations += memory.gradients
    if programs.gather is None or programs.sync is None:
        return replace(memory, activations=activations)
    stored = {shard.name: programs.gather.types[shard.name] for shard in programs.gather.inputs}
    same = {name for name, value in programs.gather.gradients if name == value}
    parameters = memory.parameters + sum(t.bytes for name, t in stored.items() if name not in same)
    trained = sum(stored[name].elements for name, _ in run.gradients)
    last = max((programs.sync.types[v].bytes for n, v in programs.sync.gradients if v != n), default=0)
    return Memory(parameters, memory.gradients + last, int(trained * optimizer_bytes), activations)
