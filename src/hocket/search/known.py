"""Layouts that people pick by hand, as restrictions of the same problem that the search then completes.

`tp=2,dp=2,zero=3` means a mesh dp x tp. On its first axis every operation that sees the batch splits it, and
parameters are whole (zero 0), sharded but gathered once per step (zero 1 and 2), or gathered in both passes
(zero 3; Rajbhandari et al. 2020, section 5). On its second axis matrices are split (Shoeybi et al. 2019,
section 3) and the batch is not. What this leaves open is filled in at least cost. `ep=1` divides experts over the
data axis, `tag=1` is TAG's space (see Known).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

import numpy as np
from numpy.typing import NDArray

from hocket.errors import PlanError
from hocket.search.model import Model
from hocket.search.problem import Node, Problem
from hocket.search.roles import Experts, batch_dims, factors_along, find_experts
from hocket.sharding.layout import Layout, Replicate, Split
from hocket.sharding.mesh import Mesh
from hocket.sharding.rule import Rule
from hocket.sharding.strategy import Strategy, Token

KEYS = ("dp", "tp", "zero", "ep", "tag")
SHARES = ("even", "speed")


@dataclass(frozen=True, slots=True)
class Known:
    """Degrees picked by hand: data parallel, tensor parallel, ZeRO stage.

    `shares` of the first axis are even, or follow the devices' speed (HAP's baselines DP-EV and DP-CP). With `ep`
    experts are divided over the data axis (DeepSpeed's ZeRO with expert parallelism). With `tag` every operation
    divides samples, an output of its weight, or nothing (TAG, as far as HAP's section 7.1 tells; see
    `without_sums`).
    """

    dp: int = 1
    tp: int = 1
    zero: int = 0
    shares: str = "even"
    ep: int = 0
    tag: int = 0

    def __str__(self) -> str:
        given = "" if self.shares == "even" else f",shares={self.shares}"
        given += ",ep=1" * self.ep + ",tag=1" * self.tag
        return f"dp={self.dp},tp={self.tp},zero={self.zero}{given}"

    @property
    def title(self) -> str:
        """What people call it."""
        if self.tag:
            return "TAG"
        if self.ep:
            return f"{replace(self, ep=0).title} with expert parallel"
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
        ep, tag = values.get("ep", 0), values.get("tag", 0)
        if ep > 1 or tag > 1 or (tp > 1 and ep + tag) or ep + tag > 1:
            rule = "takes ep=1 (experts by device) or tag=1 beside data parallel alone"
            raise PlanError(f"like {text!r}", rule, f"tp={tp}, ep={ep}, tag={tag}")
        if tp < 1 or dp * tp != devices or zero > 3:
            raise PlanError(
                f"like {text!r}",
                f"multiplies to the cluster's {devices} devices, with zero from 0 to 3",
                f"dp={dp} times tp={tp}, zero={zero}",
                "give degrees that fit",
            )
        return Known(dp, tp, zero, shares, ep, tag)


def restrict(problem: Problem, known: Known) -> Model:
    """The problem's model with every choice that contradicts the known layout made impossible.

    Raises PlanError where samples are to be divided and there are fewer than devices.
    """
    restriction = _Restriction(problem, known)
    model = Model(limit=problem.model.limit)
    for number, (node, costs) in enumerate(zip(problem.nodes, problem.model.nodes, strict=True)):
        allowed = restriction.allowed(node)
        if not allowed.any():
            allowed[:] = True
        masked = costs.copy()
        masked[0][~allowed] = inf
        model.add_node(problem.model.labels[number], masked)
    model.edges = problem.model.edges
    if known.dp > 1 and not restriction.divided:
        samples = max((problem.graph.types[i.name].shape[:1] for i in problem.graph.batch), default=())
        raise PlanError(
            f"like {known}",
            f"divides samples among {known.dp} devices, each with at least one",
            f"{samples[0] if samples else 'no'} samples",
            "a larger batch, or fewer devices along the data axis",
        )
    return model


class _Restriction:
    """What a known layout allows of each node; `divided`: some operation may divide samples over the data axis."""

    def __init__(self, problem: Problem, known: Known) -> None:
        graph, self.known = problem.graph, known
        self.dims = batch_dims(graph, problem.rules)
        self.tp_axis = len(known.mesh.sizes) - 1 if known.tp > 1 else None
        self.dp_axis = 0 if known.dp > 1 else None
        self.rules = {op.outputs: (op, rule) for op, rule in zip(graph.operations, problem.rules, strict=True)}
        self.trained = {name for name, _ in graph.gradients}
        self.experts = find_experts(graph, problem.rules) if known.ep else Experts()
        self.forward = {op.outputs for op in graph.operations[: graph.forward]}
        self.divided = False

    def allowed(self, node: Node) -> NDArray[np.bool_]:
        """Which options of a node do not contradict the layout."""
        if node.kind == "operation":
            return self._operation(node)
        name, axis = node.members[0], self.dp_axis
        if axis is not None and name in self.experts.weights:
            return np.array([_splits(option, axis, self.experts.dims[name]) for option in node.options])
        if axis is not None and name in self.trained and not self.known.tag:
            return _parameters(node.kind, node.options, axis, self.known.zero)
        return np.ones(len(node.options), dtype=bool)

    def _operation(self, node: Node) -> NDArray[np.bool_]:
        operation, rule = self.rules[node.members]
        names = (*operation.inputs, *operation.outputs)
        batch = factors_along(names, rule, self.dims)
        allowed = _operations(node.options, batch, self.dp_axis, self.tp_axis)
        self.divided |= bool(batch) and bool(allowed.any())
        if self.known.tag:
            return without_sums(node.options, rule, batch, operation.outputs in self.forward)
        if not operation.inputs:  # what reads nothing (zeros, ranges) is made as its readers want it
            return np.ones(len(node.options), dtype=bool)
        own = self.experts.factors(names, rule)
        if not own:
            return allowed
        apart = _operations(node.options, own, self.dp_axis, self.tp_axis)
        weighs = any(name in self.experts.weights for name in names)
        return apart if weighs else allowed | apart


def without_sums(
    options: tuple[Strategy, ...] | tuple[Layout, ...], rule: Rule, batch: frozenset[str], forward: bool
) -> NDArray[np.bool_]:
    """Divide samples, what an operation gives, or nothing; in the forward pass no sum but that over samples.

    Gradients are then reduced (by all at once, or to where their parameter is stored: parameter servers), not
    divided at all, or computed by every device from gathered factors.
    """
    sums = {f.name for f in rule.factors if f.sums and f.name not in batch}
    allowed = []
    for option in options:
        tokens = option.tokens if isinstance(option, Strategy) else ()
        names = [Token.parse(t).factor for t in tokens]
        allowed.append(not forward or not any(n in sums or n.startswith("P") for n in names))
    return np.array(allowed)


def _splits(option: Strategy | Layout, axis: int, dim: int) -> bool:
    placement = option.placements[axis] if isinstance(option, Layout) else None
    return isinstance(placement, Split) and placement.dim == dim


def data_parallel(problem: Problem) -> dict[int, frozenset[int]]:
    """Per class of operations the strategies (by number) that divide samples over the first axis."""
    dims = batch_dims(problem.graph, problem.rules)
    found: dict[int, frozenset[int]] = {}
    for index, number in enumerate(problem.fold.operations):
        if number in found:
            continue
        operation, options = problem.graph.operations[index], problem.nodes[problem.operation_nodes[number]].options
        batch = factors_along((*operation.inputs, *operation.outputs), problem.rules[index], dims)
        allowed = _operations(options, batch, 0, None) if operation.inputs else np.ones(len(options), dtype=bool)
        numbers = np.flatnonzero(allowed) if allowed.any() else np.arange(len(options))
        found[number] = frozenset(int(n) for n in numbers)
    return found


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
