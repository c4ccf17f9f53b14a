"""Synthesised programs: the best by exhaustion, whatever helps the search; and they compute the unsplit step."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import product
from math import inf
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from worlds import perceptron

from hocket import api
from hocket.capture import capture
from hocket.capture.models import tiny
from hocket.cluster.local import local_cluster
from hocket.cluster.types import Cluster
from hocket.cost.prices import MeshPrices
from hocket.graph.recompute import find_blocks, random_pairs, recompute
from hocket.program.blueprint import blueprint
from hocket.program.liveness import with_frees
from hocket.program.lower import lower
from hocket.program.types import Collective
from hocket.program.verify import verify_programs
from hocket.runtime.verify import compare
from hocket.search.builder import build_problem
from hocket.search.judge import judge
from hocket.search.problem import Problem
from hocket.search.synthesis.complete import stage_of
from hocket.search.synthesis.look import kinds_of
from hocket.search.synthesis.program import Instruction, stages_seconds
from hocket.search.synthesis.run import Result, synthesise
from hocket.search.synthesis.tensors import Tensor as Reference
from hocket.search.synthesis.theory import Speedups, Theory
from hocket.sharding.mesh import Mesh

EVERY = [
    Speedups(fused, once, dropped, guided) for fused, once, dropped, guided in product([True, False], repeat=4)
]


class Line(nn.Module):
    """One product and a sum: small enough to try everything."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, out))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.weight).sum()


def mixed(seed: int, even: bool = False) -> Cluster:
    """Two machines, of unlike devices unless `even`, on a network between very slow and very fast."""
    draw = random.Random(seed)

    def machine(name: str, speed: float) -> dict[str, Any]:
        device = {
            "name": name, "memory": "80GB", "flops_per_second": {"float32": speed}, "bandwidth": speed / 20,
            "launch": 1e-7,
        }  # fmt: skip
        return {"name": name, "count": 1, "link": {"bandwidth": 1e12, "latency": 1e-6}, "device": device}

    machines = [machine("a", 1e12), machine("b", 1e12 if even else draw.choice([5e11, 2e11]))]
    network = {"bandwidth": 10 ** draw.uniform(7, 11), "latency": 10 ** draw.uniform(-7, -4)}
    return Cluster.from_dict({"format": "hocket-cluster/1", "machines": machines, "network": network})


def problem_of(model: nn.Module, sample: Any, cluster: Cluster, shares: tuple[float, ...] = ()) -> Problem:
    mesh = Mesh((cluster.size,))
    return build_problem(
        capture(model, sample), mesh, MeshPrices(cluster, mesh), shares=((shares,),) if shares else ()
    )


def ranks_of(problem: Problem) -> tuple[int, ...]:
    return kinds_of(problem.prices.cluster, problem.mesh, problem.shares)


def every_program(theory: Theory) -> Iterator[float]:
    """The cost of every program that communicates a tensor at most once, and no input: all strategies, all stored
    layouts, all conversions, by the timeline written out."""
    graph = theory.problem.graph
    tensors = list(theory.tensors.values())
    inputs = [t for t in tensors if t.stored]
    numbers = [range(len(theory.strategies(index))) for index in range(len(graph.operations))]
    for chosen in product(*numbers):
        for stored in product(*(t.stored for t in inputs)):
            made = {t.name: layout for t, layout in zip(inputs, stored, strict=True)}
            needs: dict[str, set[int]] = {t.name: set() for t in tensors}
            for index, number in enumerate(chosen):
                operation, strategy = graph.operations[index], theory.strategies(index)[number]
                for name, layout in zip(operation.outputs, strategy.outputs, strict=True):
                    made[name] = theory.tensors[name].space.layouts.index(layout)
                for name, layout in zip(operation.inputs, strategy.inputs, strict=True):
                    needs[name].add(theory.tensors[name].space.layouts.index(layout))
            for parameter, value in graph.gradients:
                layout = theory.tensors[parameter].space.layouts[made[parameter]]
                needs[value].add(theory.tensors[value].space.layouts.index(layout))
            targets = [_targets(t, made[t.name], needs[t.name]) for t in tensors]
            for picked in product(*targets):
                target = {t.name: k for t, k in zip(tensors, picked, strict=True)}
                yield _written_out(theory, chosen, made, target)


