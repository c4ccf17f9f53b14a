"""Shares for a fixed program: the linear program against a grid, and what the search makes of unequal devices."""

from __future__ import annotations

from functools import cache
from itertools import product
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import perceptron

from hocket import api
from hocket.capture import capture
from hocket.capture.models import tiny
from hocket.cluster.types import Cluster
from hocket.cost.prices import MeshPrices
from hocket.errors import LayoutError, MemoryLimitError, PlanError
from hocket.graph.types import Graph
from hocket.program.liveness import memory_of
from hocket.report.parameter import price_changes
from hocket.search.alternate import alternate
from hocket.search.anytime import solve_model
from hocket.search.balance import Line, Load, Pass, Section, balance, line
from hocket.search.builder import build_problem
from hocket.search.cones import build_cones
from hocket.search.judge import judge
from hocket.search.load import load_of
from hocket.search.parts import find_parts
from hocket.search.uneven import by, is_mixed, speeds, starts
from hocket.sharding.mesh import Mesh


def mixed(
    flops: tuple[float, ...], network: str = "10 Gbit/s", memory: tuple[str, ...] = (), count: int = 1
) -> Cluster:
    """A machine per rate, each with `count` devices of that many flops per second."""
    machines = [
        {
            "name": f"m{i}",
            "count": count,
            "link": {"bandwidth": "100GB/s", "latency": 1e-6},
            "device": {
                "name": f"d{rate:g}",
                "memory": memory[i] if memory else "16GB",
                "flops_per_second": {"float32": rate},
                "bandwidth": 9e11,
                "launch": 1e-6,
            },
        }
        for i, rate in enumerate(flops)
    ]
    return Cluster.from_dict({"format": "hocket-cluster/1", "machines": machines, "network": network,
                              "memory_reserve": 0.0, "overlap": 1.0})  # fmt: skip


FOUR = (16e12, 8e12, 4e12, 4e12)


@st.composite
def loads(draw: st.DrawFn) -> Load:
    kinds = draw(st.integers(1, 3))
    numbers = st.floats(0.0, 5.0)
    lines = st.builds(lambda fixed, slope: Line(fixed, (slope,)), numbers, numbers)
    section = st.builds(Section, st.lists(lines, min_size=kinds, max_size=kinds), lines)
    passes = st.builds(Pass, st.lists(section, min_size=1, max_size=4), lines)
    return Load(
        tuple(draw(st.lists(passes, min_size=1, max_size=2))),
        tuple(draw(st.lists(st.integers(1, 3), min_size=kinds, max_size=kinds))),
        tuple(draw(st.lists(lines, min_size=kinds, max_size=kinds))),
        tuple(draw(st.lists(st.floats(1.0, 12.0), min_size=kinds, max_size=kinds))),
    )


@settings(max_examples=80, deadline=None)
@given(loads())
def test_the_balance_is_the_best_of_a_grid(load: Load) -> None:
    kinds = len(load.counts)
    steps = 24
    best = inf
    for point in product(range(steps + 1), repeat=kinds - 1):
        shares = [n / steps / count for n, count in zip(point, load.counts, strict=False)]
        rest = 1.0 - sum(s * c for s, c in zip(shares, load.counts, strict=False))
        if rest >= -1e-12:
            best = min(best, load.seconds([[*shares, max(0.0, rest) / load.counts[-1]]]))
    found = balance(load)
    if found is None:
        assert best == inf
        return
    assert sum(s * c for s, c in zip(found[0], load.counts, strict=True)) == pytest.approx(1.0)
    assert load.seconds([[s * (1 - 1e-7) for s in found[0]]]) <= best * (1 + 1e-5) + 1e-5


def test_slow_communication_asks_for_even_shares_and_fast_for_proportional_ones() -> None:
    """HAP, section 2.4: padded collectives take as long as the largest shard does."""

    def shares(wait: float) -> tuple[float, ...]:
        section = Section([Line(0.0, (1.0,)), Line(0.0, (3.0,))], Line(0.0, (wait,)))
        found = balance(Load((Pass([section]),), (1, 1), (Line(), Line()), (1.0, 1.0)))
        assert found is not None
        return found[0]

    assert shares(0.0) == pytest.approx((0.75, 0.25))
    assert shares(100.0) == pytest.approx((0.5, 0.5))


