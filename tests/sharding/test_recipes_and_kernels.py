"""What recipes announce, what the table refuses, and kernels that the brute force does not reach."""

from __future__ import annotations

import pytest
import torch

from hocket.errors import GraphError, ProgramError
from hocket.graph.types import Dtype, Operation, Ref, TensorType
from hocket.runtime import attention
from hocket.runtime.kernels import kernel, torch_argument
from hocket.sharding.recipes import Reduce, expand, recipe_reduces
from hocket.sharding.rule import UNKNOWN
from hocket.sharding.rules import rule_of
from hocket.sharding.table import line_of, parse_line

LOCAL = TensorType((4, 3), "float32")
ROW = TensorType((4, 1), "float32")


def test_a_softmax_announces_a_maximum_and_a_sum() -> None:
    operation = Operation("aten._softmax.default", (Ref("x"), 1, False), (), ("y",))
    assert recipe_reduces("softmax", operation, {"x": LOCAL, "y": LOCAL}) == (("max", ROW), ("sum", ROW))


def test_a_softmax_of_narrow_numbers_reduces_in_single_precision() -> None:
    narrow = TensorType((4, 3), "bfloat16")
    operation = Operation("aten._softmax.default", (Ref("x"), 1, False), (), ("y",))
    types = {"x": narrow, "y": narrow}
    steps = expand("softmax", operation, 0, 3, types)
    assert [types[s.value].dtype for s in steps if isinstance(s, Reduce)] == ["float32", "float32"]
    last = steps[-1]
    assert isinstance(last, Operation)
    assert (last.op, last.outputs, last.kwargs) == (
        "aten._to_copy.default",
        ("y",),
        (("dtype", Dtype("bfloat16")),),
    )


def test_an_embedding_announces_no_collective() -> None:
    types = {
        "w": TensorType((5, 3), "float32"),
        "i": TensorType((2,), "int64"),
        "y": TensorType((2, 3), "float32"),
    }
    operation = Operation("aten.embedding.default", (Ref("w"), Ref("i")), (), ("y",))
    assert recipe_reduces("embedding", operation, types) == ()
    assert expand("embedding", operation, 5, 5, types)[0].args == (Ref("w"), Ref("i"), 5)  # type: ignore[union-attr]


def test_recipe_names_do_not_collide() -> None:
    types = {"x": LOCAL, "y": LOCAL, "y_max": LOCAL}
    operation = Operation("aten._softmax.default", (Ref("x"), 1, False), (), ("y",))
    made = [s.output if isinstance(s, Reduce) else s.outputs[0] for s in expand("softmax", operation, 0, 3, types)]
    assert len(set(made)) == len(made)
    assert "y_max" not in made
    assert set(made) <= set(types)


@pytest.mark.parametrize("line", ["mm i k", ": elementwise", "mm : i k, k j -> i j ; sums k", "mm : "])
def test_the_table_refuses(line: str) -> None:
    with pytest.raises(GraphError):
        parse_line(line)


def test_an_overload_has_its_own_line_before_its_kind() -> None:
    whole, tensor = line_of("aten.sum.default"), line_of("aten.sum.dim_IntList")
    assert whole is not None
    assert tensor is not None
    assert (whole.family, tensor.family) == ("whole", "reduce")


def test_an_operation_without_a_line_is_unknown() -> None:
    types = {"x": LOCAL, "y": LOCAL}
    assert rule_of(Operation("aten.no_such.default", (Ref("x"),), (), ("y",)), types) == UNKNOWN
    assert rule_of(Operation("aten.view.dtype", (Ref("x"), Dtype("int32")), (), ("y",)), types) == UNKNOWN


def test_a_tensor_where_the_line_sees_none_makes_it_unknown() -> None:
    types = {"x": LOCAL, "y": LOCAL, "z": LOCAL}
    assert rule_of(Operation("aten.mm.default", (Ref("x"), Ref("y"), Ref("x")), (), ("z",)), types) == UNKNOWN
    assert rule_of(Operation("aten.tanh.default", (), (("self", Ref("x")),), ("z",)), types) == UNKNOWN


def test_arguments_become_torchs() -> None:
    assert torch_argument((1, (2, Dtype("bfloat16")), None)) == [1, [2, torch.bfloat16], None]


@pytest.mark.parametrize("op", ["aten.no_such.default", "aten.mm", "hocket.no_such.default", "mm"])
def test_an_operation_without_kernel_is_named(op: str) -> None:
    with pytest.raises(ProgramError, match=op):
        kernel(op)


def test_pick_and_addend() -> None:
    value = torch.randn(6, 4)
    picked = kernel("hocket.pick.default")(value, 0, ((4, 1), (0, 2)))
    assert torch.equal(picked, value[[4, 0, 1]])
    assert torch.equal(kernel("hocket.addend.default")(value, True), value)
    assert not kernel("hocket.addend.default")(value, False).any()


@pytest.mark.parametrize(("causal", "masked"), [(False, False), (True, False), (False, True)])
def test_spelled_out_attention_equals_the_fused_kernel(causal: bool, masked: bool) -> None:
    """The form for what no fused kernel of a device takes."""
    q, k, v, grad = (torch.randn(2, 3, 5, 8, dtype=torch.float64) for _ in range(4))
    mask = torch.randn(2, 1, 5, 5, dtype=torch.float64) if masked else None
    out, logsumexp = attention.attention(q, k, v, mask, causal, 0.4)
    bias = attention._bias(q, k, mask)
    plain = attention._plain(q, k, v, bias, causal, 0.4)
    torch.testing.assert_close(plain, (out, logsumexp))
    fused = attention.attention_backward(grad, q, k, v, out, logsumexp, mask, causal, 0.4)
    spelled = attention._plain_backward(grad, q, k, v, out, logsumexp, bias, causal, 0.4)
    torch.testing.assert_close(spelled, fused)


def test_a_mask_is_padded_to_the_alignment_of_the_fused_kernel() -> None:
    bias = torch.randn(2, 3, 5, 7)
    aligned = attention._aligned(bias)
    assert aligned is not None
    assert torch.equal(aligned, bias)
    assert all(stride % attention.MASK_ALIGNMENT == 0 for stride in aligned.stride()[:-1])
