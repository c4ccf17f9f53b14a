"""A pipeline's schedule for people: numbers as plain values, the timeline as text."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from hocket.pipeline.bound import bound_of
from hocket.pipeline.clock import Run, Times

COLOURS: dict[str, tuple[str, ...]] = {
    "F": ("#2f6fb5", "#5b9bd5", "#1f4e80", "#8fbce6"),
    "B": ("#3c8d4f", "#6fb87e", "#27653a", "#a3d5ad"),
    "I": ("#2a8c8c", "#5fb7b7", "#1d6464", "#97d3d3"),
    "W": ("#b58a2f", "#d5b15b", "#80611f", "#e6cd8f"),
}
"""Colours of forward, backward, and its halves, a shade per chunk of a rank."""
NAMES = {"F": "forward", "B": "backward", "I": "backward of inputs", "W": "backward of weights"}
WIDEST = 400
"""Most columns of a timeline in a terminal."""


def chunk_of(run: Run, rank: int, stage: int) -> int:
    """Which of a rank's chunks a stage is, from 0."""
    own = sorted({span.action.stage for span in run.spans[rank]})
    return own.index(stage)


def colour(run: Run, rank: int, stage: int, kind: str) -> str:
    """The colour of an action."""
    shades = COLOURS[kind]
    return shades[chunk_of(run, rank, stage) % len(shades)]


def summary(run: Run, times: Times | None = None) -> dict[str, Any]:
    """Makespan, its bound, and per rank idle time, most activations held and all actions, as plain values."""
    return {
        "title": run.order.title,
        "makespan": run.makespan,
        "lower_bound": bound_of(run.order, times),
        "ranks": [
            {
                "bubble": run.bubble(rank),
                "peak_activations": run.peak(rank),
                "actions": [
                    {"action": str(s.action), "start": s.start, "end": s.end} for s in run.spans[rank]
                ],
            }
            for rank in range(len(run.spans))
        ],
    }  # fmt: skip


def heading(run: Run, times: Times | None = None) -> str:
    """One line: what it is, what it takes, and how much of that is idle."""
    order, least = run.order, bound_of(run.order, times)
    idle = run.worst / run.makespan if run.makespan else 0.0
    reached = "the bound" if run.makespan <= least * (1 + 1e-9) else f"bound {least:g}"
    return (
        f"{order.title}: {len(order.ranks)} ranks, {order.stages} stages, {order.microbatches} microbatches; "
        f"{run.makespan:g} ({reached}), idle {run.worst:g} ({idle:.0%})"
    )


def timeline_text(run: Run, times: Times | None = None) -> list[Text]:
    """The timeline for a terminal: a line per rank with the microbatches in their colours, idle time as strokes."""
    unit = _unit(run)
    digits = len(str(max(0, run.order.microbatches - 1)))
    cell = digits + 1
    if run.makespan / unit * cell > WIDEST:
        return [Text(heading(run, times)), Text("too long to draw here: give --out FILE.html")]
    lines = [Text(heading(run, times))]
    for rank, spans in enumerate(run.spans):
        line = Text(f"rank {rank:<3} ")
        now = 0.0
        for span in spans:
            line.append("╱" * _columns(now, span.start, unit, cell), style="bright_black")
            width = _columns(span.start, span.end, unit, cell)
            style = f"white on {colour(run, rank, span.action.stage, span.action.kind)}"
            line.append(str(span.action.microbatch).center(width)[:width], style=style)
            now = span.end
        line.append("╱" * _columns(now, run.makespan, unit, cell), style="bright_black")
        line.append(f"  idle {run.bubble(rank):g}, holds {run.peak(rank)}", style="bright_black")
        lines.append(line)
    lines.append(legend(run))
    return lines


def legend(run: Run) -> Text:
    """What the colours mean."""
    kinds = sorted({span.action.kind for spans in run.spans for span in spans}, key="FBIW".index)
    chunks = max((len({s.action.stage for s in spans}) for spans in run.spans), default=1)
    text = Text("         ")
    for kind in kinds:
        for chunk in range(chunks):
            text.append("  ", style=f"on {COLOURS[kind][chunk % 4]}")
        text.append(f" {NAMES[kind]}   ")
    text.append("╱╱", style="bright_black")
    text.append(" idle" + (", a shade per chunk" if chunks > 1 else ""))
    return text


def _unit(run: Run) -> float:
    """The shortest action: one cell of the timeline."""
    return min((s.end - s.start for spans in run.spans for s in spans if s.end > s.start), default=1.0)


def _columns(start: float, end: float, unit: float, cell: int) -> int:
    return max(0, round(end / unit * cell) - round(start / unit * cell))
