"""What the user insists on is kept or refused by name; a search that is cut short still has a plan."""

from __future__ import annotations

import threading
import time
from functools import cache

import pytest
from torch import Tensor, nn
from worlds import cluster_of, experts, perceptron, words

from hocket import api
from hocket.capture import capture
from hocket.capture.models import tiny
from hocket.errors import MemoryLimitError, PinError, PlanError
from hocket.graph.types import Graph


@cache
def captured(name: str) -> tuple[nn.Module, dict[str, Tensor], Graph]:
    model, sample = tiny(name)
    return model, sample, capture(model, sample)


def test_pins_are_kept() -> None:
    graph = captured("gpt2")[2]
    product = next(o.outputs[0] for o in graph.operations if o.kind == "addmm" and "c_fc" in o.module)
    pins = ["h.*.mlp.c_fc.weight=S(1)S(0)", "wpe.weight=split(0)", f"%{product}=j i", "mesh=2x2", "lm_head.*=R"]
    plan = api.plan(graph, cluster_of(4), pins=pins, gap=0.1)
    assert str(plan.stage.mesh) == "2x2"
    for entry in graph.inputs:
        if any(path.endswith("mlp.c_fc.weight") for path in entry.paths):
            assert str(plan.stage.stored[entry.name]) == "S(1)S(0)"
        if any(path.endswith("wpe.weight") for path in entry.paths):
            assert str(plan.stage.stored[entry.name]) == "S(0)S(0)"
        if any(path.startswith("lm_head") for path in entry.paths):
            assert str(plan.stage.stored[entry.name]) == "RR"
    tokens = {o.outputs[0]: t for o, t in zip(plan.graph.operations, plan.stage.strategies, strict=True)}
    assert tokens[product] == "j i"
    assert plan.search.pins == tuple(pins)


def test_a_pinned_plan_computes_the_same_step() -> None:
    model, sample, graph = captured("gpt2")
    plan = api.plan(graph, cluster_of(4), pins=["h.*.mlp.c_fc.weight=S(1)S(0)", "mesh=2x2"], gap=0.1)
    assert api.verify(model, sample, plan).worst < 1e-4


@pytest.mark.parametrize("world", ["experts", "words"])
def test_plans_for_special_layers_compute_the_same_step(world: str) -> None:
    model, sample = experts(4, 8, 16, 32, 4, 4) if world == "experts" else words(64, 16, 32)
    pins = ["up=S(0)", "down=S(0)"] if world == "experts" else ["embed.weight=S(0)"]
    plan = api.plan(capture(model, sample), cluster_of(4), pins=[*pins, "mesh=4"])
    assert api.verify(model, sample, plan).worst < 1e-4


@pytest.mark.parametrize(
    ("pin", "match"),
    [
        ("h.*.mlp.c_fc.weight=S(5)S(5)", r"c_fc.*=S\(5\)S\(5\)"),
        ("nothing.at.all=R", "nothing.at.all"),
        ("%nothing=R", "%nothing"),
        ("%addmm=zz zz", "addmm"),
        ("mesh=3", "mesh=3"),
        ("mesh=ab", "mesh"),
        ("h.*.mlp.c_fc.weight", "pattern=layout"),
    ],
)
def test_impossible_pins_name_the_culprit(pin: str, match: str) -> None:
    with pytest.raises(PinError, match=match):
        api.plan(captured("gpt2")[2], cluster_of(4), pins=[pin] if "mesh" in pin else [pin, "mesh=2x2"])


def test_pins_that_contradict_each_other() -> None:
    pins = ["h.0.mlp.c_fc.weight=S(0)", "h.*.mlp.c_fc.weight=S(1)", "mesh=4"]
    with pytest.raises(PinError, match="c_fc"):
        api.plan(captured("gpt2")[2], cluster_of(4), pins=pins)


def test_a_pin_of_one_layer_leaves_the_others_free() -> None:
    graph = captured("gpt2")[2]
    plan = api.plan(graph, cluster_of(2), pins=["h.0.mlp.c_fc.weight=S(1)", "h.1.mlp.c_fc.weight=S(0)"], gap=0.1)
    found = {i.paths[0]: str(plan.stage.stored[i.name]) for i in graph.parameters}
    assert [t for p, t in found.items() if p.endswith("mlp.c_fc.weight")] == ["S(1)", "S(0)"]


def test_what_does_not_fit_says_by_how_much() -> None:
    with pytest.raises(MemoryLimitError, match=r"needs .*\d.* more") as caught:
        api.plan(captured("gpt2")[2], cluster_of(2, memory="100kB"))
    assert "100 kB" in str(caught.value) or "97.7 KiB" in str(caught.value)


@pytest.mark.parametrize("search", ["greedy", "ilp", "auto"])
def test_searchers_by_name(search: str) -> None:
    model, sample, graph = captured("gpt2")
    plan = api.plan(graph, cluster_of(2), search=search)
    assert 0 <= plan.lower_bound <= plan.seconds
    assert plan.search.searcher == search
    assert api.verify(model, sample, plan).worst < 1e-4


def test_trying_everything_by_name() -> None:
    model, sample = perceptron(8, 16, 4)
    graph = capture(model, sample)
    products = [o.outputs[0] for o in graph.operations if o.kind == "mm"]
    pins = ["layers.0.0.weight=S(0)", "*.2.weight=S(1)", f"%{products[0]}=j", f"%{products[1]}=k"]
    every = api.plan(graph, cluster_of(2), search="exhaustive", pins=pins)
    program = api.plan(graph, cluster_of(2), search="ilp", pins=pins, gap=1e-5)
    assert every.lower_bound == pytest.approx(program.lower_bound, rel=1e-3)
    assert api.verify(model, sample, every).worst < 1e-4
    with pytest.raises(PlanError, match="assignments"):
        api.plan(captured("gpt2")[2], cluster_of(4), search="exhaustive")


def test_unknown_names() -> None:
    with pytest.raises(PlanError, match="quick"):
        api.plan(captured("gpt2")[2], cluster_of(2), search="quick")
    with pytest.raises(PlanError, match="lion"):
        api.plan(captured("gpt2")[2], cluster_of(2), optimizer="lion")


@pytest.mark.parametrize("budget", [0.0, 0.5])
def test_a_short_budget_has_a_plan(budget: float) -> None:
    model, sample, graph = captured("llama")
    start = time.monotonic()
    plan = api.plan(graph, cluster_of(4), budget=budget)
    assert time.monotonic() - start < 20.0
    assert budget or not plan.search.complete
    assert 0.0 <= plan.lower_bound <= plan.seconds
    assert 0.0 <= plan.gap <= 1.0
    if budget:
        assert api.verify(model, sample, plan).worst < 1e-4


def test_a_stop_has_a_plan() -> None:
    stop = threading.Event()
    stop.set()
    start = time.monotonic()
    plan = api.plan(captured("llama")[2], cluster_of(4), stop=stop)
    assert time.monotonic() - start < 20.0
    assert plan.lower_bound <= plan.seconds


def test_a_stop_under_way_ends_the_search() -> None:
    stop = threading.Event()
    timer = threading.Timer(1.0, stop.set)
    timer.start()
    start = time.monotonic()
    plan = api.plan(captured("llama")[2], cluster_of(8), stop=stop, gap=0.0)
    assert time.monotonic() - start < 25.0
    assert plan.lower_bound <= plan.seconds
    timer.cancel()
