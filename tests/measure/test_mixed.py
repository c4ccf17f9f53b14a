"""A probe of unequal ranks: machines in order, devices by their speed, a file that reads back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hocket.cluster.types import Cluster
from hocket.errors import RuntimeFault
from hocket.measure.mixed import assemble, probe_ranks
from hocket.measure.worker import measure_kernels
from hocket.runtime.launch import spawn


def slowed(rows: list[dict[str, Any]], factor: float) -> list[dict[str, Any]]:
    return [{**row, "seconds": row["seconds"] * factor} for row in rows]


@pytest.fixture(scope="module")
def kernels() -> list[dict[str, Any]]:
    from time import perf_counter

    return measure_kernels("cpu", True, lambda: None, perf_counter)


def result(machine: str, rows: list[dict[str, Any]], bandwidth: float = 1e8) -> dict[str, Any]:
    sizes = (2**12, 2**17, 2**21)
    collectives = [
        {"kind": kind, "ranks": n, "bytes": float(size), "seconds": 1e-4 + size / bandwidth}
        for kind in ("all_gather", "all_reduce", "send")
        for n in (2, 4)
        for size in sizes
    ]
    return {
        "machine": machine,
        "memory": 8 * 10**9,
        "kernels": rows,
        "collectives": collectives,
        "overlap": 0.25,
        "noise": 0.04,
    }


def test_ranks_of_about_one_speed_are_one_kind(kernels: list[dict[str, Any]], tmp_path: Path) -> None:
    factors = {"a": 1.0, "b": 1.05, "c": 4.0, "d": 4.1}
    cluster = assemble([result(m, slowed(kernels, f)) for m, f in factors.items()])
    assert [m.name for m in cluster.machines] == ["a", "b", "c", "d"]
    first, second, third, fourth = cluster.devices
    assert first == second
    assert third == fourth
    assert first.rate("float32", 1e7) / third.rate("float32", 1e7) == pytest.approx(4.0, rel=0.15)
    assert cluster.network.bandwidth == pytest.approx(1e8, rel=0.05)
    assert cluster.overlap == 0.25
    assert cluster.noise == 0.04
    cluster.save(tmp_path / "cluster.yaml")
    assert Cluster.load(tmp_path / "cluster.yaml") == cluster


def test_ranks_of_one_machine_follow_each_other(kernels: list[dict[str, Any]]) -> None:
    assert [m.count for m in assemble([result(m, kernels) for m in "aabb"]).machines] == [2, 2]
    with pytest.raises(RuntimeFault, match="machine by machine"):
        assemble([result(m, kernels) for m in "aba"])


def test_devices_stay_with_their_ranks(kernels: list[dict[str, Any]]) -> None:
    results = [result("one", slowed(kernels, factor)) for factor in (1.0, 4.0, 1.0)]
    cluster = assemble(results)
    rates = [device.rate("float32", 1e7) for device in cluster.devices]
    assert rates[0] == rates[2] > 2 * rates[1]
    assert [device.memory for device in cluster.devices] == [8 * 10**9 // 3] * 3


def probe_two() -> Cluster:
    return probe_ranks("here")


def test_every_rank_knows_the_same_cluster() -> None:
    first, second = spawn(probe_two, 2)
    assert first == second
    assert first.size == 2
    assert {fit.kind for fit in first.collectives} >= {"all_gather", "broadcast", "send"}


def test_a_probe_needs_a_world() -> None:
    with pytest.raises(RuntimeFault, match="initialised"):
        probe_ranks()
