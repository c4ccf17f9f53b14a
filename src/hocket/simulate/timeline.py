"""Spans on a clock: what the simulator predicts and the runtime measures, in one type."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMPUTE = "compute"
COMMUNICATION = "communication"


@dataclass(frozen=True, slots=True)
class Span:
    """One instruction on one stream of one rank, in seconds from the start of the step."""

    rank: int
    stream: str
    name: str
    start: float
    end: float
    index: int = -1

    @property
    def seconds(self) -> float:
        """Length of the span."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Timeline:
    """All spans of a step, predicted or measured."""

    spans: tuple[Span, ...]
    origin: str = "predicted"

    @property
    def seconds(self) -> float:
        """From the start of the step to the end of the last span."""
        return max((span.end for span in self.spans), default=0.0)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that have spans, ascending."""
        return tuple(sorted({span.rank for span in self.spans}))

    def busy(self, rank: int, stream: str) -> float:
        """Seconds that a stream of a rank is occupied."""
        return sum(s.seconds for s in self.spans if s.rank == rank and s.stream == stream)

    def by_name(self, rank: int) -> dict[str, float]:
        """Seconds per span name on a rank, largest first."""
        total: dict[str, float] = {}
        for span in self.spans:
            if span.rank == rank:
                total[span.name] = total.get(span.name, 0.0) + span.seconds
        return dict(sorted(total.items(), key=lambda item: -item[1]))

    def minus(self, other: Timeline) -> dict[int, float]:
        """Seconds that each instruction (by index) takes longer here than in `other`, on the first common rank."""
        rank = next((r for r in self.ranks if r in other.ranks), -1)
        theirs = {s.index: s.seconds for s in other.spans if s.rank == rank}
        return {s.index: s.seconds - theirs[s.index] for s in self.spans if s.rank == rank and s.index in theirs}


def chrome_trace(timelines: Iterable[Timeline]) -> dict[str, Any]:
    """Timelines in the Chrome trace event format, which Perfetto opens; one process per rank and origin."""
    events: list[dict[str, Any]] = []
    for timeline in timelines:
        base = 0 if timeline.origin == "predicted" else 100_000
        for rank in timeline.ranks:
            name = f"{timeline.origin} rank {rank}"
            events.append({"ph": "M", "name": "process_name", "pid": base + rank, "args": {"name": name}})
            for number, stream in enumerate((COMPUTE, COMMUNICATION)):
                thread = {"ph": "M", "name": "thread_name", "pid": base + rank, "tid": number}
                events.append({**thread, "args": {"name": stream}})
        for span in timeline.spans:
            events.append(
                {
                    "ph": "X",
                    "name": span.name,
                    "cat": span.stream,
                    "pid": base + span.rank,
                    "tid": 0 if span.stream == COMPUTE else 1,
                    "ts": span.start * 1e6,
                    "dur": span.seconds * 1e6,
                    "args": {"instruction": span.index},
                }
            )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def save_trace(timelines: Iterable[Timeline], path: Path) -> None:
    """Write a trace file, whole or not at all."""
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(json.dumps(chrome_trace(timelines)))
    temporary.replace(path)
