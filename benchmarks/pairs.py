"""hocket against torch's own ways to train in parallel: same model, batch and losses, side by side in one run."""

from __future__ import annotations

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
WARM = 4
ROUNDS, STEPS = 4, 5
"""Rounds of so many steps of one, then of the other."""
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
    """On every rank: both contestants in turns. Their seconds per step and the largest loss difference."""
    pairs = (ours(f"hocket {pair[0]}", path, shape), theirs(pair[1], shape))
    seconds: list[list[float]] = [[], []]
    losses: list[list[float]] = [[], []]
    for turn in range(-1, rounds):
        for index, contestant in enumerate(pairs):
            for step in range(WARM if turn < 0 else STEPS):
                number = step if turn < 0 else WARM + turn * STEPS + step
                taken, loss = contestant.step(batch(shape, number), update)
                if contestant.mean:
                    dist.all_reduce(loss)
                    loss /= RANKS
                losses[index].append(loss.item())
                if turn >= 0:
                    seconds[index].append(taken)
    difference = max(abs(a - b) / abs(b) for a, b in zip(*losses, strict=True))
    return {"seconds": seconds, "difference": difference, "first": losses[0][0], "last": losses[0][-1]}


def slowest(ranks: Sequence[dict[str, Any]], index: int) -> list[float]:
    """Seconds of every step: those of its slowest rank."""
    return [max(each) for each in zip(*(found["seconds"][index] for found in ranks), strict=True)]


def summary(ranks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians of both, their ratio, and the ratio of every round."""
    mine, other = slowest(ranks, 0), slowest(ranks, 1)
    turns = [
        statistics.median(mine[i : i + STEPS]) / statistics.median(other[i : i + STEPS])
        for i in range(0, len(mine), STEPS)
    ]
    middle = statistics.median(mine), statistics.median(other)
    return {
        "hocket": middle[0], "torch": middle[1], "ratio": middle[0] / middle[1], "ratios": turns,
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
    columns = ("pair", "measured", "hocket ms", "torch ms", "ratio", "ratio per round", "loss difference")
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
                    f"{entry['ratio']:.3f}", spread, f"{entry['difference']:.0e}",
                ))  # fmt: skip
                print(" | ".join(results.rows[-1]), flush=True)
    for title, entry in found.items():
        results.target(f"{title} <= {TARGET}", entry["ratio"] <= TARGET, f"{entry['ratio']:.3f}")
    worst = max(entry["difference"] for entry in found.values())
    results.target(f"losses equal to {TOLERANCE:g}", worst <= TOLERANCE, f"{worst:.0e}")
    results.data = {"pairs": found, "shape": str(shape)}
    results.remarks = [
        f"{shape}, float32, one thread per process; both contestants live in the same processes and take turns "
        f"of {STEPS} steps; a step's time is that of its slowest rank after a barrier, the medians are of "
        f"{rounds * STEPS} steps each.",
        "hocket's forward returns the loss of the whole batch (an all-reduce more than DDP and FSDP2 do).",
    ]
    results.show()
    if not quick:
        results.save("python benchmarks/pairs.py")


if __name__ == "__main__":
    main()
