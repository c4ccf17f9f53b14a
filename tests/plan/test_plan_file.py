"""Plan files: exact round trips, and what is said about files that are not whole."""

from __future__ import annotations

import json
from math import inf
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.cluster.types import Cluster
from hocket.errors import ClusterError, FileError
from hocket.graph.text import parse_graph
from hocket.pipeline.schedule import Schedule
from hocket.plan.file import load_plan, save_plan
from hocket.plan.types import Alternative, Memory, Plan, SearchRecord, Stage
from hocket.sharding.layout import Layout
from hocket.sharding.mesh import Mesh

GRAPH = parse_graph(
    """graph "Two \\"layers\\""
input a: float32[8,4] parameter trainable "a.weight" "tied.weight"
input x: float32[6,8] batch "0"
forward 2
loss l
gradient a g
y: float32[6,4] = aten.mm.default(x, a)  # first
l: float32[] = aten.sum.dim_IntList(y, (0, 1), False)
o: float32[6,4] = aten.full.default((6, 4), 1.5e-07, dtype=dtype.float32)
t: float32[8,6] = aten.permute.default(x, (1, 0))
g: float32[8,4] = aten.mm.default(t, o)
"""
)
LAYOUTS = st.sampled_from(["RR", "S(0)R", "RS(1)", "S(0|5,3)P", "S(1:2,2)S(1:2,2)", "PS(0)"]).map(Layout.parse)
STRATEGIES = st.sampled_from(["R R", "i R", "k P0+1", "j:2,2 R", "d0 d1"])
SECONDS = st.floats(0, 1e3) | st.just(inf)
NAMES = st.dictionaries(st.sampled_from(list(GRAPH.types)), LAYOUTS)


@st.composite
def stages(draw: st.DrawFn) -> Stage:
    stored = {i.name: draw(LAYOUTS) for i in GRAPH.inputs}
    texts = tuple(draw(STRATEGIES) for _ in GRAPH.operations)
    return Stage(Mesh((2, 2)), stored, texts, draw(NAMES), draw(NAMES), draw(NAMES))


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    alternatives = tuple(
        Alternative(draw(st.text(max_size=8)), draw(SECONDS), draw(SECONDS), "no room", draw(st.none() | stages()))
        for _ in range(draw(st.integers(0, 3)))
    )
    record = SearchRecord(
        "ilp", "every split", draw(SECONDS), draw(st.booleans()), alternatives, 3, ("w",), ("p=R",)
    )
    return Plan(
        GRAPH, Cluster.local(4), (draw(stages()),), Schedule("1F1B", draw(st.integers(1, 8))), draw(SECONDS),
        draw(SECONDS), Memory(1, 2, 3, draw(st.integers(0, 2**60))), record, ("h.0",), "ab", "cd", draw(st.floats(0, 16)),
    )  # fmt: skip


def sample() -> Plan:
    stage = Stage(
        Mesh((2, 2)),
        {"a": Layout.parse("S(0)R"), "x": Layout.parse("RR")},
        ("i R", "R R", "R R", "i R", "R R"),
    )
    other = Alternative("all alike", 0.5, 0.25, "slower", stage)
    record = SearchRecord("ilp", "every split", 1.0, True, (other,))
    return Plan(GRAPH, Cluster.local(4), (stage,), Schedule(), 0.25, 0.125, Memory(1, 2, 3, 4), record)


@settings(max_examples=60, deadline=None)
@given(plans())
def test_a_file_gives_exactly_the_plan_back(tmp_path_factory: pytest.TempPathFactory, plan: Plan) -> None:
    path = tmp_path_factory.mktemp("plan") / "p.json"
    save_plan(plan, path)
    assert load_plan(path) == plan


def test_methods_write_and_read_the_same(tmp_path: Path) -> None:
    sample().save(tmp_path / "deep" / "p.json")
    assert Plan.load(tmp_path / "deep" / "p.json") == sample()
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["p.json"]


def test_distinct_strategies_are_written_once(tmp_path: Path) -> None:
    sample().save(tmp_path / "p.json")
    stage = json.loads((tmp_path / "p.json").read_text())["stages"][0]
    assert stage["table"] == ["i R", "R R"]
    assert stage["places"] == "0 1 1 0 1"


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_file_cut_short_is_named_with_a_repair(tmp_path: Path, share: float) -> None:
    path = tmp_path / "p.json"
    sample().save(path)
    whole = path.read_bytes().rstrip()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(FileError, match="cut short") as error:
        load_plan(path)
    assert str(path) in error.value.culprit
    assert "hocket plan" in error.value.repair


def edited(tmp_path: Path, change) -> Path:
    path = tmp_path / "p.json"
    sample().save(path)
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v.update(secnds=1), "did you mean seconds"),
        (lambda v: v["stages"][0].update(qqq=1), r"stages\[0\].*unknown field `qqq`"),
        (lambda v: v["memory"].update(heap=1), "memory"),
        (lambda v: v["schedule"].update(microbatchs=1), "did you mean microbatches"),
        (lambda v: v.update(format="hocket-plan/9"), "is hocket-plan/1"),
        (lambda v: v.pop("format"), "is hocket-plan/1"),
        (lambda v: v.update(seconds="fast"), "seconds"),
        (lambda v: v["graph"].pop(), "strategy for each of the graph's 4 operations"),
        (lambda v: v["graph"].insert(9, "nonsense"), "must be a header line or an operation"),
        (lambda v: v["stages"][0].update(places="0 7 0 0 0"), "numbers below 2"),
        (lambda v: v["stages"][0].update(mesh="2x"), "mesh '2x'"),
        (lambda v: v["stages"][0].update(mesh="8x8"), "at most as many positions"),
        (lambda v: v["stages"][0].update(stored={"S(0)Q": "a x"}), "layout"),
        (lambda v: v["stages"][0].update(stored={"S(0)": "a x"}), "one placement per mesh axis"),
        (lambda v: v["stages"][0].update(stored={"RR": "x"}), "nothing of a"),
        (lambda v: v.update(stages=[]), "at least one stage"),
        (lambda v: v["cluster"].update(overlap=9), "cluster"),
    ],
)  # fmt: skip
def test_what_was_edited_is_named(tmp_path: Path, change, message: str) -> None:
    with pytest.raises((FileError, ClusterError), match=message) as error:
        load_plan(edited(tmp_path, change))
    assert str(tmp_path) in error.value.culprit


def test_a_missing_file_and_a_list_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="readable"):
        load_plan(tmp_path / "none.json")
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(FileError, match="hocket-plan/1"):
        load_plan(tmp_path / "list.json")


def test_a_plan_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    with pytest.raises(FileError):
        sample().save(tmp_path / "file" / "p.json")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
