"""A plan by kind of layer: how each parameter is held and how the work on it is divided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hocket.graph.types import Graph, Input
from hocket.plan.types import Plan
from hocket.report.words import folded, joined, layout_words, parts_of, work_words
from hocket.search.roles import batch_dims
from hocket.sharding.rule import Rule
from hocket.sharding.rules import rule_of


@dataclass(frozen=True, slots=True)
class Layer:
    """Parameters of one kind: their folded path, how many, shape, how they are held, what is split.

    `held` is bytes of all of them on one device; `forward` and `backward` say by what the work is divided.
    """

    path: str
    count: int
    shape: tuple[int, ...]
    stored: str
    held: int
    forward: str
    backward: str


def find_layers(plan: Plan) -> tuple[Layer, ...]:
    """The plan's parameters, repeated and equal ones folded, in the model's order."""
    work = _Work(plan)
    groups: dict[tuple[str, tuple[int, ...], str, str, str], tuple[int, int]] = {}
    for entry in plan.graph.parameters:
        tensor = plan.graph.types[entry.name]
        layout = plan.stage.stored[entry.name]
        forward, backward = work.words(entry)
        path = folded(entry.paths[0]) + (" (tied)" if len(entry.paths) > 1 else "")
        key = (path, tensor.shape, layout_words(layout, plan.stage.mesh), forward, backward)
        count, held = groups.get(key, (0, 0))
        groups[key] = (count + 1, held + tensor.bytes // parts_of(layout, plan.stage.mesh))
    return tuple(
        Layer(path, count, shape, stored, held, forward, backward)
        for (path, shape, stored, forward, backward), (count, held) in groups.items()
    )


class _Work:
    """Finds the operations that use a parameter, and says how their work is divided."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.graph = plan, plan.graph
        self.rules = rules_of(plan.graph)
        self.samples = batch_dims(plan.graph, self.rules)
        self.users = plan.graph.consumers()
        self.made = plan.graph.producers()
        self.gradients = dict(plan.graph.gradients)

    def words(self, entry: Input) -> tuple[str, str]:
        forward = dict.fromkeys(self._index_words(i) for i in self._users(entry.name))
        backward = dict.fromkeys(self._index_words(i) for i in self._makers(self.gradients.get(entry.name, "")))
        return " | ".join(forward) or "-", " | ".join(backward) or "-"

    def _index_words(self, index: int) -> str:
        operation, tokens = self.graph.operations[index], self.plan.stage.strategies[index]
        return joined(work_words(operation, tokens, self.rules[index], self.plan.stage.mesh, self.samples))

    def _users(self, name: str) -> list[int]:
        """Forward operations that read a parameter, past views and conversions of it alone."""
        found: list[int] = []
        for index in self.users[name]:
            operation = self.graph.operations[index]
            if index >= self.graph.forward:
                continue
            if len(operation.inputs) > 1:
                found.append(index)
            else:
                found += [i for o in operation.outputs for i in self._users(o)]
        return found

    def _makers(self, name: str) -> list[int]:
        """Backward operations with several operands that make a gradient, past views and sums of them."""
        index = self.made.get(name)
        if index is None:
            return []
        operation = self.graph.operations[index]
        if len(operation.inputs) == 1 and operation.inputs[0] in self.made and operation.kind != "sum":
            return self._makers(operation.inputs[0])
        if operation.kind == "add":
            return [i for n in operation.inputs for i in self._makers(n)]
        return [index]


def rules_of(graph: Graph) -> tuple[Rule, ...]:
    """The rule of every operation, equal calls looked up once."""
    return tuple(rule_of(operation, graph.types) for operation in graph.operations)


def small(layers: Sequence[Layer]) -> tuple[tuple[Layer, ...], tuple[Layer, ...]]:
    """Matrices and what is larger, and vectors."""
    return tuple(x for x in layers if len(x.shape) > 1), tuple(x for x in layers if len(x.shape) < 2)
