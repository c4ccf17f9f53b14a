"""Cluster files: YAML of format hocket-cluster/1, strict, in units; and the same as plain values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from itertools import groupby
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from hocket.cluster.presets import LINKS, PRESETS
from hocket.cluster.types import GPU_OVERLAP, Cluster, CollectiveFit, Curve, Device, Link, Machine
from hocket.cluster.writing import write_whole
from hocket.errors import ClusterError, FileError, UnitError
from hocket.units import Quantity, parse_bandwidth, parse_bytes, parse_rate, parse_seconds

FORMAT = "hocket-cluster/1"
T = TypeVar("T")


class LinkEntry(msgspec.Struct, forbid_unknown_fields=True):
    """A link in a file: quantities with units."""

    bandwidth: Quantity
    latency: Quantity = 5e-6
    per: Literal["device", "machine"] | None = None


class DeviceEntry(msgspec.Struct, forbid_unknown_fields=True):
    """A device in a file: `like` names a preset whose values hold where none are given."""

    like: str | None = None
    name: str | None = None
    memory: Quantity | None = None
    flops_per_second: dict[str, Quantity] | None = None
    bandwidth: Quantity | None = None
    launch: Quantity | None = None
    view: Quantity | None = None
    products: dict[str, list[tuple[float, float]]] | None = None
    traffic: list[tuple[float, float]] | None = None
    kind_rates: dict[str, float] | None = None
    element_seconds: dict[str, float] | None = None
    kind_launches: dict[str, float] | None = None
    write_weight: float | None = None


class MachineEntry(msgspec.Struct, forbid_unknown_fields=True):
    """One or `machines` equal machines in a file."""

    name: str
    device: str | DeviceEntry
    count: int = 1
    link: Quantity | LinkEntry | None = None
    latency: Quantity | None = None
    machines: int = 1


class CollectiveEntry(msgspec.Struct, forbid_unknown_fields=True):
    """A measured collective in a file."""

    kind: str
    ranks: int
    latency: Quantity
    bandwidth: Quantity


class ClusterEntry(msgspec.Struct, forbid_unknown_fields=True):
    """A whole cluster file."""

    format: str
    machines: list[MachineEntry]
    name: str = ""
    network: Quantity | LinkEntry | None = None
    overlap: float = GPU_OVERLAP
    memory_reserve: float = 0.1
    collectives: list[CollectiveEntry] = []
    noise: float = 0.0


ENTRIES: tuple[type[Any], ...] = (LinkEntry, DeviceEntry, MachineEntry, CollectiveEntry, ClusterEntry)


def convert(values: object, entry: type[T], source: str) -> T:
    """`values` as a strict file type; raises FileError with the file and the key's path."""
    try:
        return msgspec.convert(values, entry)
    except msgspec.ValidationError as error:
        rule, _, place = str(error).partition(" - at ")
        key = place.strip("`").removeprefix("$").lstrip(".") or "top level"
        raise FileError(f"{source}: {key}", rule, repair=_key_repair(rule, entry)) from None


def _key_repair(rule: str, entry: type[Any]) -> str:
    """How to spell an unknown key, from the keys of the file type and of everything in it."""
    found = re.search(r"unknown field `(.*)`", rule)
    if found is None:
        return ""
    known = {f.name for e in (entry, *ENTRIES) for f in msgspec.structs.fields(e)}
    near = get_close_matches(found.group(1), sorted(known), 2)
    return f"did you mean {' or '.join(near)}?" if near else "take the key away"


def check_format(values: object, expected: str, source: str) -> None:
    """Raise FileError unless the values are a mapping that names the expected format."""
    if not isinstance(values, Mapping):
        raise FileError(
            source,
            "is a mapping of keys to values",
            type(values).__name__,
            f"start with 'format: {expected}'",
        )
    found = values.get("format")
    if found != expected:
        raise FileError(f"{source}: format", f"is {expected}", repr(found), f"write 'format: {expected}'")


def load_cluster(path: str | PathLike[str]) -> Cluster:
    """Read a cluster file; raises FileError or ClusterError."""
    try:
        values = msgspec.yaml.decode(Path(path).read_bytes())
    except OSError as error:
        raise FileError(str(path), "is a readable file", error.strerror or str(error)) from None
    except msgspec.DecodeError as error:
        raise FileError(str(path), "is YAML", str(error).replace("\n", " ")) from None
    return cluster_from_dict(values, str(path))


