"""Recomputation: the same numbers, less held between the passes, dropout drawn alike."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from hocket import api
from hocket.capture import capture
from hocket.capture.models import tiny
from hocket.cluster.local import local_cluster
from hocket.cost.prices import MeshPrices
from hocket.errors import LayoutError
from hocket.graph.flow import find_flow
from hocket.graph.recompute import AGAIN, find_blocks, random_pairs, recompute
from hocket.graph.types import Graph
from hocket.graph.verify import verify_graph
from hocket.pipeline.schedule import Schedule
from hocket.plan.types import Memory, Plan, SearchRecord, Stage
from hocket.program.blueprint import blueprint
from hocket.runtime.verify import run_ranks
from hocket.search.anytime import solve_model
from hocket.search.builder import build_problem
from hocket.search.cones import build_cones
from hocket.search.judge import finish
from hocket.sharding.layout import Layout
from hocket.sharding.mesh import Mesh


@cache
def captured(name: str) -> tuple[nn.Module, dict[str, Tensor], Graph]:
    model, sample = tiny(name)
    return model, sample, capture(model, sample)


def planned(graph: Graph, mesh: Mesh) -> Plan:
    cluster = local_cluster(mesh.devices)
    problem = build_problem(graph, mesh, MeshPrices(cluster, mesh))
    cones = build_cones(problem.model, problem.wishes)
    solution = solve_model(cones.model, seconds=30.0, gap=0.1)
    assert solution.choice is not None
    stage = problem.stage(cones.expand(solution.choice))
    record = SearchRecord("test", "", 0.0, True)
    return Plan(graph, cluster, (stage,), Schedule(), 1.0, 0.0, Memory(), record)


def kept_bytes(graph: Graph) -> int:
    """Bytes of activations that the backward pass reads of the forward pass."""
    flow = find_flow(graph)
    inputs = {i.name for i in graph.inputs}
    return sum(graph.types[name].bytes for name in flow.crossing - inputs)


@pytest.mark.parametrize("share", ["all", "half"])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_recomputed_step_is_the_same_step(name: str, share: str) -> None:
    model, sample, graph = captured(name)
    blocks = find_blocks(graph)
    assert len(blocks) == 2
    again = recompute(graph, blocks if share == "all" else blocks[:1])
    verify_graph(again)
    assert len(again.operations) > len(graph.operations)
    assert again.operations[: graph.forward] == graph.operations[: graph.forward]
    assert kept_bytes(again) < kept_bytes(graph) * (0.7 if share == "half" else 0.5)
    report = api.verify(model, sample, planned(again, Mesh((2,))))
    assert report.worst < 1e-4
    assert len(report.gradient_errors) == len(graph.gradients)


def test_nothing_to_recompute() -> None:
    graph = captured("gpt2")[2]
    assert recompute(graph, ()) is graph
    assert random_pairs(graph) == ()


class Blocks(nn.Module):
    """Two blocks with dropout between products."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.h = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(0.4), nn.Linear(2 * width, width))
            for _ in range(2)
        )

    def forward(self, x: Tensor, wanted: Tensor) -> Tensor:
        for block in self.h:
            x = x + block(x)
        return mse_loss(x, wanted)


@cache
def dropping() -> tuple[Blocks, tuple[Tensor, Tensor], Graph]:
    torch.manual_seed(0)
    model = Blocks(8)
    sample = (torch.randn(4, 8), torch.randn(4, 8))
    return model, sample, capture(model, sample)


def gradients(graph: Graph, stage: Stage) -> list[dict[str, Tensor]]:
    model, sample, _ = dropping()
    values = {i.name: t for i, t in zip(graph.batch, sample, strict=True)}
    values |= {i.name: dict(model.named_parameters())[i.paths[0]].detach() for i in graph.parameters}
    prices = MeshPrices(local_cluster(stage.mesh.devices), stage.mesh)
    prepared = blueprint(graph, stage, prices)
    programs = [finish(prepared, rank, prices) for rank in stage.mesh.ranks]
    return [found for _, found, _ in run_ranks(graph, programs, values, seed=3)]


def split_rows(graph: Graph, mesh: Mesh) -> Stage:
    """The batch's rows over the mesh, wherever an operation has them; parameters whole."""
    problem = build_problem(graph, mesh, MeshPrices(local_cluster(mesh.devices), mesh))
    model = problem.model
    for number, node in enumerate(problem.nodes):
        for k, option in enumerate(node.options):
            dropout = node.kind == "operation" and "dropout" in node.members[0] and AGAIN not in node.members[0]
            if dropout and "backward" not in node.members[0] and str(option) != "d0":
                model.nodes[number][0, k] = float("inf")
            if node.kind == "stored" and option != Layout.replicated(1):
                model.nodes[number][0, k] = float("inf")
    solution = solve_model(model, seconds=30.0, gap=0.1)
    assert solution.choice is not None
    return problem.stage(solution.choice)


def test_dropout_in_a_recomputed_block_draws_the_same_numbers() -> None:
    graph, mesh = dropping()[2], Mesh((2,))
    again = recompute(graph, find_blocks(graph))
    pairs = random_pairs(again)
    assert len(pairs) == 2
    first, second = split_rows(graph, mesh), split_rows(again, mesh)
    for u, v in pairs:
        assert second.strategies[u] == second.strategies[v] == "d0"
    for plain, repeated in zip(gradients(graph, first), gradients(again, second), strict=True):
        assert set(plain) == set(repeated)
        for name, gradient in plain.items():
            assert gradient.abs().max() > 0
            torch.testing.assert_close(repeated[name], gradient, rtol=1e-4, atol=1e-6)


def test_other_random_numbers_the_second_time_are_refused() -> None:
    again, mesh = recompute(dropping()[2], find_blocks(dropping()[2])), Mesh((2,))
    stage = split_rows(again, mesh)
    place = random_pairs(again)[0][1]
    changed = [*stage.strategies]
    changed[place] = "R"
    wrong = Stage(mesh, stage.stored, tuple(changed), stage.used, stage.kept, stage.reused)
    with pytest.raises(LayoutError, match="split as the first time"):
        blueprint(again, wrong, MeshPrices(local_cluster(2), mesh))
