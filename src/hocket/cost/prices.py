"""The cost model seen from one mesh: seconds of local operations and of collectives, remembered."""

from __future__ import annotations

from collections.abc import Sequence

from hocket.cluster.types import Cluster, Device
from hocket.cost.collective import Fabric, axis_fabric, collective_seconds
from hocket.cost.compute import operation_seconds
from hocket.graph.types import Operation, TensorType, pattern
from hocket.sharding.mesh import Mesh

BUCKET_BYTES = 25 * 2**20
"""Largest bundle of tensors that travels as one collective: PyTorch DDP's default bucket_cap_mb."""


class MeshPrices:
    """Prices on a mesh: work on the device of a rank, collectives on the fabric of an axis."""

    def __init__(self, cluster: Cluster, mesh: Mesh) -> None:
        self.cluster, self.mesh = cluster, mesh
        self.devices: tuple[Device, ...] = cluster.devices
        self.fabrics: tuple[Fabric, ...] = tuple(
            axis_fabric(cluster, mesh, axis) for axis in range(len(mesh.sizes))
        )
        self.numbers = {device: number for number, device in enumerate(dict.fromkeys(cluster.devices))}
        self.memo: dict[object, float] = {}

    def compute(
        self, operation: Operation, inputs: Sequence[TensorType], outputs: Sequence[TensorType], rank: int
    ) -> float:
        """Seconds of an operation on a rank's local tensors."""
        device = self.devices[rank]
        key = (
            self.numbers[device],
            operation.op,
            pattern(operation.args),
            pattern(operation.kwargs),
            tuple(inputs),
            tuple(outputs),
        )
        if key not in self.memo:
            self.memo[key] = operation_seconds(operation, inputs, outputs, device)
        return self.memo[key]

    def collective(self, kind: str, axis: int, bytes: int) -> float:
        """Seconds of one collective along a mesh axis."""
        key = (kind, axis, bytes)
        if key not in self.memo:
            self.memo[key] = collective_seconds(kind, bytes, self.fabrics[axis])
        return self.memo[key]

    def bundled(self, kind: str, axis: int, bytes: int) -> float:
        """Least seconds of a collective that may share a bundle: its part of the bundle's fixed cost.

        A bundle holds at most BUCKET_BYTES unless one tensor alone is larger, so the parts of its members
        never add up to more than its fixed cost: sums of these are lower bounds of what bundles take.
        """
        fixed = self.collective(kind, axis, 0)
        return self.collective(kind, axis, bytes) - fixed + fixed * min(1.0, bytes / BUCKET_BYTES)
