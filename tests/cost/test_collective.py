from __future__ import annotations

from math import isinf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.cluster.presets import PRESETS
from hocket.cluster.types import Cluster, CollectiveFit, Link, Machine
from hocket.cost.collective import (
    KINDS,
    LINK_SHARE,
    Fabric,
    _ring_seconds,
    axis_fabric,
    collective_seconds,
    pair_fabric,
)
from hocket.errors import ClusterError
from hocket.sharding.mesh import Mesh

fabrics = st.builds(
    lambda m, k, inside, li, between, lb: Fabric(m * k, m, inside, li, between, lb),
    st.integers(1, 8),
    st.integers(1, 8),
    st.floats(1e8, 1e12),
    st.floats(1e-7, 1e-3),
    st.floats(1e8, 1e12),
    st.floats(1e-7, 1e-3),
)
sizes = st.floats(0, 1e11)
kinds = st.sampled_from(KINDS)
COMPOSED = ("grouped_all_gather", "grouped_reduce_scatter", "resize")
"""Kinds whose seconds are made of other kinds'."""


def cluster(machines: int, count: int, per: str = "device", network: str = "machine") -> Cluster:
    machine = Machine("a", PRESETS["A100-40GB"], count, Link(300e9, 5e-6, per))  # type: ignore[arg-type]
    return Cluster((machine,) * machines, Link(12.5e9, 20e-6, network))  # type: ignore[arg-type]


@given(kinds, sizes, sizes, fabrics)
def test_more_bytes_never_take_less_time(kind: str, one: float, other: float, fabric: Fabric) -> None:
    few, many = sorted((one, other))
    assert collective_seconds(kind, few, fabric) <= collective_seconds(kind, many, fabric)


@given(sizes, fabrics)
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(size: float, fabric: Fabric) -> None:
    both = collective_seconds("reduce_scatter", size, fabric) + collective_seconds("all_gather", size, fabric)
    assert collective_seconds("all_reduce", size, fabric) == pytest.approx(both)


@given(kinds, sizes, fabrics)
def test_two_levels_are_never_slower_than_the_ring(kind: str, size: float, fabric: Fabric) -> None:
    if fabric.size > 1 and kind not in COMPOSED:
        assert collective_seconds(kind, size, fabric) <= _ring_seconds(kind, size, fabric)


@given(sizes, fabrics)
def test_composed_kinds_are_what_they_are_made_of(size: float, fabric: Fabric) -> None:
    if fabric.size == 1:
        return
    n = fabric.size
    for kind in ("grouped_all_gather", "grouped_reduce_scatter"):
        each = collective_seconds("broadcast", size / n, fabric)
        assert collective_seconds(kind, size, fabric) == pytest.approx(n * each)
    exchange = collective_seconds("all_to_all", size * n / (n - 1), fabric)
    assert collective_seconds("resize", size, fabric) == pytest.approx(exchange)


@given(kinds, sizes)
def test_a_group_of_one_costs_nothing(kind: str, size: float) -> None:
    assert collective_seconds(kind, size, Fabric(1, 1, 1e9, 1e-6)) == 0


def test_the_ring_of_a_machine_by_hand() -> None:
    fabric = axis_fabric(cluster(1, 8), Mesh((8,)), 0)
    expected = 7 / 8 * 1e9 / (LINK_SHARE * 300e9) + 7 * 5e-6
    assert collective_seconds("all_gather", 1e9, fabric) == pytest.approx(expected)
    assert collective_seconds("all_reduce", 1e9, fabric) == pytest.approx(2 * expected)


def test_groups_that_leave_a_machine_together_share_its_network() -> None:
    alone = axis_fabric(cluster(4, 8), Mesh((32,)), 0)
    assert (alone.size, alone.together) == (32, 8)
    assert alone.between == pytest.approx(LINK_SHARE * 12.5e9)
    outer = axis_fabric(cluster(4, 8), Mesh((4, 8)), 0)
    assert (outer.size, outer.together) == (4, 1)
    assert outer.between == pytest.approx(LINK_SHARE * 12.5e9 / 8)
    inner = axis_fabric(cluster(4, 8), Mesh((4, 8)), 1)
    assert not inner.crosses
    assert isinf(inner.between)
    half = axis_fabric(cluster(4, 8), Mesh((8, 4)), 0)
    assert (half.size, half.together) == (8, 2)
    assert half.between == pytest.approx(LINK_SHARE * 12.5e9 / 4)


def test_a_network_card_per_device_is_not_shared() -> None:
    outer = axis_fabric(cluster(4, 8, network="device"), Mesh((4, 8)), 0)
    assert outer.between == pytest.approx(LINK_SHARE * 12.5e9)
    alone = axis_fabric(cluster(4, 8, network="device"), Mesh((32,)), 0)
    assert alone.between == pytest.approx(LINK_SHARE * 12.5e9 * 8)


def test_a_link_of_the_machine_is_shared_by_its_devices() -> None:
    fabric = axis_fabric(cluster(1, 8, per="machine"), Mesh((2, 4)), 1)
    assert fabric.inside == pytest.approx(LINK_SHARE * 300e9 / 8)


def test_the_slowest_machine_sets_the_pace() -> None:
    fast = Machine("fast", PRESETS["A100-40GB"], 4, Link(300e9, 5e-6))
    slow = Machine("slow", PRESETS["P100-16GB"], 4, Link(12e9, 9e-6))
    mixed = Cluster((fast, slow))
    fabric = axis_fabric(mixed, Mesh((2, 4)), 1)
    assert fabric.inside == pytest.approx(LINK_SHARE * 12e9)
    assert fabric.inside_latency == 9e-6
    assert axis_fabric(mixed, Mesh((4,)), 0).inside == pytest.approx(LINK_SHARE * 300e9)


def test_a_pair_in_a_machine_and_across() -> None:
    near, far = (collective_seconds("send", 1e8, pair_fabric(cluster(2, 2), 0, r)) for r in (1, 2))
    assert near == pytest.approx(1e8 / (LINK_SHARE * 300e9) + 5e-6)
    assert far == pytest.approx(1e8 / (LINK_SHARE * 12.5e9) + 20e-6)


def test_a_mesh_beyond_the_cluster_is_refused() -> None:
    with pytest.raises(ClusterError, match="8 devices"):
        axis_fabric(cluster(1, 8), Mesh((8,), first=1), 0)


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(ClusterError, match="all_gater"):
        collective_seconds("all_gater", 1.0, Fabric(2, 2, 1e9, 1e-6))


def test_measured_collectives_go_before_the_formulas() -> None:
    fits = (CollectiveFit("all_gather", 2, 1e-3, 1e9), CollectiveFit("all_gather", 4, 3e-3, 5e8))
    fabric = Fabric(4, 4, 1e12, 1e-6, measured=fits)
    assert collective_seconds("all_gather", 1e6, fabric) == pytest.approx(3e-3 + 2e-3)
    assert collective_seconds("all_reduce", 1e6, fabric) < 1e-4
    eight = Fabric(8, 8, 1e12, 1e-6, measured=fits)
    assert collective_seconds("all_gather", 1e6, eight) == pytest.approx(7 / 3 * 3e-3 + 7 / 8 * 4 / 3 * 2e-3)
