"""Seconds of one strategy of one operation on its local shards."""

from __future__ import annotations

from hocket.cost.prices import MeshPrices
from hocket.graph.types import Graph, Operation, TensorType
from hocket.sharding.layout import Layout, Split
from hocket.sharding.mesh import Mesh
from hocket.sharding.recipes import Reduce, expand
from hocket.sharding.rule import Rule
from hocket.sharding.strategy import Strategy


def local_type(layout: Layout, tensor: TensorType, mesh: Mesh) -> TensorType:
    """Type of an even shard of a tensor."""
    shape = list(tensor.shape)
    for size, placement in zip(mesh.sizes, layout.placements, strict=True):
        if isinstance(placement, Split):
            shape[placement.dim] //= size
    return TensorType(tuple(shape), tensor.dtype)


def strategy_seconds(
    graph: Graph, operation: Operation, rule: Rule, strategy: Strategy, mesh: Mesh, prices: MeshPrices
) -> float:
    """Seconds that a strategy's local work takes, special local code and its all-reduces included."""
    inputs = [local_type(o, graph.types[n], mesh) for n, o in zip(operation.inputs, strategy.inputs, strict=True)]
    outputs = [
        local_type(o, graph.types[n], mesh) for n, o in zip(operation.outputs, strategy.outputs, strict=True)
    ]
    if not strategy.recipes:
        return prices.compute(operation, inputs, outputs)
    return _recipe_seconds(operation, rule, strategy, mesh, prices, inputs, outputs)


def _recipe_seconds(
    operation: Operation,
    rule: Rule,
    strategy: Strategy,
    mesh: Mesh,
    prices: MeshPrices,
    inputs: list[TensorType],
    outputs: list[TensorType],
) -> float:
    factor = next(f for f in rule.factors if f.name == strategy.recipes[0][1])
    parts = 1
    for axis, _ in strategy.recipes:
        parts *= mesh.sizes[axis]
    types = dict(zip((*operation.inputs, *operation.outputs), (*inputs, *outputs), strict=True))
    seconds = 0.0
    for step in expand(factor.recipe, operation, 0, factor.size // parts, types):
        if isinstance(step, Reduce):
            size = types[step.value].bytes
            seconds += sum(prices.collective("all_reduce", axis, size) for axis, _ in strategy.recipes)
        else:
            seconds += prices.compute(step, [types[n] for n in step.inputs], [types[n] for n in step.outputs])
    return seconds
