"""All ranks take the same steps between layouts, whatever was asked of the blueprint before."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "runtime"))

from plans import captured, problem_of, random_stage

from hocket.cluster.local import local_cluster
from hocket.cost.prices import MeshPrices
from hocket.program.blueprint import blueprint
from hocket.program.lower import lower
from hocket.program.verify import verify_programs
from hocket.search.judge import finish
from hocket.sharding.mesh import Mesh

SHARES = (((0.35, 0.35, 0.15, 0.15),),)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shares", [(), SHARES])
def test_programs_do_not_depend_on_who_is_lowered_first(shares, seed: int) -> None:
    mesh = Mesh((4,))
    graph = captured("gpt2")[2]
    prices = MeshPrices(local_cluster(4), mesh)
    stage = random_stage(problem_of("gpt2", mesh, shares), seed)
    together = blueprint(graph, stage, prices)
    programs = [finish(together, rank, prices) for rank in mesh.ranks]
    verify_programs(programs)
    for rank in reversed(mesh.ranks):
        alone = finish(blueprint(graph, stage, prices), rank, prices)
        assert alone == programs[rank]
        again = finish(together, rank, prices)
        assert again == alone
    first = [lower(together, rank) for rank in mesh.ranks]
    assert [len(p.instructions) for p in first] == [len(first[0].instructions)] * 4
