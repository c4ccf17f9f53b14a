"""A running search on the terminal: what is looked at, how much is done, and Ctrl-C that works."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

T = TypeVar("T")
Watcher = Callable[[str, int, int, str], None]


PIPED_WIDTH = 100
"""Columns of output that goes to a file or a pipe."""


def screen() -> Console:
    """Standard output: as wide as the terminal, or of PIPED_WIDTH columns."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PIPED_WIDTH)


def watched(title: str, work: Callable[[Watcher, threading.Event], T]) -> T:
    """Run `work` in a thread under a progress display on stderr; its result or its error.

    `work` gets a watcher to report to and an event that tells it to end. Ctrl-C sets that event.
    """
    stop = threading.Event()
    result: list[T] = []
    errors: list[BaseException] = []
    console = Console(stderr=True)
    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(24), TextColumn("{task.fields[text]}"),
        TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal,
    ) as progress:  # fmt: skip
        task = progress.add_task(title, total=None, text="")

        def watcher(stage: str, done: int, total: int, text: str) -> None:
            progress.update(task, completed=done, total=total or None, text=text)

        def run() -> None:
            try:
                result.append(work(watcher, stop))
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                thread.join(0.1)
        except KeyboardInterrupt:
            stop.set()
            thread.join(1.0)
            raise
    if errors:
        raise errors[0]
    return result[0]
