"""Shares become whole units, the same for every tensor that carries a factor."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.capture import capture
from hocket.capture.models import tiny
from hocket.errors import LayoutError
from hocket.graph.types import TensorType
from hocket.sharding.layout import Layout, Split, check_layout, intervals
from hocket.sharding.mesh import Mesh
from hocket.sharding.reshard import find_ways, moved_bytes
from hocket.sharding.rules import rule_of
from hocket.sharding.shares import check_shares, find_units, plain_sizes, round_shares


@st.composite
def shares(draw: st.DrawFn) -> tuple[float, ...]:
    weights = draw(st.lists(st.integers(0, 20), min_size=1, max_size=6).filter(any))
    return tuple(w / sum(weights) for w in weights)


@settings(deadline=None)
@given(shares(), st.integers(0, 60))
def test_rounding_gives_out_every_unit(cut: tuple[float, ...], units: int) -> None:
    sizes = round_shares(cut, units)
    assert sum(sizes) == units
    assert all(size == 0 for size, share in zip(sizes, cut, strict=True) if share == 0)
    assert all(abs(size - share * units) < 1 for size, share in zip(sizes, cut, strict=True))


@settings(deadline=None)
@given(shares(), st.integers(0, 12))
def test_rounding_has_the_least_error(cut: tuple[float, ...], units: int) -> None:
    def error(sizes: tuple[int, ...]) -> float:
        return sum(abs(size - share * units) for size, share in zip(sizes, cut, strict=True))

    def every(left: int, places: int) -> list[tuple[int, ...]]:
        if places == 1:
            return [(left,)]
        return [(n, *rest) for n in range(left + 1) for rest in every(left - n, places - 1)]

    best = min(error(sizes) for sizes in every(units, len(cut)))
    assert error(round_shares(cut, units)) == pytest.approx(best, abs=1e-9)


def test_equal_shares_are_no_shares() -> None:
    assert plain_sizes((4, 4)) == ()
    assert plain_sizes((6, 3, 3)) == (2, 1, 1)
    assert plain_sizes((3, 0)) == (1, 0)


@pytest.mark.parametrize(
    ("given_shares", "match"),
    [((0.5, 0.6), "add up to 1.1"), ((1.5, -0.5), "none negative"), ((1.0,), "1 shares for 2"),
     ((0.0, 0.0), "something"), ((float("nan"), 1.0), "fraction")],
)  # fmt: skip
def test_wrong_shares_are_refused(given_shares: tuple[float, ...], match: str) -> None:
    with pytest.raises(LayoutError, match=match):
        check_shares(given_shares, 2, "shares")


def test_relative_sizes_cut_tensors_of_any_length_alike() -> None:
    mesh, cut = Mesh((2,)), Layout((Split(0, (3, 1)),))
    assert str(cut) == "S(0|3,1)"
    assert Layout.parse(str(cut)) == cut
    for length in (4, 8, 400):
        held = [intervals(cut, (length, 5), mesh, rank)[0] for rank in mesh.ranks]
        assert held == [((0, 3 * length // 4),), ((3 * length // 4, length // 4),)]
    fused = Layout((Split(0, (3, 1), (8, 4)),))
    assert intervals(fused, (12,), mesh, 1)[0] == ((6, 2), (11, 1))
    with pytest.raises(LayoutError, match="divides"):
        check_layout(cut, (6,), mesh, "x")
    assert cut != Layout((Split(0),))


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "resnet"])
def test_tensors_that_carry_a_factor_have_the_same_units(architecture: str) -> None:
    graph = capture(*tiny(architecture))
    rules = [rule_of(operation, graph.types) for operation in graph.operations]
    units = find_units(graph, rules)
    joined = 0
    for operation, rule in zip(graph.operations, rules, strict=True):
        for factor in rule.factors:
            pairs = zip((*operation.inputs, *operation.outputs), (*factor.inputs, *factor.outputs), strict=True)
            found = {units[name, split.dim] for name, split in pairs if split is not None}
            assert len(found) == 1
            assert factor.size % found.pop() == 0
            joined += 1
    assert joined > 300
    rows = graph.types[graph.batch[0].name].shape[0]
    assert units[graph.batch[0].name, 0] == rows


def test_padded_wins_when_nearly_even_and_grouped_when_skewed() -> None:
    """HAP's figure 4: the choice moves with the shares."""
    mesh, tensor = Mesh((4,)), TensorType((1000, 1024), "float32")

    def price(kind: str, axis: int, size: int) -> float:
        once = 1e-3 if kind.startswith("grouped") else 3e-4
        return (once + size / 1e9) * (4 if kind == "all_reduce" else 1)

    def kind_of(sizes: tuple[int, ...], gather: bool) -> str:
        cut, other = Layout((Split(0, sizes),)), Layout.parse("R" if gather else "P")
        ways = find_ways(tensor, mesh, (cut, other), price)
        (step,) = ways.steps(cut, other) if gather else ways.steps(other, cut)
        return step.kind

    for gather, name in ((True, "all_gather"), (False, "reduce_scatter")):
        assert kind_of((26, 25, 25, 24), gather) == name
        assert kind_of((70, 10, 10, 10), gather) == f"grouped_{name}"


def test_bytes_of_uneven_shards() -> None:
    mesh, tensor = Mesh((2,)), TensorType((8, 2), "float32")
    even, cut, whole = Layout.parse("S(0)"), Layout.parse("S(0|3,1)"), Layout.parse("R")
    assert moved_bytes("all_gather", tensor, even, whole, mesh) == 64
    assert moved_bytes("all_gather", tensor, cut, whole, mesh) == 2 * 48
    assert moved_bytes("grouped_all_gather", tensor, cut, whole, mesh) == 64
    assert moved_bytes("resize", tensor, cut, even, mesh) == 16
    assert moved_bytes("resize", tensor, cut, Layout.parse("S(0|1,3)"), mesh) == 32
