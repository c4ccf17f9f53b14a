"""From a recorded step to a graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hocket.capture import passes
from hocket.capture.joins import join_padded
from hocket.graph.types import Graph, Input, Operation, TensorType


@dataclass(frozen=True, slots=True)
class Recorded:
    """A step as it was recorded: `operations[:forward]` while the model ran, the rest while autograd ran.

    `inputs` have the recorded values as names; `labels` are the names they shall have.
    """

    inputs: tuple[Input, ...]
    labels: tuple[str, ...]
    operations: tuple[Operation, ...]
    forward: int
    types: Mapping[str, TensorType]
    loss: str
    gradients: tuple[tuple[str, str], ...]
    updates: tuple[tuple[str, str], ...]
    random: frozenset[str]


@dataclass(slots=True)
class _Step:
    """The step while passes go over it; `names` says what replaced a value that went."""

    forward: list[Operation]
    backward: list[Operation]
    names: dict[str, str]

    def now(self, name: str) -> str:
        """What stands for the recorded value `name` now."""
        while name in self.names:
            name = self.names[name]
        return name


def convert(recorded: Recorded, name: str) -> Graph:
    """The graph of a recorded step: cleaned, split into forward and backward, with readable names."""
    types = dict(recorded.types)
    operations, names = passes.simplify(recorded.operations, types)
    inside = {output for op in recorded.operations[: recorded.forward] for output in op.outputs}
    step = _Step(
        join_padded([op for op in operations if op.outputs[0] in inside], types),
        join_padded([op for op in operations if op.outputs[0] not in inside], types),
        names,
    )
    _merge(step, recorded.random)
    _split(step, recorded)
    step.backward = passes.repeat_views(step.forward, step.backward, types)
    again, more = passes.simplify([*step.forward, *step.backward], types)
    step.names.update(more)
    step.forward, step.backward = again[: len(step.forward)], again[len(step.forward) :]
    _merge(step, recorded.random)
    _split(step, recorded)
    return _assemble(step, recorded, types, name)


def _merge(step: _Step, random: Iterable[str]) -> None:
    """Common subexpressions, apart in forward and backward: merging across would keep values alive."""
    step.forward, names = passes.merge(step.forward, frozenset(random))
    backward = [passes.renamed(op, names) for op in step.backward]
    step.backward, more = passes.merge(backward, frozenset(random))
    step.names.update({**names, **more})


def _split(step: _Step, recorded: Recorded) -> None:
    """Forward is what loss and updates need; of the rest, what gradients need is backward."""
    ends = [step.now(recorded.loss), *(step.now(v) for _, v in recorded.updates)]
    gradients = [step.now(v) for _, v in recorded.gradients]
    everything = passes.live([*step.forward, *step.backward], [*ends, *gradients])
    forward = {op.outputs for op in passes.live(step.forward, ends)}
    step.forward = [op for op in everything if op.outputs in forward]
    step.backward = [op for op in everything if op.outputs not in forward]


def _assemble(step: _Step, recorded: Recorded, types: Mapping[str, TensorType], name: str) -> Graph:
    operations = [*step.forward, *step.backward]
    labels = _unique(recorded.labels)
    names = {i.name: label for i, label in zip(recorded.inputs, labels, strict=True)}
    names.update(passes.named(operations, labels))
    inputs = tuple(replace(i, name=names[i.name]) for i in recorded.inputs)
    renamed = tuple(
        replace(passes.renamed(op, names), outputs=tuple(names[o] for o in op.outputs)) for op in operations
    )
    return Graph(
        name,
        inputs,
        renamed,
        {new: types[old] for old, new in names.items()},
        len(step.forward),
        names[step.now(recorded.loss)],
        tuple((names[p], names[step.now(v)]) for p, v in recorded.gradients),
        tuple((names[b], names[step.now(v)]) for b, v in recorded.updates),
    )


def _unique(labels: Sequence[str]) -> list[str]:
    seen: set[str] = set()
    result = []
    for label in labels:
        while label in seen:
            label += "_"
        seen.add(label)
        result.append(label)
    return result
