"""The collectives that a probe measures: every kind at several sizes in every group of a size at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from statistics import median
from time import perf_counter

import torch
import torch.distributed as dist

from hocket.errors import RuntimeFault
from hocket.measure.clock import synchronize

SIZES = (2**12, 2**15, 2**18, 2**20, 2**22)
"""Bytes, in the sense of `cost.collective.collective_seconds`."""

QUICK_SIZES = (2**12, 2**17, 2**21)

GROUP_TIMEOUT = timedelta(seconds=30)

NOISE_TURNS, NOISE_PRODUCTS, NOISE_STEPS = 8, 4, 9
"""A step for measuring noise: how often it computes and communicates in turn, how many products each time, and how
many such steps are timed."""


def group_sizes(ranks: int) -> tuple[int, ...]:
    """Sizes above 1 that divide the number of ranks."""
    return tuple(n for n in range(2, ranks + 1) if ranks % n == 0)


def own_group(size: int, rank: int, ranks: int) -> dist.ProcessGroup:
    """This rank's group when the ranks fall into neighbouring groups of one size; every rank calls it."""
    mine: dist.ProcessGroup | None = None
    for start in range(0, ranks, size):
        members = list(range(start, start + size))
        group = dist.new_group(members, timeout=GROUP_TIMEOUT)
        if rank in members:
            mine = group
    if mine is None:
        raise RuntimeFault(f"rank {rank}", "is in one group of every size", f"{size} among {ranks} ranks")
    return mine


def collective_calls(
    size: int, bytes: int, group: dist.ProcessGroup, rank: int, device: str
) -> Iterator[tuple[str, Callable[[], object]]]:
    """Every kind with `bytes` in the sense of the cost formulas.

    They include the copies that a program's collective makes to lay out and join pieces.
    """
    n = bytes // 4 // size * size
    whole, part = torch.randn(n, device=device), torch.randn(n // size, device=device)
    other = torch.randn(n, device=device)
    first = rank - rank % size
    yield "all_gather", lambda: _all_gather(part, size, group)
    yield "reduce_scatter", lambda: _reduce_scatter(whole, size, group)
    yield "all_reduce", lambda: _wait(dist.all_reduce(whole.clone(), group=group, async_op=True))
    yield "all_to_all", lambda: _all_to_all(whole, size, group)
    yield "broadcast", lambda: _wait(dist.broadcast(other, first, group=group, async_op=True))
    if size == 2:
        yield "send", lambda: _pass_on(whole, rank, group)


def _wait(work: dist.Work | None) -> None:
    if work is not None:
        work.wait()


def _all_gather(part: torch.Tensor, size: int, group: dist.ProcessGroup) -> torch.Tensor:
    """Gathers and joins along a dim that is not the first, as half of a step's gathers must."""
    whole = part.new_empty(size * part.numel())
    _wait(dist.all_gather_into_tensor(whole, part, group=group, async_op=True))
    return torch.cat(whole.chunk(size))


def _reduce_scatter(whole: torch.Tensor, size: int, group: dist.ProcessGroup) -> torch.Tensor:
    """Lays the pieces side by side, then reduces them."""
    pieces = torch.stack(whole.chunk(size)).view(-1)
    part = whole.new_empty(whole.numel() // size)
    _wait(dist.reduce_scatter_tensor(part, pieces, group=group, async_op=True))
    return part


def _all_to_all(whole: torch.Tensor, size: int, group: dist.ProcessGroup) -> torch.Tensor:
    """Lays the pieces side by side, exchanges them, joins them."""
    pieces = torch.cat(whole.chunk(size))
    got = torch.empty_like(pieces)
    _wait(dist.all_to_all_single(got, pieces, group=group, async_op=True))
    return torch.cat(got.chunk(size))


def _pass_on(tensor: torch.Tensor, rank: int, group: dist.ProcessGroup) -> None:
    if rank % 2 == 0:
        dist.send(tensor, rank + 1, group=group)
    else:
        dist.recv(torch.empty_like(tensor), rank - 1, group=group)


def measure_collectives(
    rank: int, ranks: int, device: str, quick: bool, tell: Callable[[str], None]
) -> list[dict[str, object]]:
    """Seconds per call of every kind, size and group size: {kind, ranks, bytes, seconds}."""
    rows: list[dict[str, object]] = []
    for size in group_sizes(ranks):
        group = own_group(size, rank, ranks)
        tell(f"collectives in groups of {size}")
        for bytes in QUICK_SIZES if quick else SIZES:
            for kind, call in collective_calls(size, bytes, group, rank, device):
                seconds = agreed_seconds(call, device, 0.03 if quick else 0.06, 2 if quick else 3)
                rows.append({"kind": kind, "ranks": size, "bytes": float(bytes), "seconds": seconds})
    return rows


def agreed_seconds(call: Callable[[], object], device: str, window: float, windows: int) -> float:
    """Mean seconds of a call that all ranks repeat equally often; the median over windows."""
    seconds = _repeat(call, 2, device)
    estimate = torch.tensor([seconds], device=device)
    dist.all_reduce(estimate, dist.ReduceOp.MAX)
    times = int(min(200, max(3, window / max(1e-6, float(estimate)))))
    return median(_repeat(call, times, device) for _ in range(windows))


def _repeat(call: Callable[[], object], times: int, device: str) -> float:
    dist.barrier()
    synchronize(device)
    start = perf_counter()
    for _ in range(times):
        call()
    synchronize(device)
    return (perf_counter() - start) / times


def measure_overlap(device: str) -> float:
    """Share of an all-reduce (0 to 1) that hides behind a matrix product started after it."""
    side = 512 if device == "cpu" else 4096
    a, b = torch.randn(side, side, device=device), torch.randn(side, side, device=device)
    tensor = torch.randn(2**20 if device == "cpu" else 2**25, device=device)

    def compute() -> None:
        for _ in range(4):
            torch.mm(a, b)

    def communicate() -> None:
        dist.all_reduce(tensor, dist.ReduceOp.MAX)

    def both() -> None:
        waiting = dist.all_reduce(tensor, dist.ReduceOp.MAX, async_op=True)
        compute()
        if waiting is not None:
            waiting.wait()

    seconds = [agreed_seconds(call, device, 0.1, 3) for call in (compute, communicate, both)]
    hidden = (seconds[0] + seconds[1] - seconds[2]) / min(seconds[0], seconds[1])
    return min(1.0, max(0.0, hidden))


def measure_noise(device: str) -> float:
    """By what share short steps of computation and communication in turn differ from each other (0 to 1).

    Half the distance between a slow one and a fast one (each the second of its end), over their middle.
    """
    side = 256 if device == "cpu" else 4096
    a, b = torch.randn(side, side, device=device), torch.randn(side, side, device=device)
    tensor = torch.randn(2**14 if device == "cpu" else 2**22, device=device)

    def step() -> None:
        for _ in range(NOISE_TURNS):
            for _ in range(NOISE_PRODUCTS):
                torch.mm(a, b)
            dist.all_reduce(tensor, dist.ReduceOp.MAX)

    step()
    steps = sorted(_repeat(step, 1, device) for _ in range(NOISE_STEPS))
    return min(1.0, (steps[-2] - steps[1]) / 2 / steps[len(steps) // 2])