def test_parts_are_balanced_apart() -> None:
    """Work that divides well and communication that wants even shares, each in a part of its own."""
    busy = Section([line(0.0, 1.0, 0), line(0.0, 3.0, 0)])
    chatty = Section([line(0.0, 0.01, 1), line(0.0, 0.03, 1)], line(0.0, 10.0, 1))
    found = balance(Load((Pass([busy, chatty]),), (1, 1), (Line(), Line()), (1.0, 1.0), parts=2))
    assert found is not None
    assert found[0] == pytest.approx((0.75, 0.25))
    assert found[1] == pytest.approx((0.5, 0.5))


def test_a_step_is_cut_where_little_is_passed_on() -> None:
    graph = capture(*tiny("gpt2"))
    for count in (1, 2, 3):
        parts = find_parts(graph, count)
        assert len(parts) == len(graph.operations)
        assert set(parts) == set(range(count))
        forward = parts[: graph.forward]
        assert list(forward) == sorted(forward)
    modules = {op.module: part for op, part in zip(graph.operations, parts, strict=True) if op.module}
    block = [part for module, part in modules.items() if ".h.0.mlp" in module]
    assert len(set(block)) == 1


def test_memory_limits_a_share() -> None:
    section = Section([Line(0.0, (1.0,)), Line(0.0, (1.0,))])
    held = (Line(1.0, (10.0,)), Line(1.0, (10.0,)))
    found = balance(Load((Pass([section]),), (1, 1), held, (4.0, 9.0)))
    assert found is not None
    assert found[0] == pytest.approx((0.3, 0.7))
    assert balance(Load((Pass([section]),), (1, 1), held, (4.0, 4.0))) is None


@cache
def graph_of(name: str) -> Graph:
    return capture(*(perceptron(128, 512, 512) if name == "perceptron" else tiny(name)))


def test_what_the_balancer_reads_off_a_program_is_what_the_clock_says() -> None:
    cluster, mesh = mixed(FOUR), Mesh((4,))
    graph = graph_of("perceptron")
    shares = by(speeds(graph, cluster, mesh))
    prices = MeshPrices(cluster, mesh)
    problem = build_problem(graph, mesh, prices, shares=((shares,),))
    cones = build_cones(problem.model, problem.wishes)
    solution = solve_model(cones.model)
    assert solution.choice is not None
    stage = problem.stage(cones.expand(solution.choice))
    judged = judge(graph, stage, cluster, 8.0, prices)
    load = load_of(judged.programs, stage, cluster, prices, 8.0)
    assert sum(load.counts) == 4
    own = [shares[mesh.coordinates(p.rank)[0]] for p in judged.programs]
    assert load.seconds([own]) <= judged.seconds * (1 + 1e-6)
    assert load.seconds([own]) >= judged.seconds * 0.8


@pytest.mark.parametrize("name", ["perceptron", "gpt2"])
@pytest.mark.parametrize("network", ["1 Gbit/s", "100 Gbit/s"])
def test_the_bound_over_all_shares_is_below_every_plan(name: str, network: str) -> None:
    cluster, mesh, graph = mixed(FOUR, network), Mesh((4,)), graph_of(name)
    prices = MeshPrices(cluster, mesh)
    weights = by(speeds(graph, cluster, mesh))
    joint = build_cones_of(build_problem(graph, mesh, prices, shares=((weights,),), weights=weights))
    bound = solve_model(joint.model, gap=0.01).bound
    assert bound > 0
    draw = np.random.default_rng(0)
    drawn = [by([*draw.dirichlet(np.ones(4))]) for _ in range(4)]
    for shares in (*starts(graph, cluster, mesh), *drawn):
        problem = build_problem(graph, mesh, prices, shares=((shares,),))
        cones = build_cones_of(problem)
        solution = solve_model(cones.model, gap=0.1)
        assert solution.choice is not None
        judged = judge(graph, problem.stage(cones.expand(solution.choice)), cluster, 8.0, prices)
        assert bound <= judged.seconds * (1 + 1e-6), shares


