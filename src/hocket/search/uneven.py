"""Which shares are tried on unequal devices, and how shares of kinds become shares of all."""

from __future__ import annotations

from collections.abc import Sequence

from hocket.cluster.types import Cluster, Device
from hocket.cost.compute import work
from hocket.graph.types import Graph
from hocket.plan.types import Stage
from hocket.sharding.mesh import Mesh
from hocket.sharding.shares import Shares


def rows_of(cluster: Cluster, mesh: Mesh) -> tuple[tuple[Device, ...], ...]:
    """The kinds of device at every position of a mesh's first axis."""
    step = mesh.stride(0)
    first = [mesh.first + position * step for position in range(mesh.sizes[0])]
    return tuple(tuple(dict.fromkeys(cluster.devices[start : start + step])) for start in first)


def is_mixed(cluster: Cluster, mesh: Mesh) -> bool:
    """Whether positions of the first axis are unlike, each of devices of one kind."""
    rows = rows_of(cluster, mesh)
    return len(set(rows)) > 1 and all(len(row) == 1 for row in rows)


def speeds(graph: Graph, cluster: Cluster, mesh: Mesh) -> tuple[float, ...]:
    """Steps per second that each position of the first axis would do of the matrix work alone."""
    seconds: dict[Device, float] = dict.fromkeys((row[0] for row in rows_of(cluster, mesh)), 0.0)
    for operation in graph.operations:
        inputs = [graph.types[n] for n in operation.inputs]
        flops = work(operation, inputs, [graph.types[n] for n in operation.outputs]).flops
        if flops:
            for device in seconds:
                seconds[device] += flops / device.rate(inputs[0].dtype, flops / mesh.devices)
    return tuple(1 / (seconds[row[0]] or 1.0) for row in rows_of(cluster, mesh))


def starts(graph: Graph, cluster: Cluster, mesh: Mesh) -> tuple[Shares, ...]:
    """Shares that a search of a mixed mesh starts from: by speed, even, by memory."""
    memory = [float(row[0].memory) for row in rows_of(cluster, mesh)]
    found = (by(speeds(graph, cluster, mesh)), by([1.0] * mesh.sizes[0]), by(memory))
    return tuple(dict.fromkeys(found))


def by(weights: Sequence[float]) -> Shares:
    """Shares in proportion to weights."""
    total = sum(weights)
    return tuple(w / total for w in weights)


def spread(
    found: Sequence[Sequence[float]], ranks: Sequence[int], stage: Stage, cluster: Cluster
) -> tuple[Shares, ...]:
    """Shares of all positions of the first axis for every part, from those of the kinds that `ranks` stand for."""
    mesh = stage.mesh
    kinds = [kind_of(rank, stage, cluster) for rank in ranks]
    rows = [kind_of(mesh.first + p * mesh.stride(0), stage, cluster) for p in range(mesh.sizes[0])]
    return tuple(by([dict(zip(kinds, part, strict=True))[row] for row in rows]) for part in found)


def kind_of(rank: int, stage: Stage, cluster: Cluster) -> tuple[Device, tuple[float, ...]]:
    """What tells ranks apart on a stage with shares: the device, and its share of the first axis in every part."""
    place = stage.mesh.coordinates(rank)[0]
    return cluster.devices[rank], tuple(part[0][place] for part in stage.shares)
