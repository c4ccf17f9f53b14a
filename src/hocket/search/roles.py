"""What dims stand for, as people see it: samples, and experts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hocket.graph.types import Graph
from hocket.sharding.rule import Rule


def batch_dims(graph: Graph, rules: tuple[Rule, ...]) -> dict[str, int]:
    """The dim of every value that runs over samples, spread from the batch's first dims along factors, also
    back to what is made of nothing (the zeros and ones that a backward pass starts from)."""
    return spread_dims(graph, rules, {i.name: 0 for i in graph.batch if graph.types[i.name].shape})


def spread_dims(graph: Graph, rules: tuple[Rule, ...], dims: dict[str, int]) -> dict[str, int]:
    """Known dims of values, spread to all values along factors, there and back."""
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


def factors_along(names: tuple[str, ...], rule: Rule, dims: Mapping[str, int]) -> frozenset[str]:
    """The factors of an operation on these values that run along known dims."""
    return frozenset(
        f.name
        for f in rule.factors
        if any(s and dims.get(n, -1) == s.dim for n, s in zip(names, (*f.inputs, *f.outputs), strict=True))
    )


@dataclass(frozen=True)
class Experts:
    """The weights of experts with what is derived of them alone and their gradients, and the dim of every value
    that runs over experts."""

    weights: frozenset[str] = frozenset()
    dims: Mapping[str, int] = field(default_factory=dict)

    def factors(self, names: Sequence[str], rule: Rule) -> frozenset[str]:
        """The factors of an operation on these values that run over experts."""
        return factors_along(tuple(names), rule, self.dims)


def find_experts(graph: Graph, rules: tuple[Rule, ...]) -> Experts:
    """Weights of three dims that a batched product reads with the first as its batch: that runs over experts."""
    single: dict[str, str] = {}
    batched: set[str] = set()
    for operation, rule in zip(graph.operations, rules, strict=True):
        if len(set(operation.inputs)) == 1:
            single.update(dict.fromkeys(operation.outputs, operation.inputs[0]))
        if operation.kind in ("bmm", "baddbmm"):
            splits = [(n, f.inputs[k]) for f in rule.factors for k, n in enumerate(operation.inputs)
                      if all(f.inputs) and all(f.outputs)]  # fmt: skip
            batched |= {name for name, split in splits if split is not None and split.dim == 0}
    weights = {i.name for i in graph.parameters if len(graph.types[i.name].shape) == 3}

    def source(name: str) -> str:
        while name in single:
            name = single[name]
        return name

    found = {source(name) for name in batched} & weights
    dims = spread_dims(graph, rules, dict.fromkeys(sorted(found), 0))
    derived = {name for name in single if source(name) in found}
    ends = {value: parameter for parameter, value in graph.gradients if parameter in found}
    chain: set[str] = set()
    for value in ends:
        while value not in chain:
            chain.add(value)
            value = single.get(value, value)
    return Experts(frozenset(found | derived | chain), dims)