def build_cones_of(problem):
    return build_cones(problem.model, problem.wishes)


def test_alternation_ends_and_only_gets_better_from_its_start() -> None:
    cluster, mesh, graph = mixed(FOUR), Mesh((4,)), graph_of("gpt2")
    seconds = []

    def attempt(shares):
        prices = MeshPrices(cluster, mesh)
        problem = build_problem(graph, mesh, prices, shares=(shares,))
        cones = build_cones_of(problem)
        solution = solve_model(cones.model, gap=0.05)
        assert solution.choice is not None
        stage = problem.stage(cones.expand(solution.choice))
        judged = judge(graph, stage, cluster, 8.0, prices)
        seconds.append(judged.seconds)
        return judged, stage

    tried = alternate((starts(graph, cluster, mesh)[0],), attempt, cluster, 8.0)
    assert 1 <= len(tried) == len(seconds) <= 5
    assert len(set(tried)) == len(tried)
    assert all(sum(s) == pytest.approx(1.0) for (s,) in tried)
    assert min(seconds) <= seconds[0]


@pytest.mark.parametrize("network", ["1 Gbit/s", "100 Gbit/s"])
def test_unequal_devices_get_unequal_shares(network: str) -> None:
    graph, cluster = graph_of("perceptron"), mixed(FOUR, network)
    plan = api.plan(graph, cluster)
    assert plan.lower_bound <= plan.seconds
    for like in ("dp=4", "dp=4,shares=speed"):
        assert plan.seconds <= api.plan(graph, cluster, like=like).seconds * 1.001
    if network == "100 Gbit/s":
        (shares, *_), *_ = plan.stage.shares
        assert shares[0] > shares[3]
        assert api.verify(*perceptron(128, 512, 512), plan).worst < 1e-4


def test_machines_are_virtual_devices_or_all_devices_lie_flat() -> None:
    cluster = mixed((8e12, 4e12), "1 Gbit/s", count=2)
    assert is_mixed(cluster, Mesh((2, 2)))
    assert is_mixed(cluster, Mesh((4,)))
    assert not is_mixed(mixed((4e12, 4e12), count=2), Mesh((2, 2)))
    plan = api.plan(graph_of("perceptron"), cluster)
    titles = {a.title.split(",")[0] for a in plan.search.alternatives} | {f"mesh {plan.stage.mesh}"}
    assert {"mesh 4", "mesh 2x2"} <= titles


def test_shares_that_the_user_gives_are_kept() -> None:
    model, sample = tiny("gpt2")
    plan = api.plan(capture(model, sample), mixed(FOUR), shares=(0.5, 0.25, 0.25, 0.0))
    assert plan.stage.shares == (((0.5, 0.25, 0.25, 0.0),),)
    assert api.verify(model, sample, plan).worst < 1e-4


@pytest.mark.parametrize(
    ("shares", "match"),
    [
        ((0.5, 0.6, 0.0, 0.0), "add up to 1.1"),
        ((1.5, -0.5, 0.0, 0.0), "none negative"),
        ((0.5, 0.5), "2 shares for 4"),
    ],
)
def test_wrong_shares_are_one_clear_error(shares: tuple[float, ...], match: str) -> None:
    with pytest.raises(LayoutError, match=match):
        api.plan(graph_of("perceptron"), mixed(FOUR), shares=shares)


def test_a_device_without_memory_even_for_an_empty_share() -> None:
    cluster = mixed((8e12, 4e12), memory=("16GB", "10kB"))
    with pytest.raises(MemoryLimitError, match=r"on rank 1 (.|\n)*leave out rank 1"):
        api.plan(graph_of("perceptron"), cluster)


def test_baselines_by_name() -> None:
    graph, cluster = graph_of("perceptron"), mixed(FOUR)
    even, speed = (api.plan(graph, cluster, like=f"dp=4,shares={s}") for s in ("even", "speed"))
    assert even.stage.shares == ()
    assert speed.stage.shares[0][0] == pytest.approx((0.5, 0.25, 0.125, 0.125))
    assert speed.seconds < even.seconds
    with pytest.raises(PlanError, match="shares=even or shares=speed"):
        api.plan(graph, cluster, like="dp=4,shares=luck")


