"""When memory is counted, and which values stand for what is held then.

Five moments of a step: where the forward pass ends, where the backward pass holds most (with gradients, without
them, and of the largest of its own values), and where it ends. At each of them a device holds what it stores,
optimizer state, the gradients made so far, and every value that was made and will still be read. Of values that
may share storage (a view and what it looks at) one is counted, so that sums over the counted values never
exceed what a program holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hocket.graph.flow import Flow
from hocket.graph.types import Graph

VIEWS = frozenset({"view", "permute", "expand", "slice"})
"""Kinds whose result may look at the storage of their first operand."""
PARTS = frozenset({"split_with_sizes"})
"""Kinds whose results may look at disjoint parts of it."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Before operation `at`: values that are counted, inputs that the backward pass still reads, parameters
    whose gradient is there."""

    at: int
    held: frozenset[str]
    awaited: frozenset[str]
    gradients: frozenset[str]


def find_moments(graph: Graph, flow: Flow) -> tuple[Moment, ...]:
    """The moments of a step at which memory is counted."""
    last = _last_readers(graph, flow)
    sizes = _sizes(graph)
    leaving = frozenset(value for _, value in graph.gradients)
    own = {n: s for op in graph.operations[graph.forward :] for n in op.outputs if (s := sizes.get(n, 0))}
    large = {name: size for name, size in own.items() if 2 * size >= max(own.values()) and name not in leaving}
    times = (
        graph.forward,
        _fullest(graph, last, sizes, frozenset()),
        _fullest(graph, last, sizes, leaving),
        _fullest(graph, last, large, frozenset()),
        len(graph.operations),
    )
    return tuple(_moment(graph, flow, last, at) for at in times)


def floor_bytes(graph: Graph, moments: Sequence[Moment], devices: int, optimizer_bytes: float) -> float:
    """Bytes that some device holds at some moment however a step is divided among so many devices."""
    types = graph.types
    trained = {name for name, _ in graph.gradients}
    stored = sum(types[i.name].bytes for i in graph.inputs if i.role == "parameter")
    stored += sum(int(types[name].elements * optimizer_bytes) for name in trained)
    fullest = max(sum(types[n].bytes for n in m.held) + sum(types[n].bytes for n in m.gradients) for m in moments)
    return (stored + fullest) / devices


def _sizes(graph: Graph) -> dict[str, int]:
    """Bytes of every value that has storage of its own."""
    made = (op for op in graph.operations if op.kind not in VIEWS and op.kind not in PARTS)
    return {name: graph.types[name].bytes for op in made for name in op.outputs}


def _last_readers(graph: Graph, flow: Flow) -> dict[str, int]:
    """Per value the last operation that reads it, -1 where none does."""
    return {
        name: max((*flow.forward_readers[name], *flow.backward_readers[name]), default=-1) for name in graph.types
    }


def _fullest(graph: Graph, last: dict[str, int], sizes: dict[str, int], leaving: frozenset[str]) -> int:
    """The place in the backward pass where most bytes of some values are held if nothing is divided.

    What is `leaving` stays to the end.
    """
    change = [0] * (len(graph.operations) + 2)
    for index, operation in enumerate(graph.operations):
        for name in operation.outputs:
            end = len(graph.operations) if name in leaving else last[name]
            if name in sizes and end > index:
                change[index + 1] += sizes[name]
                change[end + 1] -= sizes[name]
    best, at, total = -1, graph.forward, 0
    for index in range(len(graph.operations) + 1):
        total += change[index]
        if index >= graph.forward and total > best:
            best, at = total, index
    return at


def _moment(graph: Graph, flow: Flow, last: dict[str, int], at: int) -> Moment:
    roots = {entry.name: entry.name for entry in graph.inputs}
    above: dict[str, str] = {}
    standing: dict[str, str] = {}
    made = [name for op in graph.operations[:at] for name in op.outputs]
    for operation in graph.operations[:at]:
        for name in operation.outputs:
            roots[name] = roots[operation.inputs[0]] if operation.kind in VIEWS else name
            if operation.kind in PARTS:
                above[name] = roots[operation.inputs[0]]
    never = set(flow.leaving) | {entry.name for entry in graph.inputs}
    closed = {roots[name] for name in never if name in roots}
    expanded: set[str] = set()
    for operation in graph.operations[:at]:
        if operation.kind == "expand" or (operation.kind in VIEWS and operation.inputs[0] in expanded):
            expanded.update(operation.outputs)
    for name in made:
        root = roots[name]
        if last[name] < at or name in expanded or root in closed:
            continue
        known = standing.get(root)
        if known is None or graph.types[name].bytes > graph.types[known].bytes:
            standing[root] = name
    held = {name for root, name in standing.items() if not _inside(root, above, standing, closed)}
    awaited = {e.name for e in graph.inputs if any(reader >= at for reader in flow.backward_readers[e.name])}
    there = set(made)
    gradients = {parameter for parameter, value in graph.gradients if value in there}
    return Moment(at, frozenset(held), frozenset(awaited), frozenset(gradients))


def _inside(root: str, above: dict[str, str], standing: dict[str, str], closed: set[str]) -> bool:
    """Whether a part looks at storage that is counted already, or must not be."""
    while root in above:
        root = above[root]
        if root in standing or root in closed:
            return True
    return False
