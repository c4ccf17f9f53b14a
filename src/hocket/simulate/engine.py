"""A clock for programs: two streams per rank, instructions in order, collectives met by their group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hocket.errors import ProgramError
from hocket.program.types import Collective, Compute, Free, Instruction, Program, Receive, Send
from hocket.simulate.timeline import COMMUNICATION, COMPUTE, Span, Timeline


@dataclass(slots=True)
class _Rank:
    """One rank under way: the next instruction, when its streams and values are ready."""

    program: Program
    next: int = 0
    compute: float = 0.0
    communication: float = 0.0
    ready: dict[str, float] = field(default_factory=dict)
    met: dict[tuple[int, ...], int] = field(default_factory=dict)


Key = tuple[tuple[int, ...], int]


def simulate(programs: Sequence[Program], overlap: float = 1.0) -> Timeline:
    """Predict the timeline of programs.

    A rank issues its instructions in order. Local operations occupy its compute stream, collectives its
    communication stream, blocking ones both. `overlap` is the share of an asynchronous collective that hides
    behind computation (1: all, 0: none); the rest slows computation down from where it is issued. Ranks that
    are not among `programs` are taken to arrive at a collective with the last of those that are, so that one
    rank can stand for all that are alike. Raises ProgramError when ranks wait for each other forever.
    """
    ranks = {p.rank: _Rank(p) for p in programs}
    spans: list[Span] = []
    waiting: dict[Key, dict[int, Collective]] = {}
    posted: dict[tuple[int, int], list[float]] = {}
    active = True
    while active:
        active = False
        for rank in ranks.values():
            active |= _advance(rank, ranks, waiting, posted, spans, overlap)
    stuck = [r for r in ranks.values() if r.next < len(r.program.instructions)]
    if stuck:
        first = stuck[0]
        raise ProgramError(
            f"rank {first.program.rank}, instruction {first.next}",
            "every collective is met by its whole group and every receive by a send",
            str(first.program.instructions[first.next]),
        )
    return Timeline(tuple(spans))


def _advance(
    rank: _Rank,
    ranks: dict[int, _Rank],
    waiting: dict[Key, dict[int, Collective]],
    posted: dict[tuple[int, int], list[float]],
    spans: list[Span],
    overlap: float,
) -> bool:
    """Run a rank until it has to wait for another; whether anything ran."""
    moved = False
    instructions = rank.program.instructions
    while rank.next < len(instructions):
        instruction = instructions[rank.next]
        if isinstance(instruction, Compute):
            _compute(rank, instruction, spans)
        elif isinstance(instruction, Collective):
            key = (instruction.group, rank.met.get(instruction.group, 0))
            here = waiting.setdefault(key, {})
            here[rank.program.rank] = instruction
            members = [ranks[r] for r in instruction.group if r in ranks]
            if len(here) < len(members):
                return moved
            _meet(members, here, spans, overlap)
            del waiting[key]
            moved = True
            continue
        elif not _point_to_point(rank, instruction, posted, spans):
            return moved
        rank.next += 1
        moved = True
    return moved


def _compute(rank: _Rank, instruction: Compute, spans: list[Span]) -> None:
    start = max([rank.compute, *(rank.ready.get(n, 0.0) for n in instruction.inputs)])
    end = start + instruction.seconds
    if instruction.seconds > 0:
        name = instruction.operation.kind
        spans.append(Span(rank.program.rank, COMPUTE, name, start, end, rank.next))
        rank.compute = end
    for name in instruction.outputs:
        rank.ready[name] = end


def _meet(members: list[_Rank], here: dict[int, Collective], spans: list[Span], overlap: float) -> None:
    """Run a collective that its whole group has reached, on all of them at once."""
    start = 0.0
    for rank in members:
        call = here[rank.program.rank]
        inputs = [rank.ready.get(n, 0.0) for n in call.inputs]
        start = max(start, rank.communication, *inputs)
        if call.blocking:
            start = max(start, rank.compute)
    for rank in members:
        call = here[rank.program.rank]
        end = start + max(c.seconds for c in here.values())
        number = rank.program.rank
        spans.append(Span(number, COMMUNICATION, call.kind, start, end, rank.next))
        held = end - start if call.blocking else (1.0 - overlap) * (end - start)
        if held > 0:
            begin = start if call.blocking else rank.compute
            spans.append(Span(number, COMPUTE, f"wait {call.kind}", begin, begin + held, rank.next))
            rank.compute = begin + held
        rank.communication = end
        rank.ready.update(dict.fromkeys(call.outputs, end))
        rank.met[call.group] = rank.met.get(call.group, 0) + 1
        rank.next += 1


def _point_to_point(
    rank: _Rank, instruction: Instruction, posted: dict[tuple[int, int], list[float]], spans: list[Span]
) -> bool:
    """Send or receive (or free, which takes no time); False while the message is not there yet."""
    number = rank.program.rank
    if isinstance(instruction, Send):
        start = max(rank.communication, rank.ready.get(instruction.value, 0.0))
        end = start + instruction.seconds
        spans.append(Span(number, COMMUNICATION, "send", start, end, rank.next))
        rank.communication = end
        posted.setdefault((number, instruction.peer), []).append(end)
    elif isinstance(instruction, Receive):
        messages = posted.get((instruction.peer, number), [])
        if not messages:
            return False
        rank.ready[instruction.value] = messages.pop(0)
    elif not isinstance(instruction, Free):
        return False
    return True
