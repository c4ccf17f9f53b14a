"""Schedules: complete, without deadlock, never below the bound, and as good as is promised."""

from __future__ import annotations

from itertools import combinations, pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.errors import ScheduleError
from hocket.pipeline.blocking import blocking_steps, check_blocking
from hocket.pipeline.bound import bound_of, least_makespan
from hocket.pipeline.bubbles import bubbles_before, phases
from hocket.pipeline.check import check_order
from hocket.pipeline.classic import forward_then_backward, one_forward_one_backward
from hocket.pipeline.clock import Run, Times, run
from hocket.pipeline.interleaved import interleaved, textbook
from hocket.pipeline.kinds import KINDS, make_order
from hocket.pipeline.layers import cut_by_cost, deal_by_rank, deal_layers
from hocket.pipeline.order import Action, Order, loop, vee
from hocket.pipeline.zero_bubble import searched, zero_bubble_h1, zero_bubble_v

SIZES = st.tuples(st.integers(1, 6), st.integers(1, 3), st.integers(1, 13))
SLOTS = st.sampled_from(
    [Times(), Times(1.0, 2.0), Times(2.0, 1.0), Times(1.0, 2.0, 0.4, 0.3), Times(3.0, 4.5, 0.6)]
)


def same(one: float, other: float) -> bool:
    return one == pytest.approx(other, abs=1e-9)


def check_run(timed: Run, times: Times) -> None:
    """What holds of every order on the clock."""
    order = timed.order
    assert timed.makespan >= bound_of(order, times) - 1e-9
    for rank, spans in enumerate(timed.spans):
        assert [s.action for s in spans] == list(order.ranks[rank])
        assert all(same(s.end - s.start, times.of(s.action)) for s in spans)
        assert all(a.end <= b.start + 1e-9 for a, b in pairwise(spans))
        busy = sum(s.end - s.start for s in spans)
        assert same(busy + timed.bubble(rank), timed.makespan)
        held = [number for _, number in timed.held(rank)]
        assert held[-1] == 0
        assert min(held) >= 0
    ends = {s.action: s.end for spans in timed.spans for s in spans}
    starts = {s.action: s.start for spans in timed.spans for s in spans}
    for action, start in starts.items():
        if action.kind == "F" and action.stage:
            assert start >= ends[Action(action.stage - 1, "F", action.microbatch)] - 1e-9
        if action.kind in ("B", "I"):
            assert start >= ends[Action(action.stage, "F", action.microbatch)] - 1e-9
        if action.kind in ("B", "I") and action.stage + 1 < order.stages:
            assert start >= ends[Action(action.stage + 1, action.kind, action.microbatch)] - 1e-9


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(KINDS)), SIZES, SLOTS)
def test_every_schedule(kind: str, sizes: tuple[int, int, int], times: Times) -> None:
    ranks, chunks, microbatches = sizes
    chunks = chunks if kind in ("vpp", "zb") else 1
    order = make_order(kind, ranks, chunks, microbatches, times)
    check_order(order)
    assert order.microbatches == microbatches
    assert len(order.ranks) == ranks
    assert Order.parse(str(order), order.title) == order
    check_run(run(order, times), times)


def test_the_seeds_five_microbatches() -> None:
    """Seed 004: four ranks, two chunks, five microbatches: 6 idle slots per rank and not 11."""
    assert run(textbook(4, 2, 5)).worst == 11
    best = run(interleaved(4, 2, 5))
    assert [best.bubble(rank) for rank in range(4)] == [6.0] * 4
    assert run(interleaved(4, 2, 3)).worst == 8


@pytest.mark.parametrize("backward", [1.0, 2.0])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6])
def test_interleaved_schedules_reach_the_bound(ranks: int, backward: float) -> None:
    times = Times(1.0, backward)
    for chunks, microbatches in product((1, 2, 3), range(1, 14)):
        timed = run(interleaved(ranks, chunks, microbatches, times), times)
        least = least_makespan(loop(ranks, chunks), microbatches, times)
        assert same(timed.makespan, least), (ranks, chunks, microbatches)
        if microbatches >= ranks:
            assert all(same(timed.bubble(r), (ranks - 1) * (1 + backward)) for r in range(ranks))


