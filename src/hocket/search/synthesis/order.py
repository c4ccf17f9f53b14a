"""The order in which a program grows: forward operations from the front, backward ones from the end.

A backward operation is appended (in front of the end) as soon as all that it reads of the forward pass is there. So
what a layer's forward leaves for its backward is read soon, and few properties are open at any time.
"""

from __future__ import annotations

from hocket.graph.recompute import random_pairs
from hocket.search.structure import Structure


def mirrored_order(structure: Structure) -> tuple[int, ...]:
    """Indices of all operations: the forward pass ascending and the backward pass descending, interleaved."""
    graph = structure.graph
    waits = _awaited(structure)
    order: list[int] = []
    placed: set[int] = set()
    front, back = 0, len(graph.operations) - 1
    while front < graph.forward or back >= graph.forward:
        if back >= graph.forward and waits[back] <= placed:
            order.append(back)
            back -= 1
        else:
            order.append(front)
            front += 1
        placed.add(order[-1])
    return tuple(order)


def _awaited(structure: Structure) -> list[set[int]]:
    """Per backward operation the forward ones that must stand first: what makes, or reads first, what it reads."""
    graph, flow = structure.graph, structure.flow
    first = {entry.name: min(flow.forward_readers[entry.name], default=-1) for entry in graph.inputs}
    source = {**first, **{n: i for n, i in structure.producers.items() if i < graph.forward}}
    waits: list[set[int]] = []
    for index, operation in enumerate(graph.operations):
        names = [*operation.inputs, *(p for v in operation.outputs for p in structure.goals.get(v, ()))]
        found = {source[name] for name in names if source.get(name, -1) >= 0}
        waits.append(found if index >= graph.forward else set())
    for before, again in random_pairs(graph):
        waits[again].add(before)
    return waits
