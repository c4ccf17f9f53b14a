"""Predicted against measured step time: many plans of two GPT-2 shapes on 4 local processes, after a probe."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from record import Results

RANKS = 4
WARM, ROUNDS, STEPS = 1, 3, 3
"""Every plan runs STEPS steps in each of ROUNDS turns."""
TARGET_ERROR, TARGET_ORDER = 0.15, 0.9

SHAPES = {
    "wide": {"n_embd": 256, "n_layer": 4, "n_head": 8, "vocab_size": 256, "length": 128, "batch": 16},
    "short": {"n_embd": 384, "n_layer": 2, "n_head": 8, "vocab_size": 1024, "length": 64, "batch": 8},
}
PLANS: dict[str, dict[str, Any]] = {
    "dp=4": {"like": "dp=4"},
    "dp=4,zero=2": {"like": "dp=4,zero=2"},
    "dp=4,zero=3": {"like": "dp=4,zero=3"},
    "tp=4": {"like": "tp=4"},
    "tp=2,dp=2": {"like": "tp=2,dp=2"},
    "tp=2,dp=2,zero=3": {"like": "tp=2,dp=2,zero=3"},
    "auto": {},
    "greedy": {"search": "greedy"},
    "mesh 2x2": {"pins": ("mesh=2x2",)},
}


def made(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """The model of a shape and its batch, the same on every rank."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = dict(SHAPES[name])
    length, batch = sizes.pop("length"), sizes.pop("batch")
    torch.manual_seed(0)
    config = GPT2Config(
        **sizes, n_positions=length, use_cache=False, bos_token_id=0, eos_token_id=0,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    tokens = torch.randint(sizes["vocab_size"], (batch, length))
    return GPT2LMHeadModel(config).train(), {"input_ids": tokens, "labels": tokens}


def measure(name: str, paths: Sequence[str], rounds: int) -> dict[str, list[Any]]:
    """On every rank: seconds of every step of every plan, in turns; and the losses."""
    from hocket import api
    from hocket.plan.file import load_plan

    modules = [api.parallelize(made(name)[0], load_plan(path)) for path in paths]
    data = made(name)[1]
    seconds: list[list[float]] = [[] for _ in modules]
    losses = [0.0 for _ in modules]
    for turn in range(-1, rounds):
        for index, module in enumerate(modules):
            for _ in range(WARM if turn < 0 else STEPS):
                module.zero_grad()
                dist.barrier()
                start = time.perf_counter()
                loss = module(**data)
                loss.backward()
                if turn >= 0:
                    seconds[index].append(time.perf_counter() - start)
                losses[index] = loss.item()
    return {"seconds": seconds, "losses": losses}


def spearman(left: Sequence[float], right: Sequence[float]) -> float:
    """Correlation of the ranks of two equally long lists, ties sharing their mean rank."""

    def ranks(values: Sequence[float]) -> list[float]:
        return [sum(v < own for v in values) + (sum(v == own for v in values) + 1) / 2 for own in values]

    return statistics.correlation(ranks(left), ranks(right))


def plan_all(name: str, cluster: Any, folder: Path) -> dict[str, tuple[str, float]]:
    """File and predicted seconds of every plan of a shape."""
    from hocket import api

    model, data = made(name)
    graph = api.capture(model, data)
    found = {}
    for title, options in PLANS.items():
        plan = api.plan(graph, cluster, budget=20.0, **options)
        path = folder / f"{name}-{title}.json"
        plan.save(path)
        found[title] = str(path), plan.seconds
    return found


def run(name: str, cluster: Any, rounds: int) -> list[dict[str, Any]]:
    """Predicted and measured seconds of every plan of a shape."""
    from hocket.runtime.launch import spawn

    with tempfile.TemporaryDirectory() as folder:
        planned = plan_all(name, cluster, Path(folder))
        paths = [path for path, _ in planned.values()]
        ranks = spawn(measure, RANKS, (name, paths, rounds), timeout=250.0)
    rows = []
    for index, (title, (_, predicted)) in enumerate(planned.items()):
        steps = [max(each) for each in zip(*(found["seconds"][index] for found in ranks), strict=True)]
        measured = statistics.median(steps)
        rows.append({
            "shape": name, "plan": title, "predicted": predicted, "measured": measured,
            "error": predicted / measured - 1, "least": min(steps), "most": max(steps),
            "loss": ranks[0]["losses"][index], "steps": len(steps),
        })  # fmt: skip
    return rows


def main() -> None:
    from hocket.cluster.local import local_cluster
    from hocket.measure.probe import probe

    quick = "--quick" in sys.argv
    shapes = [name for name in SHAPES if name in sys.argv] or list(SHAPES)
    calibration = probe(RANKS, quick)
    cluster = local_cluster(RANKS, calibration)
    columns = ("plan", "predicted ms", "measured ms", "error", "least to most ms")
    results = Results("predict", "Predicted against measured step time on 4 local processes", columns)
    rows = [row for name in shapes for row in run(name, cluster, 2 if quick else ROUNDS)]
    for row in rows:
        results.rows.append((
            f"{row['shape']}: {row['plan']}", f"{row['predicted'] * 1e3:.1f}", f"{row['measured'] * 1e3:.1f}",
            f"{row['error']:+.1%}", f"{row['least'] * 1e3:.1f} to {row['most'] * 1e3:.1f}",
        ))  # fmt: skip
    middle = statistics.median(abs(row["error"]) for row in rows)
    text = f"median error <= {TARGET_ERROR:.0%} over {len(rows)} plans"
    results.target(text, middle <= TARGET_ERROR, f"{middle:.1%}")
    for label, part in (("all", shapes), *((name, [name]) for name in shapes)):
        chosen = [row for row in rows if row["shape"] in part]
        order = spearman([row["predicted"] for row in chosen], [row["measured"] for row in chosen])
        results.target(f"Spearman of {label} >= {TARGET_ORDER}", order >= TARGET_ORDER, f"{order:.2f}")
    results.data = {"plans": rows, "shapes": SHAPES, "calibration": calibration.to_dict()}
    results.remarks = [
        *(f"{name}: {sizes}" for name, sizes in SHAPES.items()),
        "float32, one thread per process; forward and backward, without optimizer; all plans of a shape live in "
        "the same processes and take turns; a step's time is that of its slowest rank after a barrier.",
    ]
    results.show()
    if not quick and len(shapes) == len(SHAPES):
        results.save("python benchmarks/predict.py")


if __name__ == "__main__":
    main()
