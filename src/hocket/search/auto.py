"""The whole search: over meshes and recomputation, each a model of its own, pruned by what is known so far."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import inf

from hocket.cluster.types import Cluster
from hocket.cost.compute import least_seconds
from hocket.cost.prices import MeshPrices
from hocket.errors import PlanError
from hocket.graph.recompute import find_blocks, recompute
from hocket.graph.types import Graph
from hocket.plan.types import Alternative
from hocket.search.anytime import most_memory
from hocket.search.builder import build_problem
from hocket.search.case import Case, Found, Settings, meshes
from hocket.search.cones import Cones, build_cones
from hocket.search.glance import in_order
from hocket.search.ilp import Solution
from hocket.search.known import Known, restrict
from hocket.search.ledger import Ledger
from hocket.search.model import held_of
from hocket.search.moments import floor_bytes
from hocket.search.parts import every_part, find_parts
from hocket.search.pins import Pins
from hocket.search.pricing import at_best, fullest_rank
from hocket.search.problem import Problem
from hocket.search.searchers import SEARCHERS, SYNTHESIS, Searcher, greedy
from hocket.search.structure import Structure, find_structure
from hocket.search.synthesis.look import look_by_synthesis
from hocket.search.uneven import by, is_mixed, speeds
from hocket.search.unlike import PARTS, search_shares
from hocket.sharding.mesh import Mesh
from hocket.sharding.shares import Shares, check_shares
from hocket.units import format_bytes

Watcher = Callable[[str, int, int, str], None]
"""Told (what is done, how much of it, of how much, in words)."""

SMALL = 16
"""Up to so many devices meshes have up to three axes, beyond two (unless asked): their number grows fast."""
FIRST_GAP = 0.12
"""Relative gap of the first look at every mesh."""
LOWERED_GAP = 0.05
"""Least relative gap under a limit that was lowered by guess."""
CASE_SECONDS = 20.0
"""Longest time for one search of one case."""
SPARE = 0.1
"""Share of a device's memory that must be free for running fewer blocks again."""
ATTEMPTS = 7
"""Most solutions of one case that are judged until one fits: the model leaves out what is held for a moment."""
REFINED = 3
"""Most cases that are searched to the end, after a first look at all."""


def search(
    graph: Graph,
    cluster: Cluster,
    settings: Settings,
    watcher: Watcher | None = None,
    stop: threading.Event | None = None,
) -> Found:
    """The best plan found for a graph on a cluster, with the bound of the whole space.

    Raises MemoryLimitError when nothing fits, PinError when a pin contradicts an operation.
    """
    return Search(graph, cluster, settings, watcher or (lambda *_: None), stop or threading.Event()).run()


@dataclass(frozen=True, slots=True)
class Opened:
    """A case ready to be searched."""

    problem: Problem
    cones: Cones


