"""A mesh of unlike devices: programs and shares are searched together, under one bound over all shares."""

from __future__ import annotations

import time
from math import inf
from typing import TYPE_CHECKING

from hocket.cost.compute import least_seconds
from hocket.plan.types import Stage
from hocket.search.alternate import alternate
from hocket.search.case import Case
from hocket.search.judge import Judgement
from hocket.search.synthesis.look import look_by_synthesis
from hocket.search.uneven import starts
from hocket.sharding.mesh import Mesh
from hocket.sharding.shares import Shares

if TYPE_CHECKING:
    from hocket.search.auto import Search

PARTS = (2, 3)
"""Into so many parts with shares of their own a step is cut, as long as that makes it faster."""
JOINT_SECONDS = 10.0
"""Longest time for the bound over all shares of a mesh."""


def search_shares(search: Search, mesh: Mesh, blocks: tuple[str, ...], gap: float) -> bool:
    """Search a mesh over programs and shares; whether memory is what holds it back."""
    ledger = search.ledger
    joint = _bound(search, mesh, blocks, gap)
    if ledger.bounds.get(joint, inf) >= ledger.found.seconds:
        return ledger.bounds.get(joint, inf) == inf
    run = _Run(search, mesh, blocks, gap)
    if search.settings.searcher == "auto" and not search.over():
        run.dive()
    for shares in starts(search.graph, search.cluster, mesh):
        run.start((shares,))
    for count in PARTS:
        before, (best, *_) = run.best[0], run.best[1] or ((),)
        if best and max(search.structure(blocks, count).parts) == count - 1:
            run.start((best,) * count)
        if run.best[0] >= before:
            break
    return run.tight


class _Run:
    """The alternations on one mesh: the best so far, and whether memory was short anywhere."""

    def __init__(self, search: Search, mesh: Mesh, blocks: tuple[str, ...], gap: float) -> None:
        self.search, self.mesh, self.blocks, self.gap = search, mesh, blocks, gap
        self.best: tuple[float, tuple[Shares, ...]] = (inf, ())
        self.tight = False

    def attempt(self, shares: tuple[Shares, ...]) -> tuple[Judgement, Stage] | None:
        case = Case(self.mesh, self.blocks, shares)
        if self.search.over() and self.search.ledger.found.stage is not None:
            self.search.ledger.found.complete = False
            return None
        self.tight |= self.search.look(case, self.gap)
        result = self.search.ledger.results.get(case)
        if result is not None:
            self.best = min(self.best, (result[0].seconds, shares))
        return result

    def dive(self) -> None:
        """A first program for shares by speed, by synthesis: it ends the search of much else, and where models are
        too large to be searched to the end (many experts) it may stay the best."""
        case = self.search.first_case(self.mesh, self.blocks)
        if sum(size > 1 for size in self.mesh.sizes) == 1 and not self.search.hopeless(case):
            look_by_synthesis(self.search, case, means="dives")

    def start(self, shares: tuple[Shares, ...]) -> None:
        search = self.search
        search.watcher("search", 0, 1, str(Case(self.mesh, self.blocks, shares)))
        parts = search.structure(self.blocks, len(shares)).parts
        alternate(shares, self.attempt, search.cluster, search.settings.optimizer_bytes, parts)


def _bound(search: Search, mesh: Mesh, blocks: tuple[str, ...], gap: float) -> Case:
    """Prove what no shares can beat on a mesh.

    On several axes an even split of one dim by two of them is possible where an uneven one is not, so that the
    joint model is none of it; then the bound is the work alone.
    """
    ledger = search.ledger
    joint = Case(mesh, blocks, search.first_case(mesh, blocks).shares, joint=True)
    if search.hopeless(joint):
        ledger.prove(joint, inf)
    elif sum(size > 1 for size in mesh.sizes) > 1:
        ledger.prove(joint, least_seconds(search.graph, search.cluster))
    else:
        left = min(max(0.5, search.end - time.monotonic()), JOINT_SECONDS)
        cutoff = ledger.found.seconds * (1 - search.settings.gap / 2)
        model = search.open(joint).cones.model
        solution = search.searcher(model, left, gap / 2, cutoff, search.stop)
        ledger.prove(joint, max(solution.bound, least_seconds(search.graph, search.cluster)))
        if solution.infeasible:
            ledger.excess.setdefault(joint, 0)
    return joint
