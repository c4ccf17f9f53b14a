"""What users type, as values: clusters, models, times, shares."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hocket.cluster.presets import LINKS, PRESETS
from hocket.cluster.types import Cluster, Link, Machine
from hocket.errors import CaptureError, ClusterError, UnitError
from hocket.units import parse_bandwidth, parse_seconds

if TYPE_CHECKING:
    from hocket.capture.models import Loaded

NETWORK = "100 Gbit/s"
"""Bandwidth between the machines of a cluster that is given as a preset and counts."""

_PRESET = re.compile(r"(?P<name>.+?)x(?P<first>\d+)(?:x(?P<second>\d+))?")


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How a model and its sample batch are made; `settings` are `key=value` of its configuration."""

    batch: int
    sequence: int | None
    layers: int | None
    dtype: str
    settings: Sequence[str]


def read_cluster(text: str, network: str = "", calibration: Path | None = None) -> Cluster:
    """The cluster of `local:4`, a file, `H100x8`, or `H100x2x8` (2 machines of 8).

    Raises ClusterError, FileError, UnitError.
    """
    if text.startswith("local:"):
        return _local(text, calibration)
    if calibration is not None:
        raise ClusterError(
            f"calibration {calibration}", "goes with a local cluster", text, "give --cluster local:4"
        )
    match = _PRESET.fullmatch(text)
    if match is not None and match["name"] in PRESETS:
        cluster = _preset(text, match["name"], int(match["first"]), int(match["second"] or 0))
    elif Path(text).exists() or text.endswith((".yaml", ".yml")) or "/" in text:
        cluster = Cluster.load(text)
    else:
        raise _unknown(text, match["name"] if match else text)
    if network:
        cluster = replace(cluster, network=_network(network))
    return cluster


def _local(text: str, calibration: Path | None) -> Cluster:
    from hocket.cost.calibration import Calibration

    count = text.removeprefix("local:")
    if not count.isdecimal() or int(count) < 1:
        raise ClusterError(f"cluster {text!r}", "is local:N with a number of processes", count, "as local:4")
    return Cluster.local(int(count), Calibration.load(calibration) if calibration else None)


def _preset(text: str, name: str, first: int, second: int) -> Cluster:
    machines, count = (first, second) if second else (1, first)
    if not 1 <= machines * count <= 100_000:
        raise ClusterError(f"cluster {text!r}", "has 1 to 100000 devices", str(machines * count))
    machine = Machine(name, PRESETS[name], count, LINKS[name])
    return Cluster((machine,) * machines, _network(NETWORK), name=text)


def _network(text: str) -> Link:
    bandwidth = parse_bandwidth(text, "network")
    if bandwidth == 0:
        raise UnitError("network", "is more than zero", text)
    return Link(bandwidth, 10e-6, "machine")


def _unknown(text: str, name: str) -> ClusterError:
    near = get_close_matches(name, PRESETS, 3, 0.5)
    repair = f"did you mean {' or '.join(near)}?" if near else f"devices known: {', '.join(PRESETS)}"
    return ClusterError(
        f"cluster {text!r}",
        "is a file, local:N, a device and a count (H100x8), or machines too (H100x2x8: 2 machines of 8)",
        "no such file or device",
        repair,
    )


def read_model(text: str, options: ModelOptions) -> Loaded:
    """The model and sample of `hf:NAME`, `tiny:NAME` or `file.py:function`; raises CaptureError."""
    from hocket.capture.models import load_model, tiny

    settings = read_settings(options.settings)
    if not text.startswith("hf:") and (settings or options.layers or options.sequence):
        raise CaptureError(
            f"model {text}", "has the sizes that it was written with", "--set, --layers or --sequence",
            "use these with hf: models",
        )  # fmt: skip
    if text.startswith("tiny:"):
        return tiny(text.removeprefix("tiny:"))
    return load_model(
        text, layers=options.layers, batch=options.batch, sequence=options.sequence, dtype=options.dtype,
        **settings,
    )  # fmt: skip


def read_settings(texts: Sequence[str]) -> dict[str, Any]:
    """`hidden=1024` and the like as names and values; raises CaptureError."""
    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key or not value:
            raise CaptureError(f"--set {text!r}", "is written key=value", text, "as --set hidden=1024")
        found[key] = _value(value)
    return found


def _value(text: str) -> bool | int | float | str:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def read_seconds(text: str, what: str) -> float:
    """Seconds of `10s`, `2 min` or a bare number of seconds; raises UnitError naming `what`."""
    try:
        return parse_seconds(_value(text) if text else text, what)
    except UnitError as error:
        raise UnitError(what, error.rule, error.values, "write it as 10s or '2 min'") from None


def read_share(text: str, what: str) -> float:
    """A share of `2%` or `0.02`; raises UnitError naming `what`."""
    bare = text.strip()
    try:
        value = float(bare.removesuffix("%")) / (100 if bare.endswith("%") else 1)
    except ValueError:
        raise UnitError(what, "is a share as 2% or 0.02", repr(text)) from None
    if not 0 <= value < 1:
        raise UnitError(what, "is at least 0 and below 100 %", repr(text))
    return value


def read_shares(text: str) -> tuple[float, ...]:
    """Shares of `0.5,0.3,0.2` or `50%,30%,20%`; none of an empty text. Raises UnitError."""
    found = []
    for item in text.split(",") if text.strip() else ():
        bare = item.strip()
        try:
            found.append(float(bare.removesuffix("%")) / (100 if bare.endswith("%") else 1))
        except ValueError:
            raise UnitError("shares", "are fractions joined by commas, as 0.5,0.3,0.2", repr(item)) from None
    return tuple(found)
