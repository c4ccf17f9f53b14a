"""The whole search: over meshes and recomputation, each a model of its own, pruned by what is known so far."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

from hocket.cluster.types import Cluster
from hocket.cost.prices import MeshPrices
from hocket.errors import MemoryLimitError, PinError
from hocket.graph.recompute import find_blocks, recompute
from hocket.graph.types import Graph
from hocket.plan.types import Alternative, Stage
from hocket.search.anytime import least_memory
from hocket.search.cones import build_cones
from hocket.search.ilp import Solution
from hocket.search.judge import Judgement, judge
from hocket.search.known import Known, restrict
from hocket.search.model import MEMORY
from hocket.search.pins import Pins
from hocket.search.problem import Problem, build_problem
from hocket.search.searchers import SEARCHERS, Searcher
from hocket.sharding.mesh import Mesh
from hocket.units import format_bytes

Watcher = Callable[[str, int, int, str], None]
"""Told (what is done, how much of it, of how much, in words)."""

AXES = 3
"""Most axes that a mesh is factorised into."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a search is asked: budget in seconds, relative gap, optimizer bytes per element, pins, searcher."""

    searcher: str = "auto"
    budget: float = inf
    gap: float = 0.02
    optimizer_bytes: float = 8.0
    pins: Pins = field(default_factory=Pins)
    known: Known | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """One part of the space: a mesh and the blocks whose forward runs again."""

    mesh: Mesh
    blocks: tuple[str, ...]

    def __str__(self) -> str:
        again = f", {len(self.blocks)} blocks recomputed" if self.blocks else ""
        return f"mesh {self.mesh}{again}"


@dataclass
class Found:
    """What the search knows: the best judged stage, the bound of every case, what was left behind."""

    graph: Graph | None = None
    stage: Stage | None = None
    case: Case | None = None
    judgement: Judgement | None = None
    bounds: dict[Case, float] = field(default_factory=dict)
    alternatives: list[Alternative] = field(default_factory=list)
    space: str = ""
    whole: tuple[str, ...] = ()
    complete: bool = True
    elapsed: float = 0.0

    @property
    def seconds(self) -> float:
        """Judged time of the best so far."""
        return self.judgement.seconds if self.judgement else inf

    @property
    def bound(self) -> float:
        """A bound on every plan of the space: no case can be better than its own."""
        return min([*self.bounds.values(), self.seconds])


