"""A* over partial programs (HAP, section 4.3 and figure 10).

A partial program has a front (forward pass) and an end (backward pass) that grow towards each other. Its score is
its cost up to the last synchronisation of either side, with what is computed since, plus what is left to do at
least. Of programs with the same properties one that is not cheaper, whatever follows, is dropped.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

from hocket.search.synthesis.potentials import Potentials
from hocket.search.synthesis.theory import Local, Theory, Triple

WIDTH = 24
"""Partial programs of one length that the first dive keeps."""
Work = tuple[float, ...]


@dataclass(slots=True, eq=False)
class Partial:
    """A partial program: how many operations it has, its properties, and its cost.

    `closed` seconds are up to the last synchronisation of both sides; `front` and `end` what every kind of device
    computes since (before).
    """

    count: int
    properties: int
    closed: float
    front: Work
    end: Work
    left: float
    before: Partial | None = None
    triple: Triple | None = None


@dataclass
class Synthesised:
    """The best program found (its last partial program), its cost, a bound on all, and how many were expanded."""

    best: Partial | None
    seconds: float
    bound: float
    expanded: int

    def triples(self) -> tuple[Triple, ...]:
        """The program's triples in the order in which it was put together."""
        found: list[Triple] = []
        here = self.best
        while here is not None and here.triple is not None:
            found.append(here.triple)
            here = here.before
        return tuple(reversed(found))


@dataclass
class _Appender:
    """What one place of the order does, with the tensors it touches found in the properties of whole programs."""

    shifts: tuple[int, ...]
    masks: tuple[int, ...]
    slots: tuple[int, ...]
    rest: int
    known: dict[int, tuple[tuple[int, float, Triple], ...]] = field(default_factory=dict)


