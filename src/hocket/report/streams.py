"""A timeline as a table of streams: how long each is busy and idle."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from hocket.plan.types import Plan
from hocket.report.clock import exposed_total
from hocket.report.tables import facts, table
from hocket.report.words import cluster_words, mesh_words, percent
from hocket.simulate.timeline import COMMUNICATION, COMPUTE, Timeline
from hocket.units import format_seconds

BAR = 24
"""Characters of a full bar."""


def stream_parts(plan: Plan, timeline: Timeline) -> list[RenderableType]:
    """The predicted timeline of one microbatch: step time, and per rank and stream busy and idle."""
    count = plan.schedule.microbatches
    rows = [
        ("cluster", cluster_words(plan.cluster)), ("mesh", mesh_words(plan.stage.mesh)),
        ("microbatch", f"{format_seconds(timeline.seconds)} predicted"),
    ]  # fmt: skip
    if count > 1:
        rows.append(("step", f"{format_seconds(timeline.seconds * count)}: {count} microbatches in turn"))
    shown = len(timeline.ranks)
    if shown < plan.world_size:
        rows.append(("ranks", f"{shown} of {plan.world_size}: one stands for all that are alike"))
    return [Text(plan.graph.name or "model", style="bold green"), Text(), facts(rows), Text(),
            _streams(plan, timeline)]  # fmt: skip


def _streams(plan: Plan, timeline: Timeline) -> RenderableType:
    made = table("Streams", ["rank", "device", "stream", ">busy", ">idle", ">share", ""])
    total = timeline.seconds or 1.0
    for rank in timeline.ranks:
        computing = total - exposed_total(timeline, rank)
        for stream, busy in ((COMPUTE, computing), (COMMUNICATION, timeline.busy(rank, COMMUNICATION))):
            first = (str(rank), plan.cluster.devices[rank].name) if stream == COMPUTE else ("", "")
            bar = "█" * round(BAR * busy / total)
            idle = format_seconds(max(0.0, total - busy))
            made.add_row(*first, stream, format_seconds(busy), idle, percent(busy / total), bar)
    return made
