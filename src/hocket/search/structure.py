"""What a search derives of a graph alone, whatever the mesh: computed once, used for every mesh."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from hocket.graph.flow import Flow, find_flow
from hocket.graph.fold import Fold, find_fold
from hocket.graph.types import Graph
from hocket.search.ends import End, find_ends
from hocket.search.moments import Moment, find_moments
from hocket.search.pins import Pins
from hocket.sharding.rule import Rule
from hocket.sharding.rules import rule_of
from hocket.sharding.shares import Place, find_units
from hocket.sharding.strategy import Segments, find_segments


@dataclass(frozen=True)
class Structure:
    """A graph with its rules, segments, flow and fold.

    `producers` is the operation that makes each value, `goals` the inputs whose gradient or new value a value
    is, `alike` the groups of values that are made and read by the same classes of operations, `moments` when
    memory is counted, `ends` the values whose communication nothing hides, `units` the blocks that
    every dim falls into (see sharding.shares), `parts` which part of the graph, with
    shares of its own, each operation belongs to.
    """

    graph: Graph
    flow: Flow
    fold: Fold
    rules: tuple[Rule, ...]
    segments: Segments
    producers: dict[str, int]
    goals: dict[str, tuple[str, ...]]
    alike: tuple[tuple[str, ...], ...]
    moments: tuple[Moment, ...]
    ends: tuple[End | None, End | None]
    units: Mapping[Place, int]
    parts: tuple[int, ...]


def find_structure(
    graph: Graph, folded: bool = True, pins: Pins | None = None, parts: tuple[int, ...] = ()
) -> Structure:
    """Derive a graph's structure; not `folded`: every operation decides for itself.

    What different pins name, what is cut into other units and what is in different `parts` (one per operation;
    none: all one) is never in one class.
    """
    flow = find_flow(graph)
    rules = tuple(rule_of(operation, graph.types) for operation in graph.operations)
    units = find_units(graph, rules)
    parts = parts or (0,) * len(graph.operations)
    fold = find_fold(graph, flow, marks=_marks(graph, pins, units, parts)) if folded else _unfolded(graph)
    goals: dict[str, tuple[str, ...]] = {}
    for name, result in (*graph.gradients, *graph.updates):
        goals[result] = (*goals.get(result, ()), name)
    alike = _alike(graph, flow, fold, goals)
    segments = find_segments(graph, rules)
    moments = find_moments(graph, flow)
    ends = find_ends(graph, flow)
    return Structure(graph, flow, fold, rules, segments, graph.producers(), goals, alike, moments, ends,
                     units, parts)  # fmt: skip


def _marks(
    graph: Graph, pins: Pins | None, units: Mapping[Place, int], parts: tuple[int, ...]
) -> dict[str, Hashable]:
    """What tells values apart beside what the graph says of them."""
    pinned = pins.marks(graph) if pins else {}
    part = {name: parts[index] for index, op in enumerate(graph.operations) for name in op.outputs}

    def blocks(name: str) -> tuple[int, ...]:
        return tuple(units.get((name, dim), 0) for dim in range(len(graph.types[name].shape)))

    return {name: (pinned.get(name), part.get(name), blocks(name)) for name in graph.types}


def _unfolded(graph: Graph) -> Fold:
    inputs = {i.name: n for n, i in enumerate(graph.inputs)}
    return Fold(tuple(range(len(graph.operations))), inputs)


def _alike(graph: Graph, flow: Flow, fold: Fold, goals: dict[str, tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """Values grouped by who makes and who reads them: each group can be laid out in one go."""
    operations = graph.operations
    makers: dict[str, Hashable] = {name: ("input", number) for name, number in fold.inputs.items()}
    for index, operation in enumerate(operations):
        for slot, name in enumerate(operation.outputs):
            makers[name] = (fold.operations[index], slot)

    def places(value: str, readers: Sequence[int]) -> Hashable:
        return tuple(
            (fold.operations[r], p) for r in readers for p, name in enumerate(operations[r].inputs) if name == value
        )

    sent = frozenset(graph.sent)
    groups: dict[Hashable, list[str]] = {}
    for value in graph.types:
        if value in makers:
            forward = places(value, flow.forward_readers[value])
            backward = places(value, flow.backward_readers[value])
            apart = value in flow.early or value in flow.late
            ends = tuple(fold.inputs[name] for name in goals.get(value, ()))
            own = value if value in sent else ""
            key = (makers[value], forward, backward, ends, value in flow.crossing, apart, own)
            groups.setdefault(key, []).append(value)
    return tuple(tuple(group) for group in groups.values())