class Search:
    """A search under way."""

    def __init__(
        self, graph: Graph, cluster: Cluster, settings: Settings, watcher: Watcher, stop: threading.Event
    ) -> None:
        self.graph, self.cluster, self.settings = graph, cluster, settings
        self.watcher, self.stop = watcher, stop
        self.end = time.monotonic() + settings.budget
        self.limit = min(cluster.memory_limit(rank) for rank in range(cluster.size))
        self.blocks = find_blocks(graph)
        self.opened: dict[Case, Opened] = {}
        self.ledger = Ledger(graph, cluster, settings)
        self.first: tuple[Case, tuple[int, ...]] | None = None
        self.structures: dict[tuple[tuple[str, ...], int], Structure] = {}
        self.searcher: Searcher = SEARCHERS.get(settings.searcher, SEARCHERS["ilp"])

    def run(self) -> Found:
        """Search all cases; what is known at the end."""
        start = time.monotonic()
        cases = in_order(self, self._meshes())
        for number, mesh in enumerate(cases):
            self.watcher("search", number, len(cases), f"a first look at mesh {mesh}")
            self._mesh(mesh)
            if self.over() and number + 1 < len(cases):
                self.ledger.found.complete = False
                floor = least_seconds(self.graph, self.cluster)
                self.ledger.found.bounds.update({Case(rest, ()): floor for rest in cases[number + 1 :]})
                break
        if len(cases) > 1:
            self._refine()
        elif self.settings.pins == Pins():
            for case in tuple(c for c in self.opened if not c.joint):
                self._hand_picked(case)
        self._fewer_again()
        self.watcher("search", len(cases), len(cases), "done")
        if self.ledger.found.stage is None and self.first is not None:
            case, choice = self.first
            self.ledger.prove(case, 0.0)
            problem = self.open(case).problem
            self.ledger.offer(case, problem, problem.stage(choice), 0.0)
        self.ledger.found.elapsed = time.monotonic() - start
        if self.ledger.found.stage is None:
            self.ledger.nothing_fits(self.over())
        return self.ledger.found

    def first_case(self, mesh: Mesh, blocks: tuple[str, ...]) -> Case:
        """The first case of a mesh: with the user's shares, by speed where devices are unlike, or even."""
        if self.settings.shares:
            return Case(mesh, blocks, (self.settings.shares,))
        known = self.settings.known
        if is_mixed(self.cluster, mesh) and (known is None or known.shares == "speed"):
            return Case(mesh, blocks, (by(speeds(self.graph, self.cluster, mesh)),))
        return Case(mesh, blocks)

    def hopeless(self, case: Case) -> bool:
        """Whether a case cannot fit even if everything were divided by all devices."""
        structure = self.structure(case.blocks)
        floor = floor_bytes(structure.graph, structure.moments, self.cluster.size, self.settings.optimizer_bytes)
        ranks = range(self.cluster.size)
        limit = sum(self.cluster.memory_limit(rank) for rank in ranks) / len(ranks)
        if floor > limit:
            self.ledger.excess.setdefault(case, int(floor - limit))
        return floor > limit

    def _mesh(self, mesh: Mesh) -> None:
        """Search a mesh, with recomputation where memory holds it back."""
        gap = self.settings.gap if self.settings.known or self.settings.pins.mesh else FIRST_GAP
        free = is_mixed(self.cluster, mesh) and not self.settings.shares and self.settings.known is None
        look = partial(search_shares, self) if free else self._one
        tight = look(mesh, (), gap)
        if tight and self.blocks:
            if self.over():
                self.ledger.found.complete = False
                self.ledger.found.bounds[Case(mesh, self.blocks)] = least_seconds(self.graph, self.cluster)
            else:
                look(mesh, self.blocks, gap)

    def _one(self, mesh: Mesh, blocks: tuple[str, ...], gap: float) -> bool:
        return self.look(self.first_case(mesh, blocks), gap)

    def _hand_picked(self, case: Case) -> None:
        """Complete and judge the layouts that people would pick on a case's mesh."""
        sizes = case.mesh.sizes
        if len(sizes) > 2 or self.settings.known is not None:
            return
        ways = [(sizes[0], sizes[1])] if len(sizes) == 2 else [(sizes[0], 1), (1, sizes[0])]
        problem = self.open(case).problem
        for dp, tp in ways:
            for zero in (0, 3) if dp > 1 else (0,):
                if not self.over():
                    self._known(case, problem, Known(dp, tp, zero))

    def _known(self, case: Case, problem: Problem, known: Known) -> None:
        try:
            cones = build_cones(restrict(problem, known), problem.wishes)
        except PlanError:
            return  # fewer samples than devices: nobody could pick it here
        cones.model.limit = self.ledger.tightened.get(case, self.limit_of(case))
        left = min(max(0.5, self.end - time.monotonic()), CASE_SECONDS)
        cutoff = self.ledger.found.seconds * (1 + self.ledger.tie)
        solution = self.searcher(cones.model, left, FIRST_GAP, cutoff, self.stop)
        if solution.choice is not None and cones.model.seconds(solution.choice) < cutoff:
            stage = problem.stage(cones.expand(solution.choice))
            self.ledger.offer(case, problem, stage, self.ledger.bounds.get(case, 0.0), known.title)

    def _refine(self) -> None:
        """Search to the end what could still be better, the least bound first, beside what people would pick."""
        order = sorted(self.ledger.judged, key=lambda case: self.ledger.judged[case])
        for case in dict.fromkeys((*order[:REFINED], *(c for c in self.opened if len(c.mesh.sizes) == 1))):
            worth = self.ledger.found.seconds * (1 + self.ledger.tie)
            if not case.joint and self.ledger.bounds.get(case, 0.0) < worth:
                self._hand_picked(case)
        done: set[Case] = set()
        while len(done) < REFINED and not self.over():
            enough = self.ledger.found.seconds * (1 - self.settings.gap)
            waiting = [c for c, bound in self.ledger.found.bounds.items() if c in self.opened and bound < enough]
            waiting = sorted(set(waiting) - done, key=lambda c: self.ledger.found.bounds[c])
            proven = min((self.ledger.found.bounds[c] for c in done), default=inf)
            if not waiting or self.ledger.found.bounds[waiting[0]] > proven:
                break  # the certificate cannot get better
            case = waiting[0]
            self.watcher("refine", len(done), REFINED, str(case))
            if case.joint:
                model = self.open(case).cones.model
                left = min(max(0.5, self.end - time.monotonic()), CASE_SECONDS)
                self.ledger.prove(case, self.searcher(model, left, self.settings.gap / 2, enough, self.stop).bound)
            else:
                self.look(case, self.settings.gap)
            done.add(case)
        best = self.ledger.found.case
        if best is not None and best.shares and best in self.ledger.results and not self.over():
            self.look(best, self.settings.gap)

    def _fewer_again(self) -> None:
        """Where the best plan runs every block again and has memory to spare: only every second block, or three of
        four, whichever is the fewest that fits."""
        best = self.ledger.found.case
        judged = self.ledger.found.judgement
        if best is None or judged is None or best.blocks != self.blocks or self.settings.searcher != "auto":
            return
        if best.shares and not self.settings.shares:
            return  # the bound over all shares does not cover it
        spare = self.limit_of(best) - judged.memory.total
        if spare < SPARE * self.limit_of(best) or len(self.blocks) < 4 or not self.blocks:
            return
        for keep in (2, 4):
            fewer = tuple(b for n, b in enumerate(self.blocks) if n % keep)
            if self.over():
                self.ledger.found.complete = False
                return
            self.watcher("refine", 0, 1, f"{len(fewer)} of {len(self.blocks)} blocks again")
            self.look(replace(best, blocks=fewer), max(self.settings.gap, LOWERED_GAP))
            if self.ledger.found.case is not None and self.ledger.found.case.blocks == fewer:
                return

    def limit_of(self, case: Case) -> float:
        """Bytes that the model of a case may hold: of its fullest device, or on average where shares are open."""
        ranks = range(self.cluster.size)
        if case.joint:
            return sum(self.cluster.memory_limit(rank) for rank in ranks) / len(ranks)
        if not case.shares:
            return float(self.limit)
        return float(self.cluster.memory_limit(fullest_rank(self.cluster, case.mesh, _parts(case))))

    def _meshes(self) -> tuple[Mesh, ...]:
        if self.settings.known is not None:
            return (self.settings.known.mesh,)
        if self.settings.pins.mesh is not None:
            check_shares(self.settings.shares or (1.0,), self._positions(self.settings.pins.mesh), "shares")
            return (self.settings.pins.mesh,)
        flat = self.settings.searcher == SYNTHESIS
        axes = self.settings.axes or (1 if flat else 3 if self.cluster.size <= SMALL else 2)
        self.ledger.found.space = (
            f"meshes of up to {axes} axes; all repeated blocks recomputed where memory is short (on the best mesh "
            "also half of them or three quarters), none elsewhere; "
        )
        within = self.cluster.machines[0].count
        found = sorted(meshes(self.cluster.size, axes), key=lambda m: (len(m.sizes), m.sizes[-1] != within))
        fitting = tuple(m for m in found if len(self.settings.shares) in (0, m.sizes[0]))
        if not fitting:
            check_shares(self.settings.shares, self.cluster.size, "shares")
        return fitting

    def _positions(self, mesh: Mesh) -> int:
        return mesh.sizes[0] if self.settings.shares else 1

    def over(self) -> bool:
        """Whether the budget is spent, or the user has stopped the search."""
        return self.stop.is_set() or time.monotonic() > self.end

    def open(self, case: Case) -> Opened:
        """A case's graph, problem and model, built once."""
        if case not in self.opened:
            settings = self.settings
            structure = self.structure(case.blocks, 0 if case.joint else len(case.shares) or 1)
            graph = structure.graph
            prices = MeshPrices(at_best(self.cluster) if case.joint else self.cluster, case.mesh)
            parts = max(structure.parts) + 1 if case.joint else 1
            problem = build_problem(
                graph,
                case.mesh,
                prices,
                self.limit_of(case),
                settings.optimizer_bytes,
                settings.pins,
                structure=structure,
                shares=_parts(case) * parts,
                weights=by(speeds(graph, self.cluster, case.mesh)) if case.joint else (),
            )
            model = restrict(problem, settings.known) if settings.known else problem.model
            self.opened[case] = Opened(problem, build_cones(model, problem.wishes))
            if not self.ledger.found.space.endswith(problem.space) and not case.joint:
                self.ledger.found.space += problem.space
            whole = {o.op for o, r in zip(graph.operations, problem.rules, strict=True) if not r.known}
            self.ledger.found.whole = tuple(sorted(whole))
        return self.opened[case]

    def structure(self, blocks: tuple[str, ...], parts: int = 1) -> Structure:
        """The structure of the graph in which blocks run again, in so many parts (0: as fine as any of them)."""
        key = (blocks, parts)
        if key not in self.structures:
            graph = recompute(self.graph, blocks)
            cut = every_part(graph, PARTS) if parts == 0 else find_parts(graph, parts) if parts > 1 else ()
            self.structures[key] = find_structure(graph, pins=self.settings.pins, parts=cut)
        return self.structures[key]

    def look(self, case: Case, gap: float) -> bool:
        """Search one case to a gap; whether memory is what holds it back.

        Only what is proven under the true limit is a bound. Where a plan holds more than the model counts, the
        limit is lowered by what was too much.
        """
        if self.hopeless(case):
            self.ledger.prove(case, inf)
            reason = f"needs at least {format_bytes(self.ledger.excess[case])} more per device"
            self.ledger.found.alternatives.append(Alternative(str(case), inf, inf, reason))
            return True
        if self.settings.searcher == SYNTHESIS:
            judged = None if case in self.ledger.results else look_by_synthesis(self, case)
            return judged is not None and not judged.fits
        problem, cones = self.open(case).problem, self.open(case).cones
        model, tight, limit = cones.model, False, self.limit_of(case)
        model.limit = limit
        if self.ledger.bounds.get(case, 0.0) >= self.ledger.found.seconds:
            self.ledger.left_behind(case, Solution(None, self.ledger.bounds[case]), problem, limit, False)
            return self._for_memory(case)
        self.note_first(case)
        for attempt in range(ATTEMPTS):
            left = min(max(0.5, self.end - time.monotonic()), CASE_SECONDS)
            cutoff = self.ledger.found.seconds * (1 - self.settings.gap / 2)
            close = gap if attempt == 0 else max(gap, LOWERED_GAP)
            solution = self.searcher(model, left, close / 2, cutoff, self.stop)
            if attempt == 0:
                self.ledger.prove(case, solution.bound)
            if solution.choice is None:
                self.ledger.left_behind(case, solution, problem, limit, model.limit < limit)
                return solution.infeasible or tight or self._for_memory(case)
            held = held_of(model.totals(solution.choice))
            tight = tight or held > 0.9 * limit
            if model.seconds(solution.choice) >= self.ledger.found.seconds:
                self.ledger.left_behind(case, solution, problem, limit, model.limit < limit)
                break
            if attempt == 0 and case in self.ledger.tightened:
                if case in self.ledger.judged:  # what the lowered limit gives is known
                    break
                model.limit = self.ledger.tightened[case]
                continue
            stage = problem.stage(cones.expand(solution.choice))
            judged = self.ledger.offer(case, problem, stage, solution.bound)
            if judged.fits:
                self.ledger.results[case] = (judged, stage)
                break
            tight = True
            model.limit = min(model.limit, held) - 1.1 * judged.excess
            self.ledger.tightened[case] = model.limit
        return tight

    def _for_memory(self, case: Case) -> bool:
        """Whether it may be memory alone that keeps a case from being better than the best plan."""
        model = self.open(case).cones.model
        if case.blocks or not self.blocks or most_memory(model) <= self.limit_of(case):
            return False
        free = replace(model, limit=inf, seen=[], least=0.0)
        left = min(max(0.5, self.end - time.monotonic()), CASE_SECONDS)
        return (
            self.searcher(free, left, FIRST_GAP, self.ledger.found.seconds, self.stop).bound
            < self.ledger.found.seconds
        )

    def note_first(self, case: Case) -> None:
        """A first assignment, found in next to no time, for a search that is cut short."""
        if self.first is None and self.settings.searcher == "auto":
            cones = self.open(case).cones
            solution = greedy(cones.model, 0.0, 0.0, inf, self.stop)
            if solution.choice is not None:
                self.first = (case, cones.expand(solution.choice))


def _parts(case: Case) -> tuple[tuple[Shares, ...], ...]:
    """A case's shares as the builder takes them: for every part, on the first axis."""
    rest: tuple[Shares, ...] = ((),) * (len(case.mesh.sizes) - 1)
    return tuple((shares, *rest) for shares in case.shares)
