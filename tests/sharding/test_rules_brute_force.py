"""Every operation of the table, split in every way its rule allows, equals the unsplit operation."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from catalogue import cases
from split_run import Case, run, run_split, whole

from hocket.graph.types import Operation, Ref, TensorType
from hocket.sharding.layout import Split
from hocket.sharding.local import local_operation
from hocket.sharding.mesh import Mesh
from hocket.sharding.recipes import RECIPES
from hocket.sharding.rule import Factor, Rule
from hocket.sharding.rules import rule_of
from hocket.sharding.shares import plain_sizes, round_shares
from hocket.sharding.strategy import axis_tokens, make_strategy, parse_strategy
from hocket.sharding.table import line_of, table

CASES = tuple(cases())
# Random by nature: only types can be compared (test_random_creation).
UNTESTED = {"rand", "randn", "empty", "rand_like", "randn_like"}


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


SHARES = ((0.5, 0.3, 0.2), (0.7, 0.0, 0.3), (0.0, 0.0, 1.0))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_uneven_shares(case: Case) -> None:
    """Every factor may be cut into any shares, nothing at all among them."""
    known, mesh = rule(case), Mesh((3,))
    for seed, shares in enumerate(SHARES):

        def sizes_of(factor: Factor, shares: tuple[float, ...] = shares) -> tuple[int, ...]:
            return plain_sizes(round_shares(shares, factor.size))

        for token in axis_tokens(known, case.operation, 3, {}, sizes_of):
            strategy = make_strategy(known, case.operation, (token,), mesh)
            assert strategy is not None
            assert parse_strategy(token, known, case.operation, mesh) == strategy
            if "|" in token:
                run_split(case, known, strategy, mesh, seed)


@pytest.mark.proof
@pytest.mark.parametrize("case", CASES, ids=str)
def test_uneven_shares_beside_even_ones(case: Case) -> None:
    known, mesh = rule(case), Mesh((2, 2))
    uneven = axis_tokens(known, case.operation, 2, {}, lambda f: plain_sizes(round_shares((0.7, 0.3), f.size)))
    for pair in product(uneven, axis_tokens(known, case.operation, 2, {})):
        strategy = make_strategy(known, case.operation, pair, mesh)
        if strategy is not None:
            run_split(case, known, strategy, mesh, seed=11)


def test_every_line_of_the_table_has_a_case() -> None:
    covered = {line.name for case in CASES if (line := line_of(case.operation.op))}
    assert set(table()) - covered == UNTESTED


def test_every_case_is_in_the_table() -> None:
    assert [str(case) for case in CASES if line_of(case.operation.op) is None] == []


def test_only_masks_are_unknown() -> None:
    unknown = [str(case) for case in CASES if not rule(case).known]
    assert unknown == ["aten.index.Tensor([4, 8], [4]; )"]


def test_every_recipe_has_a_case() -> None:
    assert {factor.recipe.partition(" ")[0] for case in CASES for factor in rule(case).factors} == {
        "",
        *RECIPES,
    }


@pytest.mark.parametrize("op", ["rand", "randn", "rand_like", "randn_like", "empty"])
def test_random_operations_split_like_any_creation(op: str) -> None:
    like = op.endswith("_like")
    types = {"x": TensorType((4, 6), "float32"), "y": TensorType((4, 6), "float32")}
    full = f"aten.{op}.{'memory_format' if op == 'empty' else 'default'}"
    operation = Operation(full, (Ref("x"),) if like else ((4, 6),), (), ("y",))
    known = rule_of(operation, types)
    carried = (Split(0),) if like else ()
    assert known.factors[0] == Factor("d0", 4, carried, (Split(0),))
    local = local_operation(
        operation, [TensorType((2, 6), "float32")] if like else [], [TensorType((2, 6), "float32")]
    )
    assert run(local, {"x": torch.ones(2, 6)})[0].shape == (2, 6)


WRONG = {
    "a softmax is not linear": ("aten._softmax", Rule((), linear=(frozenset({0}),)), "P0"),
    "a softmax's row needs its recipe": (
        "aten._softmax",
        Rule((Factor("r", 4, (Split(1),), (Split(1),)),)),
        "r",
    ),
    "rows of a product do not sum": ("aten.mm", Rule((Factor("i", 4, (Split(0), None), (None,)),)), "i"),
    "a product is not jointly linear": ("aten.mm", Rule((), linear=(frozenset({0, 1}),)), "P0+1"),
    "columns do not stay": ("aten.mm", Rule((Factor("k", 6, (Split(1), Split(0)), (Split(1),)),)), "k"),
    "a bias is added once": ("aten.addmm", Rule((Factor("k", 6, (None, Split(1), Split(0)), (None,)),)), "k"),
    "relu of addends is not addends": ("aten.relu", Rule((), linear=(frozenset({0}),)), "P0"),
    "a running sum needs its row": ("aten.cumsum", Rule((Factor("r", 6, (Split(1),), (Split(1),)),)), "r"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_rule_is_found_out(name: str) -> None:
    op, wrong, token = WRONG[name]
    case = next(case for case in CASES if case.operation.op == f"{op}.default")
    mesh = Mesh((2,))
    strategy = make_strategy(wrong, case.operation, (token,), mesh)
    assert strategy is not None
    with pytest.raises(AssertionError):
        run_split(case, wrong, strategy, mesh)