def _targets(tensor: Reference, made: int, needs: set[int]) -> list[int | None]:
    """What a tensor may be converted to so that all its readers are served; None: nothing is needed."""
    space = tensor.space

    def free(layout: int) -> set[int]:
        return {k for k in range(len(space.layouts)) if space.free[layout] >> k & 1}

    if needs <= free(made):
        return [None]
    if tensor.stored:
        return []
    every = range(len(space.layouts))
    return [k for k in every if space.seconds[made][k] < inf and needs <= free(made) | free(k)]


def _written_out(
    theory: Theory, chosen: Sequence[int], made: dict[str, int], target: dict[str, int | None]
) -> float:
    """Seconds of a program: conversions of the forward pass where a reader first asks for them, in the order in
    which programs grow, and those of the backward pass behind what makes them."""
    graph = theory.problem.graph
    front: list[Instruction] = []
    end: list[Instruction] = []
    done: set[str] = set()
    for index in theory.order:
        operation, strategy = graph.operations[index], theory.strategies(index)[chosen[index]]
        waits = 0.0
        for name, layout in zip(operation.inputs, strategy.inputs, strict=True):
            space, to = theory.tensors[name].space, target[name]
            there = space.free[made[name]] >> space.layouts.index(layout) & 1
            if not there and not theory.tensors[name].late and name not in done and to is not None:
                done.add(name)
                waits += space.seconds[made[name]][to]
        front += [Instruction("conversions", seconds=waits)] if waits else []
        compute = Instruction(operation.outputs[0], str(strategy), theory.work(index)[chosen[index]])
        after = 0.0
        for name in operation.outputs:
            to = target[name]
            if theory.tensors[name].late and to is not None:
                after += theory.tensors[name].space.seconds[made[name]][to]
        if index >= graph.forward:
            end[:0] = [compute, *([Instruction("conversions", seconds=after)] if after else [])]
        else:
            front.append(compute)
    return stages_seconds([*front, *end], len(theory.ranks))


@pytest.mark.parametrize("even", [True, False], ids=["alike", "unlike"])
@pytest.mark.parametrize("seed", range(6))
def test_the_best_of_all_programs(seed: int, even: bool) -> None:
    rows, width, out = random.Random(seed).choice([(8, 64, 64), (256, 8, 8), (4, 512, 256), (64, 64, 16)])
    cluster = mixed(seed, even)
    problem = problem_of(Line(width, out), (torch.randn(rows, width),), cluster, () if even else (0.75, 0.25))
    best = min(every_program(Theory(problem, ranks_of(problem))))
    for speedups in EVERY:
        found = synthesise(problem, ranks_of(problem), speedups=speedups)
        assert found.program is not None
        if speedups.once:
            assert found.seconds == pytest.approx(best, rel=1e-9)
        else:
            assert found.seconds <= best * (1 + 1e-9)
        assert found.bound == pytest.approx(found.seconds, rel=1e-9)
        assert stages_seconds(found.program.instructions, len(ranks_of(problem))) == pytest.approx(found.seconds)


