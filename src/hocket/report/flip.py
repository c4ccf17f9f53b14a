"""What would change the choice: the bandwidth at which an alternative would be the better plan.

The programs of both plans are priced again on clusters whose links are faster or slower, and simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from hocket.cluster.types import Cluster, Link
from hocket.cost.prices import MeshPrices
from hocket.graph.types import Graph
from hocket.plan.types import Alternative, Plan, Stage
from hocket.program.types import Collective, Program
from hocket.search.judge import judge
from hocket.simulate.engine import simulate
from hocket.units import format_bandwidth

Where = Literal["network", "links"]

SCALES = (1 / 256, 1 / 64, 1 / 16, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 16.0, 64.0, 256.0)
"""Factors of the bandwidth that are looked at; between two that disagree the flip is found by bisection."""

STEPS = 7
"""Bisection steps on the logarithm: a factor of 4 ends within 1.1 %."""


@dataclass(frozen=True, slots=True)
class Flip:
    """`alternative` is better on the other side of `bandwidth` (bytes per second) between or in machines."""

    alternative: str
    where: Where
    below: bool
    bandwidth: float
    now: float

    def __str__(self) -> str:
        place = "between machines" if self.where == "network" else "inside machines"
        side = "below" if self.below else "above"
        return (
            f"{self.alternative} is better {side} {format_bandwidth(self.bandwidth)} {place} "
            f"(now {format_bandwidth(self.now)})"
        )


def scaled(cluster: Cluster, where: Where, factor: float) -> Cluster:
    """The cluster with `factor` times the bandwidth between machines, or inside them."""

    def faster(link: Link) -> Link:
        return replace(link, bandwidth=link.bandwidth * factor)

    if where == "network":
        return replace(cluster, network=faster(cluster.network))
    return replace(
        cluster,
        machines=tuple(replace(m, link=faster(m.link)) for m in cluster.machines),
        collectives=tuple(replace(f, bandwidth=f.bandwidth * factor) for f in cluster.collectives),
    )


class _Priced:
    """A stage's programs, to be clocked on other clusters."""

    def __init__(self, graph: Graph, stage: Stage, cluster: Cluster) -> None:
        self.stage = stage
        self.programs = judge(graph, stage, cluster, 0.0).programs

    def seconds(self, cluster: Cluster) -> float:
        prices = MeshPrices(cluster, self.stage.mesh)
        return simulate([_priced(p, prices) for p in self.programs], cluster.overlap).seconds


def _priced(program: Program, prices: MeshPrices) -> Program:
    instructions = tuple(
        replace(i, seconds=prices.collective(i.kind, i.axis, i.bytes)) if isinstance(i, Collective) else i
        for i in program.instructions
    )
    return replace(program, instructions=instructions)


def find_flips(plan: Plan, others: Sequence[Alternative] = (), most: int = 4) -> tuple[Flip, ...]:
    """Where, on each kind of link, the best alternatives that carry a stage become the better plan.

    `others` are alternatives beside those of the plan's own search.
    """
    operations = len(plan.graph.operations)
    candidates = [
        a
        for a in sorted((*plan.search.alternatives, *others), key=lambda a: a.seconds)
        if a.stage and len(a.stage.strategies) == operations
    ]
    places: list[Where] = ["network"] if len(plan.cluster.machines) > 1 else []
    if any(machine.count > 1 for machine in plan.cluster.machines):
        places.append("links")
    candidates = [a for a in candidates if a.seconds != float("inf")][:most]
    if not candidates or len(plan.stages) > 1:
        return ()
    chosen = _Priced(plan.graph, plan.stage, plan.cluster)
    flips = []
    for alternative in candidates:
        if alternative.stage is None:
            continue
        other = _Priced(plan.graph, alternative.stage, plan.cluster)
        flips += [f for w in places if (f := _flip(plan.cluster, alternative.title, w, chosen, other))]
    return tuple(flips)


def _flip(cluster: Cluster, title: str, where: Where, chosen: _Priced, other: _Priced) -> Flip | None:
    """The flip nearest to the bandwidth there is."""

    def better(factor: float) -> bool:
        there = scaled(cluster, where, factor)
        return other.seconds(there) < chosen.seconds(there)

    if better(1.0):
        return None
    middle = SCALES.index(1.0)
    now = cluster.network.bandwidth if where == "network" else _slowest(cluster)
    ways: Sequence[tuple[float, ...]] = (SCALES[middle::-1], SCALES[middle:])
    for path in ways:
        for stays, flips in pairwise(path):
            if better(flips):
                return Flip(title, where, flips < 1.0, now * _bisect(better, stays, flips), now)
    return None


def _bisect(better: Callable[[float], bool], stays: float, flips: float) -> float:
    for _ in range(STEPS):
        middle = (stays * flips) ** 0.5
        if better(middle):
            flips = middle
        else:
            stays = middle
    return flips


def _slowest(cluster: Cluster) -> float:
    return min(m.link.bandwidth for m in cluster.machines if m.count > 1)
