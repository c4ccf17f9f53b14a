"""Pipelines searched: cuts against every way to cut, sizes carried over, bounds that bound, and the whole search."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket import api
from hocket.capture.models import load_model, tiny
from hocket.cluster.types import Cluster
from hocket.errors import GraphError, MemoryLimitError, PlanError
from hocket.graph.cut import cut_graph
from hocket.graph.scale import Family
from hocket.graph.types import Graph
from hocket.graph.verify import verify_graph
from hocket.search.case import meshes
from hocket.search.stages.alike import likeness
from hocket.search.stages.cells import Units
from hocket.search.stages.given import lay_out
from hocket.search.stages.partition import NEARLY, partition
from hocket.search.stages.shape import Shape
from hocket.search.stages.solver import Solver
from hocket.search.stages.times import clock_of
from hocket.search.stages.units import find_cuts

SMALL = {"n_embd": 32, "heads": 4, "vocab": 64}


def gpt(layers: int, batch: int) -> Graph:
    model, sample = load_model("hf:gpt2", layers=layers, batch=batch, sequence=16, **SMALL)
    return api.capture(model, sample)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_partitions_are_the_best_of_all(data: st.DataObject) -> None:
    units = data.draw(st.integers(2, 7))
    stages = data.draw(st.integers(1, units))
    count = data.draw(st.integers(1, 9))
    costs = np.array(data.draw(st.lists(st.floats(0.1, 9.0), min_size=units, max_size=units)))
    shut = data.draw(st.lists(st.booleans(), min_size=stages, max_size=stages))
    tables = []
    for stage in range(stages):
        table = np.full((units + 1, units + 1), np.inf)
        for i in range(units):
            for k in range(i + 1, units + 1):
                if not (shut[stage] and k - i > 2):  # this stage has memory for two units only
                    table[i, k] = costs[i:k].sum() * (1 + 0.1 * stage)
        tables.append(table)

    def time(edges: tuple[int, ...]) -> float:
        each = [float(t[a, b]) for t, a, b in zip(tables, edges, edges[1:], strict=False)]
        return sum(each) + (count - 1) * max(each) if np.isfinite(each).all() else np.inf

    ways = [(0, *inner, units) for inner in combinations(range(1, units), stages - 1)]
    best = min(time(way) for way in ways)
    found = partition(tables, count)
    if best == np.inf:
        assert found is None
        return
    assert found is not None
    edges = (0, *np.cumsum(found[0]).tolist())
    assert time(edges) == pytest.approx(found[1])
    assert best - 1e-9 <= found[1] <= best * (1 + count * NEARLY)


def test_a_family_is_what_capturing_gives() -> None:
    family = Family(gpt(2, 2), gpt(2, 3), 2, 3)
    for samples in (2, 3, 4, 8):
        assert replace(family.at(samples), model="") == replace(gpt(2, samples), model="")


def test_a_family_of_different_steps_is_refused() -> None:
    with pytest.raises(GraphError, match="same operations"):
        Family(gpt(1, 2), gpt(2, 3), 2, 3).at(4)


def test_stages_hold_the_invariants_of_graphs_and_all_work_once() -> None:
    model, sample = tiny("bart")
    graph = api.capture(model, sample)
    parts = cut_graph(graph, find_cuts(graph))
    made: dict[str, int] = {}
    for part in parts.graphs:
        verify_graph(part)
        for operation in part.operations:
            for name in operation.outputs:
                made[name] = made.get(name, 0) + 1
    repeated = {name for name, times in made.items() if times > 1}
    inputs = {i.name for i in graph.parameters}
    for operation in graph.operations:  # only what follows from the batch alone is made more than once
        assert not (repeated.intersection(operation.outputs) and inputs.intersection(operation.inputs))
    assert sum(bool(part.loss) for part in parts.graphs) == 1
    assert {p for part in parts.graphs for p, _ in part.gradients} == {p for p, _ in graph.gradients}
    for value, maker in parts.makers.items():
        assert value in parts.graphs[maker].sent
        assert parts.readers(value)


def test_layers_in_the_middle_are_alike() -> None:
    units = Units(gpt(5, 2))
    texts = [likeness(piece) for piece in units.of(False)]
    assert units.count == 5
    assert len(set(texts)) == 3
    assert texts[1] == texts[2] == texts[3]


def test_the_whole_search_runs_and_is_not_worse_than_what_people_pick() -> None:
    family = Family(gpt(4, 2), gpt(4, 3), 2, 3)
    cluster = Cluster.local(4)
    plan = api.plan_step(family, 16, cluster, microbatches=(2, 4, 8), optimizer="adam")
    assert plan.lower_bound <= plan.seconds
    assert plan.schedule.microbatches in (2, 4, 8)
    answers, clock = clock_of(plan)
    assert clock.seconds == pytest.approx(plan.seconds, rel=1e-6)
    assert len(answers) == len(plan.stages)
    for count in (2, 4, 8):
        for ranks in (2, 4):
            picked = api.plan(family.at(16 // count), cluster, pipeline=f"stages={ranks}", microbatches=count)
            assert plan.lower_bound <= picked.seconds
            assert plan.seconds <= picked.seconds * 1.1


def test_a_found_pipeline_gives_the_numbers_of_one_process() -> None:
    model, sample = tiny("gpt2")
    plan = api.plan(api.capture(model, sample), Cluster.local(2), pipeline="auto", microbatches=4)
    assert api.verify(model, sample, plan).worst < 1e-5


@pytest.mark.parametrize("pipeline", ["stages=2", "stages=2,chunks=2,kind=vpp", "stages=2,kind=zb-h1", "stages=4"])
def test_bounds_hold_for_every_mesh(pipeline: str) -> None:
    graph, cluster = gpt(4, 4), Cluster.local(4)
    plan = api.plan(graph, cluster, pipeline=pipeline, microbatches=5)
    shape, units = Shape.parse(pipeline, 5), Units(graph)
    edges = [0, *(1 + units.cuts[False].index(cut) for cut in plan.schedule.cuts), units.count]
    sizes = [b - a for a, b in pairwise(edges)]
    for mesh in meshes(4 // shape.ranks, 2):
        for once in (True, False):
            ways = [((mesh.sizes, once, 0.0),)] * len(sizes)
            found = lay_out(units, False, shape, sizes, Solver(cluster, 8.0), ways)
            assert found is not None
            assert plan.lower_bound <= found.seconds * (1 + 1e-9)
            assert plan.seconds <= found.seconds * 1.05


def test_samples_that_do_not_go_round() -> None:
    family = Family(gpt(2, 2), gpt(2, 3), 2, 3)
    with pytest.raises(PlanError, match="divided evenly"):
        api.plan_step(family, 16, Cluster.local(2), microbatches=(3,))


def test_nothing_fits() -> None:
    cluster = Cluster.local(2)
    machine = cluster.machines[0]
    small = replace(machine, device=replace(machine.device, memory=50_000))
    with pytest.raises(MemoryLimitError):
        api.plan(gpt(2, 2), replace(cluster, machines=(small,)), pipeline="auto", microbatches=2)
