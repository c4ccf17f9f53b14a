"""Seconds of one strategy of one operation on its local shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from hocket.cluster.types import Cluster, Curve, Device
from hocket.cost.prices import MeshPrices
from hocket.graph.types import Graph, Operation, TensorType
from hocket.sharding.layout import REPLICATE, Layout, Split, share_at
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


@dataclass(frozen=True, slots=True)
class OneRank:
    """Prices the work of one rank, and what it holds."""

    mesh: Mesh
    prices: MeshPrices
    rank: int
    places: tuple[int, ...]

    def seconds(self, graph: Graph, operation: Operation, rule: Rule, strategy: Strategy) -> float:
        """Seconds of a strategy on the rank."""
        return strategy_seconds(graph, operation, rule, strategy, self.mesh, self.prices, self.rank)

    def held(self, layout: Layout) -> float:
        """The fraction of a tensor that the fullest rank holds."""
        share = 1.0
        for size, placement, position in zip(self.mesh.sizes, layout.placements, self.places, strict=True):
            share *= share_at(placement, size, position)
        return share

    @property
    def fair(self) -> bool:
        """Whether communication is priced as if all shares were equal."""
        return False


@dataclass(frozen=True, slots=True)
class AnyShares:
    """Prices that hold for all shares of the first axis at once.

    A pass takes at least any average of what its devices take. With weights in proportion to speed that average
    of divided work does not depend on the shares: with w_j t_j >= m for the whole work on device j, the sum of
    w_j t_j share_j is at least m, as shares add up to 1. Memory is averaged likewise, over all devices.
    """

    mesh: Mesh
    prices: MeshPrices
    weights: tuple[float, ...]

    def seconds(self, graph: Graph, operation: Operation, rule: Rule, strategy: Strategy) -> float:
        """Least average seconds of a strategy, whatever the shares."""
        ranks = [self.mesh.first + p * self.mesh.stride(0) for p in range(self.mesh.sizes[0])]
        token = strategy.tokens[0]
        whole = token == "R" or token.startswith("P")
        layouts = [*strategy.inputs, *strategy.outputs]
        if not whole:
            layouts = [Layout((REPLICATE, *layout.placements[1:])) for layout in layouts]
        count = len(strategy.inputs)
        undivided = replace(strategy, inputs=tuple(layouts[:count]), outputs=tuple(layouts[count:]))
        found: dict[Device, float] = {}
        for rank in ranks:
            device = self.prices.devices[rank]
            if device not in found:
                args = (graph, operation, rule, undivided, self.mesh, self.prices, rank)
                found[device] = strategy_seconds(*args, reduces=whole)
        each = [(w, self.prices.devices[r], found[self.prices.devices[r]])
                for w, r in zip(self.weights, ranks, strict=True)]  # fmt: skip
        if whole:
            return sum(w * t for w, _, t in each)
        fixed = sum(w * min(t, d.launch_seconds) for w, d, t in each)
        return fixed + min(w * max(0.0, t - d.launch_seconds) for w, d, t in each)

    def held(self, layout: Layout) -> float:
        """The fraction of a tensor that devices hold on average."""
        share = 1.0
        for size, placement in zip(self.mesh.sizes, layout.placements, strict=True):
            share *= 1 / size if isinstance(placement, Split) else 1.0
        return share

    @property
    def fair(self) -> bool:
        """Whether communication is priced as if all shares were equal, which is when it is least."""
        return True


def at_best(cluster: Cluster) -> Cluster:
    """The cluster whose devices reach at any size the best rate that they reach at that size or a smaller one."""

    def rising(curve: Curve) -> Curve:
        best, points = 0.0, []
        for size, value in curve:
            best = max(best, value)
            points.append((size, best))
        return tuple(points)

    def best(device: Device) -> Device:
        products = tuple((dtype, rising(curve)) for dtype, curve in device.products)
        return replace(device, products=products, traffic=rising(device.traffic))

    machines = tuple(replace(machine, device=best(machine.device)) for machine in cluster.machines)
    return replace(cluster, machines=machines)


def strategy_seconds(
    graph: Graph,
    operation: Operation,
    rule: Rule,
    strategy: Strategy,
    mesh: Mesh,
    prices: MeshPrices,
    rank: int,
    reduces: bool = True,
) -> float:
    """Seconds that a strategy's work takes a rank, special local code (with `reduces` its all-reduces) included."""

    def local(names: tuple[str, ...], layouts: tuple[Layout, ...]) -> list[TensorType]:
        return [local_type(o, graph.types[n], mesh, rank) for n, o in zip(names, layouts, strict=True)]

    inputs, outputs = local(operation.inputs, strategy.inputs), local(operation.outputs, strategy.outputs)
    if not strategy.recipes:
        return prices.compute(operation, inputs, outputs, rank)
    return _recipe_seconds(operation, rule, strategy, prices, inputs, outputs, rank, reduces)


def _recipe_seconds(
    operation: Operation,
    rule: Rule,
    strategy: Strategy,
    prices: MeshPrices,
    inputs: list[TensorType],
    outputs: list[TensorType],
    rank: int,
    reduces: bool,
) -> float:
    factor = next(f for f in rule.factors if f.name == strategy.recipes[0][1])
    carried = [*zip(factor.inputs, inputs, strict=True), *zip(factor.outputs, outputs, strict=True)]
    length = next(t.shape[split.dim] for split, t in carried if split is not None)
    types = dict(zip((*operation.inputs, *operation.outputs), (*inputs, *outputs), strict=True))
    seconds = 0.0
    for step in expand(factor.recipe, operation, 0, length, types):
        if isinstance(step, Reduce):
            size = types[step.value].bytes if reduces else 0
            seconds += sum(prices.collective("all_reduce", axis, size) for axis, _ in strategy.recipes)
        else:
            made, read = [types[n] for n in step.outputs], [types[n] for n in step.inputs]
            seconds += prices.compute(step, read, made, rank)
    return seconds
