"""One rank of a probe: joins the others, measures, writes what it saw to a file."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from hocket.measure.clock import seconds_per_call, share_clock
from hocket.measure.collectives import measure_collectives, measure_overlap
from hocket.measure.kernels import Sample, kind_samples, launch_samples, product_samples, traffic_samples

JOIN_TIMEOUT = timedelta(seconds=60)


def measure_kernels(
    device: str, quick: bool, together: Callable[[], None], clock: Callable[[], float], steady: bool = False
) -> list[dict[str, object]]:
    """Seconds per call of every sample; `together` is called before each so that all ranks are busy.

    With `steady` it is the mean over one longer window: a machine that stops now and then because its share of a
    core is used up does so in a step, too.
    """
    window, windows = (0.012, 3) if quick else (0.025, 5)
    if steady:
        window, windows = 2 * window * windows, 1
    rows: list[dict[str, object]] = []
    dtypes = (torch.float32,) if quick and device == "cpu" else (torch.float32, torch.bfloat16)
    if device == "cuda":
        dtypes = (*dtypes, torch.float16)
    for samples in (
        launch_samples(device),
        product_samples(device, dtypes, quick),
        traffic_samples(device, quick),
        kind_samples(device, quick),
    ):
        for sample in samples:
            together()
            rows.append(_row(sample, seconds_per_call(sample.calls, device, window, windows, clock)))
    return rows


def _row(sample: Sample, seconds: float) -> dict[str, object]:
    return {
        "topic": sample.topic,
        "name": sample.name,
        "flops": sample.flops,
        "bytes": sample.bytes,
        "elements": sample.elements,
        "seconds": seconds,
    }


def run(rank: int, ranks: int, cores: int, port: int, device: str, quick: bool, path: Path) -> None:
    """Measure as rank `rank` of `ranks` that meet at a port of the loopback; write JSON to `path`."""
    torch.manual_seed(rank)
    if ranks > 1:
        store = dist.TCPStore(  # type: ignore[attr-defined]
            "127.0.0.1", port, is_master=False, timeout=JOIN_TIMEOUT
        )
        backend = "nccl" if device == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=JOIN_TIMEOUT)

    def together() -> None:
        if ranks > 1:
            dist.barrier()

    def tell(text: str) -> None:
        if rank == 0:
            print(text, flush=True)

    result: dict[str, object] = {"memory": 0, "name": "CPU", "collectives": [], "overlap": 0.0}
    if device == "cuda":
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        result |= {"memory": properties.total_memory, "name": properties.name}
    tell("computation")
    result["kernels"] = measure_kernels(device, quick, together, share_clock(ranks, cores, device))
    if ranks > 1:
        result["collectives"] = measure_collectives(rank, ranks, device, quick, tell)
        tell("overlap")
        result["overlap"] = measure_overlap(device)
        dist.barrier()
        dist.destroy_process_group()
    elif device == "cuda":
        result["overlap"] = 1.0  # streams run beside each other; nothing to measure it against on one device
    path.write_text(json.dumps(result))


def main(arguments: list[str]) -> None:
    """Entry of a rank's process: rank, ranks, cores, port, device, threads, quick, path."""
    rank, ranks, cores, port, device, threads, quick, path = arguments
    torch.set_num_threads(int(threads))
    if device == "cuda":
        torch.cuda.set_device(int(rank))
    run(int(rank), int(ranks), int(cores), int(port), device, quick == "quick", Path(path))


if __name__ == "__main__":
    main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may outlive the interpreter's shutdown
