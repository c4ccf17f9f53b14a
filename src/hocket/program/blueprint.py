"""What lowering needs of a plan, prepared once for all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hocket.errors import LayoutError
from hocket.graph.flow import Flow, find_flow
from hocket.graph.recompute import random_pairs
from hocket.graph.types import Graph, Operation, TensorType
from hocket.plan.types import Stage
from hocket.sharding.layout import Interval, Layout, intervals
from hocket.sharding.reshard import Step, Ways, find_ways
from hocket.sharding.rule import Rule
from hocket.sharding.rules import rule_of
from hocket.sharding.strategy import Strategy, parse_strategy

Held = tuple[tuple[Interval, ...], ...]


class Prices(Protocol):
    """What lowering asks of the cost model, in seconds."""

    def compute(
        self, operation: Operation, inputs: list[TensorType], outputs: list[TensorType], rank: int
    ) -> float:
        """Seconds of an operation on a rank's local tensors."""

    def collective(self, kind: str, axis: int, bytes: int) -> float:
        """Seconds of a collective along a mesh axis."""


@dataclass(frozen=True)
class Blueprint:
    """A stage with everything derived from it: rules, strategies, ways between layouts, flow of values."""

    graph: Graph
    stage: Stage
    rules: tuple[Rule, ...]
    strategies: tuple[Strategy, ...]
    flow: Flow
    prices: Prices
    wanted: dict[TensorType, dict[Layout, None]]
    ways: dict[TensorType, Ways] = field(default_factory=dict)
    held: dict[tuple[Layout, tuple[int, ...], int], Held] = field(default_factory=dict)

    def intervals(self, layout: Layout, shape: tuple[int, ...], rank: int) -> Held:
        """What a rank holds of a tensor per dim (see sharding.layout.intervals), derived once for all ranks."""
        key = (layout, shape, rank)
        if key not in self.held:
            self.held[key] = intervals(layout, shape, self.stage.mesh, rank)
        return self.held[key]

    def steps(self, name: str, source: Layout, target: Layout) -> tuple[Step, ...]:
        """Cheapest steps for a value from one layout to another; raises LayoutError where there are none.

        They are found among all layouts that the stage has of such a tensor, so that they are the same for every
        rank, whatever was asked before.
        """
        if source == target:
            return ()
        tensor = self.graph.types[name]
        ways = self.ways.get(tensor)
        if ways is None:
            ways = find_ways(tensor, self.stage.mesh, tuple(self.wanted[tensor]), self.prices.collective)
            self.ways[tensor] = ways
        if ways.cost(source, target) == float("inf"):
            raise LayoutError(
                name,
                "a value can be brought from the layout it has to the one that is needed",
                f"{source} -> {target} of {tensor} on mesh {self.stage.mesh}",
            )
        return ways.steps(source, target)


def blueprint(graph: Graph, stage: Stage, prices: Prices) -> Blueprint:
    """Prepare a stage for lowering.

    Raises LayoutError where a strategy does not fit its operation, or where a recomputed operation would not
    draw the random numbers of the first time.
    """
    rules = tuple(rule_of(operation, graph.types) for operation in graph.operations)
    parsed: dict[tuple[str, str, int], Strategy] = {}
    strategies = []
    for text, rule, operation in zip(stage.strategies, rules, graph.operations, strict=True):
        key = (text, operation.op, id(rule))
        if key not in parsed:
            parsed[key] = parse_strategy(text, rule, operation, stage.mesh)
        strategies.append(parsed[key])
    for first, again in random_pairs(graph):
        if stage.strategies[first] != stage.strategies[again]:
            raise LayoutError(
                graph.operations[again].outputs[0],
                "a random operation that runs again is split as the first time",
                f"{stage.strategies[first]!r}, then {stage.strategies[again]!r}",
                "give both the same strategy",
            )
    wanted = _layouts(graph, stage, strategies)
    return Blueprint(graph, stage, rules, tuple(strategies), find_flow(graph), prices, wanted)


def _layouts(graph: Graph, stage: Stage, strategies: Sequence[Strategy]) -> dict[TensorType, dict[Layout, None]]:
    """Every layout that a stage has of each type of tensor."""
    found: dict[TensorType, dict[Layout, None]] = {}

    def note(name: str, layout: Layout) -> None:
        if name in graph.types:
            found.setdefault(graph.types[name], {})[layout] = None

    for layouts in (stage.stored, stage.used, stage.kept, stage.reused, stage.sent, stage.working):
        for name, layout in layouts.items():
            note(name, layout)
    for operation, strategy in zip(graph.operations, strategies, strict=True):
        for name, layout in zip(operation.inputs, strategy.inputs, strict=True):
            note(name, layout)
        for name, layout in zip(operation.outputs, strategy.outputs, strict=True):
            note(name, layout)
    for parameter, value in (*graph.gradients, *graph.updates):
        note(value, stage.stored[parameter])
    if graph.loss:
        note(graph.loss, Layout.replicated(len(stage.mesh.sizes)))
    return found
