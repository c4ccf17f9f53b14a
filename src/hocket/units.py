"""Quantities with units: read `16 GB`, `10.4 Gbit/s`, `5 us`, `312 TFLOP/s`, and print readable ones."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping

from hocket.errors import UnitError

Quantity = str | int | float
"""A number in base units (bytes, seconds, bytes per second, operations per second) or a text with a unit."""

_DECIMAL: Mapping[str, float] = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY: Mapping[str, float] = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}

BYTES: Mapping[str, float] = {f"{p}B": f for p, f in {**_DECIMAL, **_BINARY}.items()}
SECONDS: Mapping[str, float] = {"s": 1, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60, "h": 3600}
BYTES_PER_SECOND: Mapping[str, float] = {
    **{f"{unit}/s": factor for unit, factor in BYTES.items()},
    **{f"{prefix}bit/s": factor / 8 for prefix, factor in _DECIMAL.items()},
}
FLOPS_PER_SECOND: Mapping[str, float] = {
    f"{p}{w}": f for p, f in _DECIMAL.items() for w in ("FLOP/s", "FLOPS", "OP/s")
}

_QUANTITY = re.compile(r"\s*([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*(\S*)\s*")


def _read(value: Quantity, units: Mapping[str, float], what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise UnitError(what, "a quantity is a number or a text with a unit", repr(value))
    if isinstance(value, str):
        match = _QUANTITY.fullmatch(value)
        unit = match.group(2) if match else ""
        if match is None or unit not in units:
            near = difflib.get_close_matches(unit, units, 1)
            repair = f"write {near[0]!r} for {unit!r}" if near else f"write it as '1.5 {sorted(units)[0]}'"
            raise UnitError(what, f"is a number with one of the units {', '.join(units)}", repr(value), repair)
        number = float(match.group(1)) * units[unit]
    else:
        number = float(value)
    if not math.isfinite(number) or number < 0:
        raise UnitError(what, "a quantity is finite and not negative", repr(value))
    return number


def parse_bytes(value: Quantity, what: str = "size") -> int:
    """Bytes of `16 GB` (decimal), `16 GiB` (binary) or a number of bytes; `what` names the culprit.

    Raises UnitError.
    """
    return round(_read(value, BYTES, what))


def parse_seconds(value: Quantity, what: str = "time") -> float:
    """Seconds of `5 us` or a number of seconds; raises UnitError naming `what`."""
    return _read(value, SECONDS, what)


def parse_bandwidth(value: Quantity, what: str = "bandwidth") -> float:
    """Bytes per second of `300 GB/s`, `10.4 Gbit/s` or a number of bytes per second; raises UnitError."""
    return _read(value, BYTES_PER_SECOND, what)


def parse_rate(value: Quantity, what: str = "rate") -> float:
    """Floating point operations per second of `312 TFLOP/s` or a plain number; raises UnitError."""
    return _read(value, FLOPS_PER_SECOND, what)


def _print(value: float, unit: str) -> str:
    if value == 0 or not math.isfinite(value):
        return f"{value:g} {unit}"
    best = ""
    for prefix, factor in _DECIMAL.items():
        if abs(value) >= 0.9995 * factor:
            best = prefix
    return f"{_digits(value / _DECIMAL[best])} {best}{unit}"


def _digits(number: float) -> str:
    """Three significant digits without an exponent, and without a tail of zeros."""
    text = f"{number:.{max(0, 2 - math.floor(math.log10(abs(number))))}f}" if number else "0"
    return text.rstrip("0").rstrip(".") if "." in text else text


def format_bytes(value: float) -> str:
    """Bytes as a short text in decimal units, as `1.8 GB`."""
    return _print(value, "B")


def format_bandwidth(value: float) -> str:
    """Bytes per second as a short text, as `300 GB/s`."""
    return _print(value, "B/s")


def format_rate(value: float) -> str:
    """Floating point operations per second as a short text, as `312 TFLOP/s`."""
    return _print(value, "FLOP/s")


def format_seconds(value: float) -> str:
    """Seconds as a short text, as `12.3 ms`; from two minutes on in minutes, from two hours on in hours."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g} s"
    size = abs(value)
    for unit, least in (("h", 7200.0), ("min", 120.0), ("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if size >= 0.9995 * least:
            return f"{_digits(value / SECONDS[unit])} {unit}"
    return f"{_digits(value / SECONDS['ns'])} ns"
