"""The search as numbers: nodes with choices, edges with a cost for every pair of choices.

Costs have three kinds, in this order: `WORK` (seconds that hold the compute stream: local work, blocking
communication), `TRAFFIC` (seconds of communication that may hide behind work), `MEMORY` (bytes held on one
device where forward ends). The time of an assignment is the larger of work and traffic; communication that
hides only in part adds the rest to work. Both are lower bounds of what the simulator finds for the same plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np
from numpy.typing import NDArray

WORK, TRAFFIC, MEMORY = 0, 1, 2
Costs = NDArray[np.float64]
"""Nodes: [3, choices]. Edges: [2, choices of the first node, choices of the second]; edges hold no memory."""


@dataclass
class Model:
    """A pairwise choice problem; `overlap` is the share of traffic that hides, `limit` in bytes."""

    nodes: list[Costs] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    edges: dict[tuple[int, int], Costs] = field(default_factory=dict)
    limit: float = inf
    overlap: float = 1.0

    def add_node(self, label: str, costs: Costs) -> int:
        """A new node; its number."""
        self.nodes.append(costs)
        self.labels.append(label)
        return len(self.nodes) - 1

    def add_edge(self, first: int, second: int, costs: Costs) -> None:
        """Add costs of a pair of nodes; a pair of a node with itself goes into the node."""
        if first == second:
            self.nodes[first][:2] += np.diagonal(costs, axis1=1, axis2=2)
            return
        if first > second:
            first, second, costs = second, first, costs.transpose(0, 2, 1)
        known = self.edges.get((first, second))
        self.edges[first, second] = costs.copy() if known is None else known + costs

    def totals(self, choice: Sequence[int]) -> NDArray[np.float64]:
        """Work, traffic and memory of an assignment."""
        total = np.zeros(3)
        for costs, k in zip(self.nodes, choice, strict=True):
            total += costs[:, k]
        for (u, v), costs in self.edges.items():
            total[:2] += costs[:, choice[u], choice[v]]
        return total

    def seconds(self, choice: Sequence[int]) -> float:
        """Time of an assignment, infinite where it breaks the memory limit."""
        work, traffic, memory = self.totals(choice)
        return inf if memory > self.limit else time_of(float(work), float(traffic), self.overlap)


def time_of(work: float, traffic: float, overlap: float) -> float:
    """Seconds of a step from its work and traffic."""
    return max(work + (1.0 - overlap) * traffic, traffic)
