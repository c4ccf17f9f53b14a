"""The central proof: random plans of every architecture compute the unsplit step."""

from __future__ import annotations

from functools import partial

import pytest
from plans import captured, problem_of, programs_of, random_stage

from hocket.capture.configs import TINY
from hocket.program.types import Collective
from hocket.runtime import executor, verify
from hocket.runtime.verify import compare
from hocket.sharding.mesh import Mesh

FAST = ("gpt2", "llama", "resnet")
TOLERANCE = 1e-4


def _prove(architecture: str, mesh: Mesh, seed: int) -> None:
    model, sample, graph = captured(architecture)
    stage = random_stage(problem_of(architecture, mesh), seed)
    programs = programs_of(graph, stage)
    report = compare(graph, programs, model, sample)
    assert report.worst <= TOLERANCE, report
    assert set(report.gradient_errors) == {i.paths[0] for i in graph.parameters if i.trainable}
    kinds = {i.kind for i in programs[0].instructions if isinstance(i, Collective)}
    # Three divides little of these models; meshes of twos use every kind.
    every = {"all_gather", "all_reduce", "reduce_scatter", "all_to_all"}
    assert kinds if 3 in mesh.sizes else every <= kinds


@pytest.mark.parametrize("architecture", FAST)
def test_a_random_plan_computes_the_unsplit_step(architecture: str) -> None:
    _prove(architecture, Mesh((2, 2)), 0)


@pytest.mark.proof
@pytest.mark.parametrize("seed", [1])
@pytest.mark.parametrize("architecture", TINY)
def test_random_plans_compute_the_unsplit_step(architecture: str, seed: int) -> None:
    _prove(architecture, Mesh((2, 2)), seed)


@pytest.mark.proof
@pytest.mark.parametrize("sizes", [(4,), (3,), (2, 2, 2)])
@pytest.mark.parametrize("architecture", ["gpt2", "llama", "resnet"])
def test_random_plans_on_other_meshes(architecture: str, sizes: tuple[int, ...]) -> None:
    _prove(architecture, Mesh(sizes), 0)


def test_runs_between_communication_are_cut_right(monkeypatch: pytest.MonkeyPatch) -> None:
    # What is compiled together stays uncompiled here: only the cutting into functions is in question.
    seen: list[object] = []
    monkeypatch.setattr(executor, "_compiled", lambda function: seen.append(function) or function)
    monkeypatch.setattr(verify, "Executor", partial(executor.Executor, compile=True))
    _prove("gpt2", Mesh((2, 2)), 1)
    assert len(seen) > 100
