"""Where a model may be cut into stages."""

from __future__ import annotations

from collections.abc import Sequence

from hocket.graph.recompute import block_of, find_blocks
from hocket.graph.types import Graph


def find_cuts(graph: Graph) -> tuple[int, ...]:
    """Forward operations at which a stage may begin: where repeated blocks begin, the first one left out (what
    comes before it belongs to it), else where a module at the top of the model does."""
    blocks = set(find_blocks(graph))
    forward = graph.operations[: graph.forward]
    names = [block_of(op.module) if block_of(op.module) in blocks else "" for op in forward]
    if not blocks:
        names = [op.module for op in forward]
    found, last = [], ""
    for index, name in enumerate(names):
        if name and name != last:
            found.append(index)
            last = name
    return tuple(found[1:])


def chosen(cuts: Sequence[int], sizes: Sequence[int]) -> tuple[int, ...]:
    """The cuts after so many units each."""
    found, at = [], 0
    for size in sizes[:-1]:
        at += size
        found.append(cuts[at - 1])
    return tuple(found)
