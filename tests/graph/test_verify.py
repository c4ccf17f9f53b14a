from __future__ import annotations

from dataclasses import replace

import pytest

from hocket.errors import GraphError
from hocket.graph.fingerprint import fingerprint
from hocket.graph.text import parse_graph
from hocket.graph.types import Graph, Input, Operation, Ref, TensorType
from hocket.graph.verify import verify_graph

TEXT = """\
graph "linear"
input w: float32[4,8] parameter trainable "weight"
input s: int64[] buffer "steps"
input x: float32[2,4] batch "0"
forward 3
loss total
gradient w gw
update s more
more: int64[] = aten.add.Tensor(s, 1)
y: float32[2,8] = aten.mm.default(x, w)
total: float32[] = aten.sum.dim_IntList(y, (0, 1), False)
one: float32[2,8] = aten.full.default((2, 8), 1, dtype=dtype.float32)
xt: float32[4,2] = aten.permute.default(x, (1, 0))
gw: float32[4,8] = aten.mm.default(xt, one)
"""
GOOD = parse_graph(TEXT)


def test_good_graph_passes() -> None:
    verify_graph(GOOD)


def operations(**changes: Operation | None) -> tuple[Operation, ...]:
    """The good operations, with those that make the named values replaced or left out."""
    kept = []
    for op in GOOD.operations:
        new = changes.get(op.outputs[0], op)
        if new is not None:
            kept.append(new)
    return tuple(kept)


def types(**changes: TensorType | None) -> dict[str, TensorType]:
    merged = {**GOOD.types, **changes}
    return {name: type_ for name, type_ in merged.items() if type_ is not None}


def op(output: str, *reads: str) -> Operation:
    return Operation("aten.relu.default", tuple(map(Ref, reads)), (), (output,))


F = TensorType((), "float32")
BROKEN: dict[str, tuple[str, Graph]] = {
    "dtype": ("element type must be known", replace(GOOD, types=types(y=TensorType((2, 8), "float31")))),
    "size": ("must not be negative", replace(GOOD, types=types(y=TensorType((-2, 8), "float32")))),
    "stray type": ("input or made by an operation", replace(GOOD, types=types(ghost=F))),
    "input twice": ("must be defined once", replace(GOOD, inputs=(*GOOD.inputs, Input("w", "buffer", ("q",))))),
    "input untyped": ("must have a type", replace(GOOD, types=types(w=None))),
    "no path": ("must have a path", replace(GOOD, inputs=(GOOD.inputs[0], replace(GOOD.inputs[1], paths=()), GOOD.inputs[2]))),
    "same path": (
        "must not have the same path",
        replace(GOOD, inputs=(GOOD.inputs[0], replace(GOOD.inputs[1], paths=("weight",)), GOOD.inputs[2])),
    ),
    "trainable buffer": (
        "only a parameter can be trainable",
        replace(GOOD, inputs=(GOOD.inputs[0], replace(GOOD.inputs[1], trainable=True), GOOD.inputs[2])),
    ),
    "trainable integer": ("must be floating", replace(GOOD, types=types(w=TensorType((4, 8), "int64")))),
    "forward range": ("a number of its operations", replace(GOOD, forward=7)),
    "no output": ("must have an output", replace(GOOD, operations=(*GOOD.operations, Operation("aten.relu.default", (), (), ())))),
    "reads backward": ("read nothing of the backward", replace(GOOD, operations=operations(y=op("y", "xt")))),
    "reads undefined": ("only what is defined before", replace(GOOD, operations=operations(y=op("y", "total")))),
    "defined twice": ("a value must be defined once", replace(GOOD, operations=operations(xt=op("one", "x")), types=types(xt=None))),
    "value untyped": ("every value must have a type", replace(GOOD, types=types(y=None))),
    "loss shape": ("one floating-point number", replace(GOOD, loss="y")),
    "loss dtype": ("one floating-point number", replace(GOOD, loss="more")),
    "loss untyped": ("every value must have a type", replace(GOOD, loss="nothing")),
    "loss late": (
        "must be made in the forward pass",
        replace(GOOD, loss="late", operations=(*GOOD.operations, op("late", "total")), types=types(late=F)),
    ),
    "gradient of buffer": ("belong to a trainable parameter", replace(GOOD, gradients=(("s", "more"),))),
    "gradient type": ("must have the parameter's type", replace(GOOD, gradients=(("w", "y"),))),
    "gradient untyped": ("every value must have a type", replace(GOOD, gradients=(("w", "ghost"),))),
    "gradient twice": ("must be given once", replace(GOOD, gradients=(("w", "gw"), ("w", "gw")))),
    "update of parameter": ("must belong to a buffer", replace(GOOD, updates=(("w", "gw"),))),
    "update type": ("must have the buffer's type", replace(GOOD, updates=(("s", "total"),))),
    "update untyped": ("every value must have a type", replace(GOOD, updates=(("s", "ghost"),))),
    "update twice": ("must be given once", replace(GOOD, updates=(("s", "more"), ("s", "more")))),
    "update late": (
        "must be made in the forward pass",
        replace(
            GOOD,
            updates=(("s", "late"),),
            operations=(*GOOD.operations, op("late", "more")),
            types=types(late=TensorType((), "int64")),
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", list(BROKEN))
def test_broken_graph_is_refused(case: str) -> None:
    rule, graph = BROKEN[case]
    with pytest.raises(GraphError, match=rule):
        verify_graph(graph)


def test_fingerprint_ignores_names_modules_and_the_graphs_name() -> None:
    other = parse_graph(
        TEXT.replace("xt", "turned").replace('"linear"', '"other"').replace("y:", "z:").replace("(y,", "(z,")
    )
    other = replace(other, operations=tuple(replace(o, module="m") for o in other.operations))
    assert other != GOOD
    assert fingerprint(other) == fingerprint(GOOD)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(1, 0)", "(0, 1)"),
        ("aten.mm.default(xt, one)", "aten.mm.default(one, xt)"),
        ('"weight"', '"heaviness"'),
        ("parameter trainable", "parameter"),
        ("(s, 1)", "(s, 1.0)"),
        ("update s more\n", ""),
        ("forward 3", "forward 4"),
        ("float32[2,4] batch", "float16[2,4] batch"),
    ],
)
def test_fingerprint_sees_every_difference(old: str, new: str) -> None:
    assert old in TEXT
    assert fingerprint(parse_graph(TEXT.replace(old, new))) != fingerprint(GOOD)
