"""Calibrations: what a machine measured of itself, and their files (format hocket-calibration/1)."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec

from hocket.cluster.file import (
    CollectiveEntry,
    DeviceEntry,
    check_format,
    collective_to_dict,
    convert,
    device_from_dict,
    device_to_dict,
)
from hocket.cluster.types import CollectiveFit, Device
from hocket.cluster.writing import write_whole
from hocket.errors import ClusterError, FileError
from hocket.units import parse_bandwidth, parse_seconds

FORMAT = "hocket-calibration/1"


@dataclass(frozen=True, slots=True)
class Calibration:
    """What `ranks` processes on `cores` cores measured while all of them were busy.

    `device` is one process's share: rate curves of matrix products per dtype, of memory traffic, fixed costs.
    `collectives` are fits per kind and group size, `overlap` the share of communication that hid behind
    computation (0 to 1), `machine` a description for people.
    """

    ranks: int
    cores: int
    device: Device
    collectives: tuple[CollectiveFit, ...] = ()
    overlap: float = 0.0
    machine: str = ""

    def __post_init__(self) -> None:
        if self.ranks < 1 or self.cores < 1 or not 0 <= self.overlap <= 1:
            values = f"ranks {self.ranks}, cores {self.cores}, overlap {self.overlap}"
            raise ClusterError("calibration", "ranks and cores are 1 or more, overlap is 0 to 1", values)

    def to_dict(self) -> dict[str, Any]:
        """The calibration as plain values in base units; `from_dict` gives exactly it back."""
        return {
            "format": FORMAT,
            "machine": self.machine,
            "ranks": self.ranks,
            "cores": self.cores,
            "overlap": self.overlap,
            "device": device_to_dict(self.device),
            "collectives": [collective_to_dict(fit) for fit in self.collectives],
        }

    @staticmethod
    def from_dict(values: object, source: str = "calibration") -> Calibration:
        """The calibration of plain values; raises FileError or ClusterError naming `source` and key."""
        check_format(values, FORMAT, source)
        entry = convert(values, _Entry, source)
        device = device_from_dict(msgspec.to_builtins(entry.device), f"{source}: device")
        fits = tuple(
            CollectiveFit(
                fit.kind,
                fit.ranks,
                parse_seconds(fit.latency, f"{source}: collectives[{i}].latency"),
                parse_bandwidth(fit.bandwidth, f"{source}: collectives[{i}].bandwidth"),
            )
            for i, fit in enumerate(entry.collectives)
        )
        return Calibration(entry.ranks, entry.cores, device, fits, entry.overlap, entry.machine)

    @staticmethod
    def load(path: str | PathLike[str]) -> Calibration:
        """Read a calibration file; raises FileError or ClusterError."""
        try:
            values = msgspec.json.decode(Path(path).read_bytes())
        except OSError as error:
            raise FileError(str(path), "is a readable file", error.strerror or str(error)) from None
        except msgspec.DecodeError as error:
            repair = "the file is cut short or was edited: measure again"
            raise FileError(str(path), "is JSON", str(error), repair) from None
        return Calibration.from_dict(values, str(path))

    def save(self, path: str | PathLike[str]) -> None:
        """Write the file whole or not at all (a temporary file beside it is renamed); raises FileError."""
        text = msgspec.json.format(msgspec.json.encode(self.to_dict()), indent=1)
        write_whole(path, text + b"\n")


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    """A calibration file's keys."""

    format: str
    ranks: int
    cores: int
    device: DeviceEntry
    machine: str = ""
    overlap: float = 0.0
    collectives: list[CollectiveEntry] = []
