"""Uneven shares, nothing at all among them: the same step as the unsplit one."""

from __future__ import annotations

import pytest
import ranks
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import captured, problem_of, programs_of, random_stage
from small import batch, losses_of, plan_for, small

from hocket.capture import capture
from hocket.capture.configs import TINY
from hocket.cluster.local import local_cluster
from hocket.cost.prices import MeshPrices
from hocket.plan.types import Plan, Stage
from hocket.program.text import parse_program, print_program
from hocket.program.types import Collective
from hocket.program.verify import verify_programs
from hocket.runtime.launch import spawn
from hocket.runtime.verify import compare
from hocket.search.builder import build_problem
from hocket.search.structure import find_structure
from hocket.sharding.mesh import Mesh

TOLERANCE = 1e-4
SHARES = {
    "four, one with nothing": (Mesh((4,)), ((0.5, 0.3, 0.2, 0.0),)),
    "machines": (Mesh((2, 2)), ((0.7, 0.3), ())),
    "both axes": (Mesh((2, 2)), ((0.75, 0.25), (0.3, 0.7))),
}


def _prove(architecture: str, mesh: Mesh, shares: tuple[tuple[float, ...], ...], seed: int) -> Stage:
    model, sample, graph = captured(architecture)
    stage = random_stage(problem_of(architecture, mesh, (shares,)), seed)
    programs = programs_of(graph, stage)
    verify_programs(programs)
    assert sum("|" in text for text in stage.strategies) > len(stage.strategies) / 8
    report = compare(graph, programs, model, sample)
    assert report.worst <= TOLERANCE, report
    assert set(report.gradient_errors) == {i.paths[0] for i in graph.parameters if i.trainable}
    return stage


@pytest.mark.parametrize("architecture", ["gpt2", "resnet"])
def test_a_random_plan_with_shares_computes_the_unsplit_step(architecture: str) -> None:
    _prove(architecture, *SHARES["four, one with nothing"], seed=0)


@pytest.mark.proof
@pytest.mark.parametrize("shares", SHARES)
@pytest.mark.parametrize("architecture", TINY)
def test_random_plans_with_shares(architecture: str, shares: str) -> None:
    _prove(architecture, *SHARES[shares], seed=1)


@st.composite
def cuts(draw: st.DrawFn) -> tuple[Mesh, tuple[tuple[float, ...], ...]]:
    mesh = draw(st.sampled_from([Mesh((2,)), Mesh((3,)), Mesh((5,)), Mesh((2, 2)), Mesh((3, 2))]))
    shares = []
    for size in mesh.sizes:
        weights = draw(st.lists(st.integers(0, 9), min_size=size, max_size=size).filter(any))
        shares.append(tuple(w / sum(weights) for w in weights) if draw(st.booleans()) else ())
    return mesh, tuple(shares)


@pytest.mark.proof
@settings(max_examples=25, deadline=None)
@given(cuts(), st.integers(0, 99), st.booleans())
def test_any_shares_of_a_small_model(
    cut: tuple[Mesh, tuple[tuple[float, ...], ...]], seed: int, divided: bool
) -> None:
    """Also with parts that have shares of their own, and with values resized where they meet."""
    mesh, shares = cut
    model, sample = small(), batch(3)
    graph = capture(model, sample)
    half = len(graph.operations) // 2
    parts = tuple(int(divided and i >= half) for i in range(len(graph.operations)))
    other = tuple(axis[::-1] for axis in shares)
    problem = build_problem(
        graph, mesh, MeshPrices(local_cluster(mesh.devices), mesh),
        structure=find_structure(graph, parts=parts), shares=(shares, other) if divided else (shares,),
    )  # fmt: skip
    programs = programs_of(graph, random_stage(problem, seed))
    verify_programs(programs)
    for program in programs:
        assert parse_program(print_program(program)) == program
    assert compare(graph, programs, model, sample).worst <= TOLERANCE


def test_parts_with_shares_of_their_own_meet_in_resizes() -> None:
    model, sample, graph = captured("gpt2")
    parts = tuple(int(index >= graph.forward // 2) for index in range(len(graph.operations)))
    structure, mesh = find_structure(graph, parts=parts), Mesh((2,))
    shares = (((0.75, 0.25),), ((0.25, 0.75),))
    problem = build_problem(graph, mesh, MeshPrices(local_cluster(2), mesh), structure=structure, shares=shares)
    kinds = set()
    for seed in range(4):
        programs = programs_of(graph, random_stage(problem, seed))
        kinds |= {i.kind for i in programs[0].instructions if isinstance(i, Collective)}
        assert compare(graph, programs, model, sample).worst <= TOLERANCE
    assert "resize" in kinds


@pytest.mark.parametrize("seed", [0, 2])
def test_training_with_shares_on_four_processes(seed: int) -> None:
    plan: Plan = plan_for(Mesh((4,)), seed, shares=(((0.5, 0.3, 0.2, 0.0),),))
    wanted, model = losses_of(small(), ranks.sgd, 4)
    state = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
    for losses, found, _, _ in spawn(ranks.train, 4, (plan, 4)):
        assert losses == pytest.approx(wanted, rel=1e-5)
        for path, tensor in found.items():
            torch.testing.assert_close(tensor, state[path].detach(), rtol=1e-3, atol=2e-5)
