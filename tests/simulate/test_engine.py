"""The simulator on random programs: streams in order, inputs ready, bounds kept, deadlocks named."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.errors import ProgramError
from hocket.graph.types import Operation, Ref, TensorType
from hocket.program.types import Collective, Compute, Instruction, Program, Receive, Send
from hocket.sharding.mesh import Mesh
from hocket.simulate.engine import simulate
from hocket.simulate.timeline import COMMUNICATION, COMPUTE

TYPE = TensorType((4,), "float32")
SECONDS = st.floats(0.01, 2.0)


def compute(name: str, reads: list[str], seconds: float) -> Compute:
    return Compute(Operation("aten.tanh.default", tuple(map(Ref, reads)), (), (name,)), seconds)


def collective(group: tuple[int, ...], source: str, target: str, seconds: float, blocking: bool) -> Collective:
    return Collective("all_reduce", 0, group, (source,), (target,), (0,), ((),), 16, seconds, blocking)


def program(rank: int, ranks: int, instructions: list[Instruction]) -> Program:
    types = {n: TYPE for i in instructions for n in (*i.inputs, *i.outputs)}
    return Program(rank, Mesh((ranks,)), (), tuple(instructions), 0, types, "x", (), ())


@st.composite
def worlds(draw: st.DrawFn) -> list[Program]:
    """1 to 4 ranks that compute, meet in groups and send: every event is appended to all it concerns."""
    ranks = draw(st.integers(1, 4))
    lists: list[list[Instruction]] = [[] for _ in range(ranks)]
    made: list[list[str]] = [[f"x{r}"] for r in range(ranks)]
    for number in range(draw(st.integers(1, 14))):
        kind = draw(st.sampled_from(["compute", "compute", "collective", "send"]))
        seconds, rank = draw(SECONDS), draw(st.integers(0, ranks - 1))
        if kind == "compute":
            reads = draw(st.lists(st.sampled_from(made[rank]), min_size=1, max_size=2))
            lists[rank].append(compute(f"v{number}", reads, seconds))
            made[rank].append(f"v{number}")
        elif kind == "collective":
            group = tuple(sorted(draw(st.sets(st.integers(0, ranks - 1), min_size=1))))
            blocking = draw(st.booleans())
            for member in group:
                source = draw(st.sampled_from(made[member]))
                lists[member].append(collective(group, source, f"v{number}", seconds, blocking))
                made[member].append(f"v{number}")
        elif ranks > 1:
            peer = (rank + draw(st.integers(1, ranks - 1))) % ranks
            value = draw(st.sampled_from(made[rank]))
            lists[rank].append(Send(value, peer, 16, seconds))
            if value in made[peer]:
                continue_name = f"{value}_from{rank}_{number}"
                lists[peer].append(Receive(continue_name, rank, 16, seconds))
                made[peer].append(continue_name)
            else:
                lists[peer].append(Receive(value, rank, 16, seconds))
                made[peer].append(value)
    return [program(r, ranks, instructions) for r, instructions in enumerate(lists)]


@settings(max_examples=150, deadline=None)
@given(worlds(), st.sampled_from([0.0, 0.3, 1.0]))
def test_a_stream_runs_one_thing_at_a_time(programs: list[Program], overlap: float) -> None:
    streams = defaultdict(list)
    for span in simulate(programs, overlap).spans:
        assert span.end >= span.start >= 0
        streams[span.rank, span.stream].append(span)
    for spans in streams.values():
        spans.sort(key=lambda s: (s.start, s.end))
        for before, after in pairwise(spans):
            assert after.start >= before.end - 1e-9


@settings(max_examples=150, deadline=None)
@given(worlds(), st.sampled_from([0.0, 0.3, 1.0]))
def test_nothing_starts_before_what_it_reads(programs: list[Program], overlap: float) -> None:
    timeline = simulate(programs, overlap)
    ends: dict[tuple[int, str], float] = {}
    spans = {(s.rank, s.index): s for s in timeline.spans if not s.name.startswith("wait ")}
    for p in programs:
        for index, instruction in enumerate(p.instructions):
            span = spans.get((p.rank, index))
            if span is None:  # a receive has no span of its own
                continue
            for name in instruction.inputs:
                assert span.start >= ends.get((p.rank, name), 0.0) - 1e-9
            for name in instruction.outputs:
                ends[p.rank, name] = span.end


@settings(max_examples=150, deadline=None)
@given(worlds(), st.sampled_from([0.0, 0.3, 1.0]))
def test_the_step_is_as_long_as_its_busiest_stream_and_its_longest_chain(
    programs: list[Program], overlap: float
) -> None:
    timeline = simulate(programs, overlap)
    for rank in timeline.ranks:
        for stream in (COMPUTE, COMMUNICATION):
            assert timeline.seconds >= timeline.busy(rank, stream) - 1e-9
    for p in programs:
        longest: dict[str, float] = {}
        for instruction in p.instructions:
            if isinstance(instruction, Receive):
                continue
            start = max((longest.get(n, 0.0) for n in instruction.inputs), default=0.0)
            for name in instruction.outputs:
                longest[name] = start + instruction.seconds
            assert timeline.seconds >= start + instruction.seconds - 1e-9


@settings(max_examples=60, deadline=None)
@given(worlds(), SECONDS)
def test_the_same_programs_take_the_same_time_and_hiding_less_never_helps(
    programs: list[Program], extra: float
) -> None:
    assert simulate(programs) == simulate(programs)
    one = programs[0]
    longer = program(0, len(programs), [compute("first", ["x"], extra), *one.instructions])
    before = [simulate(programs, o).seconds for o in (1.0, 0.0)]
    after = [simulate([longer, *programs[1:]], o).seconds for o in (1.0, 0.0)]
    assert before[0] <= before[1] + 1e-9
    assert all(b <= a + 1e-9 for b, a in zip(before, after, strict=True))


def test_communication_hides_unless_it_blocks() -> None:
    def run(blocking: bool, overlap: float) -> float:
        work = [collective((0, 1), "x", "y", 2.0, blocking), compute("z", ["x"], 3.0)]
        return simulate([program(r, 2, work) for r in (0, 1)], overlap).seconds

    assert run(False, 1.0) == pytest.approx(3.0)
    assert run(False, 0.25) == pytest.approx(3.0 + 0.75 * 2.0)
    assert run(True, 1.0) == pytest.approx(5.0)


def test_a_collective_waits_for_the_last_rank() -> None:
    late = program(0, 2, [compute("y", ["x"], 3.0), collective((0, 1), "y", "z", 1.0, True)])
    soon = program(1, 2, [collective((0, 1), "x", "z", 1.0, True)])
    assert simulate([late, soon]).seconds == pytest.approx(4.0)


@pytest.mark.parametrize(
    "lists",
    [
        [[collective((0, 1), "x", "y", 1.0, True)], []],
        [[Receive("y", 1, 16, 1.0)], []],
        [
            [collective((0, 1), "x", "y", 1.0, True), collective((0, 1, 2), "x", "z", 1.0, True)],
            [collective((0, 1, 2), "x", "z", 1.0, True), collective((0, 1), "x", "y", 1.0, True)],
            [collective((0, 1, 2), "x", "z", 1.0, True)],
        ],
        [
            [Receive("y", 1, 16, 1.0), Send("x", 1, 16, 1.0)],
            [Receive("y", 0, 16, 1.0), Send("x", 0, 16, 1.0)],
        ],
    ],
    ids=["nobody comes", "nobody sends", "another order", "both wait"],
)
def test_ranks_that_wait_forever_are_named(lists: list[list[Instruction]]) -> None:
    programs = [program(rank, len(lists), instructions) for rank, instructions in enumerate(lists)]
    with pytest.raises(ProgramError, match="met by its whole group and every receive by a send") as error:
        simulate(programs)
    assert "rank 0, instruction 0" in error.value.culprit
