"""Operations of equal role in repeated blocks, found by colour refinement.

Every operation starts with a colour made of what it is (name, pass, constants, types, how its results are read,
the pattern of the parameters it reads) and is refined a few times by the colours of its neighbours. Layers in
the middle of a deep model end up with equal colours; where neighbourhoods differ (first layer, last layer,
another attention mask) colours differ. Any such partition is safe: equal colours only mean equal choices.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from hocket.graph.flow import Flow
from hocket.graph.types import Graph, pattern

ROUNDS = 2
"""Refinement rounds: how many hops around an operation must look alike."""


@dataclass(frozen=True, slots=True)
class Fold:
    """Class numbers: `operations[i]` of operation i, `inputs[name]` of a graph input."""

    operations: tuple[int, ...]
    inputs: dict[str, int]

    @property
    def classes(self) -> int:
        """Number of classes of operations."""
        return len(set(self.operations))


def find_fold(graph: Graph, flow: Flow, rounds: int = ROUNDS, marks: Mapping[str, Hashable] | None = None) -> Fold:
    """The partition of operations and inputs into classes of equal role.

    `marks` are differences known from outside, by value: what has different marks is in different classes.
    """
    marks = marks or {}
    colour: dict[object, int] = {}

    def paint(key: object) -> int:
        return colour.setdefault(key, len(colour))

    names = {
        i.name: paint(("input", i.role, _pattern(i.paths[0]), graph.types[i.name], marks.get(i.name)))
        for i in graph.inputs
    }
    leaving = {v: paint(("leaves", names[p])) for p, v in (*graph.gradients, *graph.updates)}
    leaving |= {value: paint("sent") for value in graph.sent}
    leaving[graph.loss] = paint("loss")
    current = []
    for index, operation in enumerate(graph.operations):
        reads = tuple(
            (len(flow.forward_readers[o]), len(flow.backward_readers[o]), leaving.get(o), o in flow.late)
            for o in operation.outputs
        )
        inputs = tuple(names.get(n, graph.types[n]) for n in operation.inputs)
        early = tuple(n in flow.early for n in operation.inputs)
        current.append(
            paint(
                (
                    operation.op,
                    index < graph.forward,
                    pattern(operation.args),
                    pattern(operation.kwargs),
                    inputs,
                    reads,
                    early,
                    tuple(marks.get(o) for o in operation.outputs),
                )
            )
        )
    return _refine(graph, current, names, rounds)


def _refine(graph: Graph, current: list[int], names: dict[str, int], rounds: int) -> Fold:
    made = {
        name: (index, slot) for index, op in enumerate(graph.operations) for slot, name in enumerate(op.outputs)
    }
    users = graph.consumers()
    for _ in range(rounds):
        colour: dict[object, int] = {}
        fresh = []
        for index, operation in enumerate(graph.operations):
            above = tuple(
                (current[made[n][0]], made[n][1]) if n in made else ("input", names[n]) for n in operation.inputs
            )
            below = tuple(frozenset(current[u] for u in users[o]) for o in operation.outputs)
            fresh.append(colour.setdefault((current[index], above, below), len(colour)))
        current = fresh
    inputs: dict[object, int] = {}
    kinds = {
        i.name: inputs.setdefault((names[i.name], frozenset(current[u] for u in users[i.name])), len(inputs))
        for i in graph.inputs
    }
    return Fold(tuple(current), kinds)


def _pattern(path: str) -> str:
    """A path with its numbers taken out, so that layers look alike."""
    return re.sub(r"\d+", "*", path)
