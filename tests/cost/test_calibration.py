from __future__ import annotations

from pathlib import Path

import pytest

from hocket.cluster.types import Cluster, CollectiveFit, Device
from hocket.cost.calibration import Calibration
from hocket.cost.collective import axis_fabric, collective_seconds
from hocket.cost.compute import Work, compute_seconds
from hocket.errors import ClusterError, FileError
from hocket.sharding.mesh import Mesh

DEVICE = Device(
    "CPU",
    0,
    (("float32", 3e10),),
    1e10,
    1e-5,
    2e-6,
    (("float32", ((1e4, 0.3), (1e6, 1.0))),),
    ((1e4, 0.5), (1e6, 1.0)),
)
SAMPLE = Calibration(4, 2, DEVICE, (CollectiveFit("all_reduce", 4, 4e-3, 9e8),), 0.125, "a machine")


def test_a_file_gives_the_calibration_back(tmp_path: Path) -> None:
    SAMPLE.save(tmp_path / "deep" / "c.json")
    assert Calibration.load(tmp_path / "deep" / "c.json") == SAMPLE
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["c.json"]


def test_a_file_cut_short_is_named(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    SAMPLE.save(path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(FileError, match="cut short"):
        Calibration.load(path)


def test_unknown_keys_and_versions_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="hocket-calibration/2"):
        Calibration.from_dict({**SAMPLE.to_dict(), "format": "hocket-calibration/2"})
    with pytest.raises(FileError, match="overlap"):
        Calibration.from_dict({**SAMPLE.to_dict(), "overlp": 1})
    with pytest.raises(ClusterError, match="overlap 7"):
        Calibration.from_dict({**SAMPLE.to_dict(), "overlap": 7.0})
    with pytest.raises(FileError):
        Calibration.load(tmp_path / "none.json")


def test_a_folder_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    with pytest.raises(FileError):
        SAMPLE.save(tmp_path / "file" / "c.json")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_local_cluster_takes_the_measured_numbers() -> None:
    cluster = Cluster.local(4, SAMPLE)
    assert cluster.overlap == 0.125
    assert cluster.devices[0].flops_per_second == DEVICE.flops_per_second
    assert cluster.devices[0].memory > 0
    assert Cluster.from_dict(cluster.to_dict()) == cluster
    seconds = collective_seconds("all_reduce", 9e5, axis_fabric(cluster, Mesh((4,)), 0))
    assert seconds == pytest.approx(4e-3 + 1e-3)
    done = Work(1e6, 0.0, kind="mm")
    assert compute_seconds(done, "float32", cluster.devices[0]) == compute_seconds(
        done, "float32", Cluster.local(1).devices[0], SAMPLE
    )


def test_fewer_processes_get_more_of_the_machine() -> None:
    one, eight = Cluster.local(1, SAMPLE).devices[0], Cluster.local(8, SAMPLE).devices[0]
    assert one.peak("float32") == pytest.approx(4 * DEVICE.peak("float32"))
    assert eight.bandwidth == pytest.approx(DEVICE.bandwidth / 2)
    assert one.launch_seconds == pytest.approx(DEVICE.launch_seconds / 2)
    assert eight.launch_seconds == pytest.approx(DEVICE.launch_seconds * 2)
