"""Rules of views on random shapes: every split is right, and none that is possible in one piece is missed."""

from __future__ import annotations

from math import prod

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from split_run import Case, run_split, type_of

from hocket.graph.types import Operation, Ref, TensorType
from hocket.sharding.layout import Split
from hocket.sharding.mesh import Mesh
from hocket.sharding.rules import rule_of
from hocket.sharding.strategy import make_strategy
from hocket.sharding.views import dim_groups


@st.composite
def factorised(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two shapes of the same number of elements: the same primes, joined into dims in two ways."""
    primes = draw(st.lists(st.sampled_from([1, 2, 2, 3, 5]), min_size=0, max_size=6))

    def join() -> tuple[int, ...]:
        shape: list[int] = []
        for prime in primes:
            if shape and draw(st.booleans()):
                shape[-1] *= prime
            else:
                shape.append(prime)
        return tuple(shape)

    return join(), join()


def view(before: tuple[int, ...], after: tuple[int, ...]) -> Case:
    generator = torch.Generator().manual_seed(prod(before) + len(after))
    value = torch.randn(before, dtype=torch.float64, generator=generator)
    return Case(Operation("aten.view.default", (Ref("x"), after), (), ("y",)), {"x": value})


@settings(max_examples=150, deadline=None)
@given(factorised())
def test_every_split_of_a_view_is_right(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    case = view(*shapes)
    rule = rule_of(case.operation, {"x": type_of(case.values["x"]), "y": TensorType(shapes[1], "float64")})
    assert rule.known
    for factor in rule.factors:
        for parts in (n for n in range(2, factor.size + 1) if factor.size % n == 0):
            mesh = Mesh((parts,))
            strategy = make_strategy(rule, case.operation, (factor.name,), mesh)
            assert strategy is not None
            run_split(case, rule, strategy, mesh)


@settings(max_examples=150, deadline=None)
@given(factorised())
def test_no_contiguous_split_is_missed(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    """Whenever halves along a dim on both sides hold the same elements, the rule has that factor."""
    before, after = shapes
    numbers = torch.arange(prod(before)).reshape(before)
    rule = rule_of(
        view(before, after).operation, {"x": TensorType(before, "float64"), "y": TensorType(after, "float64")}
    )
    found = {(f.inputs[0], f.outputs[0]) for f in rule.factors if f.size % 2 == 0}
    for left, right in ((i, j) for i in range(len(before)) for j in range(len(after))):
        if before[left] % 2 or after[right] % 2:
            continue
        here = numbers.chunk(2, left)[0].flatten().tolist()
        there = numbers.reshape(after).chunk(2, right)[0].flatten().tolist()
        assert (here == there) == ((Split(left), Split(right)) in found)


@given(factorised())
def test_groups_hold_the_same_elements(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    before, after = shapes
    groups = list(dim_groups(before, after))
    assert [d for left, _ in groups for d in left] == [d for d, n in enumerate(before) if n > 1]
    assert [d for _, right in groups for d in right] == [d for d, n in enumerate(after) if n > 1]
    assert all(prod(before[d] for d in left) == prod(after[d] for d in right) for left, right in groups)
