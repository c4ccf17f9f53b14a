"""A short string that says whether two graphs are the same computation."""

from __future__ import annotations

from hashlib import sha256

from hocket.graph.text import print_argument
from hocket.graph.types import Argument, Graph, Ref


def fingerprint(graph: Graph) -> str:
    """SHA-256 (hexadecimal) of the graph's inputs, operations and outputs.

    Values count by the order in which they are defined, so their names do not matter; nor do the graph's
    name, its modules and the device it was captured for. Paths of inputs, types and constants do.
    """
    number: dict[str, int] = {}

    def new(name: str) -> str:
        number[name] = len(number)
        return f"{number[name]}:{graph.types[name]}"

    lines = [f"{i.role} {i.trainable} {' '.join(map(repr, i.paths))} {new(i.name)}" for i in graph.inputs]
    for op in graph.operations:
        args = [_canonical(a, number) for a in op.args]
        args += [f"{key}={_canonical(a, number)}" for key, a in sorted(op.kwargs, key=lambda item: item[0])]
        lines.append(f"{', '.join(map(new, op.outputs))} = {op.op}({', '.join(args)})")
    lines.append(f"forward {graph.forward} loss {number[graph.loss] if graph.loss else 'elsewhere'}")
    lines += sorted(f"gradient {number[p]} {number[v]}" for p, v in graph.gradients)
    lines += sorted(f"update {number[b]} {number[v]}" for b, v in graph.updates)
    lines += [f"sent {number[value]}" for value in graph.sent]
    return sha256("\n".join(lines).encode()).hexdigest()


def _canonical(argument: Argument, number: dict[str, int]) -> str:
    if isinstance(argument, Ref):
        return f"%{number[argument.name]}"
    if isinstance(argument, tuple):
        return f"({', '.join(_canonical(item, number) for item in argument)})"
    return print_argument(argument)
