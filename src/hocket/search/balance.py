"""Balancing: the shares that make a fixed program fastest, by a linear program (HAP, section 5.1).

The program is cut where ranks wait for each other: at collectives that block. Between two of them a step takes as
long as the slowest kind of device does; a device's seconds are linear in its share, a collective's in the largest
one. What the paper leaves out is in here too: communication that runs beside the computation bounds a pass by its
sum, and every device's memory is limited.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

import highspy
import numpy as np

from hocket.search.ilp import quiet_solver


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds, or bytes, that are `fixed` plus a slope times the share of every part."""

    fixed: float = 0.0
    slopes: tuple[float, ...] = ()

    def __add__(self, other: Line) -> Line:
        width = max(len(self.slopes), len(other.slopes))
        one, two = (line.slopes + (0.0,) * (width - len(line.slopes)) for line in (self, other))
        return Line(self.fixed + other.fixed, tuple(a + b for a, b in zip(one, two, strict=True)))

    def times(self, factor: float) -> Line:
        """The line scaled."""
        return Line(self.fixed * factor, tuple(slope * factor for slope in self.slopes))

    def at(self, shares: Sequence[float]) -> float:
        """The value at a share of every part."""
        return self.fixed + sum(slope * share for slope, share in zip(self.slopes, shares, strict=False))


def line(fixed: float, slope: float, part: int) -> Line:
    """A line that depends on the share of one part alone."""
    return Line(fixed, (0.0,) * part + (slope,))


@dataclass
class Section:
    """What runs between two places where ranks wait for each other.

    `work[k]` is of one device of kind k in its own shares, `wait` of the collective before it in the largest ones.
    """

    work: list[Line]
    wait: Line = field(default_factory=Line)


@dataclass
class Pass:
    """One pass of a step: its sections, and all its communication in the largest shares."""

    sections: list[Section]
    traffic: Line = field(default_factory=Line)


@dataclass(frozen=True)
class Load:
    """A fixed program as the balancer sees it: `counts[k]` devices of kind k, `memory[k]` what one of them holds,
    `limits[k]` what it may, `parts` with shares of their own."""

    passes: tuple[Pass, ...]
    counts: tuple[int, ...]
    memory: tuple[Line, ...]
    limits: tuple[float, ...]
    parts: int = 1

    def seconds(self, shares: Sequence[Sequence[float]]) -> float:
        """Time of the program when every device of kind k has `shares[part][k]`; infinite where one does not hold
        it."""
        kinds = range(len(self.counts))
        own = [[part[k] for part in shares] for k in kinds]
        if any(self.memory[k].at(own[k]) > self.limits[k] * (1 + 1e-9) for k in kinds):
            return inf
        largest = [max(part) for part in shares]
        total = 0.0
        for part in self.passes:
            steps = (max(s.work[k].at(own[k]) for k in kinds) + s.wait.at(largest) for s in part.sections)
            total += max(sum(steps), part.traffic.at(largest))
        return total


class _Program:
    """The linear program under construction; variables are named."""

    def __init__(self) -> None:
        self.solver = quiet_solver()
        self.number: dict[object, int] = {}

    def add(self, name: object, upper: float = inf, cost: float = 0.0) -> None:
        self.number[name] = len(self.number)
        self.solver.addVar(0.0, upper)
        self.solver.changeColCost(self.number[name], cost)

    def row(self, lower: float, upper: float, terms: dict[object, float]) -> None:
        index = np.array([self.number[name] for name in terms], dtype=np.int32)
        self.solver.addRow(lower, upper, len(index), index, np.array(list(terms.values())))


def balance(load: Load) -> tuple[tuple[float, ...], ...] | None:
    """Shares per part and kind of device, of which all devices' add up to 1, that make a program fastest.

    None where no shares keep every device's memory limit.
    """
    kinds, parts = range(len(load.counts)), range(load.parts)
    program = _Program()
    for part in parts:
        program.add(("largest", part), 1.0)
        for k in kinds:
            program.add((part, k), 1.0)
        program.row(1.0, 1.0, {(part, k): float(count) for k, count in enumerate(load.counts)})
        for k in kinds:
            program.row(0.0, inf, {("largest", part): 1.0, (part, k): -1.0})
    for k in kinds:
        unit, held = max(1.0, load.limits[k]), load.memory[k]
        program.row(-inf, (load.limits[k] - held.fixed) / unit,
                    {(p, k): slope / unit for p, slope in enumerate(held.slopes)} or {(0, k): 0.0})  # fmt: skip
    even = [[1.0 / sum(load.counts)] * len(load.counts)] * load.parts
    free = Load(load.passes, load.counts, load.memory, (inf,) * len(load.counts), load.parts)
    scale = 1.0 / max(1e-12, free.seconds(even))
    for number, part_of_step in enumerate(load.passes):
        _add_pass(program, number, part_of_step, kinds, scale)
    program.solver.run()
    if program.solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    values = program.solver.getSolution().col_value
    return tuple(tuple(max(0.0, float(values[program.number[p, k]])) for k in kinds) for p in parts)


def _add_pass(program: _Program, number: int, step: Pass, kinds: range, scale: float) -> None:
    """The time of a pass: at least its sections one after the other, and at least its communication."""
    time = ("pass", number)
    program.add(time, cost=1.0)
    ends: dict[object, float] = {time: 1.0}
    waits = Line()
    for index, section in enumerate(step.sections):
        name = ("section", number, index)
        program.add(name)
        ends[name] = -1.0
        for k in kinds:
            work = section.work[k].times(scale)
            terms: dict[object, float] = {(p, k): -slope for p, slope in enumerate(work.slopes)}
            program.row(work.fixed, inf, {name: 1.0, **terms})
        waits = waits + section.wait.times(scale)
    ends |= {("largest", p): -slope for p, slope in enumerate(waits.slopes)}
    program.row(waits.fixed, inf, ends)
    traffic = step.traffic.times(scale)
    terms = {("largest", p): -slope for p, slope in enumerate(traffic.slopes)}
    program.row(traffic.fixed, inf, {time: 1.0, **terms})
