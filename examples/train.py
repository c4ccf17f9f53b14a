"""A training script under a plan. Start it with `hocket run plan.json examples/train.py 20` or torchrun.

It differs from a script for one device in three lines: joining the ranks, reading the plan, parallelizing.
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist

from hocket import api
from hocket.plan.file import load_plan
from hocket.runtime.launch import init
from language import batch, gpt, text


def main(steps: int) -> None:
    init()
    plan = load_plan(os.environ["HOCKET_PLAN"])
    model = api.parallelize(gpt()[0], plan)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    source = text()
    for step in range(steps):
        here = batch(source, step)
        dist.barrier()
        start = time.perf_counter()
        loss = model(**here)
        loss.backward()
        seconds = time.perf_counter() - start
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(step, loss.item(), seconds)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
