"""hocket against torch's own ways to train in parallel: same model, batch and losses, side by side in one run."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from models import Gpt, Shape, batch, gpt
from record import Results

RANKS = 4
WARM = 3
ROUNDS, STEPS = 3, 5
"""Rounds of so many steps of each, one of one, then one of the other."""
RATE = 0.05
TARGET = 1.05
TOLERANCE = 1e-4
PAIRS = {
    "data parallel": ("dp=4", "DDP"),
    "ZeRO-3": ("dp=4,zero=3", "FSDP2"),
    "tensor parallel": ("tp=4", "parallelize_module"),
}


@dataclass
class Contestant:
    """Something that trains: `loss` of a whole batch as backward starts from it; `mean` says to average it."""

    name: str
    module: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[Tensor, Tensor], Tensor]
    mean: bool = False

    def step(self, data: tuple[Tensor, Tensor], update: bool) -> tuple[float, Tensor]:
        """Seconds of one step after everybody is ready, and its loss."""
        dist.barrier()
        start = time.perf_counter()
        loss = self.loss(*data)
        loss.backward()
        if update:
            self.optimizer.step()
        self.optimizer.zero_grad()
        return time.perf_counter() - start, loss.detach()


def ours(name: str, path: str, shape: Shape) -> Contestant:
    """hocket under a plan."""
    from hocket import api
    from hocket.plan.file import load_plan

    module = api.parallelize(gpt(shape), load_plan(path))
    return Contestant(name, module, torch.optim.SGD(module.parameters(), lr=RATE), module)


def theirs(name: str, shape: Shape) -> Contestant:
    """torch's own module of that name."""
    rank = dist.get_rank()
    rows = slice(rank * shape.batch // RANKS, (rank + 1) * shape.batch // RANKS)
    module: nn.Module = {"DDP": _ddp, "FSDP2": _fsdp, "parallelize_module": _split}[name](gpt(shape))
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    if name == "parallelize_module":
        return Contestant(name, module, optimizer, module)
    return Contestant(name, module, optimizer, lambda x, y: module(x[rows], y[rows]), mean=True)


def _ddp(model: Gpt) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model)


def _fsdp(model: Gpt) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (RANKS,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def _split(model: Gpt) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (RANKS,))
    columns = ("attention.query", "attention.key", "attention.value", "up")
    for block in model.blocks:
        styles: dict[str, Any] = {name: ColwiseParallel() for name in columns}
        styles |= {name: RowwiseParallel() for name in ("attention.out", "down")}
        parallelize_module(block, mesh, styles)
    return model


def compete(shape: Shape, pair: tuple[str, str], path: str, rounds: int, update: bool) -> dict[str, Any]:
    """On every rank: both contestants step by step in turns. Wall and processor seconds, loss difference."""
    both = (ours(f"hocket {pair[0]}", path, shape), theirs(pair[1], shape))
    found: dict[str, Any] = {"seconds": [[], []], "cpu": [[], []]}
    losses: list[list[float]] = [[], []]
    for number in range(WARM + rounds * STEPS):
        for index in (0, 1) if number % 2 else (1, 0):
            begun = time.process_time()
            taken, loss = both[index].step(batch(shape, number), update)
            if number >= WARM:
                found["seconds"][index].append(taken)
                found["cpu"][index].append(time.process_time() - begun)
            if both[index].mean:
                dist.all_reduce(loss)
                loss /= RANKS
            losses[index].append(loss.item())
    difference = max(abs(a - b) / abs(b) for a, b in zip(*losses, strict=True))
    return {**found, "difference": difference, "first": losses[0][0], "last": losses[0][-1]}


def summary(ranks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians of both, their ratio, the ratio of every round; a step's seconds are its slowest rank's."""
    mine, other = (
        [max(each) for each in zip(*(found["seconds"][i] for found in ranks), strict=True)] for i in (0, 1)
    )
    turns = [
        statistics.median(mine[i : i + STEPS]) / statistics.median(other[i : i + STEPS])
        for i in range(0, len(mine), STEPS)
    ]
    middle = statistics.median(mine), statistics.median(other)
    cpu = [statistics.median(s for found in ranks for s in found["cpu"][i]) for i in (0, 1)]
    return {
        "hocket": middle[0], "torch": middle[1], "ratio": middle[0] / middle[1], "ratios": turns,
        "cpu": cpu, "cpu_ratio": cpu[0] / cpu[1],
        "difference": max(found["difference"] for found in ranks),
        "losses": [ranks[0]["first"], ranks[0]["last"]], "steps": len(mine),
        "seconds": {"hocket": mine, "torch": other},
    }  # fmt: skip


def plans(shape: Shape, folder: Path) -> dict[str, str]:
    """A plan file per pair, made on this machine's quick calibration."""
    from hocket import api
    from hocket.cluster.local import local_cluster
    from hocket.measure.probe import probe

    cluster = local_cluster(RANKS, probe(RANKS, True))
    graph = api.capture(gpt(shape), batch(shape, 0))
    paths = {}
    for like, _ in PAIRS.values():
        paths[like] = str(folder / f"{like}.json")
        api.plan(graph, cluster, like=like, optimizer="sgd").save(paths[like])
    return paths


def main() -> None:
    from hocket.runtime.launch import spawn

    quick = "--quick" in sys.argv
    shape, rounds = Shape(), 2 if quick else ROUNDS
    columns = (
        "pair",
        "measured",
        "hocket ms",
        "torch ms",
        "ratio",
        "ratio per round",
        "processor time",
        "loss difference",
    )
    results = Results("pairs", "hocket beside torch on 4 local processes", columns)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        paths = plans(shape, Path(folder))
        for title, pair in PAIRS.items():
            for update in (False, True):
                arguments = (shape, pair, paths[pair[0]], rounds, update)
                entry = summary(spawn(compete, RANKS, arguments, timeout=200.0))
                what = "with SGD step" if update else "forward, backward, sync"
                found[f"{title}, {what}"] = entry
                spread = f"{min(entry['ratios']):.2f} to {max(entry['ratios']):.2f}"
                results.rows.append((
                    f"{pair[0]} : {pair[1]}", what, f"{entry['hocket'] * 1e3:.1f}", f"{entry['torch'] * 1e3:.1f}",
                    f"{entry['ratio']:.3f}", spread, f"{entry['cpu_ratio']:.3f}", f"{entry['difference']:.0e}",
                ))  # fmt: skip
                print(" | ".join(results.rows[-1]), flush=True)
    for title, entry in found.items():
        results.target(f"{title} <= {TARGET}", entry["ratio"] <= TARGET, f"{entry['ratio']:.3f}")
    worst = max(entry["difference"] for entry in found.values())
    results.target(f"losses equal to {TOLERANCE:g}", worst <= TOLERANCE, f"{worst:.0e}")
    results.data = {"pairs": found, "shape": str(shape), "load_after": os.getloadavg()[0]}
    results.remarks = [
        f"{shape}, float32, one thread per process; both contestants live in the same processes and take turns, "
        f"step by step; a step's time is that of its slowest rank after a barrier, the medians are of "
        f"{rounds * STEPS} steps each.",
        "Processor time is the ratio of what one rank uses per step, waiting excluded as far as it sleeps: other "
        "programs on the machine disturb it less than the step time. Load before the run is listed above, "
        "that after it is in the JSON file.",
        "hocket's forward returns the loss of the whole batch (an all-reduce more than DDP and FSDP2 do).",
    ]
    results.show()
    if not quick:
        results.save("python benchmarks/pairs.py")


if __name__ == "__main__":
    main()
