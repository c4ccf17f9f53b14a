from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.cluster.presets import LINKS, PRESETS
from hocket.cluster.types import Cluster, CollectiveFit, Device, Link, Machine, at
from hocket.errors import ClusterError, FileError

FILE = """
format: hocket-cluster/1
name: two kinds
machines:
  - {name: a, count: 8, device: V100-16GB, link: 150 GB/s, latency: 5 us, machines: 8}
  - name: b
    count: 4
    device: {like: A100-40GB, memory: 38 GB}
    link: {bandwidth: 24 GB/s, latency: 10 us, per: machine}
network: {bandwidth: 10.4 Gbit/s, latency: 30 us}
overlap: 0.5
"""


def good() -> dict[str, Any]:
    return {
        "format": "hocket-cluster/1",
        "machines": [{"name": "a", "count": 2, "device": "A100-40GB"}],
        "network": "10 Gbit/s",
    }


def test_a_file_is_read_with_its_units(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(FILE)
    cluster = Cluster.load(path)
    assert cluster.size == 68
    assert len(cluster.machines) == 9
    assert cluster.devices[63].name == "V100-16GB"
    assert cluster.devices[64].memory == 38_000_000_000
    assert cluster.machines[0].link == Link(150e9, pytest.approx(5e-6), "device")
    assert cluster.machines[8].link.per == "machine"
    assert cluster.network.bandwidth == pytest.approx(1.3e9)
    assert cluster.network.per == "machine"
    assert cluster.places[7:9] == (0, 1)
    assert cluster.memory_limit(64) == pytest.approx(0.9 * 38e9)


def test_plain_values_give_the_same_cluster_back(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(FILE)
    for cluster in (Cluster.load(path), Cluster.local(3), Cluster.from_dict(good())):
        assert Cluster.from_dict(json.loads(json.dumps(cluster.to_dict()))) == cluster


shares = st.floats(0.01, 1)
curves = st.lists(st.tuples(st.floats(1, 1e15), shares), min_size=1, unique_by=lambda p: p[0]).map(
    lambda points: tuple(sorted(points))
)
devices = st.builds(
    Device,
    st.text(min_size=1),
    st.integers(1, 10**12),
    st.dictionaries(st.sampled_from(["float32", "bfloat16", "float16"]), st.floats(1, 1e16), min_size=1).map(
        lambda d: tuple(d.items())
    ),
    st.floats(1, 1e13),
    launch_seconds=st.floats(0, 1),
    view_seconds=st.floats(0, 1),
    products=st.dictionaries(st.sampled_from(["any", "float32"]), curves).map(lambda d: tuple(d.items())),
    traffic=st.one_of(st.just(()), curves),
    kind_rates=st.dictionaries(st.text(), st.floats(0.1, 2)).map(lambda d: tuple(d.items())),
    kind_launches=st.dictionaries(st.text(), st.floats(0, 1)).map(lambda d: tuple(d.items())),
    write_weight=st.floats(1, 9),
    element_seconds=st.dictionaries(st.text(), st.floats(0, 1)).map(lambda d: tuple(d.items())),
)
links = st.builds(Link, st.floats(1, 1e13), st.floats(0, 1), st.sampled_from(["device", "machine"]))
machines = st.lists(
    st.builds(Machine, st.text(), devices, st.integers(1, 16), links),
    min_size=1,
    max_size=3,
    unique_by=lambda m: m.name,
).map(tuple)
fits = st.builds(CollectiveFit, st.just("all_gather"), st.integers(2, 8), st.floats(0, 1), st.floats(1, 1e12))


@given(st.builds(Cluster, machines, links, shares, shares, st.lists(fits, max_size=2).map(tuple), st.text()))
def test_any_cluster_survives_its_plain_values(cluster: Cluster) -> None:
    assert Cluster.from_dict(json.loads(json.dumps(cluster.to_dict()))) == cluster


BROKEN: list[tuple[list[Any], Any, type[Exception], list[str]]] = [
    (["format"], "hocket-cluster/9", FileError, ["x.yaml: format", "hocket-cluster/1", "'hocket-cluster/9'"]),
    (["machnies"], [], FileError, ["x.yaml", "machnies", "machines?"]),
    (["machines", 0, "cuont"], 2, FileError, ["machines[0]", "cuont", "count?"]),
    (["machines", 0, "count"], "two", FileError, ["machines[0].count", "int"]),
    (["machines", 0, "count"], 0, ClusterError, ["machines[0].count", "1 or more"]),
    (["machines", 0, "machines"], -1, ClusterError, ["machines[0].machines", "-1"]),
    (["machines", 0, "device"], "A10-40GB", ClusterError, ["machines[0].device", "A10-40GB", "A100-40GB"]),
    (["machines", 0, "device"], {"like": "H10"}, ClusterError, ["machines[0].device.like", "H100"]),
    (
        ["machines", 0, "device"],
        {"name": "mine", "memory": "3 GB"},
        ClusterError,
        ["flops_per_second", "missing"],
    ),
    (
        ["machines", 0, "device"],
        {"like": "H100", "memory": "3 GB/s"},
        FileError,
        ["machines[0].device.memory", "GiB"],
    ),
    (["machines", 0, "device"], {"like": "H100", "products": {"any": []}}, ClusterError, ["products.any"]),
    (["machines", 0, "link"], "20 parsecs", FileError, ["machines[0].link", "20 parsecs"]),
    (["machines", 0, "link"], "0 GB/s", FileError, ["machines[0].link", "more than zero"]),
    (["machines", 0, "latency"], "5 GB", FileError, ["machines[0].latency", "5 GB"]),
    (["network"], {"bandwidth": "1 GB/s", "per": "room"}, FileError, ["network"]),
    (["machines"], [], ClusterError, ["machines", "at least one"]),
    (["overlap"], 1.5, ClusterError, ["overlap", "1.5"]),
    (["memory_reserve"], -0.5, ClusterError, ["memory_reserve", "-0.5"]),
    (["noise"], 1.5, ClusterError, ["noise", "1.5"]),
    (["collectives"], [{"kind": "all_gather"}], FileError, ["collectives[0]", "ranks"]),
]


@pytest.mark.parametrize(("place", "value", "error", "words"), BROKEN)
def test_each_mistake_is_named(place: list[Any], value: Any, error: type[Exception], words: list[str]) -> None:
    values: Any = copy.deepcopy(good())
    inner = values
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    with pytest.raises(error) as caught:
        Cluster.from_dict(values, "x.yaml")
    for word in [*words, "x.yaml"]:
        assert word in str(caught.value)


def test_missing_keys_are_named() -> None:
    values = good()
    del values["machines"][0]["name"]
    with pytest.raises(FileError, match=r"machines\[0\].*`name`"):
        Cluster.from_dict(values, "x.yaml")


def test_machines_of_one_name_are_equal() -> None:
    values = good()
    values["machines"].append({"name": "a", "device": "H100"})
    with pytest.raises(ClusterError, match="different names"):
        Cluster.from_dict(values)


def test_several_machines_need_a_network() -> None:
    values = good()
    values["machines"][0]["machines"] = 2
    del values["network"]
    with pytest.raises(ClusterError, match="network"):
        Cluster.from_dict(values)


@pytest.mark.parametrize("content", ["machines: [", "- 1", "", "3"])
def test_files_that_are_no_clusters(tmp_path: Path, content: str) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text(content)
    with pytest.raises(FileError, match=r"broken\.yaml"):
        Cluster.load(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"none\.yaml"):
        Cluster.load(tmp_path / "none.yaml")


def test_every_preset_is_complete() -> None:
    assert set(LINKS) == set(PRESETS)
    for device in PRESETS.values():
        assert device.peak("float32") > 0
        assert device.peak("float16") > 0
        assert 0 < device.rate("float32", 1e9) < device.peak("float32")


def test_local_processes_share_the_machine() -> None:
    two, four = Cluster.local(2), Cluster.local(4)
    assert two.devices[0].memory == pytest.approx(2 * four.devices[0].memory, abs=2)
    assert two.devices[0].bandwidth == pytest.approx(2 * four.devices[0].bandwidth)
    assert four.overlap == 0
    with pytest.raises(ClusterError):
        Cluster.local(0)


@given(curves, st.floats(0.1, 1e16))
def test_curves_stay_between_their_points(curve: tuple[tuple[float, float], ...], size: float) -> None:
    values = [v for _, v in curve]
    assert min(values) - 1e-9 <= at(curve, size) <= max(values) + 1e-9


def test_a_curve_goes_through_its_points() -> None:
    assert at(((1e3, 0.2), (1e5, 0.6)), 1e4) == pytest.approx(0.4)