def test_equal_shares_that_round_differently_are_judged_apart() -> None:
    """Sixteen samples on four fast devices and a slow one: 3, 3, 4, 4 and 2 of them."""
    cluster = mixed((8e12, 8e12, 8e12, 8e12, 4e12))
    graph = capture(*perceptron(64, 128, 16))
    plan = api.plan(graph, cluster, like="dp=5,shares=speed")
    ranks = plan.stage.unlike_ranks(cluster.devices)
    rows = [p.types["mm"].shape[0] for p in api.programs(plan)]
    assert sorted(rows) == [2, 3, 3, 4, 4]
    assert {rows[rank] for rank in ranks} == {2, 3, 4}
    largest = max(memory_of(p, 8.0).total for p in api.programs(plan))
    assert plan.memory.total == largest


def test_the_joint_bound_holds_where_rates_fall_with_size() -> None:
    """A piece that fits a cache can run faster than its share of the whole."""
    values = mixed((8e12, 4e12), "100 Gbit/s").to_dict()
    for machine in values["machines"]:
        machine["device"]["traffic"] = [[1e5, 1.0], [4e6, 0.2]]
    cluster = Cluster.from_dict(values)
    plan = api.plan(graph_of("perceptron"), cluster, pins=["mesh=2"])
    assert plan.lower_bound < plan.seconds
    for share in (0.5, 0.6, 0.75):
        other = api.plan(graph_of("perceptron"), cluster, pins=["mesh=2"], shares=(share, 1 - share))
        assert plan.lower_bound <= other.seconds * (1 + 1e-6)


def test_an_even_plan_on_two_axes_is_not_below_the_bound() -> None:
    graph = capture(*perceptron(64, 128, 4096))
    cluster = mixed((8e10, 7e10), "10 Gbit/s", count=2)
    plan = api.plan(graph, cluster, pins=["mesh=2x2"])
    even = api.plan(graph, cluster, like="tp=1,dp=4")
    assert plan.lower_bound <= even.seconds
    mesh = Mesh((2, 2))
    prices = MeshPrices(cluster, mesh)
    problem = build_problem(graph, mesh, prices)
    solution = solve_model(build_cones_of(problem).model)
    assert solution.choice is not None
    stage = problem.stage(build_cones_of(problem).expand(solution.choice))
    assert plan.lower_bound <= judge(graph, stage, cluster, 8.0, prices).seconds * (1 + 1e-6)


def test_a_short_budget_has_a_plan_on_unequal_devices_too() -> None:
    plan = api.plan(graph_of("gpt2"), mixed(FOUR), budget=0.001)
    assert not plan.search.complete
    assert 0 <= plan.lower_bound <= plan.seconds


@pytest.mark.parametrize(
    ("shares", "mesh"), [((0.4, 0.3, 0.2, 0.1), "2x2"), ((0.6, 0.4), "4"), ((0.5, 0.3, 0.2), "4")]
)
def test_shares_that_do_not_fit_the_mesh(shares: tuple[float, ...], mesh: str) -> None:
    with pytest.raises(LayoutError, match="shares"):
        api.plan(graph_of("perceptron"), mixed(FOUR), shares=shares, pins=[f"mesh={mesh}"])


def test_pins_hold_for_uneven_layouts() -> None:
    graph = graph_of("gpt2")
    plan = api.plan(graph, mixed(FOUR), pins=["h.*.mlp.c_fc.weight=S(0)", "mesh=4"], shares=(0.4, 0.3, 0.2, 0.1))
    names = [i.name for i in graph.parameters if i.paths[0].endswith("mlp.c_fc.weight")]
    assert all(str(plan.stage.stored[name]).startswith("S(0") for name in names)
    _, changes = price_changes(plan, "h.0.mlp.c_fc.weight")
    assert sum(change.chosen for change in changes) == 1
