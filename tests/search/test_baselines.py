"""The systems that HAP is compared with, as restrictions of the same search."""

from __future__ import annotations

from dataclasses import replace

import pytest
from worlds import cluster_of, experts, perceptron

from hocket import api
from hocket.capture import capture
from hocket.cluster.local import local_cluster
from hocket.errors import PlanError
from hocket.plan.types import Plan
from hocket.program.types import Collective
from hocket.program.verify import verify_programs
from hocket.runtime.verify import compare
from hocket.sharding.strategy import Token


def bytes_of(plan: Plan, *kinds: str) -> int:
    calls = api.programs(plan, [0])[0].instructions
    return sum(c.bytes for c in calls if isinstance(c, Collective) and c.kind in kinds)


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_experts_by_device_beside_zero(zero: int) -> None:
    plan = api.plan(capture(*experts(4, 512, 512, 4096, 4, 128)), cluster_of(4), like=f"dp=4,zero={zero},ep=1")
    graph, stage = plan.graph, plan.stage
    assert plan.search.searcher == f"like dp=4,tp=1,zero={zero},ep=1"
    stored = {i.paths[0]: str(stage.stored[i.name]) for i in graph.parameters}
    assert stored["up"] == stored["down"] == "S(0)"
    assert (stored["router.weight"] == "R") == (zero == 0)
    products = [(op, text) for op, text in zip(graph.operations, stage.strategies, strict=True) if op.kind == "bmm"]
    assert {text for op, text in products if 4096 in graph.types[op.outputs[0]].shape} == {"b"}
    assert bytes_of(plan, "all_to_all") > 0
    assert bytes_of(plan, "all_reduce", "reduce_scatter") < graph.types["p_up"].bytes / 10


@pytest.mark.parametrize(
    "like", ["dp=4,zero=1,ep=1", "dp=4,ep=1,shares=speed", "dp=4,tag=1", "dp=4,tag=1,shares=speed"]
)
def test_what_they_plan_computes_the_unsplit_step(like: str) -> None:
    model, sample = experts(4, 8, 16, 32, 4, 4)
    plan = api.plan(capture(model, sample), local_cluster(4), like=like)
    programs = list(api.programs(plan))
    verify_programs(programs)
    assert compare(plan.graph, programs, model, sample).worst <= 1e-4


def test_tag_divides_samples_or_outputs_and_finds_sufficient_factors() -> None:
    plan = api.plan(capture(*perceptron(4096, 4096, 8)), cluster_of(4, link="100MB/s"), like="dp=4,tag=1")
    graph, stage = plan.graph, plan.stage
    forward = zip(graph.operations[: graph.forward], stage.strategies, strict=False)
    products = {Token.parse(text).factor for op, text in forward if op.kind == "mm"}
    assert products <= {"R", "i", "j"}
    assert bytes_of(plan, "all_reduce", "reduce_scatter", "all_gather", "all_to_all") < 4096 * 4096 * 4 / 10


@pytest.mark.parametrize("like", ["dp=2,tp=2,ep=1", "dp=4,ep=2", "dp=4,ep=1,tag=1", "dp=2,tp=2,tag=1"])
def test_what_does_not_go_together_is_refused(like: str) -> None:
    with pytest.raises(PlanError, match="beside data parallel alone"):
        api.plan(capture(*perceptron(8, 8, 8)), local_cluster(4), like=like)


@pytest.mark.parametrize("like", ["dp=8", "dp=8,zero=3", "dp=8,shares=speed"])
def test_more_devices_than_samples_is_refused(like: str) -> None:
    with pytest.raises(PlanError, match="divides samples among 8 devices") as error:
        api.plan(capture(*perceptron(16, 32, 4)), local_cluster(8), like=like)
    assert "4 samples" in str(error.value)


def test_a_gain_that_noise_hides_is_none() -> None:
    """What people know is taken where another plan is better by less than steps of one plan differ."""
    graph, quiet = capture(*perceptron(1024, 4096, 2**11, layers=2)), cluster_of(4, link="300GB/s")
    best = api.plan(graph, quiet, axes=1)
    simple = api.plan(graph, quiet, like="dp=4")
    gain = 1 - best.seconds / simple.seconds
    assert 0.01 < gain < 0.05
    noisy = api.plan(graph, replace(quiet, noise=gain + 0.02), axes=1)
    assert noisy.seconds == pytest.approx(simple.seconds, rel=1e-6)
    many = api.plan(capture(*experts(4, 512, 512, 4096, 4, 128)), replace(quiet, noise=0.9), axes=1)
    assert many.search.searcher == "auto"
    assert many.seconds < api.plan(many.graph, quiet, like="dp=4").seconds / 2
    quieter = api.plan(graph, replace(quiet, noise=gain / 2), axes=1)
    assert quieter.seconds == pytest.approx(best.seconds, rel=1e-6)
