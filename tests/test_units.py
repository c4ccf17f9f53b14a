from __future__ import annotations

import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import PinError, UnitError
from hocket.units import (
    format_bandwidth,
    format_bytes,
    format_rate,
    format_seconds,
    parse_bandwidth,
    parse_bytes,
    parse_rate,
    parse_seconds,
)


@pytest.mark.parametrize(
    ("text", "bytes"),
    [
        ("16 GB", 16e9),
        ("16GiB", 16 * 2**30),
        ("1.5 kB", 1500),
        (" 7 B ", 7),
        (123, 123),
        (2.0, 2),
        ("1e3 MB", 1e9),
    ],
)
def test_bytes_are_read_in_decimal_and_binary_units(text: str | float, bytes: float) -> None:
    assert parse_bytes(text) == bytes


def test_network_speeds_are_read_in_bits_and_bytes() -> None:
    assert parse_bandwidth("10.4 Gbit/s") == pytest.approx(1.3e9)
    assert parse_bandwidth("300 GB/s") == 300e9


def test_times_and_rates_are_read() -> None:
    assert parse_seconds("5 us") == pytest.approx(5e-6)
    assert parse_seconds("2 min") == 120
    assert parse_rate("312 TFLOP/s") == 312e12
    assert parse_rate(1e9) == 1e9


@pytest.mark.parametrize(
    "text", ["16", "16 gb", "GB", "", "-3 GB", "nan", "16 GB/s", True, None, [1], math.inf, -1]
)
def test_what_is_no_size_is_refused_with_its_text(text: object) -> None:
    with pytest.raises(UnitError) as caught:
        parse_bytes(text, "machines[0].memory")  # type: ignore[arg-type]
    assert caught.value.culprit == "machines[0].memory"
    assert repr(text) in str(caught.value)


def test_a_misspelt_unit_gets_the_nearest_one() -> None:
    with pytest.raises(UnitError, match=r"write 'Gbit/s' for 'Gbits/s'"):
        parse_bandwidth("10 Gbits/s")


@given(st.floats(1, 1e15))
def test_printed_sizes_and_speeds_read_back(value: float) -> None:
    assert parse_bytes(format_bytes(value)) == pytest.approx(value, rel=6e-3, abs=0.51)
    assert parse_bandwidth(format_bandwidth(value)) == pytest.approx(value, rel=6e-3)
    assert parse_rate(format_rate(value)) == pytest.approx(value, rel=6e-3)


@given(st.floats(1e-9, 1e6))
def test_printed_times_read_back(value: float) -> None:
    assert parse_seconds(format_seconds(value)) == pytest.approx(value, rel=6e-3)


def test_printing_picks_a_readable_unit() -> None:
    assert format_bytes(1.8e9) == "1.8 GB"
    assert format_seconds(0.0123) == "12.3 ms"
    assert format_seconds(0.99999) == "1 s"
    assert format_rate(312e12) == "312 TFLOP/s"
    assert format_bytes(0) == "0 B"


def test_errors_travel_between_processes() -> None:
    error = PinError("a pin", "a rule", "values", "a repair")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is PinError
    assert str(again) == str(error)
    assert again.repair == "a repair"
