"""Timelines as trace files."""

from __future__ import annotations

from os import PathLike

import msgspec

from hocket.cluster.writing import write_whole
from hocket.simulate.timeline import Timeline, chrome_trace


def write_trace(timeline: Timeline, path: str | PathLike[str]) -> None:
    """Write a timeline in the Chrome trace format, whole or not at all; raises FileError."""
    write_whole(path, msgspec.json.encode(chrome_trace([timeline])))
