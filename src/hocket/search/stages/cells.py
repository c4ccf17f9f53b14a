"""What every unit of a model takes on a part of the cluster: the numbers that stages are put together from.

A unit is what lies between two places where the model may be cut. Its layout is found alone, with what it is given
and what it gives in whatever layout suits it, for one size of a microbatch, and judged for another as well; between
and beyond the two, seconds and bytes are taken to be linear in the samples. Stages that are put together from these
numbers are laid out and judged for real before one is chosen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, lcm, prod

import numpy as np
from numpy.typing import NDArray

from hocket.graph.cut import cut_graph
from hocket.graph.recompute import find_blocks, recompute
from hocket.graph.types import Graph
from hocket.plan.types import Stage
from hocket.search.repeats import Repeats
from hocket.search.stages.alike import carried_over
from hocket.search.stages.answer import Answer, judge_stage
from hocket.search.stages.solver import Solver
from hocket.search.stages.units import find_cuts
from hocket.sharding.mesh import Mesh

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Mode:
    """How the units of a stage are laid out: the mesh, whether parameters and gradients move once in a step,
    whether blocks run their forward again, for how many microbatches the layout was found."""

    mesh: tuple[int, ...]
    once: bool
    again: bool
    found_for: int
    price: float


@dataclass(frozen=True)
class Cells:
    """Per unit, in one mode, for one number of microbatches: seconds of a microbatch and of what is done once,
    bytes held all the time, per waiting microbatch, and on top of that while one runs."""

    mode: Mode
    seconds: Numbers
    once: Numbers
    fixed: Numbers
    waiting: Numbers
    working: Numbers

    def at(self, other: Cells, share: float) -> Cells:
        """These numbers, moved by a share of the way to those for another number of microbatches."""

        def between(one: Numbers, two: Numbers) -> Numbers:
            return np.maximum(one + share * (two - one), 0.0)

        return Cells(
            self.mode, between(self.seconds, other.seconds), self.once, self.fixed,
            between(self.waiting, other.waiting), between(self.working, other.working),
        )  # fmt: skip


@dataclass(frozen=True)
class Profile:
    """A mode judged for two numbers of microbatches (`one` for `first`, `two` for `second`); samples of a
    microbatch must be a multiple of `divisor`."""

    one: Cells
    two: Cells
    first: int
    second: int
    divisor: int

    def holds(self, microbatches: int, samples: int) -> bool:
        """Whether it tells of so many microbatches of so many samples."""
        if self.first == self.second:
            return microbatches == self.first
        return samples > 1 and samples % self.divisor == 0

    def at(self, microbatches: int) -> Cells:
        """The cells for another number of microbatches: samples go with its inverse."""
        if self.first == self.second:
            return self.one
        share = (1 / microbatches - 1 / self.first) / (1 / self.second - 1 / self.first)
        return self.one.at(self.two, share)


@dataclass
class Units:
    """A graph of one microbatch, with and without its blocks run again, and where it may be cut."""

    plain: Graph
    blocks: tuple[str, ...] = field(init=False)
    graphs: dict[bool, Graph] = field(init=False)
    cuts: dict[bool, tuple[int, ...]] = field(init=False)
    pieces: dict[bool, tuple[Graph, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.blocks = find_blocks(self.plain)
        self.graphs = {False: self.plain, True: recompute(self.plain, self.blocks)}
        self.cuts = {again: find_cuts(graph) for again, graph in self.graphs.items()}

    @property
    def count(self) -> int:
        """Number of units."""
        return len(self.cuts[False]) + 1

    def sent(self, again: bool = False) -> int:
        """Most bytes that a unit gives the next ones in its forward pass."""
        return max((sum(g.types[n].bytes for n in g.sent if n in {o for op in g.operations[: g.forward]
                                                                  for o in op.outputs})
                    for g in self.of(again)), default=0)  # fmt: skip

    @property
    def samples(self) -> int:
        """Samples of a microbatch: the first dim of what the batch has (1 where there is none)."""
        return max((self.plain.types[i.name].shape[0] for i in self.plain.batch if self.plain.types[i.name].shape),
                   default=1)  # fmt: skip

    def of(self, again: bool) -> tuple[Graph, ...]:
        """Every unit as a graph of its own."""
        if again not in self.pieces:
            self.pieces[again] = cut_graph(self.graphs[again], self.cuts[again]).graphs
        return self.pieces[again]


def middle(solver: Solver, units: Units, mode: Mode, first: int) -> Answer | None:
    """The layout of one unit in the middle of the model, which most are like."""
    pieces = units.of(mode.again)
    repeats = Repeats(mode.found_for, 1, mode.once)
    return solver.priced(pieces[len(pieces) // 2], Mesh(mode.mesh, first), repeats, mode.price)


def find_profile(solver: Solver, units: Mapping[int, Units], mode: Mode, first: int, second: int) -> Profile | None:
    """The profile of a mode on the devices from `first` on; `units` by number of microbatches, `second` is the
    other number for which it is judged. None where a unit has no layout."""
    pieces, others = units[mode.found_for].of(mode.again), units[second].of(mode.again)
    repeats = Repeats(mode.found_for, 1, mode.once)
    answers, again, divisor = [], [], 1
    known: dict[int, Answer] = {}
    for piece, other in zip(pieces, others, strict=True):
        answer = solver.priced(piece, Mesh(mode.mesh, first), repeats, mode.price)
        if answer is None:
            return None
        answers.append(answer)
        divisor = lcm(divisor, _divisor(answer.stage, piece))
        key = solver.source(piece)
        if key not in known:
            stage = carried_over(answer.stage, piece, other, answer.stage.mesh)
            known[key] = judge_stage(
                other, stage, solver.cluster, Repeats(second, 1, mode.once), solver.optimizer_bytes
            )
        again.append(known[key])
    return Profile(cells_of(mode, answers), cells_of(mode, again), mode.found_for, second, divisor)


def _divisor(stage: Stage, graph: Graph) -> int:
    """By how much the samples of what a unit is given or gives are divided."""
    found = 1
    for name, layout in (*stage.sent.items(), *((i.name, stage.stored[i.name]) for i in graph.given)):
        if graph.types[name].shape:
            found = lcm(found, prod(stage.mesh.sizes[axis] for axis in layout.splits_of(0)))
    return found


def cells_of(mode: Mode, answers: Sequence[Answer]) -> Cells:
    """The numbers of all units."""

    def each(values: list[float]) -> Numbers:
        return np.array(values, dtype=float)

    return Cells(
        mode,
        each([a.seconds for a in answers]),
        each([a.gather + a.sync for a in answers]),
        each([a.memory.parameters + a.memory.gradients + a.memory.optimizer for a in answers]),
        each([a.waiting for a in answers]),
        each([max(0, a.memory.activations - a.waiting) for a in answers]),
    )


class Sums:
    """Sums over intervals of units, in one mode."""

    def __init__(self, cells: Cells, microbatches: int) -> None:
        self.time = _over_intervals(cells.seconds + cells.once / microbatches)
        self.fixed, self.waiting = _over_intervals(cells.fixed), _over_intervals(cells.waiting)
        count = len(cells.seconds)
        self.working = np.zeros((count + 1, count + 1))
        for i in range(count):
            self.working[i, i + 1 :] = np.maximum.accumulate(cells.working[i:])

    def seconds(self, in_flight: int, limit: float) -> Numbers:
        """What intervals take, infinite where they do not fit with so many microbatches in flight."""
        held = self.fixed + in_flight * self.waiting + self.working
        return np.where(held <= limit, self.time, inf)


def _over_intervals(values: Numbers) -> Numbers:
    """Sums of values i to k - 1 at [i, k]; infinite where k is not more than i."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    table = total[None, :] - total[:, None]
    places = np.arange(len(total))
    return np.where(places[None, :] > places[:, None], table, inf)
