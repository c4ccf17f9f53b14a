from __future__ import annotations

import random
from math import isfinite

import pytest

from hocket.cluster.types import Cluster
from hocket.cost.collective import axis_fabric, collective_seconds
from hocket.errors import RuntimeFault
from hocket.measure.fit import fit_collectives, fit_device, fit_line
from hocket.measure.kernels import TINY
from hocket.measure.probe import probe
from hocket.sharding.mesh import Mesh


def test_a_quick_probe_of_two_processes() -> None:
    phases: list[str] = []
    measured = probe(2, quick=True, watcher=phases.append, device="cpu")
    device = measured.device
    assert measured.ranks == 2
    assert 0 <= measured.overlap <= 1
    numbers = [device.bandwidth, device.launch_seconds, device.view_seconds, device.peak("float32")]
    numbers += [v for fit in measured.collectives for v in (fit.latency, fit.bandwidth)]
    numbers += [
        v for _, v in (*device.traffic, *device.products[0][1], *device.kind_rates, *device.element_seconds)
    ]
    assert all(isfinite(n) and n > 0 for n in numbers)
    kinds = {"all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "send"}
    assert {fit.kind for fit in measured.collectives} == kinds
    assert "computation" in phases
    cluster = Cluster.local(2, measured)
    assert 0 < collective_seconds("all_reduce", 1e6, axis_fabric(cluster, Mesh((2,)), 0)) < 10


def test_a_probe_that_runs_out_of_time_ends_its_processes() -> None:
    with pytest.raises(RuntimeFault, match=r"ranks \[0\] still run"):
        probe(1, quick=True, timeout_seconds=0.2, device="cpu")


def test_a_rank_that_fails_is_named_with_its_last_words() -> None:
    with pytest.raises(RuntimeFault, match=r"(?s)rank 0.*nowhere"):
        probe(1, quick=True, device="nowhere")


def test_a_line_is_found_again() -> None:
    draw = random.Random(3)
    points = [(float(4**n), (2e-4 + 4**n / 7e8) * draw.uniform(0.99, 1.01)) for n in range(6, 13)]
    latency, bandwidth = fit_line(points)
    assert latency == pytest.approx(2e-4, rel=0.03)
    assert bandwidth == pytest.approx(7e8, rel=0.03)


def test_a_falling_line_still_gives_positive_numbers() -> None:
    latency, bandwidth = fit_line([(1e3, 3e-3), (1e6, 2e-3)])
    assert 0 < latency <= 2e-3
    assert bandwidth > 0


def test_groups_are_fitted_apart() -> None:
    rows = [
        {"kind": "all_gather", "ranks": n, "bytes": size, "seconds": n * 1e-4 + size / 1e9}
        for n in (2, 4)
        for size in (1e4, 1e6)
    ]
    fits = fit_collectives(rows)
    assert [(f.ranks, pytest.approx(f.latency)) for f in fits] == [(2, 2e-4), (4, 4e-4)]


def test_curves_take_the_fixed_cost_out() -> None:
    def row(
        topic: str, seconds: float, flops: float = 0.0, moved: float = 0.0, name: str = "x"
    ) -> dict[str, object]:
        return {
            "topic": topic,
            "name": name,
            "flops": flops,
            "bytes": moved,
            "elements": moved / 8,
            "seconds": seconds,
        }

    rows = [row("call", 5e-6), row("mixed", 1e-4)]
    rows += [row("launch", 1e-4 + TINY * 9e-6), row("view", 1e-4 + TINY * 2e-6)]
    rows += [row("product", 5e-6 + f / 2e10, f, name="float32") for f in (1e6, 1e7, 1e8)]
    rows += [row("traffic", 5e-6 + m / 4e9, moved=m) for m in (1e4, 1e6)]
    rows += [row("copy", 5e-6 + 3e-4), row("fill", 5e-6 + 1e-4), row("kind_call", 1e-5, name="gelu")]
    rows += [
        row("kind", 5e-6 + 1e6 / 1e10, 1e6, name="attention"),
        row("kind", 1e-5 + 1e-3, moved=8e5, name="gelu"),
    ]
    device = fit_device(rows, "CPU", 0)
    assert device.rate("float32", 3e7) == pytest.approx(2e10)
    assert device.bytes_per_second(1e5) == pytest.approx(4e9)
    assert dict(device.kind_rates)["attention"] == pytest.approx(0.5)
    assert dict(device.element_seconds)["gelu"] == pytest.approx(1e-8)
    assert device.write_weight == pytest.approx(1)
    assert dict(device.kind_launches)["gelu"] == pytest.approx(5e-6)
    assert (device.launch_seconds, device.view_seconds) == pytest.approx((9e-6, 2e-6))
