"""HAP's four models with uneven shares, nothing at all among them, and with parts: the unsplit step."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from plans import programs_of, random_stage

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "benchmarks"))

from hocket.capture import capture
from hocket.cluster.local import local_cluster
from hocket.cost.prices import MeshPrices
from hocket.graph.types import Graph
from hocket.program.verify import verify_programs
from hocket.runtime.verify import compare
from hocket.search.builder import build_problem
from hocket.search.parts import find_parts
from hocket.search.structure import find_structure
from hocket.sharding.mesh import Mesh
from hocket.sharding.shares import Shares
from testbed.models import Made, bert, bert_moe, vgg19, vit

SMALL: dict[str, Callable[[], Made]] = {
    "VGG19": lambda: vgg19(10, shrink=8),
    "ViT": lambda: vit(10, hidden=40, layers=2, heads=10),
    "BERT": lambda: bert(10, hidden=40, layers=2, heads=10, length=20, vocab=80),
    "BERT-MoE": lambda: bert_moe(10, experts=10, hidden=40, layers=2, heads=10, length=20, vocab=80),
}
SHARES: dict[str, tuple[Shares, ...]] = {
    "shares": ((0.5, 0.3, 0.2, 0.0),),
    "two parts": ((0.5, 0.3, 0.2, 0.0), (0.0, 0.2, 0.4, 0.4)),
    "three parts": ((0.5, 0.3, 0.2, 0.0), (0.25, 0.25, 0.25, 0.25), (0.1, 0.2, 0.3, 0.4)),
}


@cache
def captured(name: str) -> tuple[Made, Graph]:
    made = SMALL[name]()
    return made, capture(*made)


@pytest.mark.proof
@pytest.mark.parametrize("shares", SHARES)
@pytest.mark.parametrize("name", SMALL)
def test_a_random_plan_computes_the_unsplit_step(name: str, shares: str) -> None:
    (model, sample), graph = captured(name)
    parts, mesh = SHARES[shares], Mesh((4,))
    cut = find_parts(graph, len(parts)) if len(parts) > 1 else ()
    problem = build_problem(
        graph, mesh, MeshPrices(local_cluster(4), mesh), structure=find_structure(graph, parts=cut),
        shares=tuple((part,) for part in parts),
    )  # fmt: skip
    stage = random_stage(problem, seed=1)
    assert sum("|" in text for text in stage.strategies) > len(stage.strategies) / 8
    programs = programs_of(graph, stage)
    verify_programs(programs)
    report = compare(graph, programs, model, sample)
    assert report.worst <= 1e-4, report
    assert set(report.gradient_errors) == {i.paths[0] for i in graph.parameters if i.trainable}
