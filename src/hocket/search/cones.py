"""Cones: light operations follow what they read.

An operation that only passes its loop dimensions on (elementwise, a view, a normalised row) takes the layout of
its main operand as it comes, where every layout of that operand allows it. That is the cone of Rhino (arXiv
2302.08141: light instructions belong to the heavy one that feeds them) as a restriction of the model: it leaves
out plans that change a layout in the middle of a cone, and makes the model several times smaller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hocket.search.model import TIMES, WORK, Costs, Model
from hocket.sharding.rule import Rule

HEAVY = frozenset({"attention", "attention_backward", "convolution", "convolution_backward"})


def is_light(kind: str, rule: Rule) -> bool:
    """Whether an operation may follow: none of its factors sums or needs special local code."""
    return rule.known and kind not in HEAVY and not any(f.sums or f.recipe for f in rule.factors)


@dataclass(frozen=True, slots=True)
class Wish:
    """A light node and the nodes that it would follow, best first."""

    node: int
    leaders: tuple[int, ...]


@dataclass
class Cones:
    """A model whose light nodes follow, and the way back."""

    model: Model
    root: list[int]
    choice_of: list[NDArray[np.int64]]
    place: dict[int, int]

    def expand(self, choice: Sequence[int]) -> tuple[int, ...]:
        """The assignment of the original model."""
        return tuple(int(self.choice_of[u][choice[self.place[self.root[u]]]]) for u in range(len(self.root)))


def build_cones(model: Model, wishes: Sequence[Wish]) -> Cones:
    """Let every light node follow the first of its leaders that it can follow whatever that one chooses."""
    nodes = [c.copy() for c in model.nodes]
    near: list[dict[int, Costs]] = [{} for _ in nodes]
    for (u, v), costs in model.edges.items():
        near[u][v] = costs
        near[v][u] = costs.transpose(0, 2, 1)
    root = list(range(len(nodes)))
    choice_of = [np.arange(c.shape[1]) for c in nodes]
    followers: list[list[int]] = [[u] for u in range(len(nodes))]
    for wish in wishes:
        here = wish.node
        for leader in wish.leaders:
            there = root[leader]
            if there == here or there not in near[here]:
                continue
            mapping = _follow(nodes[here], near[here][there])
            if mapping is None:
                continue
            _merge(nodes, near, here, there, mapping)
            for follower in followers[here]:
                root[follower] = there
                choice_of[follower] = choice_of[follower][mapping]
            followers[there] += followers[here]
            break
    alive = [u for u in range(len(nodes)) if root[u] == u]
    place = {u: i for i, u in enumerate(alive)}
    smaller = Model(limit=model.limit)
    for u in alive:
        smaller.add_node(model.labels[u], nodes[u])
    for u in alive:
        for v, costs in near[u].items():
            if u < v:
                smaller.add_edge(place[u], place[v], costs)
    return Cones(smaller, root, choice_of, place)


def _follow(own: Costs, edge: Costs) -> NDArray[np.int64] | None:
    """For every choice of the leader the follower's choice that takes it as it is, or None."""
    same = (edge == 0.0).all(axis=0) & np.isfinite(own[WORK])[:, None]
    if not same.any(axis=0).all():
        return None
    cost = np.where(same, own[:TIMES].sum(axis=0)[:, None], np.inf)
    best: NDArray[np.int64] = np.argmin(cost, axis=0)
    return best


def _merge(
    nodes: list[Costs], near: list[dict[int, Costs]], here: int, there: int, mapping: NDArray[np.int64]
) -> None:
    nodes[there] = nodes[there] + nodes[here][:, mapping]
    for other, costs in near[here].items():
        del near[other][here]
        moved = costs[:, mapping, :]
        if other == there:
            nodes[there][:TIMES] += np.stack([m[np.arange(len(mapping)), np.arange(len(mapping))] for m in moved])
            continue
        known = near[there].get(other)
        near[there][other] = moved if known is None else known + moved
        near[other][there] = near[there][other].transpose(0, 2, 1)
    near[here] = {}
