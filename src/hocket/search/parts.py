"""Cutting a step into parts that may have shares of their own (HAP, section 5.2: model segments).

The forward pass is cut into stretches of about equal matrix work, where least is passed on; the backward pass
follows module by module.
"""

from __future__ import annotations

from collections.abc import Sequence

from hocket.cost.compute import work
from hocket.graph.types import Graph

SLACK = 0.3
"""How far a cut may be from where the work is halved, in shares of a part."""


def find_parts(graph: Graph, count: int) -> tuple[int, ...]:
    """The part of every operation, counted from 0; fewer than `count` where there is no place to cut."""
    flops = [_flops(graph, index) for index in range(graph.forward)]
    total = sum(flops)
    passed = _passed_on(graph)
    done, before = 0.0, [0.0]
    for own in flops:
        done += own
        before.append(done)
    cuts: list[int] = []
    for number in range(1, count):
        wanted, near = total * number / count, SLACK * total / count
        places = [i for i in range(1, graph.forward) if abs(before[i] - wanted) <= near and i > (cuts or [0])[-1]]
        if places:
            cuts.append(min(places, key=lambda i: (passed[i], abs(before[i] - wanted))))
    forward = [sum(index >= cut for cut in cuts) for index in range(graph.forward)]
    return (*forward, *_follow(graph, forward))


def _flops(graph: Graph, index: int) -> float:
    operation = graph.operations[index]
    types = graph.types
    return work(operation, [types[n] for n in operation.inputs], [types[n] for n in operation.outputs]).flops


def _passed_on(graph: Graph) -> list[int]:
    """Bytes that the forward pass carries across each place between two of its operations."""
    last: dict[str, int] = {}
    for index, operation in enumerate(graph.operations[: graph.forward]):
        for name in operation.inputs:
            last[name] = index
    change = [0] * (graph.forward + 2)
    for index, operation in enumerate(graph.operations[: graph.forward]):
        for name in operation.outputs:
            if last.get(name, index) > index:
                change[index + 1] += graph.types[name].bytes
                change[last[name] + 1] -= graph.types[name].bytes
    carried, total = [], 0
    for step in change:
        total += step
        carried.append(total)
    return carried


def _follow(graph: Graph, forward: list[int]) -> list[int]:
    """Parts of the backward pass: of the module that an operation belongs to, or of what it reads."""
    modules = {graph.operations[index].module: part for index, part in enumerate(forward)}
    made: dict[str, int] = {}
    found = []
    for operation in graph.operations[graph.forward :]:
        read = [made[name] for name in operation.inputs if name in made]
        part = modules.get(operation.module) if operation.module else None
        if part is None:
            part = min(read, default=max(forward, default=0))
        found.append(part)
        made.update(dict.fromkeys(operation.outputs, part))
    return found


def every_part(graph: Graph, counts: Sequence[int]) -> tuple[int, ...]:
    """Parts as fine as all of several cuts together."""
    cuts = list(zip(*(find_parts(graph, count) for count in counts), strict=True))
    number = {key: place for place, key in enumerate(sorted(set(cuts)))}
    return tuple(number[key] for key in cuts)