@settings(max_examples=40, deadline=None)
@given(SIZES, SLOTS)
def test_never_worse_than_the_textbook(sizes: tuple[int, int, int], times: Times) -> None:
    best = run(interleaved(*sizes, times), times)
    try:
        known = run(textbook(*sizes), times)
    except ScheduleError:
        return  # what is left over comes too late: ranks wait for each other
    assert best.makespan <= known.makespan + 1e-9


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 7), st.integers(1, 12), st.floats(0.1, 5), st.floats(0.1, 5))
def test_idle_times_in_closed_form(ranks: int, microbatches: int, forward: float, backward: float) -> None:
    orders = {"FThenB": forward_then_backward, "1F1B": one_forward_one_backward}
    for kind, make in orders.items():
        timed = run(make(ranks, microbatches), Times(forward, backward))
        for rank, spans in enumerate(timed.spans):
            found, now = {}, 0.0
            for span in spans:
                if span.start > now + 1e-9:
                    found[span.action] = span.start - now
                now = span.end
            wanted = bubbles_before(kind, ranks, microbatches, rank, forward, backward)
            assert found == pytest.approx(wanted, abs=1e-6)
            before, between, after = phases(ranks, rank, forward, backward)
            assert spans[0].start == pytest.approx(before, abs=1e-6)
            assert timed.makespan - spans[-1].end == pytest.approx(after, abs=1e-6)
            assert sum(wanted.values()) == pytest.approx(before + between, abs=1e-6)


@pytest.mark.parametrize("times", [(1.0, 1.0), (1.0, 2.0), (2.0, 1.0)])
@pytest.mark.parametrize("sizes", [(4, 2, 8), (4, 2, 5), (3, 3, 7), (2, 4, 6)])
def test_idle_times_of_interleaved_schedules(sizes: tuple[int, int, int], times: tuple[float, float]) -> None:
    timed = run(interleaved(*sizes, Times(*times)), Times(*times))
    for rank, spans in enumerate(timed.spans):
        before, between, after = phases(sizes[0], rank, *times)
        assert same(spans[0].start, before)
        assert same(timed.makespan - spans[-1].end, after)
        assert same(timed.bubble(rank) - before - after, between)


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 5), (4, 8), (4, 3), (8, 24)])
def test_zero_bubble_idles_less_in_the_same_memory(ranks: int, microbatches: int) -> None:
    times = Times(1.0, 2.0, 0.5)
    plain = run(one_forward_one_backward(ranks, microbatches), times)
    halved = run(zero_bubble_h1(ranks, microbatches, times), times)
    assert halved.worst < plain.worst
    assert max(halved.peak(r) for r in range(ranks)) <= max(plain.peak(r) for r in range(ranks))
    half = Times(0.5, 1.0, 0.5)
    there_and_back = run(zero_bubble_v(ranks, microbatches, half), half)
    assert there_and_back.worst < halved.worst
    assert max(there_and_back.peak(r) for r in range(ranks)) <= 2 * ranks
    assert there_and_back.order.places == {s: r for r, own in enumerate(vee(ranks)) for s in own}


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5), st.integers(1, 2), st.integers(1, 9), st.integers(1, 12))
def test_a_limit_of_activations_is_kept(ranks: int, chunks: int, microbatches: int, limit: int) -> None:
    if limit < chunks:
        with pytest.raises(ScheduleError, match="may hold some activations"):
            searched(loop(ranks, chunks), microbatches, limit)
        return
    order = searched(loop(ranks, chunks), microbatches, limit)
    check_order(order)
    assert max(run(order).peak(rank) for rank in range(ranks)) <= limit


