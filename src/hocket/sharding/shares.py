"""Shares: which fraction of a split each position of a mesh axis gets, and the whole numbers that come of it.

A factor is cut once for all tensors that carry it. Its units are the equal blocks that every one of them falls
into (a view that joins rows of several samples carries samples, attention carries heads); shares are rounded to
whole units, and a tensor whose dim is longer than the units is cut at the same fractions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd

from hocket.errors import LayoutError
from hocket.graph.types import Graph
from hocket.sharding.rule import Factor, Rule

Shares = tuple[float, ...]
"""A fraction per position of a mesh axis, adding up to 1; empty: as even as can be."""
Place = tuple[str, int]
"""A value and one of its dims."""


def check_shares(shares: Sequence[float], positions: int, culprit: str) -> None:
    """Raise LayoutError unless these are fractions of one whole, one per position."""
    rule = "are one fraction per device, none negative, adding up to 1"
    if len(shares) != positions:
        raise LayoutError(culprit, rule, f"{len(shares)} shares for {positions} devices")
    if any(not share >= 0 for share in shares) or abs(sum(shares) - 1) > 1e-6:
        repair = "divide each by their sum" if sum(shares) > 0 else "give at least one device something"
        raise LayoutError(culprit, rule, f"{', '.join(f'{s:g}' for s in shares)} add up to {sum(shares):g}", repair)


def round_shares(shares: Sequence[float], units: int) -> tuple[int, ...]:
    """Whole units per position that add up to `units` (HAP, section 5.1).

    Every share is rounded to the nearest; while too many or too few units are given out, the position where one
    unit less or more adds the least error gives or takes one. A share of zero stays zero.
    """
    wanted = [share * units for share in shares]
    sizes = [int(w + 0.5) for w in wanted]
    while sum(sizes) != units:
        step = 1 if sum(sizes) < units else -1
        free = [i for i, s in enumerate(shares) if s > 0 and sizes[i] + step >= 0]
        best = min(free, key=lambda i: (abs(sizes[i] + step - wanted[i]) - abs(sizes[i] - wanted[i]), i))
        sizes[best] += step
    return tuple(sizes)


def plain_sizes(sizes: Sequence[int]) -> tuple[int, ...]:
    """Relative sizes in smallest terms; empty where all positions get the same."""
    if len(set(sizes)) == 1:
        return ()
    common = gcd(*sizes)
    return tuple(n // common for n in sizes)


def find_units(graph: Graph, rules: Sequence[Rule]) -> Mapping[Place, int]:
    """For every dim that some factor carries, the number of units that all tensors joined to it fall into."""
    parent: dict[Place, Place] = {}
    units: dict[Place, int] = {}

    def root(place: Place) -> Place:
        while parent[place] != place:
            parent[place] = parent[parent[place]]
            place = parent[place]
        return place

    for operation, rule in zip(graph.operations, rules, strict=True):
        for factor in rule.factors:
            places = _carriers(operation.inputs, operation.outputs, factor)
            for place in places:
                parent.setdefault(place, place)
                units.setdefault(place, 0)
            first = root(places[0])
            for place in places[1:]:
                other = root(place)
                if other != first:
                    parent[other] = first
                    units[first] = gcd(units[first], units[other])
            units[first] = gcd(units[first], factor.size)
    return {place: units[root(place)] for place in parent}


def _carriers(inputs: Sequence[str], outputs: Sequence[str], factor: Factor) -> list[Place]:
    pairs = [*zip(inputs, factor.inputs, strict=True), *zip(outputs, factor.outputs, strict=True)]
    return [(name, split.dim) for name, split in pairs if split is not None]


@dataclass(frozen=True)
class Cuts:
    """How the axes of a mesh are shared, for every part of a graph: sizes of each factor and dim.

    `shares[part][axis]` are fractions per position, `parts[index]` is the part that an operation belongs to
    (HAP calls parts of a model with shares of their own segments, section 5.2). `loose`: whatever falls into two
    units can be cut, as if devices might have no share.
    """

    units: Mapping[Place, int]
    shares: tuple[tuple[Shares, ...], ...]
    parts: tuple[int, ...]
    loose: bool = False
    memo: dict[tuple[int, int, int], tuple[int, ...] | None] = field(default_factory=dict)

    def uneven(self, axis: int) -> bool:
        """Whether positions of an axis get different shares anywhere."""
        return any(part[axis] for part in self.shares)

    def of_dim(self, place: Place, axis: int, part: int) -> tuple[int, ...] | None:
        """Relative sizes of a dim along an axis in a part of the graph; None where it cannot be cut so."""
        units = self.units.get(place, 0)
        key = (units, axis, part)
        if key not in self.memo:
            self.memo[key] = self._sizes(units, self.shares[part][axis])
        return self.memo[key]

    def _sizes(self, units: int, shares: Shares) -> tuple[int, ...] | None:
        if units < (2 if self.loose else sum(1 for share in shares if share > 0)):
            return None  # some device would have nothing although it has a share
        return plain_sizes(round_shares(shares, units)) if shares else ()

    def of_factor(
        self, index: int, inputs: Sequence[str], outputs: Sequence[str], factor: Factor, axis: int
    ) -> tuple[int, ...] | None:
        """Relative sizes of an operation's factor along an axis; None where it cannot be cut."""
        places = _carriers(inputs, outputs, factor)
        return self.of_dim(places[0], axis, self.parts[index]) if places else ()
