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
    """Seconds, or bytes, that are `fixed + slope * share`."""

    fixed: float = 0.0
    slope: float = 0.0

    def __add__(self, other: Line) -> Line:
        return Line(self.fixed + other.fixed, self.slope + other.slope)

    def at(self, share: float) -> float:
        """The value at a share."""
        return self.fixed + self.slope * share


@dataclass
class Section:
    """What runs between two places where ranks wait for each other.

    `work[k]` is of one device of kind k in its own share, `wait` of the collective before it in the largest one.
    """

    work: list[Line]
    wait: Line = field(default_factory=Line)


@dataclass
class Pass:
    """One pass of a step: its sections, and all its communication in the largest share."""

    sections: list[Section]
    traffic: Line = field(default_factory=Line)


@dataclass(frozen=True)
class Load:
    """A fixed program as the balancer sees it: `counts[k]` devices of kind k, `memory[k]` what one of them holds,
    `limits[k]` what it may."""

    passes: tuple[Pass, ...]
    counts: tuple[int, ...]
    memory: tuple[Line, ...]
    limits: tuple[float, ...]

    def seconds(self, shares: Sequence[float]) -> float:
        """Time of the program when every device of kind k has `shares[k]`; infinite where one does not hold it."""
        kinds = range(len(self.counts))
        if any(self.memory[k].at(shares[k]) > self.limits[k] * (1 + 1e-9) for k in kinds):
            return inf
        largest = max(shares)
        total = 0.0
        for part in self.passes:
            steps = (max(s.work[k].at(shares[k]) for k in kinds) + s.wait.at(largest) for s in part.sections)
            total += max(sum(steps), part.traffic.at(largest))
        return total


def balance(load: Load) -> tuple[float, ...] | None:
    """Shares per kind of device, of which all devices' add up to 1, that make a program fastest.

    None where no shares keep every device's memory limit.
    """
    kinds = len(load.counts)
    solver = quiet_solver()
    for _ in range(kinds + 1):  # a share per kind, and the largest of them
        solver.addVar(0.0, 1.0)
    largest = kinds

    def row(lower: float, upper: float, terms: dict[int, float]) -> None:
        index = np.array(list(terms), dtype=np.int32)
        solver.addRow(lower, upper, len(index), index, np.array(list(terms.values())))

    row(1.0, 1.0, {k: float(count) for k, count in enumerate(load.counts)})
    for k in range(kinds):
        row(0.0, inf, {largest: 1.0, k: -1.0})
        unit = max(1.0, load.limits[k])
        row(-inf, (load.limits[k] - load.memory[k].fixed) / unit, {k: load.memory[k].slope / unit})
    scale = 1.0 / max(1e-12, load.seconds([1.0 / sum(load.counts)] * kinds))
    scale = scale if scale > 0 else 1.0
    count = kinds + 1
    for part in load.passes:
        solver.addVar(0.0, inf)
        time, ends = count, {count: 1.0}
        solver.changeColCost(time, 1.0)
        count += 1
        fixed = 0.0
        for section in part.sections:
            solver.addVar(0.0, inf)
            ends[count] = -1.0
            for k in range(kinds):
                work = section.work[k]
                row(work.fixed * scale, inf, {count: 1.0, k: -work.slope * scale})
            count += 1
            fixed += section.wait.fixed * scale
            ends[largest] = ends.get(largest, 0.0) - section.wait.slope * scale
        row(fixed, inf, ends)
        row(part.traffic.fixed * scale, inf, {time: 1.0, largest: -part.traffic.slope * scale})
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    return tuple(max(0.0, float(v)) for v in solver.getSolution().col_value[:kinds])
