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


def spread(kinds: Sequence[float], ranks: Sequence[int], stage: Stage, cluster: Cluster) -> Shares:
    """Shares of all positions of the first axis, from those of the kinds that `ranks` stand for."""
    mesh, present = stage.mesh, stage.shares[0][0]

    def kind(rank: int) -> tuple[Device, float]:
        return cluster.devices[rank], present[mesh.coordinates(rank)[0]]

    share_of = {kind(rank): share for rank, share in zip(ranks, kinds, strict=True)}
    return by([share_of[kind(mesh.first + p * mesh.stride(0))] for p in range(mesh.sizes[0])])
