"""Schedules that torch.distributed.pipelining executes: it trains by them, and its gradients are the unsplit ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
from torch.nn.functional import mse_loss

from hocket.pipeline.kinds import make_order
from hocket.pipeline.order import Order
from hocket.pipeline.to_torch import to_torch
from hocket.runtime.launch import spawn

WIDTH, ROWS = 8, 4


def layers(count: int) -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(count)]


def data(microbatches: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(microbatches * ROWS, WIDTH), torch.randn(microbatches * ROWS, WIDTH)


def train(order: Order, path: Path) -> dict[str, Tensor]:
    """One step under torch's runtime; the gradients of this rank's stages."""
    rank = dist.get_rank()
    own = sorted(stage for stage, place in order.places.items() if place == rank)
    modules = layers(order.stages)
    stages = [PipelineStage(modules[s], s, order.stages, torch.device("cpu")) for s in own]
    if rank == 0:
        path.write_text(to_torch(order))
    dist.barrier()
    runtime = _PipelineScheduleRuntime(stages, order.microbatches, loss_fn=mse_loss)
    runtime._load_csv(str(path), format="compute_only")
    x, wanted = data(order.microbatches)
    last = order.stages - 1 in own
    runtime.step(*([x] if 0 in own else []), **({"target": wanted, "losses": []} if last else {}))
    return {f"{s}.{n}": p.grad for s in own for n, p in modules[s].named_parameters() if p.grad is not None}


@pytest.mark.proof
@pytest.mark.parametrize(
    ("kind", "ranks", "chunks", "microbatches"),
    [("vpp", 4, 2, 5), ("vpp", 2, 3, 3), ("1f1b", 4, 1, 9), ("zb-v", 2, 1, 5), ("zb", 3, 1, 4)],
)
def test_torch_trains_by_it(kind: str, ranks: int, chunks: int, microbatches: int, tmp_path: Path) -> None:
    order = make_order(kind, ranks, chunks, microbatches)
    modules = layers(order.stages)
    x, wanted = data(microbatches)
    mse_loss(nn.Sequential(*modules)(x), wanted).backward()
    unsplit = {f"{s}.{n}": p.grad for s, module in enumerate(modules) for n, p in module.named_parameters()}
    found: dict[str, Tensor] = {}
    for part in spawn(train, ranks, (order, tmp_path / "order.csv")):
        found |= part
    assert found.keys() == unsplit.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, unsplit[name], rtol=1e-4, atol=1e-6)
