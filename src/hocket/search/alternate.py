"""Alternation between the program and the shares, each the best for the other (HAP, section 3.1)."""

from __future__ import annotations

from collections.abc import Callable

from hocket.cluster.types import Cluster
from hocket.cost.prices import MeshPrices
from hocket.plan.types import Stage
from hocket.search.balance import balance
from hocket.search.judge import Judgement
from hocket.search.load import load_of
from hocket.search.uneven import spread
from hocket.sharding.shares import Shares

ROUNDS = 5
"""Most programs that are made for one start."""
SAME = 1e-3
"""Shares that differ by less are the same."""

Attempt = Callable[[Shares], tuple[Judgement, Stage] | None]
"""Finds the best program for given shares; None where there is none, or where it is not worth going on."""


def alternate(start: Shares, attempt: Attempt, cluster: Cluster, optimizer_bytes: float) -> tuple[Shares, ...]:
    """Make a program for shares, balance the shares for the program, and so on; the shares that were tried.

    Ends when shares come up again: at a fixed point, or in a circle.
    """
    tried: list[Shares] = []
    shares = start
    while len(tried) < ROUNDS:
        tried.append(shares)
        made = attempt(shares)
        if made is None:
            break
        judged, stage = made
        if any(share == 0 for share in shares):
            break  # what a device without a share would take is not known from this program
        prices = MeshPrices(cluster, stage.mesh)
        ranks = [program.rank for program in judged.programs]
        kinds = balance(load_of(judged.programs, stage, cluster, prices, optimizer_bytes))
        if kinds is None:
            break
        shares = spread(kinds, ranks, stage, cluster)
        if any(_same(shares, other) for other in tried):
            break
    return tuple(tried)


def _same(one: Shares, other: Shares) -> bool:
    return all(abs(a - b) < SAME for a, b in zip(one, other, strict=True))
