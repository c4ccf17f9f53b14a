"""A probe of unequal machines: every rank measures itself while all are busy, and all know the cluster."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from math import exp, log
from statistics import fmean
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

from hocket.cluster.local import LOOPBACK, system_memory
from hocket.cluster.types import Cluster, Device, Link, Machine
from hocket.errors import RuntimeFault
from hocket.measure.collectives import measure_collectives, measure_noise, measure_overlap
from hocket.measure.fit import Row, averaged, fit_collectives, fit_device
from hocket.measure.worker import measure_kernels

ALIKE = 0.2
"""Devices whose speeds differ by less than this share are taken to be of one kind."""


def probe_ranks(machine: str = "", device: str = "cpu", quick: bool = True) -> Cluster:
    """The cluster that the ranks of the world form, as they measure it themselves; called on every rank.

    torch.distributed must be initialised. `machine` names the machine that a rank is on (its host name by default);
    ranks of one machine must follow each other. Raises RuntimeFault where they do not.
    """
    if not dist.is_initialized():
        raise RuntimeFault("probe", "runs where torch.distributed is initialised", "it is not", "call init() first")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    kernels = measure_kernels(device, quick, dist.barrier, perf_counter, steady=True)
    collectives = measure_collectives(rank, ranks, device, quick, lambda text: None)
    mine = {"machine": machine or socket.gethostname(), "memory": _memory(device), "shared": device == "cpu",
            "kernels": kernels, "collectives": collectives, "overlap": measure_overlap(device),
            "noise": measure_noise(device)}  # fmt: skip
    everyone: list[Any] = [None] * ranks
    dist.all_gather_object(everyone, mine)
    return assemble(everyone)


def assemble(results: Sequence[Mapping[str, Any]]) -> Cluster:
    """The cluster of what each rank measured: machines in the order of ranks, unlike devices by their rates.

    Memory is shared by the ranks of a machine.
    """
    names = [r["machine"] for r in results]
    order = list(dict.fromkeys(names))
    if names != sorted(names, key=order.index):
        repair = "number the ranks machine by machine"
        raise RuntimeFault("probe", "ranks of one machine follow each other", ", ".join(names), repair)
    devices = _kinds(results)
    machines = []
    for name in order:
        own = [devices[rank] for rank, other in enumerate(names) if other == name]
        machines += [Machine(name, kind, len(list(same)), LOOPBACK) for kind, same in groupby(own)]
    rows = averaged([r["collectives"] for r in results], ("kind", "ranks", "bytes"))
    fits = fit_collectives(rows)
    slowest = min((f.bandwidth for f in fits if f.kind == "send"), default=LOOPBACK.bandwidth)
    latency = max((f.latency for f in fits if f.kind == "send"), default=LOOPBACK.latency)
    overlap = sorted(r["overlap"] for r in results)[len(results) // 2]
    noise = max(r["noise"] for r in results)
    network = Link(slowest, latency, "machine")
    return Cluster(tuple(machines), network, overlap, collectives=fits, name="probed", noise=noise)


def _kinds(results: Sequence[Mapping[str, Any]]) -> list[Device]:
    """A device per rank; ranks that are alike have the same one, fitted to what they measured together."""
    keys = ("topic", "name", "flops", "bytes", "elements")
    alone = [fit_device(r["kernels"], "CPU", r["memory"]) for r in results]
    groups: list[list[int]] = []
    speeds = [_speed(r["kernels"]) for r in results]
    for rank in sorted(range(len(results)), key=lambda r: -speeds[r]):
        if groups and speeds[rank] > speeds[groups[-1][0]] * (1 - ALIKE):
            groups[-1].append(rank)
        else:
            groups.append([rank])
    found = list(alone)
    for number, group in enumerate(groups):
        rows: Sequence[Row] = averaged([results[rank]["kernels"] for rank in group], keys)
        memory = min(_own_memory(results, rank) for rank in group)
        device = fit_device(rows, f"CPU {number}" if len(groups) > 1 else "CPU", memory)
        for rank in group:
            found[rank] = replace(device)
    return found


def _memory(device: str) -> int:
    if device == "cuda":
        return int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)
    return system_memory()


def _own_memory(results: Sequence[Mapping[str, Any]], rank: int) -> int:
    """Bytes for one rank: an accelerator's own, or its part of what the ranks of its machine share."""
    here = sum(r["machine"] == results[rank]["machine"] for r in results)
    return int(results[rank]["memory"]) // (here if results[rank].get("shared", True) else 1)


def _speed(rows: Sequence[Row]) -> float:
    """Matrix products per second, the geometric mean over all that were measured."""
    return exp(-fmean(log(r["seconds"]) for r in rows if r["topic"] == "product"))
