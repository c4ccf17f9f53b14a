"""What every graph must hold; checked between the stages that hand it on."""

from __future__ import annotations

from collections.abc import Iterable

from hocket.errors import GraphError
from hocket.graph.types import DTYPE_BYTES, Graph

FLOATING = frozenset({"float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64"})


def verify_graph(graph: Graph) -> None:
    """Raises GraphError at the first invariant that the graph breaks; each has its own message."""
    _verify_types(graph)
    _verify_inputs(graph)
    _verify_order(graph)
    _verify_loss(graph)
    _verify_gradients(graph)
    _verify_updates(graph)
    _verify_sent(graph)


def _verify_types(graph: Graph) -> None:
    for name, type_ in graph.types.items():
        if type_.dtype not in DTYPE_BYTES:
            raise GraphError(f"value {name}", "its element type must be known", type_.dtype)
        if any(size < 0 for size in type_.shape):
            raise GraphError(f"value {name}", "its sizes must not be negative", str(type_))
    named = {i.name for i in graph.inputs} | {o for op in graph.operations for o in op.outputs}
    for name in graph.types:
        if name not in named:
            raise GraphError(f"value {name}", "a typed value must be an input or made by an operation")


def _verify_inputs(graph: Graph) -> None:
    seen: set[str] = set()
    paths: set[tuple[str, str]] = set()
    for i in graph.inputs:
        if i.name in seen:
            raise GraphError(f"input {i.name}", "must be defined once")
        seen.add(i.name)
        _typed(graph, f"input {i.name}", i.name)
        if not i.paths:
            raise GraphError(f"input {i.name}", "must have a path")
        for path in i.paths:
            space = "module" if i.role in ("parameter", "buffer") else i.role
            if (space, path) in paths:
                raise GraphError(f"input {i.name}", "two inputs must not have the same path", path)
            paths.add((space, path))
        if i.trainable and i.role != "parameter":
            raise GraphError(f"input {i.name}", "only a parameter can be trainable", i.role)
        if i.trainable and graph.types[i.name].dtype not in FLOATING:
            found = str(graph.types[i.name])
            raise GraphError(f"input {i.name}", "a trainable parameter must be floating", found)


def _typed(graph: Graph, culprit: str, name: str) -> None:
    if name not in graph.types:
        raise GraphError(culprit, "every value must have a type", name)


def _verify_order(graph: Graph) -> None:
    if not 0 <= graph.forward <= len(graph.operations):
        raise GraphError(
            f"graph {graph.name}",
            "the forward pass must be a number of its operations",
            f"forward {graph.forward} of {len(graph.operations)}",
        )
    defined = {i.name for i in graph.inputs}
    later = {o for op in graph.operations[graph.forward :] for o in op.outputs}
    later |= {i.name for i in graph.inputs if i.role == "arriving"}
    for index, op in enumerate(graph.operations):
        culprit = f"operation {index} {op.op}"
        if not op.outputs:
            raise GraphError(culprit, "must have an output")
        for name in op.inputs:
            if index < graph.forward and name in later:
                raise GraphError(culprit, "the forward pass must read nothing of the backward pass", name)
            if name not in defined:
                raise GraphError(culprit, "must read only what is defined before it", name)
        for name in op.outputs:
            if name in defined:
                raise GraphError(culprit, "a value must be defined once", name)
            _typed(graph, culprit, name)
            defined.add(name)


def _forward_values(graph: Graph) -> set[str]:
    made = {o for op in graph.operations[: graph.forward] for o in op.outputs}
    return made | {i.name for i in graph.inputs if i.role != "arriving"}


def _verify_loss(graph: Graph) -> None:
    if not graph.loss and graph.sent:
        return  # a stage of a pipeline that does not make it
    _typed(graph, "loss", graph.loss)
    type_ = graph.types[graph.loss]
    if type_.shape != () or type_.dtype not in FLOATING:
        raise GraphError(f"loss {graph.loss}", "must be one floating-point number", str(type_))
    if graph.loss not in _forward_values(graph):
        raise GraphError(f"loss {graph.loss}", "must be made in the forward pass")


def _verify_gradients(graph: Graph) -> None:
    trainable = {i.name for i in graph.inputs if i.trainable}
    _once("gradient", (parameter for parameter, _ in graph.gradients))
    for parameter, value in graph.gradients:
        if parameter not in trainable:
            raise GraphError(f"gradient of {parameter}", "must belong to a trainable parameter")
        _typed(graph, f"gradient of {parameter}", value)
        if graph.types[value] != graph.types[parameter]:
            raise GraphError(
                f"gradient of {parameter}",
                "must have the parameter's type",
                f"{graph.types[value]} instead of {graph.types[parameter]}",
            )


def _verify_updates(graph: Graph) -> None:
    buffers = {i.name for i in graph.buffers}
    _once("update", (buffer for buffer, _ in graph.updates))
    forward = _forward_values(graph)
    for buffer, value in graph.updates:
        if buffer not in buffers:
            raise GraphError(f"update of {buffer}", "must belong to a buffer")
        _typed(graph, f"update of {buffer}", value)
        if graph.types[value] != graph.types[buffer]:
            raise GraphError(
                f"update of {buffer}",
                "must have the buffer's type",
                f"{graph.types[value]} instead of {graph.types[buffer]}",
            )
        if value not in forward:
            raise GraphError(f"update of {buffer}", "must be made in the forward pass", value)


def _verify_sent(graph: Graph) -> None:
    inputs = {i.name for i in graph.inputs}
    for name in graph.sent:
        _typed(graph, f"sent {name}", name)
        if name in inputs:
            raise GraphError(f"sent {name}", "must be made by an operation", "an input")


def _once(what: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise GraphError(f"{what} of {name}", "must be given once")
        seen.add(name)
