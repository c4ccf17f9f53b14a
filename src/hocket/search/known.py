"""Layouts that people pick by hand, as restrictions of the same problem that the search then completes.

`tp=2,dp=2,zero=3` means a mesh dp x tp. On its first axis every operation that sees the batch splits it, and
parameters are whole (zero 0), sharded but gathered once per step (zero 1 and 2), or gathered in both passes
(zero 3; Rajbhandari et al. 2020, section 5). On its second axis matrices are split (Shoeybi et al. 2019,
section 3) and the batch is not. What this leaves open is filled in at least cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from hocket.errors import PlanError
from hocket.graph.types import Graph
from hocket.search.model import Model
from hocket.search.problem import Problem
from hocket.sharding.layout import Layout, Replicate, Split
from hocket.sharding.mesh import Mesh
from hocket.sharding.rule import Rule
from hocket.sharding.strategy import Strategy, Token

KEYS = ("dp", "tp", "zero")
SHARES = ("even", "speed")


@dataclass(frozen=True, slots=True)
class Known:
    """Degrees picked by hand: data parallel, tensor parallel, ZeRO stage.

    `shares` of the first axis are even, or follow the devices' speed (HAP's baselines DP-EV and DP-CP).
    """

    dp: int = 1
    tp: int = 1
    zero: int = 0
    shares: str = "even"

    def __str__(self) -> str:
        given = "" if self.shares == "even" else f",shares={self.shares}"
        return f"dp={self.dp},tp={self.tp},zero={self.zero}{given}"

    @property
    def title(self) -> str:
        """What people call it."""
        if self.tp == 1:
            sharded = {0: "data parallel", 3: "ZeRO-3 (FSDP)"}
            return sharded.get(self.zero, f"ZeRO-{self.zero}")
        title = f"tensor parallel {self.tp}" + (f" x data parallel {self.dp}" if self.dp > 1 else "")
        return title + (f", ZeRO-{self.zero}" if self.zero else "")

    @property
    def mesh(self) -> Mesh:
        """The mesh of these degrees; axes of size 1 are left out."""
        return Mesh(tuple(n for n in (self.dp, self.tp) if n > 1) or (1,))

    @staticmethod
    def parse(text: str, devices: int) -> Known:
        """Read `tp=2,dp=2,zero=3`; a missing dp takes the devices that are left. Raises PlanError."""
        values: dict[str, int] = {}
        shares = "even"
        for item in text.split(","):
            key, equals, number = item.strip().partition("=")
            if key == "shares" and number in SHARES:
                shares = number
                continue
            if key not in KEYS or not equals or not number.isdigit():
                rule = f"is key=number with keys {', '.join(KEYS)}, and shares=even or shares=speed"
                raise PlanError(f"like {text!r}", rule, item)
            values[key] = int(number)
        tp, zero = values.get("tp", 1), values.get("zero", 0)
        dp = values.get("dp", devices // max(1, tp))
        if tp < 1 or dp * tp != devices or zero > 3:
            raise PlanError(
                f"like {text!r}",
                f"multiplies to the cluster's {devices} devices, with zero from 0 to 3",
                f"dp={dp} times tp={tp}, zero={zero}",
                "give degrees that fit",
            )
        return Known(dp, tp, zero, shares)


def batch_dims(graph: Graph, rules: tuple[Rule, ...]) -> dict[str, int]:
    """The dim of every value that runs over samples, spread from the batch's first dims along factors, also
    back to what is made of nothing (the zeros and ones that a backward pass starts from)."""
    dims = {i.name: 0 for i in graph.batch if graph.types[i.name].shape}
    calls = list(zip(graph.operations, rules, strict=True))
    for sweep in (calls, calls[::-1], calls):
        for operation, rule in sweep:
            for factor in rule.factors:
                names = (*operation.inputs, *operation.outputs)
                carriers = [(n, s) for n, s in zip(names, (*factor.inputs, *factor.outputs), strict=True) if s]
                if any(dims.get(name, -1) == split.dim for name, split in carriers):
                    for name, split in carriers:
                        dims.setdefault(name, split.dim)
    return dims


def restrict(problem: Problem, known: Known) -> Model:
    """The problem's model with every choice that contradicts the known layout made impossible."""
    dims = batch_dims(problem.graph, problem.rules)
    tp_axis = len(known.mesh.sizes) - 1 if known.tp > 1 else None
    dp_axis = 0 if known.dp > 1 else None
    rules = {op.outputs: (op, rule) for op, rule in zip(problem.graph.operations, problem.rules, strict=True)}
    trained = {name for name, _ in problem.graph.gradients}
    model = Model(limit=problem.model.limit)
    for number, (node, costs) in enumerate(zip(problem.nodes, problem.model.nodes, strict=True)):
        allowed = np.ones(costs.shape[1], dtype=bool)
        if node.kind == "operation":
            operation, rule = rules[node.members]
            batch = _batch_factors((*operation.inputs, *operation.outputs), rule, dims)
            if operation.inputs:  # what reads nothing (zeros, ranges) is made as its readers want it
                allowed = _operations(node.options, batch, dp_axis, tp_axis)
        elif node.members[0] in trained and dp_axis is not None:
            allowed = _parameters(node.kind, node.options, dp_axis, known.zero)
        if not allowed.any():
            allowed[:] = True
        masked = costs.copy()
        masked[0][~allowed] = inf
        model.add_node(problem.model.labels[number], masked)
    model.edges = problem.model.edges
    return model


