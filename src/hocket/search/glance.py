"""The meshes with the most promising first, by a glance at each: good plans end the search of others."""

from __future__ import annotations

import time
from math import inf
from typing import TYPE_CHECKING

from hocket.search.case import Case
from hocket.sharding.mesh import Mesh

if TYPE_CHECKING:
    from hocket.search.auto import Search

GAP = 0.5
"""Relative gap of a glance."""
SECONDS = 5.0
"""Longest time for the glance at one mesh."""
ALL_SECONDS = 15.0
"""Time after which no further mesh is glanced at; a quarter of the budget where that is less."""


def in_order(search: Search, cases: tuple[Mesh, ...]) -> tuple[Mesh, ...]:
    """Put meshes in order; those that no glance was at come last."""
    if len(cases) == 1 or search.settings.searcher not in ("auto", "ilp"):
        return cases
    seen: dict[Mesh, float] = {}
    begun = time.monotonic()
    until = begun + min((search.end - begun) / 4, ALL_SECONDS)
    for number, mesh in enumerate(cases):
        if search.over() or time.monotonic() > until:
            break
        search.watcher("search", number, 2 * len(cases), f"a glance at mesh {mesh}")
        case = search.first_case(mesh, search.blocks if search.hopeless(Case(mesh, ())) else ())
        if not search.hopeless(case):
            model = search.open(case).cones.model
            left = min(max(0.1, search.end - time.monotonic()), SECONDS)
            solution = search.searcher(model, left, GAP, inf, search.stop)
            search.ledger.prove(case, solution.bound)
            seen[mesh] = model.seconds(solution.choice) if solution.choice else inf
    return tuple(sorted(cases, key=lambda mesh: seen.get(mesh, inf)))
