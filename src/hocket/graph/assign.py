"""Which stage of a pipeline every operation of a training step belongs to.

The forward pass is cut where the plan says. What follows from batch, buffers and constants alone is made by every
stage that reads it. An operation of the backward pass belongs to the stage of the module whose forward it undoes,
where what it reads is there; else to the latest stage at which all it reads of the forward pass is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from hocket.errors import PlanError
from hocket.graph.types import Graph, Operation

RANDOM = frozenset({"native_dropout"})


@dataclass
class Assignment:
    """The stages of everything. `operations[i]` is the stage of operation i, -1 for one that every stage repeats
    that reads what it makes; `there[value]` are the stages at which a value of the forward pass (or an input) is;
    `homes[parameter]` those whose forward reads it; `terms[parameter]` the addends of the gradient of a parameter
    with several homes."""

    stages: int
    operations: list[int]
    there: dict[str, set[int]] = field(default_factory=dict)
    homes: dict[str, set[int]] = field(default_factory=dict)
    terms: dict[str, tuple[str, ...]] = field(default_factory=dict)
    sums: frozenset[int] = frozenset()


def assign(graph: Graph, cuts: Sequence[int]) -> Assignment:
    """Give every operation its stage; `cuts` are the forward operations at which stages 1, 2 ... begin.

    Raises PlanError where a cut is none, or where a backward pass would have to run forward.
    """
    _check(graph, cuts)
    found = Assignment(len(cuts) + 1, [0] * len(graph.operations))
    _forward(graph, cuts, found)
    _Backward(graph, found).run()
    return found


def _check(graph: Graph, cuts: Sequence[int]) -> None:
    edges = [0, *cuts, graph.forward]
    if any(b <= a for a, b in pairwise(edges)):
        rule = f"begin inside the forward pass of {graph.forward} operations, each after the one before"
        raise PlanError("cuts", rule, ", ".join(map(str, cuts)))


def _forward(graph: Graph, cuts: Sequence[int], found: Assignment) -> None:
    given = {i.name for i in graph.inputs if i.role in ("batch", "buffer")}
    cheap = set(given)
    everywhere = set(range(found.stages))
    updated = {value for _, value in graph.updates}
    starts = [*cuts, graph.forward]
    stage = 0
    for index, operation in enumerate(graph.operations[: graph.forward]):
        while index >= starts[stage]:
            stage += 1
        free = all(n in cheap for n in operation.inputs) and operation.kind not in RANDOM
        if free and not updated.intersection(operation.outputs) and graph.loss not in operation.outputs:
            cheap.update(operation.outputs)
            found.operations[index] = -1
            found.there.update((name, everywhere) for name in operation.outputs)
            continue
        found.operations[index] = stage
        for name in operation.inputs:
            if name not in cheap:
                found.there.setdefault(name, set()).add(stage)
        for name in operation.outputs:
            found.there.setdefault(name, set()).add(stage)
    for entry in graph.inputs:
        if entry.role == "parameter":
            found.homes[entry.name] = found.there.setdefault(entry.name, set()) or {0}
            found.there[entry.name] = found.homes[entry.name]
        else:
            found.there[entry.name] = everywhere


class _Backward:
    """Gives the operations of the backward pass their stages."""

    def __init__(self, graph: Graph, found: Assignment) -> None:
        self.graph, self.found = graph, found
        self.made: dict[str, int] = {}
        self.goals: Mapping[str, Sequence[str]] = {}
        modules: dict[str, set[int]] = {}
        for operation, stage in zip(graph.operations[: graph.forward], found.operations, strict=False):
            if operation.module and stage >= 0:
                modules.setdefault(operation.module, set()).add(stage)
        self.hints = {module: next(iter(stages)) for module, stages in modules.items() if len(stages) == 1}

    def run(self) -> None:
        graph, found = self.graph, self.found
        self.sums_of_tied()
        goals: dict[str, list[str]] = {}
        for parameter, value in graph.gradients:
            for term in found.terms.get(parameter, (value,)):
                goals.setdefault(term, []).append(parameter)
        self.goals = goals
        least = self.least(goals)
        for index in range(graph.forward, len(graph.operations)):
            if index in found.sums:
                continue
            stage = self.stage(index, least[index])
            found.operations[index] = stage
            self.made.update(dict.fromkeys(graph.operations[index].outputs, stage))

    def least(self, goals: Mapping[str, Sequence[str]]) -> dict[int, int]:
        """The least stage of every operation of the backward pass: it reads what is there, and hands on to
        operations of its own or earlier stages, or gives the gradient of a parameter at one of its homes."""
        readers, there = self.graph.consumers(), self.found.there
        made = {n for op in self.graph.operations[self.graph.forward :] for n in op.outputs}
        found: dict[int, int] = {}
        for index in range(len(self.graph.operations) - 1, self.graph.forward - 1, -1):
            operation = self.graph.operations[index]
            if index in self.found.sums:
                found[index] = 0
                continue
            saved = [there[n] for n in operation.inputs if n not in made]
            common = set.intersection(*saved) if saved else {0}
            after = [found[r] for name in operation.outputs for r in readers[name]]
            homes = [min(self.found.homes[p]) for name in operation.outputs for p in goals.get(name, ())]
            found[index] = max([min(common, default=0), *after, *homes])
        return found

    def sums_of_tied(self) -> None:
        """Take apart the gradients of parameters with several homes: every home adds up its own addends."""
        producers, readers = self.graph.producers(), self.graph.consumers()
        inside: set[int] = set()
        for parameter, value in self.graph.gradients:
            if len(self.found.homes[parameter]) < 2:
                continue
            terms, stack = [], [value]
            while stack:
                name = stack.pop()
                index = producers.get(name)
                operation = self.graph.operations[index] if index is not None else None
                lonely = name == value or len(readers[name]) == 1
                if operation is not None and index is not None and operation.op == "aten.add.Tensor" and lonely \
                        and not operation.kwargs and len(operation.inputs) == 2:  # fmt: skip
                    inside.add(index)
                    stack += reversed(operation.inputs)
                else:
                    terms.append(name)
            self.found.terms[parameter] = tuple(terms)
        self.found.sums = frozenset(inside)

    def stage(self, index: int, least: int) -> int:
        operation, there = self.graph.operations[index], self.found.there
        latest = min((self.made[n] for n in operation.inputs if n in self.made), default=self.found.stages - 1)
        names = [n for n in operation.inputs if n not in self.made]
        common = set(range(least, latest + 1)).intersection(*(there[n] for n in names))
        common &= self.allowed(operation) or common
        hint = self.hints.get(operation.module, -1)
        if common:
            return hint if hint in common else max(common)
        behind = [n for n in names if min(there[n]) > latest]
        if behind or least > latest:
            culprit = behind[0] if behind else operation.outputs[0]
            raise PlanError(
                f"operation {operation.outputs[0]} of the backward pass",
                "reads nothing that is only made at a later stage",
                f"{culprit} at stage {latest}",
                "cut the model elsewhere",
            )
        for name in names:
            there[name] = there[name] | {latest}
        return latest

    def allowed(self, operation: Operation) -> set[int]:
        """The stages at which an operation that gives a parameter's gradient may stand: its homes."""
        parameters = [p for name in operation.outputs for p in self.goals.get(name, ())]
        return set.intersection(*(self.found.homes[p] for p in parameters)) if parameters else set()
