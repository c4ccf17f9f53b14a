"""What was measured: a verification's errors, a machine's calibration."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from hocket.cost.calibration import Calibration
from hocket.report.tables import facts, table
from hocket.report.words import percent
from hocket.runtime.verify import Report
from hocket.units import format_bandwidth, format_rate, format_seconds


def report_parts(report: Report, tolerance: float, most: int = 5) -> list[RenderableType]:
    """A verification: whether it passed, and the worst errors."""
    passed = report.worst <= tolerance
    word = Text("equal", "bold green") if passed else Text("different", "bold red")
    title = Text.assemble("the split step and the unsplit one are ", word, f" (tolerance {tolerance:g})")
    rows = [
        ("loss", f"{report.loss:.7g}, relative error {report.loss_error:.1e}"),
        ("gradients", _worst(report.gradient_errors)),
    ]
    if report.buffer_errors:
        rows.append(("buffers", _worst(report.buffer_errors)))
    worst = sorted({**report.gradient_errors, **report.buffer_errors}.items(), key=lambda e: -e[1])
    if passed:
        return [title, facts(rows)]
    made = table("Largest errors", ["tensor", ">relative error"])
    for path, error in worst[:most]:
        made.add_row(path, f"{error:.1e}")
    return [title, facts(rows), Text(), made]


def _worst(errors: dict[str, float]) -> str:
    if not errors:
        return "none"
    path = max(errors, key=lambda p: errors[p])
    return f"{len(errors)}, largest relative error {errors[path]:.1e} ({path})"


def calibration_parts(calibration: Calibration) -> list[RenderableType]:
    """What a machine measured of itself."""
    device = calibration.device
    rates = ", ".join(f"{format_rate(rate)} {dtype}" for dtype, rate in device.flops_per_second)
    title = Text.assemble((calibration.machine, "bold"), f", {calibration.ranks} processes at once")
    rows = [
        ("each process", rates),
        ("memory", format_bandwidth(device.bandwidth)),
        (
            "one operation",
            f"{format_seconds(device.launch_seconds)}, a view {format_seconds(device.view_seconds)}",
        ),
        ("overlap", f"{percent(calibration.overlap)} of communication hides behind computation"),
    ]
    made = table("Collectives", ["kind", ">ranks", ">latency", ">bandwidth"])
    for fit in calibration.collectives:
        made.add_row(
            fit.kind.replace("_", "-"),
            str(fit.ranks),
            format_seconds(fit.latency),
            format_bandwidth(fit.bandwidth),
        )
    return [title, facts(rows), Text(), made]