class Synthesis:
    """One search for a program."""

    def __init__(self, theory: Theory, potentials: Potentials | None = None) -> None:
        self.theory = theory
        self.potentials = potentials or make_potentials(theory)
        self.kind = self.potentials.kind
        self.appenders = [self._appender(number) for number in range(len(theory.places))]
        self.last = {t.name: number for number, place in enumerate(theory.places) for t in place.tensors}
        self.free_inputs = [t for t in theory.tensors.values() if t.stored and t.name in self.last]
        self.expanded = 0
        self.seen: dict[tuple[int, int], list[Partial]] = {}

    def _appender(self, number: int) -> _Appender:
        tensors = self.theory.places[number].tensors
        masks = tuple((1 << t.size) - 1 for t in tensors)
        taken = 0
        for tensor, mask in zip(tensors, masks, strict=True):
            taken |= mask << tensor.first
        slots = tuple(self.potentials.numbers[t.name] for t in tensors)
        return _Appender(tuple(t.first for t in tensors), masks, slots, ~taken)

    def run(
        self, seconds: float = inf, gap: float = 0.0, stop: threading.Event | None = None, cutoff: float = inf
    ) -> Synthesised:
        """Search best first until no program below a cutoff can be better by more than a relative gap."""
        end = time.monotonic() + seconds
        best, value = None, cutoff
        root = self._root()
        heap: list[tuple[float, int, int, Partial]] = [(self._score(root), 0, 0, root)]
        number, last = 0, len(self.theory.places)
        while heap:
            score, _, _, here = heap[0]
            if score >= value * (1 - gap) or self._over(end, stop):
                break
            heapq.heappop(heap)
            if self._beaten(here):
                continue
            for fresh in self._successors(here):
                if fresh.count == last:
                    if self._whole(fresh) < value:
                        best, value = fresh, self._whole(fresh)
                    continue
                score = self._score(fresh)
                if score < value and self._enter(fresh):
                    number += 1
                    heapq.heappush(heap, (score, -fresh.count, number, fresh))
        bound = min(value, heap[0][0] if heap else value)
        return Synthesised(best, value, bound, self.expanded)

    @staticmethod
    def _over(end: float, stop: threading.Event | None) -> bool:
        return time.monotonic() > end or (stop is not None and stop.is_set())

    def _score(self, here: Partial) -> float:
        return here.closed + here.front[self.kind] + here.end[self.kind] + here.left

    @staticmethod
    def _whole(here: Partial) -> float:
        """Seconds of a whole program: its front and its end meet in one stage."""
        return here.closed + max(a + b for a, b in zip(here.front, here.end, strict=True))

    def _root(self) -> Partial:
        zero = (0.0,) * len(self.theory.ranks)
        return Partial(0, 0, 0.0, zero, zero, self.potentials.total())

    def dive(self, end: float = inf) -> tuple[float, tuple[Triple, ...]]:
        """A program soon, and its seconds: of every length only the most promising partial programs are kept."""
        layer = [self._root()]
        for _ in self.theory.places:
            found: list[Partial] = []
            for here in layer:
                found += [fresh for fresh in self._successors(here) if self._enter(fresh)]
            steps = [f for f in found if f.count == layer[0].count + 1]
            layer = sorted((f for f in steps if not self._beaten(f)), key=self._score)[:WIDTH]
            if not layer or time.monotonic() > end:
                return inf, ()
        self.seen.clear()
        best = min(layer, key=self._whole)
        return self._whole(best), Synthesised(best, 0.0, 0.0, 0).triples()

    def _successors(self, here: Partial) -> Iterator[Partial]:
        self.expanded += 1
        if not self.theory.speedups.fused:
            yield from self._inputs(here)
        place = self.theory.places[here.count]
        for properties, change, triple in self._append(here.count, here.properties):
            closed, front, end = here.closed, here.front, here.end
            if triple.before:
                closed, front = closed + max(front) + triple.before, (0.0,) * len(front)
            if place.late:
                if triple.after:
                    closed, end = closed + max(end) + triple.after, (0.0,) * len(end)
                end = tuple(map(sum, zip(end, triple.work, strict=True)))
            else:
                front = tuple(map(sum, zip(front, triple.work, strict=True)))
                if triple.after:
                    closed, front = closed + max(front) + triple.after, (0.0,) * len(front)
            yield Partial(here.count + 1, properties, closed, front, end, here.left + change, here, triple)

    def _append(self, number: int, properties: int) -> tuple[tuple[int, float, Triple], ...]:
        appender = self.appenders[number]
        here = properties & ~appender.rest
        if here not in appender.known:
            held: Local = tuple((properties >> s) & m for s, m in zip(appender.shifts, appender.masks, strict=True))
            found = []
            for triple in self.theory.triples(number, held):
                change = self.potentials.change(number, appender.slots, held, triple.post)
                if change < inf:
                    post = sum(bits << shift for bits, shift in zip(triple.post, appender.shifts, strict=True))
                    found.append((post, change, triple))
            appender.known[here] = tuple(found)
        return tuple((properties & appender.rest | post, c, t) for post, c, t in appender.known[here])

    def _inputs(self, here: Partial) -> Iterator[Partial]:
        """Place an input that is not there yet, in every layout, as instructions of their own."""
        for tensor in self.free_inputs:
            if here.properties >> tensor.first & tensor.space.all or self.last[tensor.name] < here.count:
                continue
            for layout in tensor.stored:
                bits = (tensor.space.free[layout] | tensor.kept(layout)) << tensor.first
                number = self.potentials.numbers[tensor.name]
                post = Triple((bits,), layout, (), 0.0, 0.0, (), ((number, layout),))
                yield Partial(here.count, here.properties | bits, here.closed, here.front, here.end, here.left,
                              here, post)  # fmt: skip

    def _enter(self, fresh: Partial) -> bool:
        """Note a partial program unless one with the same properties is at least as cheap whatever follows."""
        others = self.seen.setdefault((fresh.count, fresh.properties), [])
        if any(_beats(other, fresh) for other in others):
            return False
        others[:] = [other for other in others if not _beats(fresh, other)]
        others.append(fresh)
        return True

    def _beaten(self, here: Partial) -> bool:
        """Whether a cheaper program with its properties came after it."""
        others = self.seen.get((here.count, here.properties))
        return others is not None and all(other is not here for other in others)


def make_potentials(theory: Theory, end: float = inf) -> Potentials:
    """Potentials for the kind of devices that computes longest; without guidance by computation alone.

    They are improved until a point in time, if one is given.
    """
    kinds = range(len(theory.ranks))
    least = [sum(min(w[k] for w in theory.work(i)) for i in theory.order) for k in kinds]
    guided = theory.speedups.guided and theory.speedups.once
    return Potentials(theory, max(kinds, key=lambda k: least[k]), guided, end)


def _beats(one: Partial, other: Partial) -> bool:
    """Whether a program is at least as cheap as another with the same properties, whatever follows: work that the
    other has done less of may delay the stage that it is in."""
    late = max(0.0, *(a - b for a, b in zip(one.front, other.front, strict=True)))
    late += max(0.0, *(a - b for a, b in zip(one.end, other.end, strict=True)))
    return one.closed + late <= other.closed
