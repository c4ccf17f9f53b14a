"""From measured seconds to a calibration: rate curves, fixed costs, latencies and bandwidths."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import exp, log, log2
from statistics import fmean, median
from typing import Any

import numpy as np

from hocket.cluster.types import CollectiveFit, Curve, Device
from hocket.cost.calibration import Calibration
from hocket.measure.kernels import TINY

Row = Mapping[str, Any]

LEAST_SHARE = 0.2
"""At least this share of a measured time is taken for work, however large the fixed cost seems."""


def fit_calibration(results: Sequence[Mapping[str, Any]], ranks: int, cores: int, machine: str) -> Calibration:
    """The calibration of what each rank measured (see `measure.worker.run`)."""
    kernels = averaged([r["kernels"] for r in results], ("topic", "name", "flops", "bytes", "elements"))
    collectives = averaged([r["collectives"] for r in results], ("kind", "ranks", "bytes"))
    first = results[0]
    return Calibration(
        ranks=ranks,
        cores=cores,
        device=fit_device(kernels, first["name"], first["memory"]),
        collectives=fit_collectives(collectives),
        overlap=median(r["overlap"] for r in results),
        machine=machine,
    )


def averaged(tables: Iterable[Iterable[Row]], keys: tuple[str, ...]) -> list[dict[str, Any]]:
    """One row per key, its seconds the median over the ranks."""
    seconds: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for table in tables:
        for row in table:
            seconds[tuple(row[k] for k in keys)].append(row["seconds"])
    return [{**dict(zip(keys, key, strict=True)), "seconds": median(s)} for key, s in seconds.items()]


def fit_device(rows: Sequence[Row], name: str, memory: int) -> Device:
    """The device that the measured kernels describe; `memory` 0: the host's, filled in by a cluster."""
    call, mixed = _fixed(rows, "call"), _fixed(rows, "mixed")
    launch = max(call, (_fixed(rows, "launch") - mixed) / TINY)
    view = max(0.2 * call, (_fixed(rows, "view") - mixed) / TINY)
    weight = _write_weight(rows, call)
    added = [(r, r["bytes"] * (2 + weight) / 3) for r in rows if r["topic"] == "traffic"]
    traffic = [(moved, moved / _busy(r, call)) for r, moved in added]
    bandwidth = max(rate for _, rate in traffic)
    products: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for r in rows:
        if r["topic"] == "product":
            products[r["name"]].append((r["flops"], r["flops"] / _busy(r, call)))
    peaks = {dtype: max(rate for _, rate in points) for dtype, points in products.items()}
    device = Device(
        name=name,
        memory=memory,
        flops_per_second=tuple(peaks.items()),
        bandwidth=bandwidth,
        launch_seconds=launch,
        view_seconds=view,
        products=tuple((d, _curve(points, peaks[d])) for d, points in products.items()),
        traffic=_curve(traffic, bandwidth),
        kind_launches=tuple(
            (r["name"], r["seconds"] - call) for r in rows if r["topic"] == "kind_call" and r["seconds"] > call
        ),
        write_weight=weight,
    )
    return _with_kinds(device, rows, call)


def _write_weight(rows: Sequence[Row], call: float) -> float:
    """How many bytes read a byte written stands for, from an addition (reads 2, writes 1) and a fill."""
    copy, fill = (next(_busy(r, call) for r in rows if r["topic"] == t) for t in ("copy", "fill"))
    ratio = min(0.9, fill / copy)
    return max(1.0, 2 * ratio / (1 - ratio))


def _fixed(rows: Sequence[Row], topic: str) -> float:
    return next(float(r["seconds"]) for r in rows if r["topic"] == topic)


def _busy(row: Row, call: float) -> float:
    """Seconds of a bare call without the fixed cost."""
    seconds: float = row["seconds"]
    return max(seconds - call, LEAST_SHARE * seconds)


def _curve(points: Sequence[tuple[float, float]], peak: float) -> Curve:
    """Shares of the peak: the geometric mean of the points within each doubling of the size."""
    buckets: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for size, rate in points:
        buckets[round(log2(size))].append((size, rate))
    return tuple(
        (_mean(size for size, _ in bucket), _mean(rate for _, rate in bucket) / peak)
        for _, bucket in sorted(buckets.items())
    )


def _mean(values: Iterable[float]) -> float:
    return exp(fmean(log(v) for v in values))


def _with_kinds(device: Device, rows: Sequence[Row], call: float) -> Device:
    """The device with the rates of single kinds, relative to its curves."""
    rates: list[tuple[str, float]] = []
    elements: list[tuple[str, float]] = []
    dtype = device.flops_per_second[0][0]
    for r in rows:
        if r["topic"] != "kind":
            continue
        own = next((k["seconds"] for k in rows if k["topic"] == "kind_call" and k["name"] == r["name"]), call)
        busy = _busy(r, own)
        if r["flops"]:
            rates.append((r["name"], r["flops"] / busy / device.rate(dtype, r["flops"])))
        elif busy > r["bytes"] / device.bytes_per_second(r["bytes"]):
            elements.append((r["name"], busy / r["elements"]))
    return replace(device, kind_rates=tuple(rates), element_seconds=tuple(elements))


def fit_collectives(rows: Sequence[Row]) -> tuple[CollectiveFit, ...]:
    """Latency and bandwidth per kind and group size, least squares of relative errors, both above zero."""
    groups: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    for r in rows:
        groups[r["kind"], r["ranks"]].append((r["bytes"], r["seconds"]))
    return tuple(CollectiveFit(kind, n, *fit_line(points)) for (kind, n), points in groups.items())


def fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Latency and bandwidth of seconds = latency + bytes / bandwidth over points (bytes, seconds).

    Every point's error counts relative to its seconds, so that small messages count as much as large ones.
    """
    sizes = np.array([size for size, _ in points])
    seconds = np.array([s for _, s in points])
    weighted = np.stack([1 / seconds, sizes / seconds], axis=1)
    latency, slope = (float(x) for x in np.linalg.lstsq(weighted, np.ones(len(points)), rcond=None)[0])
    least = float(seconds.min())
    latency = min(max(latency, 0.1 * least), least)
    if slope <= 0:
        slope = max(float(seconds.max()) - latency, 0.01 * least) / float(sizes.max())
    return latency, 1 / slope
