"""`hocket schedule`: a pipeline's schedule drawn, as numbers, or as text."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from hocket.cli.progress import screen


class Form(StrEnum):
    """What is shown."""

    text = "text"
    json = "json"
    order = "order"
    torch = "torch"


def schedule(
    kind: Annotated[str, typer.Option(help="fthenb, 1f1b, eager, vpp, zb-h1, zb-v or zb.")] = "vpp",
    stages: Annotated[int, typer.Option(help="Ranks of the pipeline.")] = 4,
    chunks: Annotated[int, typer.Option(help="Chunks of layers per rank.")] = 1,
    microbatches: Annotated[int, typer.Option(help="Microbatches.")] = 8,
    forward: Annotated[float, typer.Option(help="Time of a chunk's forward.")] = 1.0,
    backward: Annotated[float, typer.Option(help="Time of a chunk's backward.")] = 1.0,
    send: Annotated[float, typer.Option(help="Time from one rank to another.")] = 0.0,
    limit: Annotated[int, typer.Option(help="Most activations that a rank holds, for zb.")] = 0,
    read: Annotated[
        Path | None, typer.Option("--read", help="A file with an order (a line per rank) in place of a kind.")
    ] = None,
    form: Annotated[
        Form, typer.Option("--format", help="text, json, order (as 2F0, a line per rank) or torch (its CSV).")
    ] = Form.text,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write an .html or .svg file.")] = None,
) -> None:
    """Draw when each rank of a pipeline does what: microbatches, idle time, activations held, and the bound."""
    from hocket.cluster.writing import write_whole
    from hocket.errors import FileError
    from hocket.pipeline.check import check_order
    from hocket.pipeline.clock import Times, run
    from hocket.pipeline.kinds import make_order
    from hocket.pipeline.order import Order
    from hocket.pipeline.to_torch import to_torch
    from hocket.report.schedule import summary, timeline_text
    from hocket.report.schedule_page import schedule_page, schedule_svg

    times = Times(forward, backward, send=send)
    if read is not None:
        try:
            order = Order.parse(read.read_text(), read.name)
        except OSError as error:
            raise FileError(str(read), "is a readable file", error.strerror or str(error)) from None
    else:
        order = make_order(kind, stages, chunks, microbatches, times, limit)
    check_order(order)
    timed = run(order, times)
    if out is not None:
        if out.suffix not in (".html", ".svg"):
            raise FileError(str(out), "ends in .html or .svg", out.suffix or "nothing")
        page = schedule_page(timed, times) if out.suffix == ".html" else schedule_svg(timed)
        write_whole(out, page.encode())
    if form is Form.json:
        print(json.dumps(summary(timed, times)))
    elif form is Form.order:
        print(order)
    elif form is Form.torch:
        print(to_torch(order), end="")
    else:
        console = screen()
        for line in timeline_text(timed, times):
            console.print(line, soft_wrap=True)
