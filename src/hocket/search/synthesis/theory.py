"""The background theory: Hoare triples {properties} instructions {properties}, derived from the operations' rules.

There is no second table of rules: an operation's strategies are its triples, and the ways between layouts are those
of communication. Around every operation stand the conversions that it needs, so one triple appends both:

- at the front (forward pass): convert what is not there in a layout that the strategy reads, compute;
- at the end (backward pass), seen from behind: compute, convert what is made to what is needed later; what is read
  of the backward pass is needed from then on, what is read of the forward pass is converted at the front.

A parameter's gradient is needed as the parameter is stored: gradients are goals as the loss is.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field
from itertools import product
from math import inf

from hocket.graph.recompute import random_pairs
from hocket.search.pricing import strategy_seconds
from hocket.search.problem import Problem
from hocket.search.synthesis.order import mirrored_order
from hocket.search.synthesis.tensors import Space, Tensor, find_tensors
from hocket.sharding.strategy import Strategy

Local = tuple[int, ...]
"""Bits of the tensors that an operation touches, each from its own first bit."""
Fetch = tuple[int, int]
"""A conversion: which of the touched tensors, to which of its layouts."""


Way = tuple[int, float, tuple[int, ...]]
"""A way to have a tensor as it is needed: its bits then, seconds, the layouts it is converted to."""


@dataclass(frozen=True, slots=True)
class Speedups:
    """HAP's three (section 4.5), each of which can be left off to see what it does, and our own.

    `fused`: inputs are placed by their first reader. `once`: a tensor is communicated at most once, an input never.
    `dropped`: properties that nothing will read are forgotten. `guided`: what is left to do is judged with
    communication (see potentials), not by computation alone.
    """

    fused: bool = True
    once: bool = True
    dropped: bool = True
    guided: bool = True


@dataclass(frozen=True, slots=True)
class Triple:
    """What appending an operation with its conversions does to the properties of the tensors it touches.

    `before` and `after` are seconds of communication in front of the operation and behind it, `work` seconds of
    computation per kind of device (none: it only places an input). `stored` are the inputs that it places, by their
    place among the tensors touched (or among all), each with its layout.
    """

    post: Local
    option: int
    work: tuple[float, ...]
    before: float
    after: float
    fetched: tuple[Fetch, ...]
    stored: tuple[Fetch, ...] = ()


@dataclass(slots=True)
class Place:
    """An operation's place in the order: the tensors it touches, and which are touched for the last time.

    `goals` are pairs of touched tensors: a gradient made here and its parameter. `twin` is the touched tensor whose
    bits are the strategy of an operation that draws random numbers, for its repetition to draw the same.
    """

    index: int
    late: bool
    tensors: tuple[Tensor, ...]
    dies: tuple[bool, ...]
    goals: tuple[tuple[int, int], ...]
    signature: object = None
    twin: int = -1


@dataclass
class Theory:
    """All triples of a problem, for kinds of devices that the given ranks stand for."""

    problem: Problem
    ranks: tuple[int, ...]
    speedups: Speedups = field(default_factory=Speedups)

    def __post_init__(self) -> None:
        problem = self.problem
        self.options: dict[int, tuple[Strategy, ...]] = {
            number: problem.nodes[node].options  # type: ignore[misc]
            for number, node in problem.operation_nodes.items()
        }
        self.tensors = find_tensors(problem, self.options)
        self.order = mirrored_order(problem.structure)
        self.works = self._works()
        self.places = self._places()
        self.memo: dict[tuple[object, Local], tuple[Triple, ...]] = {}
        self.allowed: dict[int, frozenset[int]] = {n: frozenset(range(len(o))) for n, o in self.options.items()}

    def narrowed(self, allowed: dict[int, frozenset[int]]) -> Theory:
        """The theory in which every class of operations has only some of its strategies."""
        other = copy(self)
        other.allowed, other.memo = allowed, {}
        return other

    def strategies(self, index: int) -> tuple[Strategy, ...]:
        """The strategies of an operation."""
        return self.options[self.problem.fold.operations[index]]

    def _works(self) -> dict[int, tuple[tuple[float, ...], ...]]:
        """Per class of operations and strategy the seconds on every kind of device."""
        problem, found = self.problem, {}
        for index, number in enumerate(problem.fold.operations):
            if number not in found:
                args = (problem.graph, problem.graph.operations[index], problem.rules[index])
                found[number] = tuple(
                    tuple(strategy_seconds(*args, o, problem.mesh, problem.prices, rank) for rank in self.ranks)
                    for o in self.options[number]
                )
        return found

    def work(self, index: int) -> tuple[tuple[float, ...], ...]:
        """Per strategy of an operation the seconds on every kind of device."""
        return self.works[self.problem.fold.operations[index]]

    def _places(self) -> tuple[Place, ...]:
        graph, goals = self.problem.graph, self.problem.structure.goals
        twins = self._twins()
        touched: list[tuple[str, ...]] = []
        last: dict[str, int] = {}
        for number, index in enumerate(self.order):
            operation = graph.operations[index]
            ends = [p for v in operation.outputs for p in goals.get(v, ())]
            twin = [twins[index]] if index in twins else []
            touched.append(tuple(dict.fromkeys((*operation.inputs, *operation.outputs, *ends, *twin))))
            last.update(dict.fromkeys(touched[-1], number))
        places = []
        for number, index in enumerate(self.order):
            names = touched[number]
            pairs = [(v, p) for v in graph.operations[index].outputs for p in goals.get(v, ())]
            places.append(
                Place(
                    index,
                    index >= graph.forward,
                    tuple(self.tensors[n] for n in names),
                    tuple(last[n] == number for n in names),
                    tuple((names.index(v), names.index(p)) for v, p in pairs),
                    twin=names.index(twins[index]) if index in twins else -1,
                )
            )
            place = places[-1]
            slots = tuple(
                names.index(n) for n in (*graph.operations[index].inputs, *graph.operations[index].outputs)
            )
            spaces = tuple((id(t.space), t.stored, t.late) for t in place.tensors)
            place.signature = (self.problem.fold.operations[index], slots, spaces, place.dies, place.goals)
        return tuple(places)

    def _twins(self) -> dict[int, str]:
        """Names of the tensors that stand for strategies of random operations, by these and their repetitions."""
        found = {}
        for before, again in random_pairs(self.problem.graph):
            count = len(self.strategies(before))
            space = Space((), (), ())
            first = max((t.first + t.size for t in self.tensors.values()), default=0)
            name = f"strategy of {before}"
            self.tensors[name] = Tensor(name, space, first, (), False, count)
            found.update({before: name, again: name})
        return found

    def triples(self, number: int, held: Local) -> tuple[Triple, ...]:
        """The triples whose preconditions hold at a place of the order, given the properties of what it touches."""
        key = (self.places[number].signature, held)
        if key not in self.memo:
            self.memo[key] = tuple(self._derive(self.places[number], held))
        return self.memo[key]

    def _derive(self, place: Place, held: Local) -> Iterator[Triple]:
        operation = self.problem.graph.operations[place.index]
        names = [t.name for t in place.tensors]
        inputs = [names.index(n) for n in operation.inputs]
        outputs = [names.index(n) for n in operation.outputs]
        allowed = self.allowed[self.problem.fold.operations[place.index]]
        for number, strategy in enumerate(self.strategies(place.index)):
            drawn = place.twin >= 0 and held[place.twin]
            if number not in allowed or (drawn and drawn != 1 << number):
                continue
            needs: dict[int, int] = {}
            for slot, layout in zip(inputs, strategy.inputs, strict=True):
                needs[slot] = needs.get(slot, 0) | place.tensors[slot].space.mask([layout])
            read = [self._read(place, slot, held[slot], need) for slot, need in needs.items()]
            for chosen in product(*read):
                states, before, fetched = list(held), 0.0, []
                for slot, (state, seconds, target) in zip(needs, chosen, strict=True):
                    states[slot], before = state, before + seconds
                    fetched += [(slot, t) for t in target]
                stored = tuple(fresh for slot in needs for fresh in self._placed(place, slot, held, states))
                made = zip(outputs, strategy.outputs, strict=True)
                for end in self._made(place, states, list(made)):
                    after, post = sum(e[1] for e in end), list(states)
                    for slot, (state, _, _) in zip(outputs, end, strict=True):
                        post[slot] = state
                    ends = [(slot, t) for slot, e in zip(outputs, end, strict=True) for t in e[2]]
                    if place.twin >= 0:
                        post[place.twin] = 1 << number
                    if self.speedups.dropped:
                        post = [0 if dies else state for state, dies in zip(post, place.dies, strict=True)]
                    work = self.work(place.index)[number]
                    yield Triple(tuple(post), number, work, before, after, (*fetched, *ends), stored)

    @staticmethod
    def _placed(place: Place, slot: int, held: Local, states: list[int]) -> Iterator[Fetch]:
        """The layout of an input that was not there before."""
        tensor = place.tensors[slot]
        if tensor.stored and not held[slot] & tensor.space.all:
            yield from ((slot, layout) for layout in tensor.stored if states[slot] & tensor.kept(layout))

    def _read(self, place: Place, slot: int, state: int, need: int) -> list[Way]:
        """Ways to have a tensor as an operation reads it: its bits then, seconds, layouts it is converted to."""
        tensor = place.tensors[slot]
        if tensor.late:
            return [(tensor.space.strongest(state | need), 0.0, ())]
        if not tensor.stored or state & tensor.space.all:
            return self._provide(tensor, state, need, place.dies[slot])
        if not self.speedups.fused:
            return []
        found = []
        for layout in tensor.stored:
            start = tensor.space.free[layout] | tensor.kept(layout)
            found += self._provide(tensor, start, need, place.dies[slot])
        return found

    def _provide(self, tensor: Tensor, state: int, need: int, last: bool) -> list[Way]:
        space = tensor.space
        if need & ~state == 0:
            return [(state, 0.0, ())]
        if self.speedups.once and (tensor.stored or state & tensor.communicated):
            return []
        found: list[Way] = []
        sources = [i for i in range(len(space.layouts)) if state >> i & 1]
        for target, free in enumerate(space.free):
            cost = min((space.seconds[i][target] for i in sources), default=inf)
            if cost == inf or free & ~state & space.all == 0:
                continue
            fresh = state | free | tensor.communicated
            if need & ~fresh == 0:
                found.append((fresh, cost, (target,)))
            elif not self.speedups.once and free & need & ~state:
                rest = self._provide(tensor, fresh, need, last)
                found += [(after, cost + more, (target, *targets)) for after, more, targets in rest]
        return best_of(found, last)

    def _made(self, place: Place, states: list[int], made: list[tuple[int, object]]) -> Iterator[tuple[Way, ...]]:
        """Ways to go on with what an operation makes: per output its bits, seconds, layouts it is converted to."""
        choices = []
        for slot, layout in made:
            tensor = place.tensors[slot]
            state = tensor.space.free[tensor.space.layouts.index(layout)]
            need = states[slot] & tensor.space.all if tensor.late else 0
            for goal, parameter in place.goals:
                if goal == slot:
                    need |= self._stored(place.tensors[parameter], states[parameter], tensor)
            ways = self._provide(tensor, state, need, tensor.late)
            choices.append([(0 if tensor.late else s, cost, targets) for s, cost, targets in ways])
        return product(*choices)

    @staticmethod
    def _stored(parameter: Tensor, state: int, gradient: Tensor) -> int:
        """The property that a gradient must have: to be where its parameter is stored."""
        layouts = [parameter.space.layouts[k] for k in parameter.stored if state & parameter.kept(k)]
        return gradient.space.mask(layouts)


def best_of(ways: list[Way], last: bool) -> list[Way]:
    """The ways that no other one beats in cost and in what is there afterwards; the cheapest for a last reader."""
    ways = sorted(ways, key=lambda way: (way[1], -way[0].bit_count()))
    if last:
        return ways[:1]
    kept: list[Way] = []
    for way in ways:
        if not any(way[0] & ~other[0] == 0 for other in kept):
            kept.append(way)
    return kept
