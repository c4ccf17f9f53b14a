"""Searching one case by synthesis: the program that A* finds, judged like any other plan."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hocket.cluster.types import Cluster
from hocket.cost.compute import least_seconds
from hocket.search.case import Case
from hocket.search.judge import Judgement
from hocket.search.synthesis.complete import stage_of
from hocket.search.synthesis.run import Means, synthesise
from hocket.sharding.mesh import Mesh
from hocket.sharding.shares import Shares

if TYPE_CHECKING:
    from hocket.search.auto import Search

SECONDS = 5.0
"""Longest time for one synthesis."""


def kinds_of(cluster: Cluster, mesh: Mesh, shares: Sequence[Sequence[Shares]]) -> tuple[int, ...]:
    """One rank of every kind: of device, and of shares of the axes that have some."""
    found: dict[object, int] = {}
    for rank in mesh.ranks:
        places = mesh.coordinates(rank)
        own = tuple(axis[p] for part in shares for axis, p in zip(part, places, strict=True) if axis)
        found.setdefault((cluster.devices[rank], own), rank)
    return tuple(found.values())


def look_by_synthesis(search: Search, case: Case, means: Means = "both") -> Judgement | None:
    """Synthesise a program for a case and offer it to the ledger; None where none was found in the time.

    What is proven holds for HAP's cost, which knows no overlap; for the judge's it is the work alone.
    """
    ledger, problem = search.ledger, search.open(case).problem
    ledger.prove(case, least_seconds(search.graph, search.cluster))
    left = min(max(0.5, search.end - time.monotonic()), SECONDS)
    ranks = kinds_of(search.cluster, case.mesh, problem.shares)
    found = synthesise(problem, ranks, left, search.settings.gap, search.stop, means=means)
    if found.program is None:
        return None
    stage = stage_of(problem, found.program)
    judged = ledger.offer(case, problem, stage, ledger.bounds[case])
    if judged.fits and (case not in ledger.results or judged.seconds < ledger.results[case][0].seconds):
        ledger.results[case] = (judged, stage)
    return judged
