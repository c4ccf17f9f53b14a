"""Making a model smaller without losing its optimum.

Three exact steps, repeated until nothing changes. A choice with no finite partner is dropped. A choice is
dropped where another one of the same node is at least as good in every row of costs whatever the
neighbours choose (dead-end elimination; Goldstein 1994). A node with costs in the first row alone that has at most
two neighbours is folded into the edge between them (the elimination of OptCNN, Jia et al. 2018, section 5);
a node with one choice left is folded into its neighbours.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np
from numpy.typing import NDArray

from hocket.search.model import MEMORY, TIMES, WORK, Costs, Model

CHUNK = 4_000_000
"""Most numbers that a comparison of all pairs of choices holds at once."""


@dataclass(frozen=True, slots=True)
class _Folded:
    """A node that was folded away: its best choice for every pair of its neighbours' choices.

    `axes` are the original choices that the neighbours still had at that time.
    """

    node: int
    neighbours: tuple[int, ...]
    axes: tuple[NDArray[np.int64], ...]
    best: NDArray[np.int64]


@dataclass
class Reduced:
    """A smaller model and the way back: `kept[u]` are the original choices that node u still has."""

    model: Model
    kept: list[NDArray[np.int64]]
    alive: list[int]
    folded: list[_Folded] = field(default_factory=list)

    def expand(self, choice: Sequence[int]) -> list[int]:
        """The assignment of the original model that an assignment of the alive nodes means."""
        chosen = {u: int(self.kept[u][k]) for u, k in zip(self.alive, choice, strict=True)}
        for fold in reversed(self.folded):
            place = tuple(
                int(np.searchsorted(axis, chosen[n])) for n, axis in zip(fold.neighbours, fold.axes, strict=True)
            )
            chosen[fold.node] = int(self.kept[fold.node][fold.best[place]])
        return [chosen[u] for u in range(len(self.kept))]


class _Work:
    """The model under reduction, with adjacency."""

    def __init__(self, model: Model) -> None:
        self.nodes = [c.copy() for c in model.nodes]
        self.kept = [np.arange(c.shape[1]) for c in model.nodes]
        self.near: list[dict[int, Costs]] = [{} for _ in model.nodes]
        for (u, v), costs in model.edges.items():
            self.near[u][v] = costs.copy()
            self.near[v][u] = costs.transpose(0, 2, 1).copy()
        self.rows = model.rows
        self.folded: list[_Folded] = []
        self.gone: set[int] = set()

    def restrict(self, node: int, keep: NDArray[np.bool_]) -> None:
        """Keep only some choices of a node."""
        self.nodes[node] = self.nodes[node][:, keep]
        self.kept[node] = self.kept[node][keep]
        for other, costs in self.near[node].items():
            self.near[node][other] = costs[:, keep, :]
            self.near[other][node] = self.near[other][node][:, :, keep]

    def drop_impossible(self, node: int) -> bool:
        possible = np.isfinite(self.nodes[node][WORK])
        for costs in self.near[node].values():
            possible &= np.isfinite(costs[WORK]).any(axis=1)
        if possible.all():
            return False
        self.restrict(node, possible)
        return True

    def drop_dominated(self, node: int) -> bool:
        """Drop every choice that another one replaces at no loss, whatever the neighbours choose."""
        count = self.nodes[node].shape[1]
        if count < 2:
            return False
        worse = self.nodes[node][:, :, None] - self.nodes[node][:, None, :]
        ok: NDArray[np.bool_] = np.all(worse[MEMORY:] <= 1e-9, axis=0)
        change = worse[: self.rows].copy()
        for costs in self.near[node].values():
            if not ok.any():
                return False
            change += _largest_change(costs[: self.rows])
        ok &= (change <= 1e-15).all(axis=0)
        keep = np.ones(count, dtype=bool)
        for loser in range(count):
            winners = ok[:, loser] & keep
            winners[loser] = False
            if winners.any():
                keep[loser] = False
        if keep.all():
            return False
        self.restrict(node, keep)
        return True

    def settle(self, node: int) -> bool:
        """Fold a node that has one choice left into its neighbours; its own costs move to one of them."""
        near = self.near[node]
        if self.nodes[node].shape[1] != 1 or not near:
            return False
        own = self.nodes[node][:, 0]
        if not all(costs.shape[2] for costs in near.values()):
            return False
        for other, costs in near.items():
            self.nodes[other][:TIMES] += costs[:, 0, :]
        first = next(iter(near))
        self.nodes[first] += own[:, None]
        self.folded.append(_Folded(node, (), (), np.array(0)))
        self._remove(node)
        return True

    def fold(self, node: int) -> bool:
        """Fold a node with at most two neighbours and costs in one row into what is around it."""
        own, near = self.nodes[node], self.near[node]
        if len(self.gone) + 1 == len(self.nodes):
            return False
        if len(near) > 2 or not own.shape[1] or own[1:].any():
            return False
        if any(costs[1:].any() for costs in near.values()):
            return False
        others = tuple(near)
        if len(others) == 2:
            left, right = (near[o][WORK] for o in others)
            if not left.shape[1] or not right.shape[1]:
                return False
            if left.shape[1] * right.shape[1] * own.shape[1] > 40 * CHUNK:
                return False
            total = own[WORK][:, None, None] + left[:, :, None] + right[:, None, :]
        elif len(others) == 1:
            total = own[WORK][:, None] + near[others[0]][WORK]
        else:
            total = own[WORK]
        best = np.argmin(total, axis=0)
        value = np.min(total, axis=0)
        self.folded.append(_Folded(node, others, tuple(self.kept[o] for o in others), best))
        self._remove(node)
        if len(others) == 2:
            joined = np.zeros((TIMES, *value.shape))
            joined[WORK] = value
            self._join(others[0], others[1], joined)
        elif others:
            self.nodes[others[0]][WORK] += value
        else:
            self.nodes[self.alive()[0]][WORK] += float(value)
        return True

    def alive(self) -> list[int]:
        return [u for u in range(len(self.nodes)) if u not in self.gone]

    def _remove(self, node: int) -> None:
        self.gone.add(node)
        for other in self.near[node]:
            del self.near[other][node]
        self.near[node] = {}

    def _join(self, u: int, v: int, costs: Costs) -> None:
        known = self.near[u].get(v)
        self.near[u][v] = costs if known is None else known + costs
        self.near[v][u] = self.near[u][v].transpose(0, 2, 1).copy()


def _largest_change(costs: Costs) -> Costs:
    """[rows, b, a]: the most that choosing b in place of a adds on this edge, over the neighbour's choices."""
    count, width = costs.shape[1], costs.shape[2]
    rows = costs.shape[0]
    result = np.empty((rows, count, count))
    step = max(1, CHUNK // max(1, rows * count * width))
    priced = costs.copy()
    priced[:, np.isinf(costs[WORK])] = inf
    with np.errstate(invalid="ignore"):
        for low in range(0, count, step):
            # an impossible pair: replacing it costs nothing (finite - inf, inf - inf), choosing it costs everything
            change = priced[:, low : low + step, None, :] - priced[:, None, :, :]
            np.fmax.reduce(change, axis=3, out=result[:, low : low + step])
    return np.where(np.isfinite(result) | np.isposinf(result), result, 0.0)


def reduce_model(model: Model, dominance: bool = True, folding: bool = True, end: float = inf) -> Reduced:
    """The model made smaller; the least time of both is the same, and so is its least memory.

    It is no smaller than it has become at the point in time `end`.
    """
    work = _Work(model)
    waiting = dict.fromkeys(range(len(work.nodes)))
    while waiting and time.monotonic() < end:
        node = next(iter(waiting))
        del waiting[node]
        if node in work.gone:
            continue
        changed = work.drop_impossible(node)
        if dominance:
            changed |= work.drop_dominated(node)
        near = tuple(work.near[node])
        changed |= folding and (work.settle(node) or work.fold(node))
        if changed:
            waiting.update(dict.fromkeys(near))
            if node not in work.gone:
                waiting[node] = None
    alive = work.alive()
    place = {u: i for i, u in enumerate(alive)}
    smaller = Model(limit=model.limit, rows=model.rows)
    for u in alive:
        smaller.add_node(model.labels[u], work.nodes[u])
    for u in alive:
        for v, costs in work.near[u].items():
            if u < v:
                smaller.add_edge(place[u], place[v], costs)
    return Reduced(smaller, work.kept, alive, work.folded)
