"""Running a block's forward again in the backward pass, as another graph of the same step.

The result is an ordinary graph: the operations stand in the backward pass once more, under names that end in
`__again`, and the backward pass reads those. So what recomputation costs and saves is priced like anything
else (Chen et al. 2016, section 4: keep what enters a block, drop what is inside).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from hocket.graph.types import Graph, Operation, TensorType

AGAIN = "__again"
RANDOM = frozenset({"native_dropout"})
"""Kinds of operations that draw numbers: run again, they must draw the same."""
_BLOCK = re.compile(r"^(?P<stem>(?:.*?\.)?)(?P<number>\d+)(?:\.|$)")


def block_of(module: str) -> str:
    """The block that a module path lies in: its part up to the first number, or nothing."""
    match = _BLOCK.match(module)
    return f"{match['stem']}{match['number']}" if match else ""


def find_blocks(graph: Graph) -> tuple[str, ...]:
    """Blocks of the forward pass that repeat: module paths that differ in a number only, in order."""
    found = dict.fromkeys(block_of(op.module) for op in graph.operations[: graph.forward])
    stems: dict[str, list[str]] = {}
    for block in found:
        if block:
            stems.setdefault(block.rsplit(".", 1)[0], []).append(block)
    return tuple(b for b in found if b and len(stems[b.rsplit(".", 1)[0]]) > 1)


def recompute(graph: Graph, blocks: Sequence[str]) -> Graph:
    """The step in which the forward of these blocks runs again in the backward pass."""
    wanted = frozenset(blocks)
    if not wanted:
        return graph
    inside = {i for i, op in enumerate(graph.operations[: graph.forward]) if block_of(op.module) in wanted}
    made = {name: i for i in inside for name in graph.operations[i].outputs}
    outside = _read_outside(graph, inside, made)
    types = dict(graph.types)
    result: list[Operation] = list(graph.operations[: graph.forward])
    again: dict[str, str] = {}
    done: set[int] = set()
    for operation in graph.operations[graph.forward :]:
        for name in operation.inputs:
            if name in made and name not in outside:
                _repeat(graph, made[name], made, outside, done, again, types, result)
        result.append(operation.with_inputs([again.get(n, n) for n in operation.inputs]))
    return replace(graph, operations=tuple(result), types=types)


def random_pairs(graph: Graph) -> tuple[tuple[int, int], ...]:
    """Operations that draw numbers and their repetitions, as pairs of indices.

    What a rank draws depends on its part of the result, so both must be laid out alike.
    """
    first = {op.outputs[0]: i for i, op in enumerate(graph.operations) if op.kind in RANDOM}
    again = ((name.removesuffix(AGAIN), i) for name, i in first.items() if name.endswith(AGAIN))
    return tuple((first[name], i) for name, i in again if name in first)


def _read_outside(graph: Graph, inside: set[int], made: dict[str, int]) -> frozenset[str]:
    """Values of the blocks that another block or the rest of the forward reads: they are kept anyway."""
    left = set()
    for index, operation in enumerate(graph.operations[: graph.forward]):
        for name in operation.inputs:
            maker = made.get(name)
            if maker is None:
                continue
            if index not in inside or block_of(operation.module) != block_of(graph.operations[maker].module):
                left.add(name)
    left |= {n for n in (graph.loss, *(v for _, v in graph.updates)) if n in made}
    return frozenset(left)


def _repeat(
    graph: Graph,
    index: int,
    made: dict[str, int],
    outside: frozenset[str],
    done: set[int],
    again: dict[str, str],
    types: dict[str, TensorType],
    result: list[Operation],
) -> None:
    """Append an operation of the forward once more, after what it needs of its own block."""
    stack = [index]
    while stack:
        current = stack[-1]
        if current in done:
            stack.pop()
            continue
        operation = graph.operations[current]
        missing = [made[n] for n in operation.inputs if n in made and n not in outside and made[n] not in done]
        if missing:
            stack += missing
            continue
        stack.pop()
        done.add(current)
        outputs = tuple(n + AGAIN for n in operation.outputs)
        for name, copy in zip(operation.outputs, outputs, strict=True):
            types[copy] = graph.types[name]
            if name not in outside:
                again[name] = copy
        call = operation.with_inputs([again.get(n, n) for n in operation.inputs])
        result.append(replace(call, outputs=outputs))
