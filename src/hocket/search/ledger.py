"""What a search has proven and judged: the best plan so far, bounds, and what was left behind and why."""

from __future__ import annotations

from math import inf
from typing import NoReturn

from hocket.cluster.types import Cluster
from hocket.errors import MemoryLimitError, PinError
from hocket.graph.types import Graph
from hocket.plan.types import Alternative, Stage
from hocket.search.anytime import least_memory
from hocket.search.case import Case, Found, Settings
from hocket.search.ilp import Solution
from hocket.search.judge import Judgement, judge
from hocket.search.problem import Problem
from hocket.units import format_bytes

TIE = 0.005
"""A layout that people know is preferred to another that is better by less than this share."""
MOST_TIE = 0.05
"""The same on a cluster as noisy as can be."""


class Ledger:
    """The books of a search under way.

    Per case: `bounds` on its plans, `judged` seconds of its best, `excess` bytes of its smallest plan that does not
    fit, `tightened` limits under which its plans fit, and the `results` that did.
    """

    def __init__(self, graph: Graph, cluster: Cluster, settings: Settings) -> None:
        self.graph, self.cluster, self.settings = graph, cluster, settings
        self.found = Found()
        self.bounds: dict[Case, float] = {}
        self.results: dict[Case, tuple[Judgement, Stage]] = {}
        self.tightened: dict[Case, float] = {}
        self.judged: dict[Case, float] = {}
        self.excess: dict[Case, int] = {}

    def offer(self, case: Case, problem: Problem, stage: Stage, bound: float, title: str = "") -> Judgement:
        """Judge a stage and keep it if it is the best that fits."""
        again = f", {len(case.blocks)} blocks recomputed" if case.blocks else ""
        known = bool(title)
        title = title + again if title else str(case)
        graph = problem.graph
        judged = judge(graph, stage, self.cluster, self.settings.optimizer_bytes, problem.prices)
        if not judged.fits:
            self.excess[case] = min(judged.excess, self.excess.get(case, judged.excess))
            reason = f"needs {format_bytes(judged.excess)} more per device"
            self.found.alternatives.append(Alternative(title, inf, bound, reason, stage))
            return judged
        self.judged[case] = min(judged.seconds, self.judged.get(case, inf))
        if judged.seconds < self.found.seconds * self._handicap(known):
            self._demote(title)
            self.found.known = known
            self.found.graph, self.found.stage, self.found.case = graph, stage, case
            self.found.title = title
            self.found.judgement = judged
        else:
            self.found.alternatives.append(Alternative(title, judged.seconds, bound, "slower", stage))
        return judged

    @property
    def tie(self) -> float:
        """By what share a plan must be better than one that people know: TIE, or what the cluster's noise hides.

        The noise of single steps says little of the mean of many, so it counts up to MOST_TIE only.
        """
        return max(TIE, min(MOST_TIE, self.cluster.noise))

    def _handicap(self, known: bool) -> float:
        """What a plan's time may be of the best one's to take its place: known layouts win ties."""
        if known == self.found.known:
            return 1.0
        return 1.0 + self.tie if known else 1.0 - self.tie

    def _demote(self, title: str) -> None:
        found = self.found
        if found.stage is not None and found.title != title:
            bound = self.bounds.get(found.case, 0.0) if found.case else 0.0
            found.alternatives.append(Alternative(found.title, found.seconds, bound, "slower", found.stage))

    def left_behind(self, case: Case, solution: Solution, problem: Problem, limit: float, lowered: bool) -> None:
        """Note why a case was given up; `lowered`: what was solved had a lower limit than the true one, `limit`."""
        if case == self.found.case and solution.choice is None and not solution.infeasible:
            return
        if solution.infeasible:
            least = least_memory(problem.model)
            over = least - limit
            self.excess.setdefault(case, int(over))
            reason = f"needs at least {format_bytes(max(0.0, over))} more per device"
            if not lowered:
                self.prove(case, inf)
        elif solution.bound > 0 and solution.bound >= self.found.seconds * (1 - self.settings.gap):
            reason = "cannot be better: its bound is above the best"
        elif solution.choice is not None:
            reason = "its best plan takes longer even before the ends of its passes are counted"
        else:
            reason = "no plan found in the time given"
        self.found.alternatives.append(Alternative(str(case), inf, solution.bound, reason))

    def nothing_fits(self, over: bool) -> NoReturn:
        """Say why there is no plan: raises MemoryLimitError, or PinError; `over`: the budget was spent."""
        if not self.excess:
            raise PinError(
                "search",
                "has at least one plan that keeps all pins",
                "none was found" + (" in the budget" if over else ""),
                "drop a pin, or give more time",
            )
        case, excess = min(self.excess.items(), key=lambda item: item[1])
        limits = [self.cluster.memory_limit(rank) for rank in range(self.cluster.size)]
        least = limits.index(min(limits))
        alike = len(set(limits)) == 1
        name = self.cluster.devices[least].name
        where = "per device" if alike else f"on rank {least} ({name}), more elsewhere"
        others = "" if alike else f", leave out rank {least}"
        raise MemoryLimitError(
            f"{self.graph.name} on {self.cluster.size} devices",
            f"fits in {format_bytes(limits[least])} {where}",
            f"the nearest plan ({case}) needs {format_bytes(max(0, excess))} more",
            f"use more devices or larger ones{others}, a smaller batch, more microbatches, "
            "or an optimizer with less state",
        )

    def prove(self, case: Case, bound: float) -> None:
        """Note a bound; that of chosen shares says nothing about others, so it is no part of the certificate."""
        self.bounds[case] = max(bound, self.bounds.get(case, 0.0))
        fixed = self.settings.shares or self.settings.known
        if case.joint or not case.shares or fixed:
            self.found.bounds[case] = self.bounds[case]
