"""Bundling changes when communication happens, never what is computed."""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hocket.capture import capture
from hocket.cluster.local import local_cluster
from hocket.cost.prices import MeshPrices
from hocket.graph.types import Graph
from hocket.program.blueprint import blueprint
from hocket.program.bundle import BUNDLED, bundle
from hocket.program.liveness import with_frees
from hocket.program.lower import lower
from hocket.program.types import Collective, Instruction, Program
from hocket.program.verify import verify_programs
from hocket.runtime.verify import reference, run_ranks
from hocket.search.anytime import solve_model
from hocket.search.builder import build_problem
from hocket.search.model import Model
from hocket.search.problem import Problem
from hocket.sharding.mesh import Mesh

WIDTH = 16


class Stack(nn.Module):
    """Layers of several sizes, one of them used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 2 * WIDTH)
        self.layers = nn.ModuleList(nn.Linear(2 * WIDTH, 2 * WIDTH) for _ in range(3))
        self.last = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor, wanted: Tensor) -> Tensor:
        h = self.first(x)
        for layer in (*self.layers, self.layers[0]):
            h = h + torch.tanh(layer(h))
        return ((self.last(h) - wanted) ** 2).mean()


@cache
def captured() -> tuple[Stack, tuple[Tensor, Tensor], Graph]:
    torch.manual_seed(0)
    model, sample = Stack(), (torch.randn(8, WIDTH), torch.randn(8, WIDTH))
    return model, sample, capture(model, sample)


@cache
def problem_of(mesh: Mesh) -> Problem:
    return build_problem(captured()[2], mesh, MeshPrices(local_cluster(mesh.devices), mesh))


@cache
def lowered(mesh: Mesh, seed: int) -> tuple[Program, ...]:
    """A random plan that shards parameters and splits rows: much to gather, much to reduce."""
    problem, draw = problem_of(mesh), np.random.default_rng(seed)
    model = Model(labels=list(problem.model.labels))
    for costs, node in zip(problem.model.nodes, problem.nodes, strict=True):
        noise = draw.uniform(0.0, 1.0, costs.shape)
        whole = np.array([str(o).count("R") for o in node.options])
        noise += whole * (2.0 if node.kind == "stored" else -0.5 if node.members[0].startswith("p_") else 0.0)
        model.nodes.append(np.where(np.isfinite(costs), noise, costs))
    for pair, costs in problem.model.edges.items():
        model.edges[pair] = np.where(np.isfinite(costs), draw.uniform(0.0, 0.5, costs.shape) * (costs > 0), costs)
    choice = solve_model(model, seconds=20.0, gap=0.9).choice
    assert choice is not None
    plan = blueprint(captured()[2], problem.stage(choice), problem.prices)
    return tuple(lower(plan, rank) for rank in mesh.ranks)


def collectives(instructions: tuple[Instruction, ...]) -> list[Collective]:
    return [i for i in instructions if isinstance(i, Collective)]


def made(instructions: tuple[Instruction, ...]) -> Counter[str]:
    return Counter(name for i in instructions for name in i.outputs)


def run(programs: list[Program]) -> list[tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]]:
    model, sample, graph = captured()
    named = dict(model.named_parameters())
    values = {i.name: t for i, t in zip(graph.batch, sample, strict=True)}
    values |= {i.name: named[i.paths[0]].detach() for i in graph.parameters}
    return run_ranks(graph, [with_frees(p) for p in programs], values)


CASES = pytest.mark.parametrize(
    ("sizes", "seed", "limit"),
    [((2,), 0, 1), ((2,), 1, 2**12), ((2, 2), 2, 2**14), ((2, 2), 3, 2**30), ((4,), 4, 2**13), ((4,), 5, 2**30)],
)


@CASES
def test_bundling_keeps_what_is_computed(sizes: tuple[int, ...], seed: int, limit: int) -> None:
    mesh = Mesh(sizes)
    before = list(lowered(mesh, seed))
    after = [bundle(p, problem_of(mesh).prices.collective, limit) for p in before]
    verify_programs([with_frees(p) for p in after])
    wanted = reference(captured()[0], captured()[1])[0]
    for (loss, gradients, _), (again, others, _) in zip(run(before), run(after), strict=True):
        torch.testing.assert_close(loss, wanted)
        assert torch.equal(loss, again)
        assert set(gradients) == set(others)
        for name, gradient in gradients.items():
            assert gradient.numel() == 0 or gradient.abs().max() > 0
            torch.testing.assert_close(others[name], gradient, rtol=1e-6, atol=1e-7)


@CASES
def test_what_bundling_may_do(sizes: tuple[int, ...], seed: int, limit: int) -> None:
    price = problem_of(Mesh(sizes)).prices
    for program in lowered(Mesh(sizes), seed):
        after = bundle(program, price.collective, limit)
        # nothing crosses the border between the passes, nothing is lost or made twice
        assert made(after.instructions[: after.forward]) == made(program.instructions[: program.forward])
        assert made(after.instructions[after.forward :]) == made(program.instructions[program.forward :])
        single = {name: c for c in collectives(program.instructions) for name in c.outputs}
        for call in collectives(after.instructions):
            parts = [single[name] for name in call.outputs]
            assert call.bytes == sum(p.bytes for p in parts)
            assert call.bytes <= limit or len(parts) == 1
            assert len({(p.kind, p.group, p.reduce, p.blocking) for p in parts}) == 1
            if len(parts) > 1:
                assert call.kind in BUNDLED
                assert not call.blocking
                assert call.seconds <= sum(p.seconds for p in parts) * (1 + 1e-9)
            if not call.blocking:
                # what the search counts for each member is never more than what the bundle takes
                assert call.seconds >= sum(price.bundled(p.kind, p.axis, p.bytes) for p in parts) * (1 - 1e-9)


def test_bundles_are_fewer() -> None:
    mesh = Mesh((4,))
    program = lowered(mesh, 5)[0]
    after = bundle(program, problem_of(mesh).prices.collective, 2**30)
    loose = [c for c in collectives(program.instructions) if not c.blocking and c.kind in BUNDLED]
    joined = [c for c in collectives(after.instructions) if not c.blocking and c.kind in BUNDLED]
    assert len(joined) < len(loose)
    assert any(len(c.inputs) > 1 for c in joined)
