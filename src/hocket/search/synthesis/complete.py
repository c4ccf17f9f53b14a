"""From a program to a stage: which layout the readers of a value share, and what is kept for the backward pass.

A synthesised program says how every operation runs and how inputs are stored. Given that, every value is a problem
of its own: of a few layouts the cheapest to share is taken, of equally cheap ones the one that keeps least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import inf

from hocket.plan.types import Stage
from hocket.search.problem import Problem
from hocket.search.synthesis.program import SynthesisedProgram
from hocket.sharding.layout import Layout, largest_share
from hocket.sharding.reshard import Ways
from hocket.sharding.strategy import Strategy, parse_strategy

Layouts = tuple[Layout, ...]


@dataclass(frozen=True, slots=True)
class Copies:
    """Layouts of a value's copies; None where nothing is shared or kept."""

    used: Layout | None = None
    kept: Layout | None = None
    reused: Layout | None = None


def stage_of(problem: Problem, program: SynthesisedProgram) -> Stage:
    """The stage that a program means."""
    return _Completer(problem, program).stage()


class _Completer:
    def __init__(self, problem: Problem, program: SynthesisedProgram) -> None:
        self.problem, self.program = problem, program
        graph = problem.graph
        parsed: dict[tuple[str, int], Strategy] = {}
        self.made: dict[str, Layout] = dict(program.stored)
        self.reads: dict[tuple[str, bool], list[Layout]] = {}
        for index, (operation, text) in enumerate(zip(graph.operations, program.strategies, strict=True)):
            key = (text, problem.fold.operations[index])
            if key not in parsed:
                parsed[key] = parse_strategy(text, problem.rules[index], operation, problem.mesh)
            self.made.update(zip(operation.outputs, parsed[key].outputs, strict=True))
            for name, layout in zip(operation.inputs, parsed[key].inputs, strict=True):
                self.reads.setdefault((name, index >= graph.forward), []).append(layout)
        self.memo: dict[object, Copies] = {}

    def stage(self) -> Stage:
        """All values with their copies."""
        copies = {name: self._copies(name) for name in self.made}
        used = {name: c.used for name, c in copies.items() if c.used is not None}
        kept = {name: c.kept for name, c in copies.items() if c.kept is not None}
        reused = {name: c.reused for name, c in copies.items() if c.reused is not None}
        program = self.program
        return Stage(self.problem.mesh, program.stored, program.strategies, used, kept, reused, self.problem.shares)

    def _copies(self, name: str) -> Copies:
        problem, flow = self.problem, self.problem.flow
        made, tensor = self.made[name], problem.graph.types[name]
        leaving = [self.program.stored[p] for p in problem.structure.goals.get(name, ())]
        front, back = [*self.reads.get((name, False), []), *leaving], self.reads.get((name, True), [])
        crossing, entry = name in flow.crossing, name in self.program.stored
        key = (tensor, made, tuple(front), tuple(back), crossing, entry, name in flow.early or name in flow.late)
        if key not in self.memo:
            apart = name in flow.early or name in flow.late
            ways = problem.ways.get((tensor, apart)) or problem.ways.get((tensor, not apart))
            if crossing:
                self.memo[key] = self._crossing(ways, made, front, back, entry)
            else:
                self.memo[key] = Copies(used=_hub(ways, made, [*front, *back])[1])
        return self.memo[key]

    def _crossing(
        self, ways: Ways | None, made: Layout, front: Sequence[Layout], back: Sequence[Layout], entry: bool
    ) -> Copies:
        """What the forward pass shares, what is kept of it, and what the backward pass shares of that."""
        shared = _whole([made, *front, *back])
        best: tuple[float, float, Copies] = (inf, inf, Copies())
        for used, kept in product(shared if front else (made,), dict.fromkeys((made, *shared))):
            if entry and kept != made and self._held(kept) < self._held(made):
                continue
            again = 0.0 if kept == made else _cost(ways, used, kept)
            seconds = _cost(ways, made, used) + sum(_cost(ways, used, r) for r in front) + again
            after, reused = _hub(ways, kept, back)
            found = Copies(used if front else None, kept, reused)
            best = min(best, (seconds + after, self._held(kept), found), key=lambda b: b[:2])
        return best[2]

    def _held(self, layout: Layout) -> float:
        """The largest fraction of a tensor that a device holds."""
        share = 1.0
        for parts, placement in zip(self.problem.mesh.sizes, layout.placements, strict=True):
            share *= largest_share(placement, parts)
        return share


def _whole(layouts: Sequence[Layout]) -> Layouts:
    """Layouts that can be shared: none of addends."""
    return tuple(layout for layout in dict.fromkeys(layouts) if not layout.has_partial)


def _hub(ways: Ways | None, source: Layout, readers: Sequence[Layout]) -> tuple[float, Layout | None]:
    """Seconds to serve readers, and the layout to share where there are several."""
    if len(readers) < 2:
        return sum(_cost(ways, source, r) for r in readers), None
    hubs = _whole([source, *readers])
    found = [(_cost(ways, source, h) + sum(_cost(ways, h, r) for r in readers), h) for h in hubs]
    seconds, hub = min(found, key=lambda f: f[0], default=(inf, source))
    apart = sum(_cost(ways, source, r) for r in readers)
    return (apart, None) if apart < seconds else (seconds, hub)


def _cost(ways: Ways | None, source: Layout, target: Layout) -> float:
    if source == target:
        return 0.0
    if ways is None or source not in ways.index or target not in ways.index:
        return inf
    return ways.cost(source, target)
