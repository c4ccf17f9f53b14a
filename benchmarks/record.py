"""Results of a benchmark: as a table on screen, as JSON, and as markdown with machine, commit and command."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).with_name("results")


@dataclass
class Results:
    """One benchmark's rows under named columns, what was to be reached, and remarks."""

    name: str
    title: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
    targets: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def target(self, text: str, reached: bool, value: str) -> None:
        """Note a target, whether it was reached, and what was measured."""
        self.targets.append(f"{text}: {'reached' if reached else 'NOT reached'} ({value})")

    def show(self) -> None:
        """Print the table, the targets and the remarks."""
        console = Console(width=150)
        table = Table(title=self.title)
        for index, column in enumerate(self.columns):
            table.add_column(column, justify="right" if index else "left")
        for row in self.rows:
            table.add_row(*row)
        console.print(table)
        for line in (*self.targets, *self.remarks):
            console.print(f"- {line}", highlight=False)

    def save(self, command: str) -> None:
        """Write results/NAME.json and results/NAME.md."""
        RESULTS.mkdir(exist_ok=True)
        where = {**machine(), "commit": commit(), "command": command, "date": str(date.today())}
        content = {"where": where, "targets": self.targets, "remarks": self.remarks, **self.data}
        (RESULTS / f"{self.name}.json").write_text(json.dumps(content, indent=1) + "\n")
        (RESULTS / f"{self.name}.md").write_text(self._markdown(where))

    def _markdown(self, where: dict[str, Any]) -> str:
        lines = [f"# {self.title}", ""]
        lines += [f"- {key}: {value}" for key, value in where.items()]
        lines += ["", f"| {' | '.join(self.columns)} |", f"|{' --- |' * len(self.columns)}"]
        lines += [f"| {' | '.join(row)} |" for row in self.rows]
        if self.targets:
            lines += ["", "## To reach", "", *(f"- {line}" for line in self.targets)]
        if self.remarks:
            lines += ["", "## Remarks", "", *(f"- {line}" for line in self.remarks)]
        return "\n".join(lines) + "\n"


def machine() -> dict[str, Any]:
    """What the benchmark ran on: processor, cores, load before it, versions."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        model = names[0].split(":", 1)[1].strip() if names else model
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "processor": model,
        "cores": cores,
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def commit() -> str:
    """The commit of the working tree, with `+` where sources differ from it."""
    folder = Path(__file__).parent
    run = ["git", "-C", str(folder.parent)]
    found = subprocess.run([*run, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    changed = subprocess.run([*run, "status", "--porcelain", "-uno", "src"], capture_output=True, text=True)
    return found.stdout.strip() + ("+" if changed.stdout.strip() else "")
