"""What is left to do, from below: payments between operations and tensors (a Lagrangian decomposition).

HAP's estimate of the remaining cost is the least computation at infinite bandwidth. It says nothing of
communication, so that programs of every kind look alike until late. Here the remaining problem is taken apart into
one small problem per operation (which strategy) and per tensor (how it is made, to what it is converted); each pays
the other for a layout, and what all of them take at least, each by itself, bounds what is left from below, whatever
is paid (Lagrangian decomposition). Good payments come of balancing one tensor after the other in order, there and
back: dual block-coordinate ascent with handshakes in one direction at a time, after TRW-S (Kolmogorov 2006,
section 3).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from hocket.search.synthesis.tensors import Tensor
from hocket.search.synthesis.theory import Local, Place, Theory

Row = NDArray[np.float64]
SWEEPS = 6
"""Rounds of messages, there and back."""


@dataclass(frozen=True, slots=True, eq=False)
class Ends:
    """How a tensor can end up: made in a layout, converted to another one or not (`target` -1).

    `seconds` are those of the conversion, `held` what is there of it as a mask.
    """

    made: tuple[int, ...]
    target: tuple[int, ...]
    seconds: Row
    held: tuple[int, ...]

    def only(self, alive: NDArray[np.bool_]) -> Ends:
        """Those that are possible."""
        kept = [k for k, ok in enumerate(alive) if ok]
        made, target, held = (tuple(c[k] for k in kept) for c in (self.made, self.target, self.held))
        return Ends(made, target, self.seconds[alive], held)


def ends_of(tensor: Tensor, made: tuple[int, ...], once: bool) -> Ends:
    """All ways in which a tensor can end up."""
    space = tensor.space
    found = [(m, -1, 0.0, space.free[m]) for m in made]
    if not tensor.stored or not once:
        for m in made:
            for t, free in enumerate(space.free):
                if free & ~space.free[m] and space.seconds[m][t] < inf:
                    found.append((m, t, space.seconds[m][t], space.free[m] | free))
    columns = list(zip(*found, strict=True))
    return Ends(columns[0], columns[1], np.array(columns[2]), columns[3])


NOTHING = Ends((), (), np.zeros(0), ())


@dataclass(slots=True, eq=False)
class Link:
    """An operation and a tensor it touches: which choices of both go together, as a table of zero and infinity.

    `pay` is what the operation pays for each end of the tensor; `rest` the least that remains to it per choice.
    """

    chooser: Chooser
    table: Row
    tensor: int
    pay: Row
    rest: Row


@dataclass(slots=True, eq=False)
class Chooser:
    """An operation's strategies, or the stored layouts in which a parameter and its gradient must agree; `place` is
    where in the order the operation stands."""

    costs: Row
    links: list[Link]
    place: int

    @property
    def least(self) -> float:
        """What it takes at least."""
        return float((self.costs + sum(link.rest for link in self.links)).min())

    def offer(self, link: Link) -> Row:
        """What it takes at least for each end of a tensor, all that it pays for that tensor taken back."""
        others = self.costs + sum(other.rest for other in self.links if other is not link)
        offer: Row = (link.table + others[:, None]).min(axis=0)
        return offer


class Potentials:
    """The small problems and the payments between them; made once per theory."""

    def __init__(self, theory: Theory, kind: int, guided: bool, end: float = inf) -> None:
        self.theory, self.kind, self.guided = theory, kind, guided
        self.numbers = {name: n for n, name in enumerate(theory.tensors)}
        self.list = list(theory.tensors.values())
        self.memo: dict[object, Row] = {}
        made = self._made()
        once = theory.speedups.once
        cache: dict[object, Ends] = {}
        self.ends: list[Ends] = []
        for tensor in self.list:
            key = (id(tensor.space), bool(tensor.stored), made[tensor.name])
            if key not in cache:
                cache[key] = ends_of(tensor, made[tensor.name], once) if made[tensor.name] else NOTHING
            self.ends.append(cache[key])
        self.links: list[list[Link]] = [[] for _ in self.list]
        self.opened: list[int] = []
        self.choosers = [c for place in range(len(theory.places)) for c in self._choosers(place)]
        if guided:
            self._support()
        for _ in range(SWEEPS if guided else 0):
            if time.monotonic() > end:
                break
            self._sweep(forward=True)
            self._sweep(forward=False)
        self._settle()

    def _made(self) -> dict[str, tuple[int, ...]]:
        """Per tensor the layouts in which it can be made."""
        found = {t.name: dict.fromkeys(t.stored) for t in self.list}
        for place in self.theory.places:
            operation = self.theory.problem.graph.operations[place.index]
            for option in self.theory.strategies(place.index):
                for name, layout in zip(operation.outputs, option.outputs, strict=True):
                    found[name][self.theory.tensors[name].space.layouts.index(layout)] = None
        return {name: tuple(layouts) for name, layouts in found.items()}

    def _choosers(self, number: int) -> list[Chooser]:
        theory, place = self.theory, self.theory.places[number]
        operation = theory.problem.graph.operations[place.index]
        allowed = theory.allowed[theory.problem.fold.operations[place.index]]
        costs = np.array([w[self.kind] if k in allowed else inf for k, w in enumerate(theory.work(place.index))])
        names = [t.name for t in place.tensors]
        own = Chooser(costs, [], number)
        for slot in range(len(names)):
            if names[slot] in operation.inputs or names[slot] in operation.outputs:
                self._link(own, place, slot, self._table(place, slot, operation.inputs, operation.outputs))
        found = [own]
        for goal, parameter in place.goals:
            tensor, kept = place.tensors[goal], place.tensors[parameter]
            both = Chooser(np.zeros(len(kept.stored)), [], number)
            reads = [1 << tensor.space.layouts.index(kept.space.layouts[k]) for k in kept.stored]
            self._link(both, place, goal, self._fits(place.tensors[goal], reads))
            ends = self.ends[self.numbers[kept.name]]
            self._link(both, place, parameter, _penalty([[m == k for m in ends.made] for k in kept.stored]))
            found.append(both)
        return found

    def _fits(self, tensor: Tensor, reads: list[int]) -> Row:
        ends = self.ends[self.numbers[tensor.name]]
        return _penalty([[need & ~held == 0 for held in ends.held] for need in reads])

    def _table(self, place: Place, slot: int, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Row:
        """Penalties between an operation's strategies and how a tensor ends up."""
        tensor = place.tensors[slot]
        number = self.numbers[tensor.name]
        key = (place.signature, slot, id(self.ends[number]))
        if key not in self.memo:
            ends, table = self.ends[number], []
            for option in self.theory.strategies(place.index):
                row = [True] * len(ends.made)
                for name, layout in zip(inputs, option.inputs, strict=True):
                    if name == tensor.name:
                        need = tensor.space.mask([layout])
                        row = [ok and need & ~held == 0 for ok, held in zip(row, ends.held, strict=True)]
                for name, layout in zip(outputs, option.outputs, strict=True):
                    if name == tensor.name:
                        there = tensor.space.layouts.index(layout)
                        row = [ok and made == there for ok, made in zip(row, ends.made, strict=True)]
                table.append(row)
            self.memo[key] = _penalty(table)
        return self.memo[key]

    def _link(self, chooser: Chooser, place: Place, slot: int, table: Row) -> None:
        number = self.numbers[place.tensors[slot].name]
        if not self.links[number]:
            self.opened.append(number)
        link = Link(chooser, table, number, np.zeros(table.shape[1]), np.zeros(table.shape[0]))
        chooser.links.append(link)
        self.links[number].append(link)

    def _support(self) -> None:
        """Take out what goes together with nothing, so that every message is a finite number."""
        there = [np.ones(len(ends.made), dtype=bool) for ends in self.ends]
        chosen = [np.isfinite(chooser.costs) for chooser in self.choosers]
        changed = True
        while changed:
            changed = False
            for chooser, mine in zip(self.choosers, chosen, strict=True):
                for link in chooser.links:
                    fits, yours = np.isfinite(link.table), there[link.tensor]
                    lost = mine & ~fits[:, yours].any(axis=1)
                    gone = yours & ~fits[mine & ~lost].any(axis=0)
                    changed = changed or bool(lost.any() or gone.any())
                    mine &= ~lost
                    yours &= ~gone
        for number, alive in enumerate(there):
            self.ends[number] = self.ends[number].only(alive)
        for chooser, mine in zip(self.choosers, chosen, strict=True):
            chooser.costs = chooser.costs[mine]
            for link in chooser.links:
                link.table = link.table[np.ix_(mine, there[link.tensor])]
                link.rest, link.pay = (np.zeros(n) for n in link.table.shape)

    def _sweep(self, forward: bool) -> None:
        """Balance tensor after tensor, in the order in which they come up or against it: each takes all that the
        operations around it would pay, and hands it on to those that are still to come."""
        for number in self.opened if forward else reversed(self.opened):
            links = self.links[number]
            offers = [link.chooser.offer(link) for link in links]
            whole = self.ends[number].seconds + sum(offers)
            later = links[1:] if forward else links[:1]
            for link, offer in zip(links, offers, strict=True):
                link.pay = offer - (whole / len(later) if link in later else 0.0)
                link.rest = (link.table - link.pay[None, :]).min(axis=1)

    def _settle(self) -> None:
        """Sum up what is still to be paid at every stage of a tensor's life, and what operations take at least."""
        self.least = [0.0] * len(self.theory.places)
        for chooser in self.choosers:
            self.least[chooser.place] += chooser.least
        self.turns: list[dict[int, int]] = [{} for _ in self.theory.places]
        self.rest: list[list[Row]] = [[e.seconds * 0.0] for e in self.ends]
        for number, links in enumerate(self.links):
            for link in reversed(links):
                if number not in self.turns[link.chooser.place]:
                    self.turns[link.chooser.place][number] = len(self.rest[number])
                    self.rest[number].append(self.rest[number][-1])
                self.rest[number][-1] = self.rest[number][-1] + link.pay
        self.known: dict[tuple[int, int, int], float] = {}

    def total(self) -> float:
        """A bound on every whole program."""
        return sum(self.least) + sum(self.left(n, len(rest) - 1, 0) for n, rest in enumerate(self.rest))

    def change(self, place: int, slots: Sequence[int], before: Local, after: Local) -> float:
        """By how much less is left to do once an operation is placed: never more than it truly is."""
        found = -self.least[place]
        for number, old, new in zip(slots, before, after, strict=True):
            turn = self.turns[place].get(number)
            if turn is not None:
                found += self.left(number, turn - 1, new) - self.left(number, turn, old)
        return found

    def left(self, number: int, turn: int, state: int) -> float:
        """What is left to pay for a tensor in a state with so many turns of being touched to come."""
        key = (number, turn, state)
        if key not in self.known:
            self.known[key] = self._left(number, turn, state)
        return self.known[key]

    def _left(self, number: int, turn: int, state: int) -> float:
        if turn == 0 or not self.guided:
            return 0.0
        tensor, ends, rest = self.list[number], self.ends[number], self.rest[number][turn]
        there = state & tensor.space.all
        least = inf
        for k, (made, held) in enumerate(zip(ends.made, ends.held, strict=True)):
            if tensor.late or not there:
                fits, pays = there & ~held == 0, True
            elif state & tensor.communicated:
                fits, pays = held == there, False
            else:
                fits, pays = tensor.space.free[made] == there, True
                fits = fits and (not tensor.stored or bool(state & tensor.kept(made)))
            if fits:
                least = min(least, float(rest[k] + (ends.seconds[k] if pays else 0.0)))
        return least


def _penalty(fits: list[list[bool]]) -> Row:
    return np.where(np.array(fits), 0.0, inf)
