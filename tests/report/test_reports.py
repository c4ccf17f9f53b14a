"""Reports: words, folded layers, shares that add up, flips that are flips, prices of layouts."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from hocket import api
from hocket.cluster.presets import LINKS, PRESETS
from hocket.cluster.types import Cluster, Link, Machine
from hocket.errors import PlanError
from hocket.graph.text import parse_graph
from hocket.plan.types import Alternative, Plan
from hocket.report.clock import compute_shares, exposed_seconds, traffic_shares
from hocket.report.compare import comparison_parts, differences
from hocket.report.explain import build_explanation, explain, predict
from hocket.report.flip import find_flips, scaled
from hocket.report.known import known_alternatives, known_texts
from hocket.report.layers import Layer, find_layers
from hocket.report.parameter import price_changes
from hocket.report.tables import as_text, certificate, common_prefix, layers_table
from hocket.report.words import cluster_words, folded, joined, layout_words, percent
from hocket.search.judge import judge
from hocket.sharding.layout import Layout
from hocket.sharding.mesh import Mesh
from hocket.simulate.timeline import COMMUNICATION, COMPUTE, Span

GRAPH = parse_graph(
    """graph "two products"
input w: float32[512,2048] parameter trainable "net.0.weight"
input v: float32[2048,256] parameter trainable "net.1.weight"
input b: float32[256] parameter trainable "net.1.bias"
input x: float32[4096,512] batch "0"
forward 5
loss l
gradient w gw
gradient v gv
gradient b gb
a: float32[4096,2048] = aten.mm.default(x, w)  # net.0
r: float32[4096,2048] = aten.tanh.default(a)
c: float32[4096,256] = aten.addmm.default(b, r, v)  # net.1
z: float32[4096,256] = aten.tanh.default(c)
l: float32[] = aten.sum.dim_IntList(z, (0, 1), False)
e: float32[4096,256] = aten.full.default((4096, 256), 1.0, dtype=dtype.float32)
o: float32[4096,256] = aten.tanh_backward.default(e, z)
gb: float32[256] = aten.sum.dim_IntList(o, (0,), False)
rt: float32[2048,4096] = aten.permute.default(r, (1, 0))
gv: float32[2048,256] = aten.mm.default(rt, o)
vt: float32[256,2048] = aten.permute.default(v, (1, 0))
gr: float32[4096,2048] = aten.mm.default(o, vt)
ga: float32[4096,2048] = aten.tanh_backward.default(gr, r)
xt: float32[512,4096] = aten.permute.default(x, (1, 0))
gw: float32[512,2048] = aten.mm.default(xt, ga)
"""
)
CLUSTER = Cluster((Machine("m", PRESETS["L4"], 2, LINKS["L4"]),) * 2, Link(1e9, 10e-6, "machine"), name="pair")


@pytest.fixture(scope="module")
def plan() -> Plan:
    return api.plan(GRAPH, CLUSTER, budget=20.0)


def test_paths_fold_where_whole_parts_are_numbers() -> None:
    assert folded("h.12.mlp2.0.weight") == "h.*.mlp2.*.weight"
    assert folded("0.weight") == "*.weight"


@pytest.mark.parametrize(
    ("layout", "mesh", "words"),
    [
        ("RR", (4, 2), "whole"),
        ("S(0)S(0)", (4, 2), "dim 0 in 8"),
        ("S(1)R", (4, 2), "dim 1 in 4, 2 copies"),
        ("S(0)S(1)", (4, 2), "dim 0 in 4, dim 1 in 2"),
        ("S(0|3,1)", (2,), "dim 0 unevenly in 2"),
        ("S(1:4,4)", (2,), "dim 1 (each of 2 segments) in 2"),
    ],
)
def test_layouts_in_words(layout: str, mesh: tuple[int, ...], words: str) -> None:
    assert layout_words(Layout.parse(layout), Mesh(mesh)) == words


def test_small_words() -> None:
    assert joined({"all alike": 4}) == "all alike"
    assert joined({"all alike": 2, "samples": 8}) == "samples/8, 2 copies"
    assert joined({}) == "-"
    assert [percent(s) for s in (0.0, 0.004, 0.25, 1.5)] == ["0 %", "0.4 %", "25 %", "150 %"]
    assert cluster_words(CLUSTER) == "2 machines of 2 x L4"
    assert common_prefix(["a.b.x.weight", "a.b.y"]) == "a.b."
    assert common_prefix(["a.*.x", "a.*.y"]) == "a."


def test_layers_tell_what_each_device_holds(plan: Plan) -> None:
    layers = {x.path: x for x in find_layers(plan)}
    assert set(layers) == {"net.*.weight", "net.*.bias"}
    held = sum(x.held for x in find_layers(plan))
    program = predict(plan, [0])[0][0]
    assert held == sum(program.types[p.name].bytes for p in GRAPH.parameters)


def test_a_plan_of_data_parallelism_is_told_so() -> None:
    layers = find_layers(api.plan(GRAPH, CLUSTER, like="dp=4", budget=20.0))
    assert {x.stored for x in layers} == {"whole"}
    assert {x.forward for x in layers} == {"samples/4"}


def test_shares_add_up_to_the_step(plan: Plan) -> None:
    programs, timeline = predict(plan)
    rank = programs[0].rank
    explanation = build_explanation(plan, flips=False)
    worked = sum(s.seconds for s in compute_shares(timeline, rank))
    assert worked + explanation.exposed == pytest.approx(timeline.seconds)
    assert timeline.seconds == pytest.approx(plan.seconds)
    rows = traffic_shares(plan, programs[0], timeline)
    assert sum(t.seconds for t in rows) == pytest.approx(timeline.busy(rank, COMMUNICATION))
    assert all(0 <= t.exposed <= t.seconds + 1e-12 for t in rows)


def test_exposed_is_what_no_work_covers() -> None:
    work = [Span(0, COMPUTE, "mm", a, b) for a, b in ((0.0, 1.0), (2.0, 3.0), (3.0, 5.0))]
    assert exposed_seconds(Span(0, COMMUNICATION, "x", 0.5, 4.0), work) == pytest.approx(1.0)
    assert exposed_seconds(Span(0, COMMUNICATION, "x", 5.0, 6.0), work) == pytest.approx(1.0)
    assert exposed_seconds(Span(0, COMMUNICATION, "x", 3.5, 4.5), work) == 0.0


def test_known_layouts_are_judged_and_never_beat_the_bound(plan: Plan) -> None:
    assert known_texts(plan)["tensor parallel 2 x data parallel 2"] == "tp=2,dp=2"
    others = known_alternatives(plan, 30.0)
    told = {a.title for a in (*others, *plan.search.alternatives)}
    assert {"ZeRO-3 (FSDP)", "tensor parallel 2 x data parallel 2"} <= told
    assert all(a.seconds >= plan.lower_bound * (1 - 1e-9) for a in others)


def test_a_flip_is_where_the_alternative_becomes_better() -> None:
    texts = ("dp=4", "tp=4,dp=1", "tp=2,dp=2", "dp=4,zero=3", "tp=2,dp=2,zero=3")
    plans = [api.plan(GRAPH, CLUSTER, like=text, budget=20.0) for text in texts]
    best = min(plans, key=lambda p: p.seconds)
    stages = {text: p.stage for text, p in zip(texts, plans, strict=True) if p is not best}
    rivals = [
        Alternative(t, p.seconds, 0.0, "", p.stage) for t, p in zip(texts, plans, strict=True) if p is not best
    ]
    bare = replace(best, search=replace(best.search, alternatives=()))
    flips = find_flips(bare, rivals)
    assert flips
    for flip in flips:
        for nudge, better in ((0.9, flip.below), (1.1, not flip.below)):
            there = scaled(CLUSTER, flip.where, nudge * flip.bandwidth / flip.now)
            rival, mine = (judge(GRAPH, s, there, 8.0).seconds for s in (stages[flip.alternative], best.stage))
            assert (rival < mine) == better
        assert f"{flip.alternative} is better" in str(flip)


def test_the_prices_of_a_parameters_layouts_start_with_the_chosen_one(plan: Plan) -> None:
    paths, changes = price_changes(plan, "net.0.weight")
    assert paths == ("net.0.weight",)
    assert changes[0].chosen
    assert (changes[0].seconds, changes[0].memory) == (0.0, 0.0)
    assert str(changes[0].layout) == str(plan.stage.stored["w"])
    whole = next(c for c in changes if c.layout.is_replicated)
    assert whole.memory >= 0
    assert sum(c.chosen for c in changes) == 1
    with pytest.raises(PlanError, match="names a parameter"):
        price_changes(plan, "nowhere")


def test_comparison_names_what_differs(plan: Plan) -> None:
    other = api.plan(GRAPH, CLUSTER, like="dp=4", budget=20.0)
    assert differences(plan, plan) == ()
    split = api.plan(GRAPH, CLUSTER, like="dp=4,zero=3", budget=20.0)
    found = differences(split, other)
    assert {d.aspect for d in found} >= {"held"}
    assert all("whole" in d.other for d in found if d.aspect == "held")
    text = as_text(comparison_parts(other, [("dp=4,zero=3", split), ("tp=9", "needs 1 GB more")]))
    assert "tp=9 does not fit: needs 1 GB more" in text
    assert "dp=4,zero=3 is" in text


def test_an_explanation_is_text_of_a_hundred_columns(plan: Plan) -> None:
    text = plan.explain()
    assert text == explain(plan)
    assert max(map(len, text.splitlines())) <= 100
    for word in ("two products", "Layers", "Where the time goes", "The space searched"):
        assert word in text


def test_long_names_and_words_stay_inside_the_screen() -> None:
    layers = [
        Layer(f"model.layers.*.{name}.weight", 8, (14336, 4096), "dim 1 (each of 3 segments) in 8, dim 0 in 2",
              10**8, "samples/8, 2 copies", "inner/2, samples/8")
        for name in ("self_attn.q_proj.with_a_very_long_name", "mlp.gate_proj")
    ] + [Layer("lm_head.bias", 1, (9,), "whole", 36, "samples/8, 2 copies", "-")]  # fmt: skip
    text = as_text([layers_table(layers)])
    assert max(map(len, text.splitlines())) <= 100
    words = text.split()
    assert words.count("samples/8,") + words.count("samples/8") == 5
    assert "gate_proj." in text
    assert "with_a_very_long_name" in text


def test_certificates_in_words(plan: Plan) -> None:
    assert certificate(replace(plan, lower_bound=plan.seconds)).startswith("optimal")
    assert "within 50 %" in certificate(replace(plan, lower_bound=plan.seconds / 2))
    assert certificate(replace(plan, lower_bound=0.0)).startswith("no bound")
    infeasible = Alternative("mesh 9", inf, inf, "needs 3 GB more per device")
    record = replace(plan.search, alternatives=(*plan.search.alternatives, infeasible))
    verdicts = build_explanation(replace(plan, search=record), flips=False).verdicts
    assert (verdicts[-1].title, verdicts[-1].reason) == ("mesh 9", "needs 3 GB more per device")
    assert list(verdicts) == sorted(verdicts, key=lambda v: v.seconds)
