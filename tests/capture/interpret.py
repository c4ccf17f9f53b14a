"""Runs a Graph with real tensors, operation by operation, as the reference for what a graph means."""

from __future__ import annotations

import torch

from hocket.graph.types import Argument, Dtype, Graph, Ref
from hocket.runtime.kernels import kernel


def interpret(graph: Graph, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """All outputs of the graph (loss, gradients, updates) by value name."""
    values: dict[str, torch.Tensor] = dict(inputs)

    def argument(item: Argument):
        if isinstance(item, Ref):
            return values[item.name]
        if isinstance(item, Dtype):
            return getattr(torch, item.name)
        if isinstance(item, tuple):
            return [argument(i) for i in item]
        return item

    with torch.no_grad():
        for op in graph.operations:
            out = kernel(op.op)(*map(argument, op.args), **{k: argument(v) for k, v in op.kwargs})
            outs = tuple(out) if isinstance(out, (tuple, list)) else (out,)
            for name, value in zip(op.outputs, outs, strict=True):
                if value is not None and value.numel():
                    found = (tuple(value.shape), str(value.dtype).removeprefix("torch."))
                    expected = (graph.types[name].shape, graph.types[name].dtype)
                    assert found == expected, f"{name} = {op.op}: {found} instead of {expected}"
                values[name] = value
    return {name: values[name] for name in graph.outputs}


def inputs_of(graph: Graph, model: torch.nn.Module, sample) -> dict[str, torch.Tensor]:
    """The real tensors that the graph's inputs stand for."""
    state = {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }
    batch = dict(sample) if isinstance(sample, dict) else {str(i): t for i, t in enumerate(sample)}
    return {i.name: (batch if i.role == "batch" else state)[i.paths[0]].detach().clone() for i in graph.inputs}


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference relative to the largest value expected."""
    found, expected = found.double(), expected.double()
    return float((found - expected).abs().max() / expected.abs().max().clamp_min(1e-12))


def compare(graph: Graph, model: torch.nn.Module, sample, loss=None, tolerance: float = 1e-5) -> None:
    """Loss, every gradient and every buffer update of the graph against eager autograd."""
    results = interpret(graph, inputs_of(graph, model, sample))
    output = model(**sample) if isinstance(sample, dict) else model(*sample)
    value = loss(output) if loss is not None else getattr(output, "loss", output)
    value.backward()
    parameters = dict(model.named_parameters(remove_duplicate=False))
    buffers = dict(model.named_buffers(remove_duplicate=False))
    assert distance(results[graph.loss], value.detach()) <= tolerance
    gradients = dict(graph.gradients)
    largest = max(p.grad.abs().max() for p in parameters.values() if p.grad is not None)
    for item in graph.parameters:
        expected = parameters[item.paths[0]].grad
        assert (expected is None) == (item.name not in gradients), f"{item.name}: gradient present in one only"
        if expected is not None:
            found = results[gradients[item.name]]
            # A gradient that is zero in exact arithmetic (a key's bias) is noise in both.
            if expected.abs().max() > 1e-6 * largest:
                assert distance(found, expected) <= tolerance, f"{item.name}: {distance(found, expected)}"
            else:
                assert found.abs().max() <= 1e-5 * largest, item.name
    for name, new in graph.updates:
        path = next(i.paths[0] for i in graph.inputs if i.name == name)
        assert distance(results[new], buffers[path]) <= tolerance, name
