"""What nothing is left to hide behind: communication before the first operation and after the last one.

Communication on parameters runs ahead and that on gradients behind, but the parameter that the first operation
reads and the gradient that the last one makes have next to nothing beside them. One value at each end is counted
so: the largest that is read before, or made after, all heavy work of its pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hocket.graph.flow import Flow
from hocket.graph.types import Graph

HEAVY = frozenset({"mm", "addmm", "bmm", "baddbmm", "_grouped_mm", "convolution", "convolution_backward",
                   "attention", "attention_backward"})  # fmt: skip
"""Kinds behind which communication hides."""


@dataclass(frozen=True, slots=True)
class End:
    """A value at an end of a step, the operation that reads it first or makes it, and those beyond that one."""

    value: str
    operation: int
    beyond: tuple[int, ...]


def find_ends(graph: Graph, flow: Flow) -> tuple[End | None, End | None]:
    """The ends of a step: a parameter at its start, a gradient at its end; None where there is none."""
    parameters = {entry.name for entry in graph.parameters}
    count = len(graph.operations)
    first, last = [], []
    for index in _light(graph, range(graph.forward)):
        names = [n for n in graph.operations[index].inputs if n in parameters]
        first += [End(n, index, tuple(range(index))) for n in names if flow.forward_readers[n][0] == index]
    for index in _light(graph, range(count - 1, graph.forward - 1, -1)):
        names = [n for n in graph.operations[index].outputs if n in flow.late and n in flow.leaving]
        last += [End(n, index, tuple(range(index + 1, count))) for n in names]

    def size(end: End) -> int:
        return graph.types[end.value].bytes

    return max(first, key=size, default=None), max(last, key=size, default=None)


def _light(graph: Graph, indices: Iterable[int]) -> Iterable[int]:
    """The indices up to the first heavy operation."""
    for index in indices:
        if graph.operations[index].kind in HEAVY:
            return
        yield index
