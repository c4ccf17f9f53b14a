"""Measured steps of pipelines on local processes: hocket beside torch.distributed.pipelining, the same stages.

    python benchmarks/pipeline_runs.py [--steps N]

Four processes, one stage (or two chunks) each; both sides run in turns in the same processes, so that what else the
machine does meets both alike.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from record import Results

RANKS, LAYERS, WIDTH, HEADS, TOKENS, VOCABULARY, SAMPLES = 4, 8, 256, 4, 64, 512, 4
CASES = (
    # kind, chunks, microbatches, torch's schedule, microbatches that torch's takes
    ("fthenb", 1, 8, "ScheduleGPipe", 8),
    ("1f1b", 1, 8, "Schedule1F1B", 8),
    ("vpp", 2, 8, "ScheduleInterleaved1F1B", 8),
    ("vpp", 2, 5, "ScheduleInterleaved1F1B", 4),
    ("vpp", 2, 9, "ScheduleInterleaved1F1B", 8),
    ("zb-v", 2, 8, "ScheduleZBVZeroBubble", 8),
)


class Block(nn.Module):
    """A layer of a Transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention and feed-forward on [samples, tokens, width]."""
        b, s, _ = x.shape
        q, k, v = self.qkv(self.one(x)).view(b, s, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, s, WIDTH))
        return x + self.down(nn.functional.gelu(self.up(self.two(x))))


class Gpt(nn.Module):
    """A small language model that gives its loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The mean loss of [samples, tokens]."""
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return loss_of(self.head(self.norm(x)), labels)


class Part(nn.Module):
    """A stage of it, for torch."""

    def __init__(self, whole: Gpt, stage: int, stages: int) -> None:
        super().__init__()
        size = LAYERS // stages
        self.embed = whole.embed if stage == 0 else None
        self.layers = nn.ModuleList(whole.layers[stage * size : (stage + 1) * size])
        self.tail = nn.Sequential(whole.norm, whole.head) if stage == stages - 1 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What the next stage takes."""
        x = self.embed(x) if self.embed is not None else x
        for layer in self.layers:
            x = layer(x)
        return self.tail(x) if self.tail is not None else x


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def batch_of(microbatches: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(microbatches)
    return tuple(torch.randint(0, VOCABULARY, (SAMPLES * microbatches, TOKENS)) for _ in range(2))  # type: ignore[return-value]


def torch_step(name: str, chunks: int, microbatches: int) -> Any:
    """A step of torch.distributed.pipelining, giving the mean loss on the rank that has it."""
    from torch.distributed import pipelining
    from torch.distributed.pipelining import schedules

    rank, stages = dist.get_rank(), RANKS * chunks
    whole = Gpt()
    own = (rank, 2 * RANKS - 1 - rank) if name == "ScheduleZBVZeroBubble" else range(rank, stages, RANKS)
    made = [pipelining.PipelineStage(Part(whole, s, stages), s, stages, torch.device("cpu")) for s in own]
    kind = getattr(schedules, name)
    many = issubclass(kind, schedules.PipelineScheduleMulti)
    schedule = kind(made if many else made[0], n_microbatches=microbatches, loss_fn=loss_of)
    tokens, labels = batch_of(microbatches)
    first, last = 0 in own, stages - 1 in own
    modules = [stage.submod for stage in made]

    def step() -> float | None:
        for module in modules:
            module.zero_grad(set_to_none=True)
        losses: list[torch.Tensor] = []
        extra = {"target": labels, "losses": losses} if last else {}
        schedule.step(*((tokens,) if first else ()), **extra)
        return torch.stack(losses).mean().item() if last else None

    return step


def hocket_step(kind: str, chunks: int, microbatches: int) -> Any:
    """The same by hocket."""
    import hocket

    tokens, labels = batch_of(microbatches)
    model = Gpt()
    graph = hocket.capture(model, (tokens[:SAMPLES], labels[:SAMPLES]))
    each = "+".join([str(LAYERS // RANKS)] * RANKS)
    shape = f"stages={RANKS},chunks={chunks},kind={kind},layers={each}"
    plan = hocket.plan(graph, hocket.Cluster.local(RANKS), pipeline=shape, microbatches=microbatches)
    module: Any = hocket.parallelize(model, plan)

    def step() -> float:
        module.zero_grad(set_to_none=True)
        loss: torch.Tensor = module.step(tokens, labels)
        return loss.item()

    return step


def measured(
    steps: int, case: tuple[str, int, int, str, int]
) -> tuple[list[float], list[float], list[float | None]]:
    """Seconds of every step of both, in turns, on this rank; the losses."""
    torch.set_num_threads(1)
    kind, chunks, microbatches, name, theirs = case
    both = (hocket_step(kind, chunks, microbatches), torch_step(name, chunks, theirs))
    losses = [run() for run in both]
    taken: tuple[list[float], list[float]] = ([], [])
    for number in range(2 * steps):
        dist.barrier()
        begun = time.perf_counter()
        both[number % 2]()
        taken[number % 2].append(time.perf_counter() - begun)
    return *taken, losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=15)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    from hocket.runtime.launch import spawn

    columns = ("schedule", "microbatches", "hocket ms", "torch ms (microbatches)", "hocket / torch, per microbatch")
    results = Results("pipeline_runs", "Measured steps of pipelines beside torch.distributed.pipelining", columns)
    worst = 0.0
    for case in CASES:
        kind, chunks, count, name, theirs = case
        ranks = spawn(measured, RANKS, (options.steps, case))
        mine, other = ([statistics.median(max(step) for step in zip(*(r[side] for r in ranks), strict=True))][0]
                       for side in (0, 1))  # fmt: skip
        losses = {side: next(r[2][side] for r in ranks if r[2][side] is not None) for side in (0, 1)}
        if count == theirs and abs(losses[0] - losses[1]) > 1e-4 * abs(losses[1]):
            raise SystemExit(f"losses differ: {losses}")
        ratio = mine / count / (other / theirs)
        worst = max(worst, ratio)
        title = kind + (f", {chunks} chunks" if chunks > 1 else "")
        results.rows.append(
            (title, str(count), f"{mine * 1e3:.1f}", f"{other * 1e3:.1f} ({name}, {theirs})", f"{ratio:.2f}")
        )
        results.data[f"{title}, {count}"] = {"hocket": mine, "torch": other, "torch_microbatches": theirs}
    results.target("step time at most 1.05x torch's", worst <= 1.05, f"worst {worst:.2f}")
    results.remarks.append(f"{RANKS} processes with gloo, {LAYERS} layers of width {WIDTH}, {SAMPLES} samples of "
                           f"{TOKENS} tokens a microbatch; medians of the slowest rank.")  # fmt: skip
    results.save(f"python benchmarks/pipeline_runs.py --steps {options.steps}")
    results.show()


if __name__ == "__main__":
    main()
