"""Alternation between the program and the shares, each the best for the other (HAP, section 3.1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from hocket.cluster.types import Cluster
from hocket.cost.prices import MeshPrices
from hocket.plan.types import Stage
from hocket.search.balance import balance
from hocket.search.judge import Judgement
from hocket.search.load import load_of, one_per_kind
from hocket.search.uneven import spread
from hocket.sharding.shares import Shares

ROUNDS = 5
"""Most programs that are made for one start."""
GAIN = 0.002
"""A program that is faster by less than this share is the last."""
SAME = 1e-3
"""Shares that differ by less are the same."""

PartShares = tuple[Shares, ...]
"""Shares of the first axis for every part of a graph."""
Attempt = Callable[[PartShares], tuple[Judgement, Stage] | None]
"""Finds the best program for given shares; None where there is none, or where it is not worth going on."""


def alternate(
    start: PartShares, attempt: Attempt, cluster: Cluster, optimizer_bytes: float, parts: Sequence[int] = ()
) -> tuple[PartShares, ...]:
    """Make a program for shares, balance the shares for the program, and so on; the shares that were tried.

    `parts[index]` is the part of the graph, with shares of its own, that an operation belongs to. Ends when shares
    come up again, at a fixed point or in a circle, or when a program is hardly faster than the one before.
    """
    tried: list[PartShares] = []
    shares, least = start, inf
    while len(tried) < ROUNDS:
        tried.append(shares)
        made = attempt(shares)
        if made is None:
            break
        judged, stage = made
        if judged.seconds > least * (1 - GAIN):
            break
        least = judged.seconds
        if any(share == 0 for part in shares for share in part):
            break  # what a device without a share would take is not known from this program
        prices = MeshPrices(cluster, stage.mesh)
        ranks = [program.rank for program in one_per_kind(judged.programs, stage, cluster)]
        found = balance(load_of(judged.programs, stage, cluster, prices, optimizer_bytes, parts))
        if found is None:
            break
        shares = spread(found, ranks, stage, cluster)
        if any(_same(shares, other) for other in tried):
            break
    return tuple(tried)


def _same(one: PartShares, other: PartShares) -> bool:
    pairs = [pair for a, b in zip(one, other, strict=True) for pair in zip(a, b, strict=True)]
    return all(abs(a - b) < SAME for a, b in pairs)
