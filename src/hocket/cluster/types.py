"""The machines: devices, links, and the cluster they form, as immutable values."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

from hocket.errors import ClusterError

if TYPE_CHECKING:
    from hocket.cluster.local import Measured

Curve = tuple[tuple[float, float], ...]
"""Measured points (size, value), sizes ascending; between points the value is linear in log(size)."""

ANY_DTYPE = "any"
GPU_OVERLAP = 1 - 0.1255
"""Share of asynchronous communication that hides behind computation on GPUs: where both run at once they slow
each other down by the factor 1.1255 in the profile that Galvatron ships (PKU-DAIR/Hetu-Galvatron@cea12ffb)."""


def at(curve: Curve, size: float) -> float:
    """Value of a curve at a size: linear in log(size) between points, constant outside them."""
    if size <= curve[0][0]:
        return curve[0][1]
    if size >= curve[-1][0]:
        return curve[-1][1]
    right = bisect_left(curve, (size,))
    (x0, y0), (x1, y1) = curve[right - 1], curve[right]
    return y0 + (y1 - y0) * math.log(size / x0) / math.log(x1 / x0)


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator, or one process's share of a CPU.

    `memory` is in bytes, `flops_per_second` the dense peak per dtype (pairs), `bandwidth` the memory's bytes
    per second, `launch_seconds` the fixed cost of one operation, `view_seconds` that of one that only
    reinterprets its input. `products` says per dtype (or for `any`) which share of the peak a matrix product
    of so many flops reaches; `traffic` which share of the bandwidth an operation that moves so many bytes
    reaches. `kind_rates` multiplies the rate of matrix work for kinds of operation that reach another one
    (attention); `element_seconds` is the arithmetic time per output element of kinds whose arithmetic shows
    beside their memory traffic (on CPUs); `kind_launches` are seconds that kinds cost on top of the launch.
    A byte written to fresh memory counts as `write_weight` bytes of traffic (on CPUs the system first has to
    hand out and clear the page).
    """

    name: str
    memory: int
    flops_per_second: tuple[tuple[str, float], ...]
    bandwidth: float
    launch_seconds: float = 0.0
    view_seconds: float = 0.0
    products: tuple[tuple[str, Curve], ...] = ()
    traffic: Curve = ()
    kind_rates: tuple[tuple[str, float], ...] = ()
    element_seconds: tuple[tuple[str, float], ...] = ()
    kind_launches: tuple[tuple[str, float], ...] = ()
    write_weight: float = 1.0

    def peak(self, dtype: str) -> float:
        """Peak flops per second of a dtype; one the device does not name runs at the float32 rate."""
        rates = self.flops_per_second
        for name in (dtype, "float32"):
            for key, rate in rates:
                if key == name:
                    return rate
        return rates[0][1]

    def rate(self, dtype: str, flops: float) -> float:
        """Flops per second that a matrix product of so many flops reaches."""
        share = 1.0
        for key, curve in self.products:
            if key == dtype:
                share = at(curve, flops)
                break
            if key == ANY_DTYPE:
                share = at(curve, flops)
        return self.peak(dtype) * share

    def bytes_per_second(self, moved: float) -> float:
        """Bytes per second that an operation which moves so many bytes reaches."""
        return self.bandwidth * at(self.traffic, moved) if self.traffic else self.bandwidth


@dataclass(frozen=True, slots=True)
class Link:
    """A way between devices: bytes per second in each direction, and seconds before the first byte.

    `per` says who has the bandwidth: every device its own, or the machine one that its devices share.
    """

    bandwidth: float
    latency: float
    per: Literal["device", "machine"] = "device"


@dataclass(frozen=True, slots=True)
class Machine:
    """`count` devices of one kind and the link among them."""

    name: str
    device: Device
    count: int
    link: Link


@dataclass(frozen=True, slots=True)
class CollectiveFit:
    """Measured collective: seconds = latency + bytes / bandwidth in a group of `ranks`.

    `kind` and the meaning of bytes are those of `cost.collective.collective_seconds`.
    """

    kind: str
    ranks: int
    latency: float
    bandwidth: float


@dataclass(frozen=True, slots=True)
class Cluster:
    """Machines and the network among them; ranks count through the machines in order.

    `overlap` is the share of communication (0 to 1) that hides behind computation, `memory_reserve` the share of
    every device's memory that plans keep free. `collectives` are measured ones and go before the formulas. `noise`
    is by what share steps of one plan differ from each other: smaller gains count as none. `devices` are those of
    all ranks, `places` the indices of their machines.
    """

    machines: tuple[Machine, ...]
    network: Link = Link(10e9 / 8, 50e-6, "machine")
    overlap: float = GPU_OVERLAP
    memory_reserve: float = 0.1
    collectives: tuple[CollectiveFit, ...] = ()
    name: str = ""
    noise: float = 0.0
    devices: tuple[Device, ...] = field(init=False, repr=False, compare=False)
    places: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.machines or any(m.count < 1 for m in self.machines):
            raise ClusterError(
                f"cluster {self.name}".strip(),
                "has at least one machine, each with at least one device",
                str([(m.name, m.count) for m in self.machines]),
                "list machines with count 1 or more",
            )
        shares = {"overlap": self.overlap, "memory_reserve": self.memory_reserve, "noise": self.noise}
        for key, share in shares.items():
            if not 0 <= share <= 1:
                raise ClusterError(f"cluster {self.name}".strip(), f"{key} is between 0 and 1", str(share))
        devices = tuple(m.device for m in self.machines for _ in range(m.count))
        places = tuple(i for i, m in enumerate(self.machines) for _ in range(m.count))
        object.__setattr__(self, "devices", devices)
        object.__setattr__(self, "places", places)

    @property
    def size(self) -> int:
        """Number of devices."""
        return len(self.devices)

    def memory_limit(self, rank: int) -> int:
        """Bytes that a plan may use on a rank's device."""
        return int(self.devices[rank].memory * (1 - self.memory_reserve))

    def to_dict(self) -> dict[str, Any]:
        """The cluster as plain values in base units; `from_dict` gives exactly this cluster back."""
        from hocket.cluster.file import cluster_to_dict

        return cluster_to_dict(self)

    @staticmethod
    def from_dict(values: Mapping[str, Any], source: str = "cluster") -> Cluster:
        """The cluster of plain values; raises FileError or ClusterError naming `source` and key."""
        from hocket.cluster.file import cluster_from_dict

        return cluster_from_dict(values, source)

    @staticmethod
    def load(path: str | PathLike[str]) -> Cluster:
        """Read a cluster file (format hocket-cluster/1); raises FileError or ClusterError."""
        from hocket.cluster.file import load_cluster

        return load_cluster(path)

    def save(self, path: str | PathLike[str]) -> None:
        """Write a cluster file, whole or not at all; raises FileError."""
        from hocket.cluster.file import save_cluster

        save_cluster(self, path)

    @staticmethod
    def local(ranks: int, calibration: Measured | None = None) -> Cluster:
        """`ranks` CPU processes on this machine, as measured by `calibration` or with assumed numbers."""
        from hocket.cluster.local import local_cluster

        return local_cluster(ranks, calibration)
