"""Synthesising a program: seeds, then A*, within a budget."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from dataclasses import dataclass
from math import inf
from typing import Literal

from hocket.search.known import data_parallel
from hocket.search.problem import Problem
from hocket.search.synthesis.astar import Synthesis, make_potentials
from hocket.search.synthesis.potentials import Potentials
from hocket.search.synthesis.program import SynthesisedProgram, program_of
from hocket.search.synthesis.theory import Speedups, Theory, Triple

Means = Literal["dives", "search", "both"]


@dataclass(frozen=True, slots=True)
class Result:
    """The best program found, its seconds by HAP's cost, a bound on every program, and how many were expanded."""

    program: SynthesisedProgram | None
    seconds: float
    bound: float
    expanded: int


def synthesise(
    problem: Problem,
    ranks: tuple[int, ...],
    seconds: float = inf,
    gap: float = 0.0,
    stop: threading.Event | None = None,
    speedups: Speedups | None = None,
    means: Means = "both",
) -> Result:
    """The best program for a problem; `ranks` stand for the kinds of devices, `seconds` is the budget.

    With a budget, dives come first (see Descent): what they find ends the search of much else, and stands where the
    search itself does not come to an end. By dives alone, the bound is that of the payments.
    """
    end = time.monotonic() + seconds
    theory = Theory(problem, ranks, speedups or Speedups())
    search = Synthesis(theory, make_potentials(theory, time.monotonic() + seconds / 3))
    descent = Descent(theory, search.potentials, end, stop)
    if seconds < inf and means != "search":
        descent.run()
    if means == "dives":
        program = program_of(theory, descent.triples) if descent.triples else None
        return Result(program, descent.seconds, search.potentials.total(), descent.expanded)
    result = search.run(max(0.0, end - time.monotonic()), gap, stop, descent.seconds)
    triples = result.triples() if result.best is not None else descent.triples
    program = program_of(theory, triples) if triples else None
    return Result(program, result.seconds, result.bound, descent.expanded + result.expanded)


class Descent:
    """Dives into narrowed theories: data parallelism first, then module by module all strategies beside the ones
    that are known for the rest, at last everything.

    After every dive operations alike take the strategy that most of them took.
    """

    def __init__(
        self, theory: Theory, potentials: Potentials, end: float, stop: threading.Event | None = None
    ) -> None:
        self.theory, self.potentials, self.end, self.stop = theory, potentials, end, stop
        self.seconds: float = inf
        self.triples: tuple[Triple, ...] = ()
        self.expanded = 0

    def run(self) -> None:
        """Descend as long as there is time."""
        self._dive(data_parallel(self.theory.problem))
        for group in self._groups():
            if self.triples:
                known = _most_taken(self.theory, self.triples)
                self._dive({n: self.theory.allowed[n] if n in group else taken for n, taken in known.items()})
        self._dive(self.theory.allowed)

    def _dive(self, allowed: dict[int, frozenset[int]]) -> None:
        for _ in range(2):
            if time.monotonic() > self.end or (self.stop is not None and self.stop.is_set()):
                return
            search = Synthesis(self.theory.narrowed(allowed), self.potentials)
            seconds, triples = search.dive(self.end)
            self.expanded += search.expanded
            if seconds < self.seconds:
                self.seconds, self.triples = seconds, triples
            if not triples:
                return
            allowed = _most_taken(self.theory, triples)

    def _groups(self) -> tuple[frozenset[int], ...]:
        """Classes of operations by modules of equal role: the largest that have at most half of all classes."""
        problem = self.theory.problem
        found: dict[str, set[int]] = {}
        for operation, number in zip(problem.graph.operations, problem.fold.operations, strict=True):
            path = re.sub(r"\d+", "*", operation.module).split(".")
            for depth in range(1, len(path) + 1):
                found.setdefault(".".join(path[:depth]), set()).add(number)
        half = problem.fold.classes / 2
        fitting = {frozenset(group): None for group in found.values() if len(group) <= half}
        largest = [group for group in fitting if not any(group < other for other in fitting)]
        return tuple(sorted(largest, key=len, reverse=True))


def _most_taken(theory: Theory, triples: tuple[Triple, ...]) -> dict[int, frozenset[int]]:
    """Per class of operations the strategy that most of its members took."""
    taken: dict[int, Counter[int]] = {}
    for place, triple in zip(theory.places, (t for t in triples if t.work), strict=True):
        taken.setdefault(theory.problem.fold.operations[place.index], Counter())[triple.option] += 1
    return {number: frozenset([counts.most_common(1)[0][0]]) for number, counts in taken.items()}