def data_parallel(problem: Problem) -> dict[int, frozenset[int]]:
    """Per class of operations the strategies (by number) that divide samples over the first axis."""
    dims = batch_dims(problem.graph, problem.rules)
    found: dict[int, frozenset[int]] = {}
    for index, number in enumerate(problem.fold.operations):
        if number in found:
            continue
        operation, options = problem.graph.operations[index], problem.nodes[problem.operation_nodes[number]].options
        batch = _batch_factors((*operation.inputs, *operation.outputs), problem.rules[index], dims)
        allowed = _operations(options, batch, 0, None) if operation.inputs else np.ones(len(options), dtype=bool)
        numbers = np.flatnonzero(allowed) if allowed.any() else np.arange(len(options))
        found[number] = frozenset(int(n) for n in numbers)
    return found


def _batch_factors(names: tuple[str, ...], rule: Rule, dims: dict[str, int]) -> frozenset[str]:
    return frozenset(
        f.name
        for f in rule.factors
        if any(s and dims.get(n, -1) == s.dim for n, s in zip(names, (*f.inputs, *f.outputs), strict=True))
    )


def _operations(
    options: tuple[Strategy, ...] | tuple[Layout, ...],
    batch: frozenset[str],
    dp_axis: int | None,
    tp_axis: int | None,
) -> NDArray[np.bool_]:
    """Split the batch over the data axis where there is one, and over no other axis."""
    allowed = []
    for option in options:
        tokens = option.tokens if isinstance(option, Strategy) else ()
        names = [Token.parse(t).factor for t in tokens]
        ok = tp_axis is None or names[tp_axis] not in batch
        if dp_axis is not None and batch:
            ok = ok and names[dp_axis] in batch
        elif dp_axis is not None:
            ok = ok and (names[dp_axis] == "R" or names[dp_axis].startswith("P"))
        allowed.append(ok)
    return np.array(allowed)


def _parameters(
    kind: str, options: tuple[Strategy, ...] | tuple[Layout, ...], axis: int, zero: int
) -> NDArray[np.bool_]:
    """How parameters lie along the data axis: stored, as used, and as found by the backward pass."""
    whole = np.array([isinstance(o, Layout) and isinstance(o.placements[axis], Replicate) for o in options])
    split = np.array([isinstance(o, Layout) and isinstance(o.placements[axis], Split) for o in options])
    if zero == 0 or kind in ("used", "reused"):
        return whole
    if kind == "stored":
        return split
    return split if zero == 3 else whole
