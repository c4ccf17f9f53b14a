from __future__ import annotations

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import FileError
from hocket.graph.text import parse_graph, print_graph
from hocket.graph.types import Dtype, Graph, Input, Operation, Ref, TensorType

GOLDEN = """\
graph "two layers"
input p_w: float32[4,8] parameter trainable "a.weight" "b.weight"
input b_s: int64[] buffer "steps"
input x_0: float32[2,4] batch "0"
forward 4
loss sum_1
gradient p_w mm_1
update b_s add
add: int64[] = aten.add.Tensor(b_s, 1, alpha=-2)
mm: float32[2,8] = aten.mm.default(x_0, p_w)  # a.linear
topk_o0: float32[2,2], topk_o1: int64[2,2] = aten.topk.default(mm, 2, 1)  # a.top
sum_1: float32[] = aten.sum.dim_IntList(topk_o0, (0, 1), False)
ones: float32[2,8] = aten.full.default((2, 8), -inf, dtype=dtype.float32)
mm_1: float32[4,8] = aten.mm.default(x_0, ones)
"""


def test_golden_text_round_trips() -> None:
    graph = parse_graph(GOLDEN)
    assert print_graph(graph) == GOLDEN
    assert graph.name == "two layers"
    assert graph.inputs[0] == Input("p_w", "parameter", ("a.weight", "b.weight"), True)
    assert graph.operations[2].outputs == ("topk_o0", "topk_o1")
    assert graph.operations[0].kwargs == (("alpha", -2),)
    assert graph.operations[4].args == ((2, 8), -math.inf)
    assert graph.operations[1].module == "a.linear"
    assert graph.types["b_s"] == TensorType((), "int64")
    assert graph.updates == (("b_s", "add"),)


ARGUMENTS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.just(Ref("x"))
    | st.sampled_from([Dtype("float32"), Dtype("bool")]),
    lambda inner: st.lists(inner, max_size=4).map(tuple),
    max_leaves=12,
)


def graph_with(*args: object, **kwargs: object) -> Graph:
    op = Operation("aten.some_thing.over_load", args, tuple(kwargs.items()), ("y",), "m.0")
    types = {"x": TensorType((2, 3), "float32"), "y": TensorType((), "float32")}
    return Graph('a "name"', (Input("x", "batch", ('q"uote', "ä")),), (op,), types, 1, "y", ())


def exact(argument: object) -> object:
    """Equal only to the same thing: 1 is not 1.0, 0.0 is not -0.0."""
    if isinstance(argument, tuple):
        return tuple(exact(a) for a in argument)
    return type(argument).__name__, repr(argument)


@given(st.lists(ARGUMENTS, max_size=4), st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), ARGUMENTS))
def test_arguments_survive(args: list, kwargs: dict) -> None:
    graph = graph_with(*args, **kwargs)
    parsed = parse_graph(print_graph(graph))
    assert parsed == graph
    assert exact(parsed.operations[0].args) == exact(graph.operations[0].args)
    assert exact(parsed.operations[0].kwargs) == exact(graph.operations[0].kwargs)


def test_nan_survives() -> None:
    (value,) = parse_graph(print_graph(graph_with(math.nan))).operations[0].args
    assert math.isnan(value)


@pytest.mark.parametrize(
    ("line", "text", "rule"),
    [
        (9, "add: int64[] = aten.add.Tensor(b_s, 1", "cannot be read"),
        (9, "add: int64[] = aten.add.Tensor(b_s, $)", "cannot be read"),
        (9, "add: int65[] = aten.add.Tensor(b_s)", "known element type"),
        (9, "add: int64[,] = aten.add.Tensor(b_s)", "sizes between commas"),
        (9, "add: int64[] = add(b_s)", "OPERATION"),
        (9, "add: int64[] = aten.add.Tensor(b_s) junk", "nothing but a module"),
        (9, "add: int64[] = aten.add.Tensor(b.s)", "must be a value"),
        (9, "nonsense", "header line or an operation"),
        (2, 'input p_w: float32[4,8] weight "a"', "one of parameter, buffer"),
        (2, "input p_w float32[4,8]", "must be 'input"),
        (5, "forward many", "forward must be a number"),
        (5, "", "must have a line 'forward"),
        (7, "gradient p_w", "input and a value"),
        (1, "graph name", "double quotes"),
    ],
)
def test_errors_name_line_and_rule(line: int, text: str, rule: str) -> None:
    lines = GOLDEN.split("\n")
    lines[line - 1] = text
    with pytest.raises(FileError, match=rule) as caught:
        parse_graph("\n".join(lines))
    if rule.startswith(("forward", "must have a line")):
        return
    assert f"line {line}" in caught.value.culprit


def test_name_that_text_cannot_carry() -> None:
    graph = Graph("g", (Input("nan", "batch", ("0",)),), (), {"nan": TensorType((), "float32")}, 0, "nan", ())
    with pytest.raises(FileError, match="identifier"):
        print_graph(graph)


def test_eight_thousand_lines_parse_in_under_a_second() -> None:
    line = "v{}: float32[4,4096,4096] = aten.some.default(v{}, (0, 2, 1, 3), 0.125, alpha=2, dtype=dtype.float32)  # model.layers.12.mlp"
    lines = ['graph "big"', 'input v0: float32[4,4096,4096] batch "0"', "forward 8000", "loss v8000"]
    lines += [line.format(i, i - 1) for i in range(1, 8001)]
    start = time.process_time()
    graph = parse_graph("\n".join(lines) + "\n")
    assert time.process_time() - start < 1.0
    assert len(graph.operations) == 8000
    assert print_graph(graph).split("\n")[:-1] == lines
