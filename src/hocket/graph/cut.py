"""Cutting a training step into the stages of a pipeline, each a graph of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hocket.graph.assign import Assignment, assign
from hocket.graph.types import Graph, Input, Operation, Ref, TensorType


@dataclass(frozen=True)
class Parts:
    """A step in stages.

    `graphs[s]` is what stage s does. `makers` is the stage that makes each value which is sent (its readers are the
    stages whose graph has it as an input). `tied` are the trained parameters that several stages hold, each with
    its stages: the sum of their gradients is the gradient.
    """

    graphs: tuple[Graph, ...]
    makers: Mapping[str, int]
    tied: Mapping[str, tuple[int, ...]]

    def readers(self, value: str) -> tuple[int, ...]:
        """The stages that a value is sent to."""
        return tuple(s for s, g in enumerate(self.graphs) if any(i.name == value for i in g.given))


def cut_graph(graph: Graph, cuts: Sequence[int], halved: bool = False) -> Parts:
    """Cut a step at forward operations; raises PlanError (see `assign`). Without cuts it is one stage.

    With `halved` every stage's backward pass begins with what other stages wait for: gradients of weights come
    last.
    """
    if not cuts:
        return Parts((graph,), {}, {})
    found = assign(graph, cuts)
    makers = {
        name: stage
        for operation, stage in zip(graph.operations, found.operations, strict=True)
        if stage >= 0
        for name in operation.outputs
    }
    pieces = [_Piece(graph, found, makers, stage) for stage in range(found.stages)]
    wanted = {name for piece in pieces for name in piece.given}
    sent = {name: makers[name] for name in makers if name in wanted}
    graphs = tuple(piece.graph(tuple(n for n, s in sent.items() if s == piece.stage)) for piece in pieces)
    graphs = tuple(map(weights_last, graphs)) if halved else graphs
    held: dict[str, list[int]] = {}
    for stage, part in enumerate(graphs):
        for entry in part.inputs:
            if entry.trainable:
                held.setdefault(entry.name, []).append(stage)
    tied = {name: tuple(stages) for name, stages in held.items() if len(stages) > 1}
    return Parts(graphs, sent, tied)


def weights_last(graph: Graph) -> Graph:
    """The same with a backward pass in which all that leads to what is sent comes first."""
    backward = graph.operations[graph.forward :]
    needed = set(graph.sent)
    early: list[Operation] = []
    for operation in reversed(backward):
        if needed.intersection(operation.outputs):
            early.append(operation)
            needed.update(operation.inputs)
    first = {operation.outputs for operation in early}
    late = [operation for operation in backward if operation.outputs not in first]
    return replace(graph, operations=(*graph.operations[: graph.forward], *reversed(early), *late))


class _Piece:
    """One stage under construction: its operations, and `given`, the values that others send it."""

    def __init__(self, graph: Graph, found: Assignment, makers: Mapping[str, int], stage: int) -> None:
        self.whole, self.found, self.makers, self.stage = graph, found, makers, stage
        own = [i for i, s in enumerate(found.operations) if s == stage and i not in found.sums]
        self.types: dict[str, TensorType] = {}
        self.sums, self.gradients = self._gradients()
        needed = {n for i in own for n in graph.operations[i].inputs}
        needed |= {value for _, value in self.gradients} | {n for op in self.sums for n in op.inputs}
        self.own = sorted(own + self._repeated(needed))
        here = {name for i in self.own for name in graph.operations[i].outputs}
        here |= {name for op in self.sums for name in op.outputs}
        read = {n for i in self.own for n in graph.operations[i].inputs} | needed
        inputs = {i.name for i in graph.inputs}
        self.given = [n for n in graph.types if n in read and n not in here and n not in inputs]
        self.inputs = [i for i in graph.inputs if i.name in read]

    def _repeated(self, needed: set[str]) -> list[int]:
        """Operations that every stage repeats, of which this one needs something."""
        found, wanted = [], set(needed)
        for index in range(self.whole.forward - 1, -1, -1):
            operation = self.whole.operations[index]
            if self.found.operations[index] == -1 and wanted.intersection(operation.outputs):
                found.append(index)
                wanted.update(operation.inputs)
        return found

    def _gradients(self) -> tuple[list[Operation], list[tuple[str, str]]]:
        """The gradients this stage makes, and the sums of its own addends of those that several stages make."""
        sums, gradients = [], []
        for parameter, value in self.whole.gradients:
            terms = self.found.terms.get(parameter)
            if terms is None:
                if self.makers.get(value, min(self.found.homes[parameter])) == self.stage:
                    gradients.append((parameter, value))
                continue
            mine = [t for t in terms if self.makers.get(t) == self.stage]
            total = mine[0] if mine else ""
            for number, term in enumerate(mine[1:], 1):
                name = f"{value}__stage{self.stage}_{number}"
                self.types[name] = self.whole.types[value]
                sums.append(Operation("aten.add.Tensor", (Ref(total), Ref(term)), (), (name,)))
                total = name
            if total:
                gradients.append((parameter, total))
        return sums, gradients

    def graph(self, sent: tuple[str, ...]) -> Graph:
        """The stage as a graph that sends these values."""
        whole = self.whole
        forward = [whole.operations[i] for i in self.own if i < whole.forward]
        backward = [whole.operations[i] for i in self.own if i >= whole.forward]
        made = {n for op in forward for n in op.outputs}
        early = {n for op in whole.operations[: whole.forward] for n in op.outputs}
        given = [Input(n, "received" if n in early else "arriving", (n,)) for n in self.given]
        inputs = (*self.inputs, *given)
        operations = (*forward, *backward, *self.sums)
        names = [*(i.name for i in inputs), *(n for op in operations for n in op.outputs)]
        types = {n: self.types[n] if n in self.types else whole.types[n] for n in names}
        return replace(
            whole,
            name=f"{whole.name}, stage {self.stage}",
            inputs=inputs,
            operations=operations,
            types=types,
            forward=len(forward),
            loss=whole.loss if whole.loss in made else "",
            gradients=tuple(self.gradients),
            updates=tuple((b, v) for b, v in whole.updates if v in made),
            sent=sent,
        )
