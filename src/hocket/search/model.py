"""The search as numbers: nodes with choices, edges with a cost for every pair of choices.

Costs come in rows. In each pass, forward and backward, `WORK` is the seconds that hold the compute stream
(local work, blocking communication, and the part of asynchronous communication that does not hide), `TRAFFIC`
the seconds that hold the communication stream. Nothing moves between the passes, so a step takes the larger of
both in each of them. The rows from `MEMORY` on are the bytes held on one device at the moments of
`search.moments`. All are lower bounds of what the simulator finds for the same plan. An impossible choice or
pair has infinite cost in the first row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np
from numpy.typing import NDArray

WORK, TRAFFIC, BACKWARD = 0, 1, 2
"""Rows: WORK and TRAFFIC of the forward pass; add BACKWARD for those of the backward pass."""
TIMES = 4
MEMORY = 4
"""The first of the rows of memory, one per moment."""
MOMENTS = 5
ROWS = TIMES + MOMENTS
Costs = NDArray[np.float64]
"""Nodes: [ROWS, choices]. Edges: [TIMES, choices of the first node, of the second]; they hold no memory."""


@dataclass
class Model:
    """A pairwise choice problem; `limit` of memory in bytes; `rows` of times that are in use (1: one sum).

    `seen` are assignments that came up in earlier searches of it, perhaps under another limit: the next search
    starts from them. `least` is the least memory of any assignment as far as it is known.
    """

    nodes: list[Costs] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    edges: dict[tuple[int, int], Costs] = field(default_factory=dict)
    limit: float = inf
    rows: int = TIMES
    seen: list[tuple[int, ...]] = field(default_factory=list)
    least: float = 0.0

    def add_node(self, label: str, costs: Costs) -> int:
        """A new node; its number."""
        self.nodes.append(costs)
        self.labels.append(label)
        return len(self.nodes) - 1

    def add_edge(self, first: int, second: int, costs: Costs) -> None:
        """Add costs of a pair of nodes; a pair of a node with itself goes into the node."""
        if first == second:
            self.nodes[first][:TIMES] += np.diagonal(costs, axis1=1, axis2=2)
            return
        if first > second:
            first, second, costs = second, first, costs.transpose(0, 2, 1)
        known = self.edges.get((first, second))
        self.edges[first, second] = costs.copy() if known is None else known + costs

    def totals(self, choice: Sequence[int]) -> NDArray[np.float64]:
        """Every row's total of an assignment."""
        total = np.zeros(ROWS)
        for costs, k in zip(self.nodes, choice, strict=True):
            total += costs[:, k]
        for (u, v), costs in self.edges.items():
            total[:TIMES] += costs[:, choice[u], choice[v]]
        return total

    def seconds(self, choice: Sequence[int]) -> float:
        """Time of an assignment, infinite where it breaks the memory limit."""
        totals = self.totals(choice)
        return inf if held_of(totals) > self.limit else time_of(totals)


def held_of(totals: NDArray[np.float64]) -> float:
    """Bytes on one device at the fullest of the moments."""
    return float(totals[MEMORY:].max())


def time_of(totals: NDArray[np.float64]) -> float:
    """Seconds of a step from its rows."""
    forward = max(totals[WORK], totals[TRAFFIC])
    return float(forward + max(totals[WORK + BACKWARD], totals[TRAFFIC + BACKWARD]))
