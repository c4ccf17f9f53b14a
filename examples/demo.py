"""From nothing to a trained step in one go: probe this machine, plan, run on four processes, compare.

Shows the plan, the loss of every step beside the same training in one process, and the predicted step time
beside the measured one.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from hocket import api
from hocket.cluster.local import local_cluster
from hocket.measure.probe import probe
from hocket.plan.file import save_plan
from hocket.plan.types import Plan
from hocket.report.explain import build_explanation
from hocket.report.tables import plan_parts
from hocket.runtime.launch import run_script
from language import batch, gpt, text

RANKS, STEPS, WARM = 4, 20, 3
T = TypeVar("T")


class Lines:
    """What rank 0 writes, line by line: step, loss, seconds."""

    def __init__(self, each: Callable[[int, float, float], None]) -> None:
        self.each = each

    def write(self, line: str) -> int:
        """Take one line."""
        step, loss, seconds = line.split()
        self.each(int(step), float(loss), float(seconds))
        return len(line)

    def flush(self) -> None:
        """Nothing is held back."""
        return


def main() -> int:
    console = Console()
    console = console if console.is_terminal else Console(width=100)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        calibration = _shown(progress, "measuring this machine", lambda tell: probe(RANKS, True, tell))
        model, sample = gpt()
        graph = _shown(progress, "capturing the training step", lambda _: api.capture(model, sample))
        cluster = local_cluster(RANKS, calibration)
        plan = _shown(progress, "planning", lambda _: api.plan(graph, cluster, budget=30.0))
        for part in plan_parts(build_explanation(plan, flips=False)):
            console.print(part)
        alone, seconds = _alone(progress)
        found = _together(progress, plan, alone, console)
    if len(found) != STEPS:
        console.print("[red]the run ended early[/red]")
        return 1
    return _verdict(console, plan, alone, found, seconds)


def _shown(progress: Progress, title: str, work: Callable[[Callable[[str], None]], T]) -> T:
    task = progress.add_task(title, total=None)
    result = work(lambda words: progress.update(task, description=f"{title}: {words}"))
    progress.remove_task(task)
    return result


def _alone(progress: Progress) -> tuple[list[float], float]:
    """Losses and the median step time of plain PyTorch in this process."""
    model, source = gpt()[0], text()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    task = progress.add_task("training in one process", total=STEPS)
    losses, times = [], []
    for step in range(STEPS):
        start = time.perf_counter()
        loss = model(**batch(source, step)).loss
        loss.backward()
        times.append(time.perf_counter() - start)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        progress.advance(task)
    progress.remove_task(task)
    return losses, statistics.median(times[WARM:])


def _together(progress: Progress, plan: Plan, alone: list[float], console: Console) -> list[tuple[float, float]]:
    """Losses and seconds of every step on four processes."""
    task = progress.add_task(f"training on {RANKS} processes", total=STEPS)
    found: list[tuple[float, float]] = []
    console.print("\nstep   one process   four processes   relative difference")

    def note(step: int, loss: float, seconds: float) -> None:
        found.append((loss, seconds))
        difference = abs(loss - alone[step]) / alone[step]
        console.print(f"{step:4}   {alone[step]:11.6f}   {loss:14.6f}   {difference:19.1e}")
        progress.advance(task)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        save_plan(plan, path)
        script = Path(__file__).with_name("train.py")
        run_script(path, script, [str(STEPS)], RANKS, output=Lines(note), errors=sys.stderr)  # type: ignore[arg-type]
    progress.remove_task(task)
    return found


def _verdict(
    console: Console, plan: Plan, alone: list[float], found: list[tuple[float, float]], seconds: float
) -> int:
    measured = statistics.median(s for _, s in found[WARM:])
    worst = max(abs(f - a) / a for (f, _), a in zip(found, alone, strict=True))
    table = Table(title="forward and backward of one step")
    for name in ("", "seconds"):
        table.add_column(name, justify="left" if not name else "right")
    table.add_row("predicted by the plan", f"{plan.seconds:.3f}")
    table.add_row(f"measured on {RANKS} processes (median)", f"{measured:.3f}")
    table.add_row("predicted / measured", f"{plan.seconds / measured:.2f}")
    table.add_row(f"one process with {torch.get_num_threads()} threads (median)", f"{seconds:.3f}")
    console.print(table)
    console.print(f"largest relative difference of a loss: {worst:.1e}")
    return 0 if worst < 1e-3 else 1


if __name__ == "__main__":
    sys.exit(main())