class Gate(nn.Module):
    """Two readers of one value, in either pass: what one of them is given serves the other."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 16))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.weight).relu().sum()


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(2))
def test_the_best_of_all_programs_with_two_readers(seed: int) -> None:
    problem = problem_of(Gate(), (torch.randn(48, 16),), mixed(seed), (0.75, 0.25))
    best = min(every_program(Theory(problem, ranks_of(problem))))
    found = synthesise(problem, ranks_of(problem))
    assert found.seconds == pytest.approx(best, rel=1e-9)


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([(32, 64, 8), (8, 16, 128), (16, 256, 16)]), st.booleans())
def test_nothing_that_helps_the_search_changes_its_result(
    seed: int, sizes: tuple[int, int, int], even: bool
) -> None:
    problem = problem_of(*perceptron(*sizes), mixed(seed, even), () if even else (0.75, 0.25))
    guided = synthesise(problem, ranks_of(problem))
    alone = synthesise(problem, ranks_of(problem), speedups=Speedups(guided=False))
    twice = synthesise(problem, ranks_of(problem), speedups=Speedups(once=False))
    assert guided.seconds == pytest.approx(alone.seconds, rel=1e-9)
    assert twice.seconds <= guided.seconds * (1 + 1e-9)
    assert guided.expanded <= alone.expanded


def test_a_search_that_is_cut_short_knows_how_good_it_is() -> None:
    problem = problem_of(*perceptron(64, 256, 32, layers=3), mixed(1), (0.75, 0.25))
    best = synthesise(problem, ranks_of(problem))
    short = synthesise(problem, ranks_of(problem), seconds=0.4, gap=0.0)
    assert short.program is not None
    assert short.bound <= best.seconds * (1 + 1e-9) <= short.seconds * (1 + 1e-8)


@pytest.mark.parametrize("shares", [(), (0.5, 0.3, 0.2, 0.0)], ids=["even", "uneven"])
@pytest.mark.parametrize("architecture", ["gpt2", "resnet", "bart"])
def test_a_synthesised_program_computes_the_unsplit_step(architecture: str, shares: tuple[float, ...]) -> None:
    model, sample = tiny(architecture)
    cluster = local_cluster(4)
    problem = problem_of(model, sample, cluster, shares)
    found = synthesise(problem, ranks_of(problem), seconds=3.0)
    assert found.program is not None
    plan = blueprint(problem.graph, stage_of(problem, found.program), problem.prices)
    programs = [with_frees(lower(plan, rank)) for rank in range(4)]
    verify_programs(programs)
    assert compare(problem.graph, programs, model, sample).worst <= 1e-4


def test_what_draws_random_numbers_again_draws_the_same() -> None:
    model, sample = tiny("gpt2")
    model.train()
    graph = capture(model, sample)
    again = recompute(graph, find_blocks(graph))
    mesh = Mesh((2,))
    problem = build_problem(again, mesh, MeshPrices(local_cluster(2), mesh))
    found = synthesise(problem, ranks_of(problem), seconds=3.0)
    assert found.program is not None
    for first, second in random_pairs(again):
        assert found.program.strategies[first] == found.program.strategies[second]
    judge(again, stage_of(problem, found.program), local_cluster(2), 8.0)


def _products(found: Result, problem: Problem) -> list[str]:
    assert found.program is not None
    pairs = zip(problem.graph.operations, found.program.strategies, strict=True)
    return [text for operation, text in pairs if operation.kind in ("mm", "addmm")]


def test_sufficient_factors_where_samples_are_few() -> None:
    """A gradient of 4096 x 4096 from 8 samples: both factors are gathered, and every device computes it whole."""
    model, sample = perceptron(4096, 4096, 8)
    slow = mixed_of(bandwidth=1e8)
    problem = problem_of(model, sample, slow)
    found = synthesise(problem, ranks_of(problem), seconds=10.0)
    assert found.program is not None
    moved = [problem.graph.types[i.name].elements for i in found.program.instructions if not i.strategy]
    assert max(moved, default=0) < 4096 * 4096


def test_no_sufficient_factors_where_samples_are_many() -> None:
    model, sample = perceptron(64, 64, 2**16)
    problem = problem_of(model, sample, mixed_of(bandwidth=1e10))
    found = synthesise(problem, ranks_of(problem), seconds=10.0)
    assert _products(found, problem)
    assert all(text in ("i", "k") for text in _products(found, problem))
    assert found.program is not None
    converted = {i.name for i in found.program.instructions if not i.strategy}
    assert {value for _, value in problem.graph.gradients} & converted


def mixed_of(bandwidth: float) -> Cluster:
    machines = [
        {
            "name": name, "count": 1, "link": {"bandwidth": 1e12, "latency": 1e-6},
            "device": {"name": "d", "memory": "80GB", "flops_per_second": {"float32": 1e13}, "bandwidth": 1e12,
                       "launch": 1e-7},
        }
        for name in "ab"
    ]  # fmt: skip
    return Cluster.from_dict(
        {"format": "hocket-cluster/1", "machines": machines, "network": {"bandwidth": bandwidth, "latency": 1e-5}}
    )


def test_gradients_are_reduced_and_factors_gathered_in_the_programs_of_plans() -> None:
    """The same two cases, down to what ranks run."""
    few = api.plan(capture(*perceptron(4096, 4096, 8)), mixed_of(1e8), search="astar", budget=20.0)
    many = api.plan(capture(*perceptron(64, 64, 2**16)), mixed_of(1e10), search="astar", budget=20.0)
    bytes_of = []
    for plan in (few, many):
        calls = api.programs(plan, [0])[0].instructions
        bytes_of.append(sum(c.bytes for c in calls if isinstance(c, Collective)))
    assert bytes_of[0] < 2 * 4096 * 4096 * 4 / 10
    assert bytes_of[1] >= 2 * 64 * 64 * 4
