"""A pipeline's schedule as one page: the timeline as SVG, and below it what every rank holds."""

from __future__ import annotations

from html import escape

from hocket.pipeline.clock import Run, Times
from hocket.report.schedule import COLOURS, NAMES, colour, heading

LEFT, WIDE, ROW, BAR, CURVE = 64.0, 1400.0, 34.0, 26.0, 90.0
"""Pixels: the margin for names, the timeline's least width, a rank's row and its bar, the curve's height."""
STYLE = """
body { font: 14px/1.4 system-ui, sans-serif; margin: 24px; color: #222; background: #fff; }
h1 { font-size: 17px; font-weight: 600; margin: 0 0 12px; }
svg { display: block; } text { font: 11px system-ui, sans-serif; }
.box { stroke: #fff; stroke-width: 1; } .number { fill: #fff; text-anchor: middle; } .name { fill: #444; }
.legend span { display: inline-block; margin-right: 18px; }
.legend i { display: inline-block; width: 14px; height: 14px; margin: 0 1px -2px 0; }
.scroll { overflow-x: auto; }
"""


FITS = 2000
"""Pixels of a picture that is made smaller to fit a window; a wider one is scrolled."""


def schedule_svg(run: Run) -> str:
    """The timeline and the memory curve as one SVG."""
    shortest = min((s.end - s.start for spans in run.spans for s in spans if s.end > s.start), default=1.0)
    scale = max(WIDE / max(run.makespan, 1e-12), 16.0 / shortest)
    ranks = len(run.spans)
    height = ranks * ROW + 40 + CURVE + 30
    width = LEFT + run.makespan * scale + 20
    fit = ' style="max-width: 100%; height: auto"' if width <= FITS else ""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" role="img"{fit}>',
        '<defs><pattern id="idle" width="6" height="6" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><rect width="6" height="6" fill="#f4f4f4"/>'
        '<line x1="0" y1="0" x2="0" y2="6" stroke="#c9c9c9" stroke-width="2"/></pattern></defs>',
    ]
    for rank in range(ranks):
        parts += _row(run, rank, scale)
    parts += _curve(run, scale, ranks * ROW + 40)
    return "\n".join((*parts, "</svg>"))


def _row(run: Run, rank: int, scale: float) -> list[str]:
    top = rank * ROW
    found = [f'<text class="name" x="0" y="{top + BAR / 2 + 4:.1f}">rank {rank}</text>']
    for start, length in run.bubbles(rank):
        found.append(_rect(start, length, top, scale, "url(#idle)", f"idle {length:g}"))
    for span in run.spans[rank]:
        action, length = span.action, span.end - span.start
        told = f"{action}: {NAMES[action.kind]}, {span.start:g} to {span.end:g}"
        found.append(_rect(span.start, length, top, scale, colour(run, rank, action.stage, action.kind), told))
        if length * scale >= 10:
            x = LEFT + (span.start + length / 2) * scale
            found.append(f'<text class="number" x="{x:.1f}" y="{top + BAR / 2 + 4:.1f}">{action.microbatch}</text>')
    return found


def _rect(start: float, length: float, top: float, scale: float, fill: str, told: str) -> str:
    return (
        f'<rect class="box" x="{LEFT + start * scale:.1f}" y="{top:.1f}" width="{length * scale:.1f}" '
        f'height="{BAR}" fill="{fill}"><title>{escape(told)}</title></rect>'
    )


def _curve(run: Run, scale: float, top: float) -> list[str]:
    """Activations held over time, a step line per rank."""
    most = max((run.peak(rank) for rank in range(len(run.spans))), default=0) or 1
    bottom, ranks = top + CURVE, len(run.spans)
    found = [
        f'<text class="name" x="0" y="{top + 8:.1f}">held: {most}</text>',
        f'<line x1="{LEFT}" y1="{bottom}" x2="{LEFT + run.makespan * scale:.1f}" y2="{bottom}" stroke="#999"/>',
    ]
    for rank in range(ranks):
        points, last = [(0.0, 0)], 0
        for time, number in run.held(rank):
            points += [(time, last), (time, number)]
            last = number
        points.append((run.makespan, last))
        path = " ".join(f"{LEFT + t * scale:.1f},{bottom - n / most * (CURVE - 12):.1f}" for t, n in points)
        hue = 200 + 120 * rank / max(1, ranks - 1)
        found.append(
            f'<polyline points="{path}" fill="none" stroke="hsl({hue:.0f} 55% 45%)" stroke-width="1.5">'
            f"<title>rank {rank} holds at most {run.peak(rank)}</title></polyline>"
        )
    found.append(f'<text class="name" x="{LEFT}" y="{bottom + 16:.1f}">activations held, a line per rank</text>')
    return found


def schedule_page(run: Run, times: Times | None = None) -> str:
    """One self-contained HTML page."""
    kinds = sorted({span.action.kind for spans in run.spans for span in spans}, key="FBIW".index)
    chunks = max((len({s.action.stage for s in spans}) for spans in run.spans), default=1)
    shades = {k: "".join(f'<i style="background:{COLOURS[k][c % 4]}"></i>' for c in range(chunks)) for k in kinds}
    items = [f"<span>{shades[k]} {NAMES[k]}</span>" for k in kinds]
    items.append(
        '<span><i style="background:repeating-linear-gradient(45deg,#f4f4f4,#f4f4f4 3px,#c9c9c9 3px,#c9c9c9 5px)">'
        "</i> idle</span>"
    )
    title = escape(heading(run, times))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style></head>\n<body><h1>{title}</h1>\n"
        f'<p class="legend">{"".join(items)}</p>\n<div class="scroll">{schedule_svg(run)}</div></body></html>\n'
    )
