"""Layers dealt to ranks under interleaving."""

from __future__ import annotations

from itertools import accumulate, pairwise

from hypothesis import given
from hypothesis import strategies as st

from hocket.pipeline.layers import balance_ranks, cut_by_cost


@given(st.lists(st.floats(0.5, 5.0), min_size=4, max_size=10), st.sampled_from([(2, 1), (2, 2), (1, 3), (4, 1)]))
def test_ranks_are_balanced_no_worse_than_stages(costs: list[float], shape: tuple[int, int]) -> None:
    ranks, chunks = shape

    def worst(sizes: tuple[int, ...]) -> float:
        edges = [0, *accumulate(sizes)]
        each = [sum(costs[a:b]) for a, b in pairwise(edges)]
        return max(sum(each[rank::ranks]) for rank in range(ranks))

    found = balance_ranks(costs, ranks, chunks)
    assert sum(found) == len(costs)
    assert min(found) > 0
    assert worst(found) <= worst(cut_by_cost(costs, ranks * chunks)) + 1e-9
