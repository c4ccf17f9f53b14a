"""Every operation of the table, split in every way its rule allows, equals the unsplit operation."""

from __future__ import annotations

from itertools import product

import pytest
from catalogue import cases
from split_run import Case, run_split, whole

from hocket.sharding.layout import Layout, Split
from hocket.sharding.mesh import Mesh
from hocket.sharding.recipes import RECIPES
from hocket.sharding.rules import rule_of
from hocket.sharding.strategy import Strategy, axis_tokens, make_strategy
from hocket.sharding.table import line_of, table

CASES = tuple(cases())
# Random by nature: only types can be compared (test_random_creation).
UNTESTED = {"rand", "randn", "empty", "rand_like", "randn_like", "_grouped_mm"}


def rule(case: Case):
    _, types = whole(case)
    return rule_of(case.operation, types)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_factor_and_linear_group_on_one_axis(case: Case) -> None:
    known = rule(case)
    for parts in (2, 3, 4):
        mesh = Mesh((parts,))
        for token in axis_tokens(known, case.operation, parts, {}):
            strategy = make_strategy(known, case.operation, (token,), mesh)
            assert strategy is not None
            run_split(case, known, strategy, mesh, seed=parts)


@pytest.mark.proof
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_pair_on_two_axes(case: Case) -> None:
    known, mesh = rule(case), Mesh((2, 2))
    tokens = axis_tokens(known, case.operation, 2, {})
    for pair in product(tokens, tokens):
        strategy = make_strategy(known, case.operation, pair, mesh)
        if strategy is not None:
            run_split(case, known, strategy, mesh, seed=7)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_uneven_shares(case: Case) -> None:
    """A factor that every carrier has at its own size may be cut into any shares."""
    _, types = whole(case)
    known, mesh = rule(case), Mesh((2,))
    for factor in known.factors:
        strategy = (
            make_strategy(known, case.operation, (factor.name,), mesh) if factor.size % 2 == 0 else None
        )
        names = [*zip(case.operation.inputs, factor.inputs, strict=True)]
        names += zip(case.operation.outputs, factor.outputs, strict=True)
        plain = all(s is None or (types[n].shape[s.dim] == factor.size and not s.segments) for n, s in names)
        if strategy is None or not plain or factor.size < 3:
            continue
        for shares in ((factor.size - 1, 1), (1, factor.size - 1)):
            run_split(case, known, _uneven(strategy, shares), mesh)


def _uneven(strategy: Strategy, shares: tuple[int, int]) -> Strategy:
    def cut(layout: Layout) -> Layout:
        return Layout(tuple(Split(p.dim, shares) if isinstance(p, Split) else p for p in layout.placements))

    inputs, outputs = tuple(map(cut, strategy.inputs)), tuple(map(cut, strategy.outputs))
    return Strategy(strategy.tokens, inputs, outputs, strategy.division, strategy.recipes)


def test_every_line_of_the_table_has_a_case() -> None:
    covered = {line.name for case in CASES if (line := line_of(case.operation.op))}
    assert set(table()) - covered == UNTESTED


def test_every_case_is_in_the_table() -> None:
    assert [str(case) for case in CASES if line_of(case.operation.op) is None] == []


def test_only_masks_are_unknown() -> None:
    unknown = [str(case) for case in CASES if not rule(case).known]
    assert unknown == ["aten.index.Tensor([4, 8], [4]; )"]


def test_every_recipe_has_a_case() -> None:
    assert {factor.recipe for case in CASES for factor in rule(case).factors} == {"", *RECIPES}
