"""Programs as text, and what a wrong program is told; programs come from lowering random stages."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.cluster.types import Cluster
from hocket.cost.prices import MeshPrices
from hocket.errors import ProgramError
from hocket.graph.text import parse_graph
from hocket.graph.types import TensorType
from hocket.program.blueprint import blueprint
from hocket.program.liveness import with_frees
from hocket.program.lower import lower
from hocket.program.text import parse_program, print_program
from hocket.program.types import Collective, Compute, Free, Program, Receive, Send
from hocket.program.verify import verify_program, verify_programs
from hocket.search.builder import build_problem
from hocket.search.judge import finish
from hocket.sharding.mesh import Mesh

GRAPH = parse_graph(
    """graph "two products"
input w: float32[8,16] parameter trainable "w"
input v: float32[16,4] parameter trainable "v"
input x: float32[8,8] batch "0"
forward 5
loss l
gradient w gw
gradient v gv
a: float32[8,16] = aten.mm.default(x, w)  # first
r: float32[8,16] = aten.tanh.default(a)
p: float32[8,8] = aten.slice.Tensor(r, 1, 0, 8, 1)
b: float32[8,4] = aten.mm.default(r, v)  # second
l: float32[] = aten.sum.dim_IntList(b, (0, 1), False)
o: float32[8,4] = aten.full.default((8, 4), 1.0, dtype=dtype.float32)
rt: float32[16,8] = aten.permute.default(r, (1, 0))
gv: float32[16,4] = aten.mm.default(rt, o)
vt: float32[4,16] = aten.permute.default(v, (1, 0))
gr: float32[8,16] = aten.mm.default(o, vt)
ga: float32[8,16] = aten.tanh_backward.default(gr, r)
xt: float32[8,8] = aten.permute.default(x, (1, 0))
gw: float32[8,16] = aten.mm.default(xt, ga)
"""
)
CLUSTER = Cluster.local(4)
PROBLEMS = {}


def random_programs(draw: st.DrawFn) -> list[Program]:
    """Programs of all ranks of a stage drawn choice by choice, bundled or not; what cannot be is all first choices."""
    mesh = Mesh(draw(st.sampled_from([(2,), (4,), (2, 2)])))
    prices = MeshPrices(CLUSTER, mesh)
    if mesh not in PROBLEMS:
        PROBLEMS[mesh] = build_problem(GRAPH, mesh, prices)
    problem = PROBLEMS[mesh]
    choice = [draw(st.integers(0, len(node.options) - 1)) for node in problem.nodes]
    for (first, second), costs in problem.model.edges.items():
        if costs[0, choice[first], choice[second]] == float("inf"):
            choice = [0] * len(choice)
            break
    plan = blueprint(GRAPH, problem.stage(choice), prices)
    if draw(st.booleans()):
        return [finish(plan, rank, prices) for rank in mesh.ranks]
    return [with_frees(lower(plan, rank)) for rank in mesh.ranks]


programs_strategy = st.composite(random_programs)()


@settings(max_examples=60, deadline=None)
@given(programs_strategy)
def test_lowered_programs_verify_and_print_and_parse_back(programs: list[Program]) -> None:
    verify_programs(programs)
    for program in programs:
        assert parse_program(print_program(program)) == program


def hand_program(**changes) -> Program:
    """Two ranks with half of a parameter each; rank 0's program."""
    program = parse_program(
        """program rank 0 mesh 2
shard w S(0) 0+2 0+4
type w: float32[2,4]
forward 3
loss l
gradient w g
collective all_gather axis=0 group=[0,1] dims=[0] pieces=[[[2],[2]]] bytes=64 seconds=0.001 blocking=false | f: float32[4,4] = w
compute seconds=2e-05 source=0 | l: float32[] = aten.sum.dim_IntList(f, (0, 1), False)
free f
compute seconds=1e-06 source=1 salt=7 | o: float32[4,4] = aten.full.default((4, 4), 1.5, dtype=dtype.float32)  # a.b
collective reduce_scatter axis=0 group=[0,1] dims=[0] pieces=[[[2],[2]]] bytes=64 seconds=0.001 blocking=true | g: float32[2,4] = o
send peer=1 bytes=64 seconds=0.25 | o
receive peer=1 bytes=64 seconds=0.25 | q: float32[4,4]
free o q
"""
    )
    return replace(program, **changes)


