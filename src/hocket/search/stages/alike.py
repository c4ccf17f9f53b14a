"""Stages that are alike but for their names: what is found for one holds for all."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256

from hocket.graph.text import print_argument
from hocket.graph.types import Argument, Graph, Ref
from hocket.plan.types import Stage
from hocket.sharding.layout import Layout
from hocket.sharding.mesh import Mesh


def likeness(graph: Graph) -> str:
    """A text that graphs share exactly when they are alike, the numbers in the paths of inputs left out."""
    number = {name: n for n, name in enumerate(names_of(graph))}

    def words(argument: Argument) -> str:
        if isinstance(argument, Ref):
            return f"%{number[argument.name]}"
        if isinstance(argument, tuple):
            return f"({','.join(map(words, argument))})"
        return print_argument(argument)

    lines = [f"{i.role} {i.trainable} {_plain(i.paths[0], i.role)} {graph.types[i.name]}" for i in graph.inputs]
    for op in graph.operations:
        made = ",".join(str(graph.types[n]) for n in op.outputs)
        given = [*map(words, op.args), *(f"{key}={words(a)}" for key, a in op.kwargs)]
        lines.append(f"{made}={op.op}({';'.join(given)})")
    pairs = [(number[a], number[b]) for a, b in (*graph.gradients, *graph.updates)]
    ends = [number[n] for n in graph.sent], number.get(graph.loss, -1), graph.forward
    return sha256("\n".join([*lines, str(pairs), str(ends)]).encode()).hexdigest()


def names_of(graph: Graph) -> list[str]:
    """All values of a graph: inputs, then what operations make, in order."""
    return [*(i.name for i in graph.inputs), *(n for op in graph.operations for n in op.outputs)]


def carried_over(stage: Stage, source: Graph, target: Graph, mesh: Mesh) -> Stage:
    """A stage of one graph as one of another that is alike, on a mesh of the same sizes."""
    new = dict(zip(names_of(source), names_of(target), strict=True))

    def renamed(layouts: Mapping[str, Layout]) -> dict[str, Layout]:
        return {new[name]: layout for name, layout in layouts.items()}

    return replace(
        stage, mesh=mesh, stored=renamed(stage.stored), used=renamed(stage.used), kept=renamed(stage.kept),
        reused=renamed(stage.reused), sent=renamed(stage.sent), working=renamed(stage.working),
    )  # fmt: skip


def _plain(path: str, role: str) -> str:
    return re.sub(r"\d+", "*", path) if role in ("parameter", "buffer") else role
