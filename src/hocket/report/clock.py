"""Where a predicted step's time goes: by kind of operation, by communication, hidden or exposed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from hocket.plan.types import Plan
from hocket.program.types import Collective, Program
from hocket.sharding.mesh import Mesh
from hocket.simulate.timeline import COMMUNICATION, COMPUTE, Span, Timeline


@dataclass(frozen=True, slots=True)
class Share:
    """Seconds of a rank's compute stream spent on one kind of operation, in so many calls."""

    name: str
    calls: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Traffic:
    """Communication of one kind for one purpose: calls, bytes per rank, seconds, seconds not hidden."""

    purpose: str
    kind: str
    axis: str
    calls: int
    bytes: int
    seconds: float
    exposed: float


def compute_shares(timeline: Timeline, rank: int) -> tuple[Share, ...]:
    """Local work of a rank by kind of operation, largest first."""
    found: dict[str, tuple[int, float]] = {}
    for span in _work(timeline, rank):
        calls, seconds = found.get(span.name, (0, 0.0))
        found[span.name] = (calls + 1, seconds + span.seconds)
    ordered = sorted(found.items(), key=lambda item: -item[1][1])
    return tuple(Share(name, calls, seconds) for name, (calls, seconds) in ordered)


def traffic_shares(plan: Plan, program: Program, timeline: Timeline) -> tuple[Traffic, ...]:
    """Communication of a rank by purpose, kind and axis, longest first."""
    work = _work(timeline, program.rank)
    found: dict[tuple[str, str, str], list[float]] = {}
    for span in timeline.spans:
        if span.rank != program.rank or span.stream != COMMUNICATION:
            continue
        instruction = program.instructions[span.index]
        if not isinstance(instruction, Collective):
            key = ("between stages", span.name, "-")
            size = getattr(instruction, "bytes", 0)
        else:
            axis = axis_words(program.mesh, instruction.axis)
            key = (_purpose(plan, program, span.index), instruction.kind, axis)
            size = instruction.bytes
        row = found.setdefault(key, [0, 0, 0.0, 0.0])
        for place, value in enumerate((1, size, span.seconds, exposed_seconds(span, work))):
            row[place] += value
    rows = [Traffic(*key, int(n), int(size), s, e) for key, (n, size, s, e) in found.items()]
    return tuple(sorted(rows, key=lambda row: -row.seconds))


def axis_words(mesh: Mesh, axis: int) -> str:
    """`0 of 8` of a mesh axis."""
    return f"{axis} of {mesh.sizes[axis]}"


def exposed_seconds(span: Span, work: Sequence[Span]) -> float:
    """Seconds of a communication during which its rank computes nothing; `work` stands in order of time."""
    first = bisect_right(work, span.start, key=lambda w: w.end)
    hidden = 0.0
    for other in work[first:]:
        if other.start >= span.end:
            break
        hidden += min(span.end, other.end) - max(span.start, other.start)
    return max(0.0, span.seconds - hidden)


def exposed_total(timeline: Timeline, rank: int) -> float:
    """Seconds of a rank's step in which it computes nothing."""
    return max(0.0, timeline.seconds - sum(span.seconds for span in _work(timeline, rank)))


def _work(timeline: Timeline, rank: int) -> list[Span]:
    return [s for s in timeline.spans if s.rank == rank and s.stream == COMPUTE and not s.name.startswith("wait ")]


def _purpose(plan: Plan, program: Program, index: int) -> str:
    """What a collective is for, from what it communicates."""
    call = program.instructions[index]
    roles = {entry.name: entry.role for entry in plan.graph.inputs}
    origins = {name.partition("__")[0] for name in (*call.inputs, *call.outputs)}
    word = "forward" if index < program.forward else "backward"
    if any(roles.get(o) == "parameter" for o in origins):
        return f"weights, {word}"
    leaving = {value for _, value in plan.graph.gradients}
    local = {value for _, value in program.gradients}
    if origins & leaving or set(call.outputs) & local:
        return "gradients"
    return f"activations, {word}"