def test_every_kind_of_instruction_prints_and_parses_back() -> None:
    program = hand_program()
    kinds = {type(i) for i in program.instructions}
    assert kinds == {Compute, Collective, Free, Send, Receive}
    assert parse_program(print_program(program)) == program
    verify_program(program)


@pytest.mark.parametrize(
    "line",
    [
        "jump x",
        "compute seconds=1 | y = f(x)",
        "forward",
        "shard w Q 0+1",
        "gradient w",
        "collective all_gather | y",
    ],
)
def test_a_line_that_cannot_be_read_is_named(line: str) -> None:
    lines = print_program(hand_program()).split("\n")
    lines.insert(3, line)
    text = "\n".join(lines) if line != "forward" else "\n".join(lines).replace("forward 3\n", "")
    with pytest.raises(ProgramError, match="program text, line"):
        parse_program(text)


def changed(index: int, **fields) -> Program:
    program = hand_program()
    items = list(program.instructions)
    items[index] = replace(items[index], **fields)
    return replace(program, instructions=tuple(items))


def dropped(index: int) -> Program:
    program = hand_program()
    items = program.instructions
    return replace(program, instructions=items[:index] + items[index + 1 :])


def typed(name: str, *shape: int, dtype: str = "float32") -> Program:
    program = hand_program()
    return replace(program, types={**program.types, name: TensorType(shape, dtype)})


def untyped(name: str) -> Program:
    program = hand_program()
    return replace(program, types={n: t for n, t in program.types.items() if n != name})


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (hand_program(rank=5), "is a rank of its mesh"),
        (dropped(0), "reads only what was made before"),
        (changed(7, values=("o", "f")), "frees a value once"),
        (changed(7, values=("o", "o")), "frees a value once"),
        (changed(4, inputs=("f",)), "reads no freed value"),
        (changed(7, values=("w",)), "frees no input"),
        (changed(7, values=("g",)), "nothing that leaves the step"),
        (changed(3, operation=replace(hand_program().instructions[3].operation, outputs=("l",))), "makes new values"),
        (untyped("g"), "every value has a local type"),
        (changed(1, seconds=float("nan")), "takes a finite time"),
        (changed(1, seconds=-1.0), "takes a finite time"),
        (changed(0, group=(1, 2)), "its group holds this rank"),
        (changed(0, group=(0, 0)), "its group holds this rank"),
        (changed(0, dims=(0, 1)), "as many outputs, dims"),
        (changed(0, pieces=(((2,),),)), "pieces for each rank"),
        (changed(0, pieces=(((1,), (2,)),)), "length of its part"),
        (changed(0, pieces=(((2,), (3,)),)), "the whole's length"),
        (changed(0, kind="all_reduce"), "keeps the shape"),
        (typed("f", 4, 4, dtype="float64"), "one element type"),
        (typed("w", 3, 4), "shape of its intervals"),
        (hand_program(forward=1), "the loss is there when forward ends"),
        (hand_program(gradients=(("w", "zz"),)), "every gradient is there"),
        (hand_program(gradients=(("u", "g"),)), "belongs to an input"),
        (hand_program(updates=(("w", "l"),)), "update has the shape of the stored shard"),
        (changed(5, peer=0), "talks to another rank"),
    ],
)  # fmt: skip
def test_each_broken_rule_has_its_message(program: Program, message: str) -> None:
    with pytest.raises(ProgramError, match=message) as error:
        verify_program(program)
    assert "rank" in error.value.culprit


def test_ranks_must_call_the_same_collectives() -> None:
    def other(**fields) -> Program:
        program = hand_program()
        items = [replace(i, peer=0) if isinstance(i, (Send, Receive)) else i for i in program.instructions]
        items[4] = replace(items[4], **fields)
        return replace(program, rank=1, instructions=tuple(items))

    verify_programs([hand_program(), other()])
    with pytest.raises(ProgramError, match="same call on all its ranks"):
        verify_programs([hand_program(), other(reduce="max")])
    fewer = other()
    items = tuple(i for n, i in enumerate(fewer.instructions) if n != 4)
    with pytest.raises(ProgramError, match="equally many collectives"):
        verify_programs([hand_program(), replace(fewer, instructions=items, gradients=())])
