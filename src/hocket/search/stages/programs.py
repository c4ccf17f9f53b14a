"""What every rank does in a step of several stages, from the plan."""

from __future__ import annotations

from collections.abc import Sequence

from hocket.cost.prices import MeshPrices
from hocket.graph.cut import Parts, cut_graph
from hocket.plan.types import Plan
from hocket.program.blueprint import blueprint
from hocket.program.staged import StagedProgram, find_transfers
from hocket.program.transfer import Box
from hocket.search.judge import stage_programs
from hocket.sharding.layout import intervals


def staged_programs(plan: Plan, ranks: Sequence[int] | None = None) -> list[StagedProgram]:
    """What each rank does, as it runs; all ranks unless some are named. Raises PlanError, LayoutError."""
    parts = cut_graph(plan.graph, plan.schedule.cuts, plan.schedule.halved)
    prices = [MeshPrices(plan.cluster, stage.mesh) for stage in plan.stages]
    prints = [blueprint(*each) for each in zip(parts.graphs, plan.stages, prices, strict=True)]
    order, transfers = plan.schedule.actions(), find_transfers(parts, plan.stages, plan.cluster.places)
    arriving = {s: frozenset(i.name for i in g.inputs if i.role == "arriving") for s, g in enumerate(parts.graphs)}
    makes = next(s for s, graph in enumerate(parts.graphs) if graph.loss)
    found = []
    for rank in range(plan.world_size) if ranks is None else ranks:
        own = [s for s, stage in enumerate(plan.stages) if rank in stage.mesh.ranks]
        programs = {s: stage_programs(prints[s], rank, prices[s]) for s in own}
        mine = tuple(transfer.of(rank) for transfer in transfers if {transfer.source, transfer.target} & set(own))
        found.append(
            StagedProgram(
                rank,
                programs,
                order,
                mine,
                arriving,
                _boxes(plan, parts, own, rank),
                tuple(plan.stages[makes].mesh.ranks),
                parts.tied,
            )
        )
    return found


def _boxes(plan: Plan, parts: Parts, own: Sequence[int], rank: int) -> dict[tuple[int, str], Box]:
    """What a rank has of what its stages send, and of parameters that several stages hold."""
    found: dict[tuple[int, str], Box] = {}
    for number in own:
        stage, graph = plan.stages[number], parts.graphs[number]
        layouts = {**stage.sent, **{name: stage.stored[name] for name in parts.tied if name in graph.types}}
        for name, layout in layouts.items():
            found[number, name] = intervals(layout, graph.types[name].shape, stage.mesh, rank)
    return found