def save_cluster(cluster: Cluster, path: str | PathLike[str]) -> None:
    """Write a cluster file that `load_cluster` reads back exactly, whole or not at all; raises FileError."""
    write_whole(path, msgspec.yaml.encode(cluster_to_dict(cluster)))


def cluster_from_dict(values: Mapping[str, Any], source: str = "cluster") -> Cluster:
    """The cluster that plain values describe; raises FileError or ClusterError naming source and key."""
    check_format(values, FORMAT, source)
    entry = convert(values, ClusterEntry, source)
    if not entry.machines:
        raise ClusterError(f"{source}: machines", "lists at least one machine", "[]", "add a machine entry")
    try:
        machines = tuple(m for i, e in enumerate(entry.machines) for m in _machines(e, f"machines[{i}]"))
        named = {m.name: m for m in machines}
        for index, machine in enumerate(machines):
            if named[machine.name] != machine:
                raise ClusterError(
                    f"machine {index}",
                    "machines of one name are equal",
                    machine.name,
                    "give them different names",
                )
        if entry.network is None:
            if len(machines) > 1:
                raise ClusterError("network", "several machines have a network", "none", "add 'network: 10 Gbit/s'")
            network = Link(10e9 / 8, 50e-6, "machine")
        else:
            network = _link(entry.network, "network", Link(0, 50e-6, "machine"))
        collectives = tuple(_collective(e, f"collectives[{i}]") for i, e in enumerate(entry.collectives))
        shares = entry.overlap, entry.memory_reserve
        return Cluster(machines, network, *shares, collectives, entry.name, entry.noise)
    except UnitError as error:
        raise FileError(f"{source}: {error.culprit}", error.rule, error.values, error.repair) from None
    except ClusterError as error:
        raise ClusterError(f"{source}: {error.culprit}", error.rule, error.values, error.repair) from None


def _collective(entry: CollectiveEntry, key: str) -> CollectiveFit:
    latency = parse_seconds(entry.latency, f"{key}.latency")
    return CollectiveFit(entry.kind, entry.ranks, latency, _positive(entry.bandwidth, f"{key}.bandwidth"))


def _machines(entry: MachineEntry, key: str) -> tuple[Machine, ...]:
    for name, number in (("count", entry.count), ("machines", entry.machines)):
        if number < 1:
            raise ClusterError(f"{key}.{name}", "is 1 or more", str(number))
    device = _device(entry.device, f"{key}.device")
    like = entry.device if isinstance(entry.device, str) else entry.device.like
    usual = LINKS.get(like or "")
    if entry.link is not None:
        link = _link(entry.link, f"{key}.link", usual or Link(0, 5e-6))
    elif usual is not None:
        link = usual
    elif entry.count == 1:
        link = Link(device.bandwidth, 0.0)
    else:
        raise ClusterError(
            f"{key}.link", "a machine with several devices has a link", "none", "add 'link: 300 GB/s'"
        )
    if entry.latency is not None:
        link = replace(link, latency=parse_seconds(entry.latency, f"{key}.latency"))
    return (Machine(entry.name, device, entry.count, link),) * entry.machines


def _link(entry: Quantity | LinkEntry, key: str, usual: Link) -> Link:
    """The link of an entry; a bare bandwidth takes the rest from the usual one."""
    if not isinstance(entry, LinkEntry):
        return replace(usual, bandwidth=_positive(entry, key), per="machine" if key == "network" else "device")
    per = entry.per or ("machine" if key == "network" else "device")
    return Link(_positive(entry.bandwidth, f"{key}.bandwidth"), parse_seconds(entry.latency, f"{key}.latency"), per)


def _positive(value: Quantity, key: str) -> float:
    number = parse_bandwidth(value, key)
    if number == 0:
        raise UnitError(key, "is more than zero", repr(value))
    return number


def _preset(name: str, key: str) -> Device:
    if name not in PRESETS:
        near = get_close_matches(name, PRESETS, 3, 0.4)
        repair = f"did you mean {' or '.join(near)}?" if near else "or give a mapping with memory and rates"
        raise ClusterError(key, f"is one of {', '.join(PRESETS)}", repr(name), repair)
    return PRESETS[name]


