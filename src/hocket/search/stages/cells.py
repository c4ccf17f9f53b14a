"""What every unit of a model takes on a part of the cluster: the numbers that stages are put together from.

A unit is what lies between two places where the model may be cut. Laid out alone, with what it is given and what it
gives in whatever layout suits it, it takes no longer than within any stage: sums over units are bounds on stages,
and near to them, as layers of a model are much alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np
from numpy.typing import NDArray

from hocket.graph.cut import cut_graph
from hocket.graph.recompute import find_blocks, recompute
from hocket.graph.types import Graph
from hocket.search.repeats import Repeats
from hocket.search.stages.answer import Answer
from hocket.search.stages.solver import Solver
from hocket.search.stages.units import find_cuts
from hocket.sharding.mesh import Mesh


@dataclass(frozen=True, slots=True)
class Mode:
    """How the units of a stage are laid out: the mesh, whether parameters and gradients move once in a step,
    whether blocks run their forward again."""

    mesh: tuple[int, ...]
    once: bool
    again: bool


@dataclass(frozen=True)
class Cells:
    """Per unit, in one mode: seconds of a microbatch and of what is done once, bytes held all the time, per waiting
    microbatch, and on top while one runs; `bound` on the seconds, whatever is done with memory."""

    mode: Mode
    seconds: NDArray[np.float64]
    once: NDArray[np.float64]
    fixed: NDArray[np.float64]
    waiting: NDArray[np.float64]
    working: NDArray[np.float64]
    bound: NDArray[np.float64]


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

    def of(self, again: bool) -> tuple[Graph, ...]:
        """Every unit as a graph of its own."""
        if again not in self.pieces:
            self.pieces[again] = cut_graph(self.graphs[again], self.cuts[again]).graphs
        return self.pieces[again]


def find_cells(units: Units, solver: Solver, mode: Mode, first: int, microbatches: int) -> Cells | None:
    """The cells of a mode on the devices from `first` on; None where a unit alone does not fit."""
    repeats = Repeats(microbatches, 1, mode.once)
    answers = []
    for graph in units.of(mode.again):
        answer = solver.on(graph, Mesh(mode.mesh, first), repeats, 1.0)
        if answer is None:
            return None
        answers.append(answer)
    return _cells(mode, answers)


def _cells(mode: Mode, answers: Sequence[Answer]) -> Cells:
    def each(values: Iterable[float]) -> NDArray[np.float64]:
        return np.array(list(values), dtype=float)

    return Cells(
        mode,
        each(a.seconds for a in answers),
        each(a.gather + a.sync for a in answers),
        each(a.memory.parameters + a.memory.gradients + a.memory.optimizer for a in answers),
        each(a.waiting for a in answers),
        each(a.memory.activations for a in answers),
        each(min(a.bound, a.seconds) for a in answers),
    )


class Sums:
    """Sums over intervals of units, in one mode."""

    def __init__(self, cells: Cells, microbatches: int) -> None:
        self.time = _over_intervals(cells.seconds + cells.once / microbatches)
        self.fixed, self.waiting = _over_intervals(cells.fixed), _over_intervals(cells.waiting)
        count = len(cells.seconds)
        self.one = np.zeros((count + 1, count + 1))
        for i in range(count):
            self.one[i, i + 1 :] = np.maximum.accumulate((cells.working - cells.waiting)[i:])

    def seconds(self, in_flight: int, limit: float) -> NDArray[np.float64]:
        """What intervals take, infinite where they do not fit with so many microbatches in flight."""
        held = self.fixed + in_flight * self.waiting + np.maximum(self.one, 0.0)
        return np.where(held <= limit, self.time, inf)


def _over_intervals(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sums of values i to k - 1 at [i, k]; infinite where k is not more than i."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    table = total[None, :] - total[:, None]
    return np.where(np.arange(len(total))[None, :] > np.arange(len(total))[:, None], table, inf)