def meshes(devices: int, axes: int = AXES) -> tuple[Mesh, ...]:
    """Every way to arrange devices in a grid of up to so many axes longer than 1, few axes first."""

    def cuts(n: int, left: int) -> list[tuple[int, ...]]:
        if left == 1:
            return [(n,)]
        longer = [(d, *rest) for d in range(2, n) if n % d == 0 for rest in cuts(n // d, left - 1)]
        return [(n,), *longer]

    found = dict.fromkeys(cuts(devices, axes))
    return tuple(Mesh(sizes) for sizes in sorted(found, key=lambda s: (len(s), s)))


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
    return _Search(graph, cluster, settings, watcher or (lambda *_: None), stop or threading.Event()).run()


class _Search:
    """A search under way."""

    def __init__(
        self, graph: Graph, cluster: Cluster, settings: Settings, watcher: Watcher, stop: threading.Event
    ) -> None:
        self.graph, self.cluster, self.settings = graph, cluster, settings
        self.watcher, self.stop = watcher, stop
        self.end = time.monotonic() + settings.budget
        self.found = Found()
        self.limit = min(cluster.memory_limit(rank) for rank in range(cluster.size))
        self.blocks = find_blocks(graph)
        self.excess: dict[Case, int] = {}
        self.searcher: Searcher = SEARCHERS["ilp" if settings.searcher == "auto" else settings.searcher]

    def run(self) -> Found:
        cases, start = self._meshes(), time.monotonic()
        for number, mesh in enumerate(cases):
            self.watcher("search", number, len(cases), f"mesh {mesh}")
            tight = self._case(Case(mesh, ()), self.graph)
            if tight and self.blocks:
                for share in (len(self.blocks), len(self.blocks) // 2):
                    blocks = self.blocks[:share]
                    if blocks:
                        self._case(Case(mesh, blocks), recompute(self.graph, blocks))
            if self._over():
                self.found.complete = False
                for rest in cases[number + 1 :]:
                    self.found.bounds[Case(rest, ())] = 0.0
                break
        self.watcher("search", len(cases), len(cases), "done")
        self.found.elapsed = time.monotonic() - start
        if self.found.stage is None:
            self._nothing_fits()
        return self.found

    def _meshes(self) -> tuple[Mesh, ...]:
        if self.settings.known is not None:
            return (self.settings.known.mesh,)
        if self.settings.pins.mesh is not None:
            return (self.settings.pins.mesh,)
        return meshes(self.cluster.size)

    def _over(self) -> bool:
        return self.stop.is_set() or time.monotonic() > self.end

    def _case(self, case: Case, graph: Graph) -> bool:
        """Search one case; whether memory is what holds it back."""
        settings = self.settings
        prices = MeshPrices(self.cluster, case.mesh)
        problem = build_problem(graph, case.mesh, prices, self.limit, settings.optimizer_bytes, settings.pins)
        self.found.space = self.found.space or problem.space
        self.found.whole = tuple(
            sorted({o.op for o, r in zip(graph.operations, problem.rules, strict=True) if not r.known})
        )
        model = restrict(problem, settings.known) if settings.known else problem.model
        cones = build_cones(model, problem.wishes)
        model = cones.model
        tight = False
        for attempt in range(4):
            left = max(0.5, self.end - time.monotonic())
            cutoff = self.found.seconds * (1 - settings.gap / 2)
            solution = self.searcher(model, left, settings.gap / 2, cutoff, self.stop)
            if attempt == 0:
                self.found.bounds[case] = solution.bound
            if solution.choice is None:
                self._left_behind(case, solution, problem)
                return solution.infeasible or tight
            choice = cones.expand(solution.choice)
            judged = self._offer(case, graph, problem, choice, solution.bound)
            if judged.fits:
                break
            tight = True
            model.limit = model.limit - 1.02 * judged.excess
        memory = model.totals(solution.choice or ())[MEMORY]
        return tight or bool(memory > 0.9 * model.limit)

    def _offer(
        self, case: Case, graph: Graph, problem: Problem, choice: Sequence[int], bound: float
    ) -> Judgement:
        """Judge an assignment and keep it if it is the best that fits."""
        stage = problem.stage(choice)
        judged = judge(graph, stage, self.cluster, self.settings.optimizer_bytes, problem.prices)
        if not judged.fits:
            self.excess[case] = min(judged.excess, self.excess.get(case, judged.excess))
            reason = f"needs {format_bytes(judged.excess)} more per device"
            self.found.alternatives.append(Alternative(str(case), inf, bound, reason, stage))
        elif judged.seconds < self.found.seconds:
            self._demote()
            self.found.graph, self.found.stage, self.found.case = graph, stage, case
            self.found.judgement = judged
        else:
            self.found.alternatives.append(Alternative(str(case), judged.seconds, bound, "slower", stage))
        return judged

    def _demote(self) -> None:
        found = self.found
        if found.stage is not None:
            bound = found.bounds[found.case] if found.case else 0.0
            found.alternatives.append(
                Alternative(str(found.case), found.seconds, bound, "slower", found.stage)
            )

    def _left_behind(self, case: Case, solution: Solution, problem: Problem) -> None:
        if solution.infeasible:
            least = least_memory(problem.model)
            self.excess[case] = int(least - self.limit)
            reason = f"needs at least {format_bytes(max(0.0, least - self.limit))} more per device"
            self.found.bounds[case] = inf
        elif solution.bound > 0 and solution.bound >= self.found.seconds * (1 - self.settings.gap):
            reason = "cannot be better: its bound is above the best"
        else:
            reason = "no plan found in the time given"
        self.found.alternatives.append(Alternative(str(case), inf, solution.bound, reason))

    def _nothing_fits(self) -> None:
        if not self.excess:
            raise PinError(
                "search",
                "has at least one plan that keeps all pins",
                "none was found" + (" in the budget" if self._over() else ""),
                "drop a pin, or give more time",
            )
        case, excess = min(self.excess.items(), key=lambda item: item[1])
        raise MemoryLimitError(
            f"{self.graph.name} on {self.cluster.size} devices",
            f"fits in {format_bytes(self.limit)} per device",
            f"the nearest plan ({case}) needs {format_bytes(max(0, excess))} more",
            "use more devices or larger ones, a smaller batch, more microbatches, or an optimizer with less state",
        )


def runner_ups(alternatives: Sequence[Alternative], count: int = 12) -> tuple[Alternative, ...]:
    """Alternatives worth telling: fastest first, then those that do not fit."""
    ordered = sorted(alternatives, key=lambda a: (a.seconds, a.lower_bound))
    return tuple(ordered[:count])