def _device(entry: str | DeviceEntry, key: str) -> Device:
    if isinstance(entry, str):
        return _preset(entry, key)
    changes = _device_changes(entry, key)
    if entry.like is not None:
        device = _preset(entry.like, f"{key}.like")
        return replace(device, **changes)
    for name in ("name", "memory", "flops_per_second", "bandwidth"):
        if name not in changes:
            raise ClusterError(
                f"{key}.{name}",
                "a device without 'like' has this key",
                "missing",
                f"add {name}, or 'like: A100-40GB'",
            )
    return Device(**changes)


def _device_changes(entry: DeviceEntry, key: str) -> dict[str, Any]:
    """The fields of a Device that an entry gives."""
    changes: dict[str, Any] = {}
    if entry.name is not None:
        changes["name"] = entry.name
    if entry.memory is not None:
        changes["memory"] = parse_bytes(entry.memory, f"{key}.memory")
    if entry.flops_per_second is not None:
        rates = {d: parse_rate(r, f"{key}.flops_per_second.{d}") for d, r in entry.flops_per_second.items()}
        if not rates or min(rates.values()) == 0:
            raise ClusterError(f"{key}.flops_per_second", "names at least one dtype, all above zero", str(rates))
        changes["flops_per_second"] = tuple(rates.items())
    if entry.bandwidth is not None:
        changes["bandwidth"] = _positive(entry.bandwidth, f"{key}.bandwidth")
    if entry.launch is not None:
        changes["launch_seconds"] = parse_seconds(entry.launch, f"{key}.launch")
    if entry.view is not None:
        changes["view_seconds"] = parse_seconds(entry.view, f"{key}.view")
    if entry.products is not None:
        changes["products"] = tuple((d, _curve(c, f"{key}.products.{d}")) for d, c in entry.products.items())
    if entry.traffic is not None:
        changes["traffic"] = _curve(entry.traffic, f"{key}.traffic") if entry.traffic else ()
    if entry.write_weight is not None:
        changes["write_weight"] = entry.write_weight
    for name in ("kind_rates", "element_seconds", "kind_launches"):
        if getattr(entry, name) is not None:
            changes[name] = tuple(getattr(entry, name).items())
    return changes


def _curve(points: list[tuple[float, float]], key: str) -> Curve:
    sizes = [size for size, _ in points]
    if not points or sizes != sorted(set(sizes)) or sizes[0] <= 0 or min(v for _, v in points) <= 0:
        raise ClusterError(key, "is points (size, share), sizes ascending, all above zero", str(points))
    return tuple(points)


def device_to_dict(device: Device) -> dict[str, Any]:
    """A device as plain values in base units."""
    return {
        "name": device.name,
        "memory": device.memory,
        "flops_per_second": dict(device.flops_per_second),
        "bandwidth": device.bandwidth,
        "launch": device.launch_seconds,
        "view": device.view_seconds,
        "products": {dtype: [list(p) for p in curve] for dtype, curve in device.products},
        "traffic": [list(p) for p in device.traffic],
        "kind_rates": dict(device.kind_rates),
        "element_seconds": dict(device.element_seconds),
        "kind_launches": dict(device.kind_launches),
        "write_weight": device.write_weight,
    }


def device_from_dict(values: Mapping[str, Any], source: str) -> Device:
    """The device of `device_to_dict`'s values; raises FileError or ClusterError."""
    return _device(convert(values, DeviceEntry, source), source)


def link_to_dict(link: Link) -> dict[str, Any]:
    """A link as plain values in base units."""
    return {"bandwidth": link.bandwidth, "latency": link.latency, "per": link.per}


def cluster_to_dict(cluster: Cluster) -> dict[str, Any]:
    """The cluster as plain values in base units; `cluster_from_dict` gives exactly this cluster back."""
    machines = []
    for machine, run in groupby(cluster.machines):
        machines.append(
            {
                "name": machine.name,
                "count": machine.count,
                "device": device_to_dict(machine.device),
                "link": link_to_dict(machine.link),
                "machines": len(list(run)),
            }
        )
    return {
        "format": FORMAT,
        "name": cluster.name,
        "machines": machines,
        "network": link_to_dict(cluster.network),
        "overlap": cluster.overlap,
        "memory_reserve": cluster.memory_reserve,
        "noise": cluster.noise,
        "collectives": [collective_to_dict(fit) for fit in cluster.collectives],
    }


def collective_to_dict(fit: CollectiveFit) -> dict[str, Any]:
    """A measured collective as plain values."""
    return {"kind": fit.kind, "ranks": fit.ranks, "latency": fit.latency, "bandwidth": fit.bandwidth}
