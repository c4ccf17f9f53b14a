"""What one rank of the testbed does: `probe` writes the cluster, `train` times plans in turns."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

WARM, STEPS, ROUNDS = 1, 1, 3
"""Every plan runs STEPS steps in each of ROUNDS turns, after WARM steps in all."""


def probe(folder: Path) -> None:
    """Measure the machines; rank 0 writes what all agree on."""
    from hocket.measure.mixed import probe_ranks

    cluster = probe_ranks(os.environ["HOCKET_MACHINE"])
    if dist.get_rank() == 0:
        (folder / "cluster.json").write_text(json.dumps(cluster.to_dict()))


def train(folder: Path) -> None:
    """Time every plan of the list, model by model, in turns; rank 0 writes seconds and losses."""
    from hocket import api
    from hocket.plan.file import load_plan
    from models import make

    jobs: list[dict[str, Any]] = json.loads((folder / "jobs.json").read_text())
    results = []
    for name in dict.fromkeys(job["model"] for job in jobs):
        own = [job for job in jobs if job["model"] == name]
        data = make(name)[1]
        modules = [api.parallelize(make(name)[0], load_plan(job["plan"]), timeout=120.0) for job in own]
        seconds: list[list[float]] = [[] for _ in own]
        losses = [0.0] * len(own)
        for turn in range(-1, ROUNDS):
            for index, module in enumerate(modules):
                for _ in range(WARM if turn < 0 else STEPS):
                    module.zero_grad()
                    dist.barrier()
                    start = time.perf_counter()
                    loss = module(**data)
                    loss.backward()
                    taken = torch.tensor([time.perf_counter() - start])
                    dist.all_reduce(taken, dist.ReduceOp.MAX)
                    losses[index] = loss.item()
                    if turn >= 0:
                        seconds[index].append(taken.item())
        results += [{**job, "seconds": s, "loss": loss} for job, s, loss in zip(own, seconds, losses, strict=True)]
        if dist.get_rank() == 0:
            print(name, flush=True)
    if dist.get_rank() == 0:
        (folder / "results.json").write_text(json.dumps(results))


def main() -> None:
    from hocket.runtime.launch import init

    torch.set_num_threads(1)
    init(timeout=120.0)
    {"probe": probe, "train": train}[sys.argv[1]](Path(sys.argv[2]))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may outlive the interpreter's shutdown


if __name__ == "__main__":
    main()
