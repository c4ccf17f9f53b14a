"""Seconds of one strategy of one operation on its local shards."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from hocket.cluster.types import Cluster
from hocket.cost.prices import MeshPrices
from hocket.graph.types import Graph, Operation, TensorType
from hocket.sharding.layout import Layout, Split
from hocket.sharding.mesh import Mesh
from hocket.sharding.recipes import Reduce, expand
from hocket.sharding.rule import Rule
from hocket.sharding.shares import Shares
from hocket.sharding.strategy import Strategy


def local_type(layout: Layout, tensor: TensorType, mesh: Mesh, rank: int) -> TensorType:
    """Type of a rank's shard of a tensor."""
    shape = list(tensor.shape)
    for axis, placement in enumerate(layout.placements):
        if isinstance(placement, Split) and placement.sizes:
            shape[placement.dim] = shape[placement.dim] * placement.sizes[mesh.coordinates(rank)[axis]]
            shape[placement.dim] //= sum(placement.sizes)
        elif isinstance(placement, Split):
            shape[placement.dim] //= mesh.sizes[axis]
    return TensorType(tuple(shape), tensor.dtype)


def busiest_rank(cluster: Cluster, mesh: Mesh, shares: Sequence[Sequence[Shares]]) -> int:
    """The rank that takes longest for its share of matrix work: whatever it does bounds what a step takes."""
    devices = cluster.devices

    def load(rank: int) -> float:
        return _share(mesh, shares, rank) / devices[rank].peak("float32")

    return max(mesh.ranks, key=load)


def fullest_rank(cluster: Cluster, mesh: Mesh, shares: Sequence[Sequence[Shares]]) -> int:
    """The rank whose memory its share of a step fills most."""
    return max(mesh.ranks, key=lambda rank: _share(mesh, shares, rank) / max(1, cluster.memory_limit(rank)))


def _share(mesh: Mesh, shares: Sequence[Sequence[Shares]], rank: int) -> float:
    """What a rank gets of a tensor that every axis splits, on average over the parts of the stage."""
    places = mesh.coordinates(rank)
    each = [
        prod(axis[p] if axis else 1 / n for axis, p, n in zip(part, places, mesh.sizes, strict=True))
        for part in shares
    ]
    return sum(each) / len(each) if each else 1 / mesh.devices


def strategy_seconds(
    graph: Graph, operation: Operation, rule: Rule, strategy: Strategy, mesh: Mesh, prices: MeshPrices, rank: int
) -> float:
    """Seconds that a strategy's work takes a rank, special local code and its all-reduces included."""

    def local(names: tuple[str, ...], layouts: tuple[Layout, ...]) -> list[TensorType]:
        return [local_type(o, graph.types[n], mesh, rank) for n, o in zip(names, layouts, strict=True)]

    inputs, outputs = local(operation.inputs, strategy.inputs), local(operation.outputs, strategy.outputs)
    if not strategy.recipes:
        return prices.compute(operation, inputs, outputs, rank)
    return _recipe_seconds(operation, rule, strategy, mesh, prices, inputs, outputs, rank)


def _recipe_seconds(
    operation: Operation,
    rule: Rule,
    strategy: Strategy,
    mesh: Mesh,
    prices: MeshPrices,
    inputs: list[TensorType],
    outputs: list[TensorType],
    rank: int,
) -> float:
    factor = next(f for f in rule.factors if f.name == strategy.recipes[0][1])
    carried = [*zip(factor.inputs, inputs, strict=True), *zip(factor.outputs, outputs, strict=True)]
    length = next(t.shape[split.dim] for split, t in carried if split is not None)
    types = dict(zip((*operation.inputs, *operation.outputs), (*inputs, *outputs), strict=True))
    seconds = 0.0
    for step in expand(factor.recipe, operation, 0, length, types):
        if isinstance(step, Reduce):
            size = types[step.value].bytes
            seconds += sum(prices.collective("all_reduce", axis, size) for axis, _ in strategy.recipes)
        else:
            made, read = [types[n] for n in step.outputs], [types[n] for n in step.inputs]
            seconds += prices.compute(step, read, made, rank)
    return seconds