WRONG = {
    "0F0 0B0\n1F0": "stage 1, microbatch 0",
    "0F0 0F0 0B0": "stage 0, microbatch 0",
    "0F0 0B0 0I0 0W0": "stage 0, microbatch 0",
    "0F0 0I0": "stage 0, microbatch 0",
    "0F0 2B0 2F0 0B0": "stage 1",
    "0F0 0B0\n0F1 0B1": "stage 0",
    "0B0 0F0\n1F0 1B0": "rank 0 waits at 0B0",
    "0F0 0F1 0B0 0B1\n1F1 1B1 1F0 1B0": "",
    "0F0 1F0 0B0\n1B0": "stage 1",
    "0F0 zzz": "action 'zzz'",
    "0F0 0B0 0F1 0B1\n1F0 1F1 1B0 1B1": "rank 0 waits at 0B0 for 1B0",
}


@pytest.mark.parametrize("text", WRONG)
def test_wrong_orders_are_one_clear_error(text: str) -> None:
    if not WRONG[text]:
        check_order(Order.parse(text))
        return
    with pytest.raises(ScheduleError) as error:
        check_order(Order.parse(text))
    assert WRONG[text] in str(error.value)


def test_sends_that_block_in_another_order_stop_ranks() -> None:
    first, second = blocking_steps(one_forward_one_backward(2, 2))
    check_blocking([first, second])
    sends = [i for i, step in enumerate(first) if step.kind == "send"]
    swapped = list(first)
    swapped[sends[0]], swapped[sends[1]] = swapped[sends[1]], swapped[sends[0]]
    with pytest.raises(ScheduleError, match="rank 0 at send 0F1"):
        check_blocking([swapped, second])


@pytest.mark.parametrize(
    "arguments",
    [("nothing", 2), ("1f1b", 0), ("1f1b", 2, 2), ("zb-v", 2, 3), ("vpp", 2, 2, 0)],
)
def test_what_does_not_go_together_is_refused(arguments: tuple[str, int]) -> None:
    with pytest.raises(ScheduleError):
        make_order(*arguments)


def test_layers_that_do_not_divide() -> None:
    assert deal_layers(7, 4) == (2, 2, 2, 1)
    assert deal_by_rank([5, 3], 2) == (3, 2, 2, 1)  # the seed's example: 3 and 2 on rank 0, 2 and 1 on rank 1
    with pytest.raises(ScheduleError, match="3 layers: are at least one per stage"):
        deal_layers(3, 4)
    with pytest.raises(ScheduleError, match="rank 1: has at least one layer per chunk"):
        deal_by_rank([5, 1], 2)
    with pytest.raises(ScheduleError, match="add up to 9"):
        deal_by_rank([5, 3], 2, 9)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.1, 9), min_size=1, max_size=8), st.integers(1, 5))
def test_layers_cut_by_cost_are_the_best_of_all_cuts(costs: list[float], stages: int) -> None:
    if len(costs) < stages:
        with pytest.raises(ScheduleError):
            cut_by_cost(costs, stages)
        return
    sizes = cut_by_cost(costs, stages)
    assert sum(sizes) == len(costs)
    assert min(sizes) >= 1

    def worst(ends: tuple[int, ...]) -> float:
        edges = (0, *ends, len(costs))
        return max(sum(costs[a:b]) for a, b in pairwise(edges))

    best = min(worst(ends) for ends in combinations(range(1, len(costs)), stages - 1))
    at, found = 0, []
    for size in sizes[:-1]:
        at += size
        found.append(at)
    assert worst(tuple(found)) == pytest.approx(best)


def test_eager_1f1b_hides_sends() -> None:
    times = Times(1.0, 2.0, send=0.5)
    for ranks in (2, 4, 8):
        plain, early = (run(make_order(kind, ranks, 1, 24), times) for kind in ("1f1b", "eager"))
        assert early.makespan < plain.makespan
        assert early.peak(0) <= 2 * ranks - 1
        without = run(make_order("eager", ranks, 1, 24), Times(1.0, 2.0))
        assert without.makespan == pytest.approx(bound_of(without.order, Times(1.0, 2.0)))
