"""The probe: measures what processes on this machine reach while all of them are busy."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from threading import Thread
from time import monotonic, sleep
from typing import Any

import torch
import torch.distributed as dist

from hocket.cost.calibration import Calibration
from hocket.errors import RuntimeFault
from hocket.measure.fit import fit_calibration

Watcher = Callable[[str], None]

TIMEOUT_SECONDS = 180.0
"""A probe that takes longer is stopped; it usually takes 15 to 40 seconds."""


def available_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def threads_per_rank(ranks: int) -> int:
    """Threads that each of `ranks` processes on this machine computes with."""
    return max(1, available_cores() // ranks)


def probe(
    ranks: int = 4,
    quick: bool = False,
    watcher: Watcher | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
    device: str | None = None,
) -> Calibration:
    """Start `ranks` processes, measure computation and collectives, and fit them.

    On `cuda` (taken when there is a GPU) there is one process per GPU, at most as many as GPUs. `watcher`
    gets a short text per phase. Raises RuntimeFault when a process fails or the time is over; no process
    outlives the call.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if ranks < 1:
        raise RuntimeFault("probe", "measures at least one process", str(ranks), "give 1 or more")
    if device == "cuda":
        ranks = min(ranks, torch.cuda.device_count())
    with tempfile.TemporaryDirectory(prefix="hocket-probe-") as folder:
        store = dist.TCPStore(  # type: ignore[attr-defined]
            "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60)
        )
        processes = [_start(rank, ranks, store.port, device, quick, Path(folder)) for rank in range(ranks)]
        try:
            if watcher is not None:
                Thread(target=_relay, args=(processes[0], watcher), daemon=True).start()
            _wait(processes, Path(folder), monotonic() + timeout_seconds)
            results: list[dict[str, Any]] = [
                json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(ranks)
            ]
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                process.wait()
    return fit_calibration(results, ranks, available_cores(), _describe(device, results[0]["name"]))


def _start(rank: int, ranks: int, port: int, device: str, quick: bool, folder: Path) -> subprocess.Popen[str]:
    threads = str(threads_per_rank(ranks))
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    if device == "cpu" and sys.platform == "linux":
        environment["GLOO_SOCKET_IFNAME"] = "lo"
    speed = "quick" if quick else "full"
    numbers = [str(n) for n in (rank, ranks, available_cores(), port)]
    arguments = [*numbers, device, threads, speed, str(folder / f"{rank}.json")]
    with (folder / f"{rank}.err").open("w") as errors:
        return subprocess.Popen(
            [sys.executable, "-m", "hocket.measure.worker", *arguments],
            env=environment,
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            stderr=errors,
            text=True,
        )


def _relay(process: subprocess.Popen[str], watcher: Watcher) -> None:
    for line in process.stdout or ():
        watcher(line.strip())


def _wait(processes: list[subprocess.Popen[str]], folder: Path, deadline: float) -> None:
    """Until all processes have ended well; raises RuntimeFault at the first that has not."""
    while any(process.poll() is None for process in processes):
        if any(process.poll() for process in processes):
            break
        if monotonic() > deadline:
            late = [rank for rank, process in enumerate(processes) if process.poll() is None]
            raise RuntimeFault(
                "probe",
                "ends within its time",
                f"ranks {late} still run",
                "try quick, or fewer ranks; other programs may keep the cores busy",
            )
        sleep(0.02)
    for rank, process in enumerate(processes):
        if process.poll():
            lines = (folder / f"{rank}.err").read_text().strip().splitlines()[-5:]
            raise RuntimeFault(f"probe rank {rank}", f"ended with {process.poll()}", "\n    ".join(lines))


def _describe(device: str, name: str) -> str:
    if device == "cuda":
        return f"{name}, torch {torch.__version__}"
    return f"{platform.machine()}, {available_cores()} cores, torch {torch.__version__}"
