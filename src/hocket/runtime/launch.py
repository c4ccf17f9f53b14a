"""Starting ranks: a script on local processes or under torchrun, functions for tests and benchmarks."""

from __future__ import annotations

import os
import pickle
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from queue import Empty
from typing import IO, Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from hocket.errors import RuntimeFault

PLAN_VARIABLE = "HOCKET_PLAN"
"""The environment variable that tells a script which plan file it was started with."""
PATIENCE = 10.0
"""Seconds that ranks have to end by themselves once one has failed."""


def init(timeout: float = 600.0) -> torch.device:
    """Join torch.distributed as the environment says (nccl on CUDA devices, gloo else); this rank's device.

    `timeout` in seconds bounds joining and every collective. Raises RuntimeFault where RANK, WORLD_SIZE,
    MASTER_ADDR or MASTER_PORT are not set, or ranks do not come.
    """
    absent = [k for k in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if k not in os.environ]
    if absent:
        raise RuntimeFault(
            "environment",
            "names this rank, the world and where it meets",
            f"not set: {', '.join(absent)}",
            "start the script with `hocket run` or torchrun",
        )
    local = int(os.environ.get("LOCAL_RANK", os.environ["RANK"]))
    cuda = torch.cuda.is_available() and local < torch.cuda.device_count()
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        try:
            dist.init_process_group("nccl" if cuda else "gloo", timeout=timedelta(seconds=timeout))
        except (RuntimeError, ValueError) as error:
            raise RuntimeFault(
                f"rank {os.environ['RANK']}",
                f"meets all {os.environ['WORLD_SIZE']} ranks within {timeout:g} s",
                str(error),
                "look at the output of the other ranks",
            ) from error
    return device


def rank_environment(rank: int, ranks: int, port: int, threads: int | None = None) -> dict[str, str]:
    """torchrun's variables for one of `ranks` local processes that meet on loopback at a port."""
    allowed = getattr(os, "sched_getaffinity", None)
    cores = len(allowed(0)) if allowed else os.cpu_count() or 1
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": str(threads or max(1, cores // ranks)),
    }


def free_port() -> int:
    """A TCP port on loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def run_script(
    plan_path: Path,
    script: Path,
    args: Sequence[str],
    ranks: int,
    output: IO[str] | None = None,
    errors: IO[str] | None = None,
) -> int:
    """Run a script once per rank of a plan; the exit code, 0 when every rank ended well.

    Under torchrun (RANK is set) the script runs in this process. Else `ranks` local processes start:
    rank 0's output goes to `output`, everything else to `errors`, each line under its rank's number. When
    one fails, or on Ctrl-C, all others are ended.
    """
    if not script.is_file():
        raise RuntimeFault(f"script {script}", "is a file", "nothing there", "give the training script's path")
    if "RANK" in os.environ:
        os.environ[PLAN_VARIABLE] = str(plan_path)
        return _run_here(script, args)
    port = free_port()
    processes = []
    for rank in range(ranks):
        environment = {
            **os.environ,
            **rank_environment(rank, ranks, port),
            PLAN_VARIABLE: str(plan_path.resolve()),
            "PYTHONUNBUFFERED": "1",
        }
        command = [sys.executable, str(script), *args]
        processes.append(_start(command, environment))
    readers = _streams(processes, output or sys.stdout, errors or sys.stderr)
    try:
        return _watch(processes)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        _end(processes)
        for reader in readers:
            reader.join(PATIENCE)


def _run_here(script: Path, args: Sequence[str]) -> int:
    before, path = sys.argv, list(sys.path)
    sys.argv = [str(script), *args]
    sys.path.insert(0, str(script.parent))
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.argv, sys.path[:] = before, path
    return 0


def _start(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        bufsize=1,
    )


def _streams(
    processes: Sequence[subprocess.Popen[str]], output: IO[str], errors: IO[str]
) -> list[threading.Thread]:
    lock = threading.Lock()

    def copy(source: IO[str], target: IO[str], prefix: str) -> None:
        for line in source:
            with lock:
                target.write(f"{prefix}{line}")
                target.flush()

    readers = []
    for rank, process in enumerate(processes):
        pairs = [(process.stdout, output if rank == 0 else errors, "" if rank == 0 else f"[rank {rank}] ")]
        pairs.append((process.stderr, errors, f"[rank {rank}] "))
        for source, target, prefix in pairs:
            if source is not None:
                readers.append(threading.Thread(target=copy, args=(source, target, prefix), daemon=True))
    for reader in readers:
        reader.start()
    return readers


def _watch(processes: Sequence[subprocess.Popen[str]]) -> int:
    """Wait until all have ended well or one has not; then the others have PATIENCE seconds to say why."""
    while True:
        codes = [p.poll() for p in processes]
        failed = next((c for c in codes if c), 0)
        if failed:
            end = time.monotonic() + PATIENCE
            while time.monotonic() < end and any(p.poll() is None for p in processes):
                time.sleep(0.05)
            return failed if failed > 0 else 128 - failed
        if all(c == 0 for c in codes):
            return 0
        time.sleep(0.05)


def _end(processes: Sequence[subprocess.Popen[str]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in processes:
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def spawn(
    function: Callable[..., Any],
    ranks: int,
    args: Sequence[Any] = (),
    timeout: float = 120.0,
    threads: int = 1,
) -> list[Any]:
    """Run `function(*args)` on `ranks` local processes with torch.distributed joined; every rank's result.

    The function must be importable by name. Raises RuntimeFault with the traceback of the rank that failed
    first, or naming those still running after `timeout` seconds; the others are ended.
    """
    context = mp.get_context("spawn")
    queue = context.Queue()
    port = free_port()
    processes = []
    for rank in range(ranks):
        environment = rank_environment(rank, ranks, port, threads)
        process = context.Process(target=_work, args=(queue, environment, timeout, function, tuple(args)))
        process.start()
        processes.append(process)
    try:
        return _gather(queue, processes, timeout)
    finally:
        for process in processes:
            process.join(PATIENCE if process.exitcode is not None else 0.5)
            if process.is_alive():
                process.kill()
                process.join()


def _gather(queue: Any, processes: Sequence[Any], timeout: float) -> list[Any]:
    results: dict[int, Any] = {}
    end, lost = time.monotonic() + timeout, ""
    while len(results) < len(processes):
        with suppress(Empty):
            rank, good, result = pickle.loads(queue.get(timeout=0.2))
            if not good:
                raise RuntimeFault(f"rank {rank}", "ends without an error", f"{lost}{result}")
            results[rank] = result
            continue
        late = [r for r in range(len(processes)) if r not in results]
        dead = [r for r in late if processes[r].exitcode is not None]
        if dead and not lost:  # the others may have something to say about it
            end = min(end, time.monotonic() + PATIENCE)
            lost = "".join(f"rank {r}: exit code {processes[r].exitcode}\n" for r in dead)
        if time.monotonic() > end or (dead and dead == late and queue.empty()):
            raise RuntimeFault("spawned ranks", "give a result each in time", lost or f"running: {late}")
    return [results[rank] for rank in range(len(processes))]


def _work(
    queue: Any, environment: Mapping[str, str], timeout: float, function: Callable[..., Any], args: Any
) -> None:
    os.environ.update(environment)
    torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
    rank = int(environment["RANK"])
    try:
        init(timeout)
        # As bytes: tensors in a queue would live in memory that ends with their process.
        queue.put(pickle.dumps((rank, True, function(*args))))
    except BaseException:
        queue.put(pickle.dumps((rank, False, traceback.format_exc())))
    queue.close()
    queue.join_thread()
