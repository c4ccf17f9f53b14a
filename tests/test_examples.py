"""The example files load and mean what their comments say."""

from __future__ import annotations

from pathlib import Path

import pytest

from hocket.cluster.file import cluster_from_dict, cluster_to_dict, load_cluster
from hocket.cluster.presets import PRESETS
from hocket.errors import FileError

CLUSTER = Path(__file__).parent.parent / "examples" / "cluster.yaml"


def test_the_example_cluster_has_two_kinds_of_machines() -> None:
    cluster = load_cluster(CLUSTER)
    assert [(m.name, m.device.name, m.count) for m in cluster.machines] == [
        ("new", "A100-40GB", 2),
        ("old", "V100-16GB", 2),
    ]
    assert cluster.places == (0, 0, 1, 1)
    assert cluster.network.bandwidth == 25e9 / 8
    assert cluster.network.per == "machine"


def test_what_the_example_does_not_say_holds_as_in_the_preset() -> None:
    old = load_cluster(CLUSTER).machines[1]
    preset = PRESETS["V100-16GB"]
    assert old.device.flops_per_second == preset.flops_per_second
    assert old.device.bandwidth == preset.bandwidth
    assert old.device.memory == 15 * 2**30
    assert old.link.bandwidth == 130e9
    assert old.link.latency == pytest.approx(8e-6)


def test_the_example_survives_writing_and_reading() -> None:
    cluster = load_cluster(CLUSTER)
    assert cluster_from_dict(cluster_to_dict(cluster)) == cluster


def test_the_example_is_strict(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER.read_text(encoding="utf-8").replace("memory_reserve:", "memory_reserved:"))
    with pytest.raises(FileError, match="memory_reserve"):
        load_cluster(path)
