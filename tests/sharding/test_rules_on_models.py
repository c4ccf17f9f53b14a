"""Every different operation of real training steps, on its real values, split in every one-axis way."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from split_run import Case, run, run_split

from hocket.capture.export import capture
from hocket.capture.models import tiny
from hocket.graph.types import Argument, Dtype, Graph, Operation
from hocket.sharding.call import call_of
from hocket.sharding.mesh import Mesh
from hocket.sharding.rules import rule_of
from hocket.sharding.strategy import axis_tokens, find_segments, make_strategy


def double(operation: Operation) -> Operation:
    """The operation with double precision wherever it names single precision."""

    def convert(argument: Argument) -> Argument:
        if isinstance(argument, tuple):
            return tuple(convert(item) for item in argument)
        return Dtype("float64") if argument == Dtype("float32") else argument

    args, kwargs = tuple(map(convert, operation.args)), tuple((k, convert(a)) for k, a in operation.kwargs)
    return Operation(operation.op, args, kwargs, operation.outputs)


def wide(value: torch.Tensor) -> torch.Tensor:
    return value.detach().double() if value.is_floating_point() else value


def step(architecture: str) -> tuple[Graph, dict[str, torch.Tensor]]:
    """A captured step and all its values, in double precision."""
    model, sample = tiny(architecture)
    graph = capture(model, sample)
    graph = replace(graph, operations=tuple(map(double, graph.operations)))
    held = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
    values: dict[str, torch.Tensor] = {}
    for entry in graph.inputs:
        source = sample if entry.role == "batch" else held
        values[entry.name] = wide(source[entry.paths[0]])
    for operation in graph.operations:
        results = run(operation, values)
        for name, result in zip(operation.outputs, results, strict=True):
            if result is not None:
                values[name] = result
    return graph, values


@pytest.mark.proof
@pytest.mark.parametrize(
    "architecture",
    ["gpt2", "llama", "mixtral", "gemma2", "phi3", "falcon", "gpt_neox", "bert", "resnet", "bart"],
)
def test_operations_of_a_step(architecture: str) -> None:
    graph, values = step(architecture)
    rules = [rule_of(operation, graph.types) for operation in graph.operations]
    segments = find_segments(graph, rules)
    seen = set()
    mesh = Mesh((2,))
    for operation, rule in zip(graph.operations, rules, strict=True):
        assert rule.known, operation
        tokens = axis_tokens(rule, operation, 2, segments)
        key = (call_of(operation, graph.types), tokens)
        if key in seen:
            continue
        seen.add(key)
        case = Case(operation, {name: values[name] for name in operation.inputs})
        for token in tokens:
            strategy = make_strategy(rule, operation, (token,), mesh)
            assert strategy is not None
            run_split(case, rule, strategy, mesh)
