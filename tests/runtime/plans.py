"""Random legal plans: a search problem whose costs are random numbers, solved."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch

from hocket.capture import capture
from hocket.capture.models import tiny
from hocket.cluster.local import local_cluster
from hocket.cost.prices import MeshPrices
from hocket.graph.types import Graph
from hocket.plan.types import Stage
from hocket.program.blueprint import blueprint
from hocket.program.liveness import with_frees
from hocket.program.lower import lower
from hocket.program.types import Program
from hocket.search.anytime import solve_model
from hocket.search.builder import build_problem
from hocket.search.model import Model
from hocket.search.problem import Problem
from hocket.sharding.mesh import Mesh
from hocket.sharding.shares import Shares


@cache
def captured(architecture: str) -> tuple[torch.nn.Module, dict[str, torch.Tensor], Graph]:
    model, sample = tiny(architecture)
    return model, sample, capture(model, sample)


@cache
def problem_of(architecture: str, mesh: Mesh, shares: tuple[tuple[Shares, ...], ...] = ()) -> Problem:
    graph = captured(architecture)[2]
    return build_problem(graph, mesh, MeshPrices(local_cluster(mesh.devices), mesh), shares=shares)


def random_stage(problem: Problem, seed: int) -> Stage:
    """A stage from a problem whose finite costs are random; infinite ones stay."""
    draw = np.random.default_rng(seed)
    model = Model(labels=list(problem.model.labels))
    whole = draw.uniform(0.0, 3.0)
    for costs, node in zip(problem.model.nodes, problem.nodes, strict=True):
        noise = draw.uniform(0.0, 1.0, costs.shape)
        noise += whole * np.array([str(o).count("R") for o in node.options])
        model.nodes.append(np.where(np.isfinite(costs), noise, costs))
    for pair, costs in problem.model.edges.items():
        noise = draw.uniform(0.0, 0.3, costs.shape)
        model.edges[pair] = np.where(np.isfinite(costs), noise * (costs > 0), costs)
    found = solve_model(model, seconds=60.0, gap=0.9)
    choice = found.choice
    assert choice is not None
    return problem.stage(choice)


def programs_of(graph: Graph, stage: Stage) -> list[Program]:
    plan = blueprint(graph, stage, MeshPrices(local_cluster(stage.mesh.devices), stage.mesh))
    return [with_frees(lower(plan, rank)) for rank in stage.mesh.ranks]
