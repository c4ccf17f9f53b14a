"""What a search is asked, the parts of its space, and what it knows so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import inf

from hocket.graph.types import Graph
from hocket.plan.types import Alternative, Stage
from hocket.search.judge import Judgement
from hocket.search.known import Known
from hocket.search.pins import Pins
from hocket.sharding.mesh import Mesh
from hocket.sharding.shares import Shares


@dataclass(frozen=True, slots=True)
class Settings:
    """What a search is asked: searcher, budget in seconds, relative gap, optimizer bytes per element, pins.

    `axes` is the most axes a mesh may have (0: three up to SMALL devices, else two). `shares` of the positions of
    a mesh's first axis are kept where the user gives them.
    """

    searcher: str = "auto"
    budget: float = inf
    gap: float = 0.02
    optimizer_bytes: float = 8.0
    pins: Pins = field(default_factory=Pins)
    known: Known | None = None
    axes: int = 0
    shares: Shares = ()


@dataclass(frozen=True, slots=True)
class Case:
    """One part of the space: a mesh, the blocks whose forward runs again, and the shares of its first axis.

    There are shares for every part of the graph, or none (even). With `joint` it is what all shares have in
    common: a bound on each of them, and no plan.
    """

    mesh: Mesh
    blocks: tuple[str, ...]
    shares: tuple[Shares, ...] = ()
    joint: bool = False

    def __str__(self) -> str:
        again = f", {len(self.blocks)} blocks recomputed" if self.blocks else ""
        given = " / ".join(_words(part) for part in self.shares)
        words = ", any shares" if self.joint else f", shares {given}" if given else ""
        return f"mesh {self.mesh}{words}{again}"


def _words(shares: Shares) -> str:
    runs = [(f"{share:.3g}", len(list(same))) for share, same in groupby(shares)]
    return ", ".join(f"{count} x {share}" if count > 1 else share for share, count in runs)


@dataclass
class Found:
    """What the search knows: the best judged stage, the bound of every case, what was left behind."""

    graph: Graph | None = None
    stage: Stage | None = None
    case: Case | None = None
    judgement: Judgement | None = None
    bounds: dict[Case, float] = field(default_factory=dict)
    alternatives: list[Alternative] = field(default_factory=list)
    space: str = ""
    whole: tuple[str, ...] = ()
    title: str = ""
    known: bool = False
    complete: bool = True
    elapsed: float = 0.0

    @property
    def seconds(self) -> float:
        """Judged time of the best so far."""
        return self.judgement.seconds if self.judgement else inf

    @property
    def bound(self) -> float:
        """A bound on every plan of the space: no case can be better than its own."""
        return min([*self.bounds.values(), self.seconds])


def meshes(devices: int, axes: int) -> tuple[Mesh, ...]:
    """Every way to arrange devices in a grid of up to so many axes longer than 1, few axes first."""

    def cuts(n: int, left: int) -> list[tuple[int, ...]]:
        if left == 1:
            return [(n,)]
        longer = [(d, *rest) for d in range(2, n) if n % d == 0 for rest in cuts(n // d, left - 1)]
        return [(n,), *longer]

    found = dict.fromkeys(cuts(devices, axes))
    return tuple(Mesh(sizes) for sizes in sorted(found, key=lambda s: (len(s), s)))


def runner_ups(alternatives: Sequence[Alternative], count: int = 12) -> tuple[Alternative, ...]:
    """Alternatives worth telling: fastest first, then those that do not fit."""
    ordered = sorted(alternatives, key=lambda a: (a.seconds, a.lower_bound))
    alike = {(a.title, round(a.seconds, 9), a.reason): a for a in reversed(ordered)}
    return tuple(sorted(alike.values(), key=lambda a: (a.seconds, a.lower_bound))[:count])
