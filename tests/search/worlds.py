"""Made-up clusters and small models whose best layouts are known."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from hocket.cluster.types import Cluster


def cluster_of(
    devices: int, memory: str = "80GB", link: str = "300GB/s", latency: float = 1e-6, **device: Any
) -> Cluster:
    """One machine of equal devices: 100 TFLOP/s, 2 TB/s, launches that cost next to nothing."""
    return Cluster.from_dict(
        {
            "format": "hocket-cluster/1",
            "machines": [
                {
                    "name": "m",
                    "count": devices,
                    "link": {"bandwidth": link, "latency": latency},
                    "device": {
                        "name": "d",
                        "memory": memory,
                        "flops_per_second": {"float32": 1e14},
                        "bandwidth": 2e12,
                        "launch": 1e-7,
                        **device,
                    },
                }
            ],
            "memory_reserve": 0.0,
        }
    )


class Perceptron(nn.Module):
    """Two linear layers and a squared error."""

    def __init__(self, width: int, hidden: int, layers: int = 1) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, hidden, bias=False), nn.ReLU(), nn.Linear(hidden, width, bias=False))
            for _ in range(layers)
        )

    def forward(self, x: Tensor, wanted: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return ((x - wanted) ** 2).mean()


def perceptron(width: int, hidden: int, rows: int, layers: int = 1) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    with torch.device("meta" if width * hidden > 2**16 else "cpu"):
        return Perceptron(width, hidden, layers), (torch.randn(rows, width), torch.randn(rows, width))


class Experts(nn.Module):
    """A mixture of experts with fixed capacity: one-hot dispatch and combine as einsums."""

    def __init__(self, width: int, hidden: int, experts: int, capacity: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, hidden) * 0.05)
        self.down = nn.Parameter(torch.randn(experts, hidden, width) * 0.05)
        self.capacity = capacity

    def forward(self, x: Tensor, slots: Tensor, wanted: Tensor) -> Tensor:
        """x, wanted [groups, tokens, width]; slots [groups, tokens, experts, capacity] is 1 where a token goes."""
        gates = self.router(x).softmax(-1)
        inside = torch.einsum("gtec,gtd->egcd", slots, x)
        hidden = torch.relu(torch.einsum("egcd,edh->egch", inside, self.up))
        done = torch.einsum("egch,ehd->egcd", hidden, self.down)
        out = torch.einsum("gtec,egcd->gtd", slots * gates.unsqueeze(-1), done)
        return ((x + out - wanted) ** 2).mean()


def experts(
    groups: int, tokens: int, width: int, hidden: int, count: int, capacity: int
) -> tuple[nn.Module, tuple[Tensor, Tensor, Tensor]]:
    torch.manual_seed(0)
    with torch.device("meta" if count * width * hidden > 2**16 else "cpu"):
        model = Experts(width, hidden, count, capacity)
        x, wanted = torch.randn(groups, tokens, width), torch.randn(groups, tokens, width)
        slots = (torch.rand(groups, tokens, count, capacity) < 1.0 / count).float()
    return model, (x, slots, wanted)


class Words(nn.Module):
    """An embedding, one layer, and a loss over the vocabulary, whose head is the embedding."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layer = nn.Linear(width, width, bias=False)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = torch.relu(self.layer(self.embed(tokens)))
        return cross_entropy(self.head(x), labels)


def words(vocabulary: int, width: int, rows: int) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    with torch.device("meta" if vocabulary * width > 2**16 else "cpu"):
        model = Words(vocabulary, width)
        return model, (torch.randint(vocabulary, (rows,)), torch.randint(vocabulary, (rows,)))


class Tall(nn.Module):
    """Much work on every sample, then a large fully connected layer on what is left of it."""

    def __init__(self, width: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, width))
        self.head = nn.Linear(width, classes, bias=False)

    def forward(self, x: Tensor, wanted: Tensor) -> Tensor:
        """x [samples, rows, width]; wanted [samples, classes]."""
        return ((self.head(self.body(x).sum(1)) - wanted) ** 2).mean()


def tall(samples: int, rows: int, width: int, hidden: int, classes: int) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    with torch.device("meta"):
        return Tall(width, hidden, classes), (torch.randn(samples, rows, width), torch.randn(samples, classes))
