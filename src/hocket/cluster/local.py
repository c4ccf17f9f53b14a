"""The cluster of processes on this machine's CPU."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Protocol

from hocket.cluster.presets import PRESETS
from hocket.cluster.types import Cluster, CollectiveFit, Device, Link, Machine
from hocket.errors import ClusterError

ASSUMED_MEMORY = 8 * 10**9
"""Bytes taken for granted where the system does not tell its memory (assumption)."""

LOOPBACK = Link(2e9, 50e-6, "device")
"""Gloo between processes of one small machine, as measured on two cores with four processes (see `probe`)."""


class Measured(Protocol):
    """What a calibration tells about the processes of one machine (see `cost.calibration`)."""

    @property
    def device(self) -> Device:
        """One process's share of the machine while all run."""

    @property
    def ranks(self) -> int:
        """How many processes ran at once."""

    @property
    def cores(self) -> int:
        """How many cores they shared."""

    @property
    def overlap(self) -> float:
        """Share of communication that hid behind computation."""

    @property
    def collectives(self) -> tuple[CollectiveFit, ...]:
        """Measured collectives."""


def local_cluster(ranks: int, calibration: Measured | None = None) -> Cluster:
    """`ranks` CPU processes on this machine; without a calibration with assumed rates.

    A calibration of another number of processes is scaled: processes share the cores' rates evenly.
    """
    if ranks < 1:
        raise ClusterError("local cluster", "has at least one process", str(ranks), "give 1 or more")
    memory = system_memory() // ranks
    cores = os.cpu_count() or 1
    if calibration is None:
        assumed = share_device(PRESETS["CPU"], 1, ranks, cores, one_core=True)
        machine = Machine("local", replace(assumed, name="CPU", memory=memory), ranks, LOOPBACK)
        return Cluster((machine,), overlap=0.0, name="local")
    device = share_device(calibration.device, calibration.ranks, ranks, calibration.cores)
    if device.name != "CPU":  # an accelerator's memory is its own
        machine = Machine("local", device, ranks, LOOPBACK)
    else:
        machine = Machine("local", replace(device, memory=memory), ranks, LOOPBACK)
    return Cluster((machine,), overlap=calibration.overlap, collectives=calibration.collectives, name="local")


def share_device(device: Device, measured: int, ranks: int, cores: int, one_core: bool = False) -> Device:
    """A process's device among `ranks`, from what it was among `measured`, on so many cores.

    Rates divide evenly (every process uses cores // ranks threads); fixed costs grow only once there are
    more processes than cores. With `one_core` the device is one whole core.
    """
    factor = cores / ranks if one_core else measured / ranks
    before = 1.0 if one_core else max(1.0, measured / cores)
    slower = max(1.0, ranks / cores) / before
    if factor == 1.0 and slower == 1.0:
        return device
    return replace(
        device,
        flops_per_second=tuple((dtype, rate * factor) for dtype, rate in device.flops_per_second),
        bandwidth=device.bandwidth * factor,
        launch_seconds=device.launch_seconds * slower,
        view_seconds=device.view_seconds * slower,
        element_seconds=tuple((kind, seconds / factor) for kind, seconds in device.element_seconds),
        kind_launches=tuple((kind, seconds * slower) for kind, seconds in device.kind_launches),
    )


def system_memory() -> int:
    """Bytes of memory of this machine."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return ASSUMED_MEMORY
