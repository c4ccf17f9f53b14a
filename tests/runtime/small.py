"""A small transformer with everything that a module can have: ties, buffers, dropout; and plans for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from plans import programs_of, random_stage
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from hocket.capture import capture
from hocket.cluster.local import local_cluster
from hocket.cost.prices import MeshPrices
from hocket.pipeline.schedule import Schedule
from hocket.plan.types import Memory, Plan, SearchRecord
from hocket.program.types import Program
from hocket.search.builder import build_problem
from hocket.sharding.mesh import Mesh
from hocket.sharding.shares import Shares

VOCAB, WIDTH, HEADS, LENGTH, BATCH = 48, 16, 4, 8, 8


class Small(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.head.weight = self.embed.weight
        self.drop = nn.Dropout(dropout)
        self.register_buffer("seen", torch.zeros(3))
        self.register_buffer("scale", torch.full((WIDTH,), 1.5), persistent=False)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.embed(tokens) * self.scale
        batch, length, width = x.shape
        parts = self.qkv(self.norm(x)).split(width, dim=-1)
        q, k, v = (p.view(batch, length, HEADS, width // HEADS).transpose(1, 2) for p in parts)
        attended = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(attended.transpose(1, 2).reshape(batch, length, width))
        x = x + self.mlp(self.norm(x))
        loss = cross_entropy(self.head(x).flatten(0, 1), labels.flatten())
        self.seen.add_(loss.detach())
        return loss


@dataclass(frozen=True)
class Builder:
    """A rank's program; picklable, so that it can be sent to other processes."""

    plan: Plan

    def __call__(self, rank: int) -> Program:
        return programs_of(self.plan.graph, self.plan.stage)[rank]


def small(seed: int = 0, dropout: float = 0.0) -> Small:
    torch.manual_seed(seed)
    model = Small(dropout)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def batch(seed: int, rows: int = BATCH) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return (
        torch.randint(VOCAB, (rows, LENGTH), generator=draw),
        torch.randint(VOCAB, (rows, LENGTH), generator=draw),
    )


def plan_for(
    mesh: Mesh,
    seed: int,
    dropout: float = 0.0,
    microbatches: int = 1,
    shares: tuple[tuple[Shares, ...], ...] = (),
) -> Plan:
    """A random plan for Small, so that layouts of every kind appear."""
    graph = capture(small(0, dropout), batch(0))
    cluster = local_cluster(mesh.devices)
    stage = random_stage(build_problem(graph, mesh, MeshPrices(cluster, mesh), shares=shares), seed)
    record = SearchRecord("random", "", 0.0, True)
    return Plan(graph, cluster, (stage,), Schedule(microbatches=microbatches), 1.0, 0.0, Memory(), record)


def losses_of(
    model: nn.Module, optimizer: Callable[..., torch.optim.Optimizer], steps: int
) -> tuple[list[float], nn.Module]:
    """The losses of plain PyTorch, one process."""
    chosen = optimizer(model.parameters())
    losses = []
    for step in range(steps):
        chosen.zero_grad()
        loss = model(*batch(step))
        loss.backward()
        chosen.step()
        losses.append(loss.item())
    return losses, model
