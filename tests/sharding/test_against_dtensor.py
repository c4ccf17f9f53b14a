"""Our one-axis strategies against DTensor's own rules: an oracle that was written by others.

Every strategy either is accepted by DTensor's propagation as it is and gives the same output placements, or
stands in DIFFERENCES with the reason why not. A fake process group answers without any process.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from catalogue import cases
from split_run import Case, whole
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from hocket.graph.types import Argument, Ref
from hocket.runtime.kernels import torch_argument
from hocket.sharding import layout
from hocket.sharding.mesh import Mesh
from hocket.sharding.rules import rule_of
from hocket.sharding.strategy import Strategy, axis_tokens, make_strategy

RECIPE = "DTensor moves the input first, or replicates the result; our recipe runs on the split as it is"
PARTIAL = "linear in these arguments (proven by brute force), but DTensor sums first"
FACTOR = "a split that DTensor does not make; proven by brute force"
NEGLECTED = "DTensor replicates a result of which each rank may as well make its own part"
MASKED = "an output that is masked out has no placement in DTensor; ours stands for nothing"
MISTAKEN = "DTensor shifts the split dim although keepdim keeps it (its logsumexp rule)"
NO_RULE = "DTensor has no rule for this operation"

DIFFERENCES: dict[str, str] = {
    RECIPE: """
        _log_softmax.default: d1 d2
        _log_softmax_backward_data.default: d1 d2
        _softmax.default: d0 d1 d2
        _softmax_backward_data.default: d1 d2
        embedding.default: v
        embedding_dense_backward.default: v
        gather.default: v
        index.Tensor: v
        scatter.src: v
        scatter.value: v
        scatter_add.default: v
    """,
    PARTIAL: """
        _adaptive_avg_pool2d_backward.default: P0
        _log_softmax_backward_data.default: P0
        _softmax_backward_data.default: P0
        add.Tensor: P0
        addcdiv.default: P0+1
        addcmul.default: P0+1 P0+2
        convolution.default: P0 P0+2 P1 P1+2
        convolution_backward.default: P0
        cumsum.default: P0
        dot.default: P0 P1
        elu_backward.default: P0
        embedding.default: P0
        gather.default: P0
        gelu_backward.default: P0
        leaky_relu_backward.default: P0
        masked_fill.Scalar: P0
        masked_fill.Tensor: P0+2
        native_dropout_backward.default: P0
        native_layer_norm_backward.default: P0
        scatter.src: P0+2
        scatter.value: P0
        scatter_add.default: P0+2
        sigmoid_backward.default: P0
        silu_backward.default: P0
        slice_scatter.default: P0+1
        softplus_backward.default: P0
        tanh_backward.default: P0
        threshold_backward.default: P0
        tril.default: P0
        triu.default: P0
        true_divide.Tensor: P0
        vdot.default: P0 P1
        where.self: P1+2
    """,
    FACTOR: """
        cat.default: d0
        convolution.default: c k
        convolution_backward.default: c k
        index_put.default: s0 s1
        native_group_norm.default: g
        scatter_add.default: s
        split_with_sizes.default: d0
        tril.default: d0
        triu.default: d0
    """,
    NEGLECTED: """
        expand.default: d0 d1
        repeat.default: d0
    """,
    MASKED: """
        convolution_backward.default: n
        native_layer_norm_backward.default: d0 d1
    """,
    MISTAKEN: """
        logsumexp.default: d2
    """,
    NO_RULE: """
        _grouped_mm.default: P0 P1 g i j k
        _unsafe_index.Tensor: P0 d0 d1 v
        _unsafe_index_put.default: P0+2 d1 s0
        avg_pool2d_backward.default: P0 d0 d1
        bernoulli.p: d0 d1
        hardsigmoid_backward.default: P0 d0 d1
        hardswish_backward.default: P0 d0 d1
        hardtanh_backward.default: P0 d0 d1
        log_sigmoid_backward.default: P0 d0 d1
        where.ScalarOther: P1 d0 d1
    """,
}


@pytest.fixture(scope="module")
def device_mesh() -> Iterator[DeviceMesh]:
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield init_device_mesh("cpu", (2,))
    dist.destroy_process_group()


def placement(ours: layout.Placement) -> Shard | Replicate | Partial:
    if isinstance(ours, layout.Split):
        return Shard(ours.dim)
    return Replicate() if isinstance(ours, layout.Replicate) else Partial()


def ask(case: Case, strategy: Strategy, mesh: DeviceMesh) -> str:
    """What DTensor says to a strategy: same, other inputs, other outputs, or no rule."""
    operation = case.operation
    layouts = iter(strategy.inputs)
    wanted = [placement(where.placements[0]) for where in strategy.inputs]

    def bind(argument: Argument) -> object:
        if isinstance(argument, Ref):
            value, place = case.values[argument.name], placement(next(layouts).placements[0])
            local = value.chunk(2, place.dim)[0].contiguous() if isinstance(place, Shard) else value
            return DTensor.from_local(local, mesh, [place], run_check=False)
        if isinstance(argument, tuple):
            return [bind(item) for item in argument]
        return torch_argument(argument)

    _, kind, overload = operation.op.split(".")
    function = getattr(getattr(torch.ops.aten, kind), overload)
    arguments = tuple(bind(a) for a in operation.args), {k: bind(a) for k, a in operation.kwargs}
    dispatcher = DTensor._op_dispatcher
    try:
        info = dispatcher.unwrap_to_op_info(function, *arguments)
        dispatcher.sharding_propagator.propagate(info)
    except (NotImplementedError, RuntimeError) as error:
        return "no rule" if isinstance(error, NotImplementedError) or "BF16" in str(error) else f"error {error}"
    found = info.output_sharding
    if found.needs_redistribute and found.redistribute_schema is not None:
        # A schema with the same placements only carries local sizes.
        specs = [spec.placements[0] for spec in found.redistribute_schema.args_spec]
        if specs != wanted:
            return "other inputs"
    outputs = found.output_spec if isinstance(found.output_spec, list | tuple) else [found.output_spec]
    got = [spec.placements[0] if spec is not None else None for spec in outputs]
    return "same" if got == [placement(where.placements[0]) for where in strategy.outputs] else "other outputs"


def differences(case: Case, mesh: DeviceMesh) -> dict[str, str]:
    _, types = whole(case)
    rule = rule_of(case.operation, types)
    found = {}
    for token in axis_tokens(rule, case.operation, 2, {}):
        strategy = make_strategy(rule, case.operation, (token,), Mesh((2,)))
        assert strategy is not None
        splits = [p for where in (*strategy.inputs, *strategy.outputs) for p in where.placements]
        segmented = any(isinstance(p, layout.Split) and p.segments for p in splits)
        if token != "R" and not segmented:
            found[token] = ask(case, strategy, mesh)
    return {token: answer for token, answer in found.items() if answer != "same"}


CASES = tuple(c for c in cases() if c.operation.op.startswith("aten.") and c.operation.inputs)


def expected() -> dict[str, dict[str, set[str]]]:
    """Per operation and reason, the tokens that differ in some case."""
    found: dict[str, dict[str, set[str]]] = {}
    for reason, lines in DIFFERENCES.items():
        for line in lines.split("\n"):
            op, _, tokens = line.strip().partition(": ")
            if op:
                found.setdefault(f"aten.{op}", {})[reason] = set(tokens.split())
    return found


@pytest.mark.proof
@pytest.mark.parametrize("op", sorted({case.operation.op for case in CASES}))
def test_strategies_agree_with_dtensor(op: str, device_mesh: DeviceMesh) -> None:
    answers = [differences(case, device_mesh) for case in CASES if case.operation.op == op]
    known = expected().get(op, {})
    assert {token for answer in answers for token in answer} == set().union(*known.values())
    assert [text for answer in answers for text in answer.values() if text.startswith("error")] == []


def test_differences_name_compared_operations() -> None:
    """The list of differences is about named operations only, and each names one that is compared."""
    assert set(expected()) <= {case.operation.op for case in CASES}
