"""A plain PyTorch GPT with separate projections, as one would write it for torch's own parallel styles."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    """Sizes of a GPT and its batch."""

    hidden: int = 256
    layers: int = 4
    heads: int = 8
    vocab: int = 256
    length: int = 128
    batch: int = 8


class Attention(nn.Module):
    """Causal attention; heads are counted from the projections' width, so that it also runs split by heads."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.width = shape.hidden // shape.heads
        self.query = nn.Linear(shape.hidden, shape.hidden)
        self.key = nn.Linear(shape.hidden, shape.hidden)
        self.value = nn.Linear(shape.hidden, shape.hidden)
        self.out = nn.Linear(shape.hidden, shape.hidden)

    def forward(self, x: Tensor) -> Tensor:
        """x [batch, rows, hidden] -> the same shape."""
        batch, rows, _ = x.shape
        parts = [
            part(x).view(batch, rows, -1, self.width).transpose(1, 2) for part in (self.query, self.key, self.value)
        ]
        mixed = functional.scaled_dot_product_attention(*parts, is_causal=True)
        result: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, rows, -1))
        return result


class Block(nn.Module):
    """Attention and a two-layer perceptron, each after a norm and around a residual."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(shape.hidden), nn.LayerNorm(shape.hidden)
        self.attention = Attention(shape)
        self.up = nn.Linear(shape.hidden, 4 * shape.hidden)
        self.down = nn.Linear(4 * shape.hidden, shape.hidden)

    def forward(self, x: Tensor) -> Tensor:
        """x [batch, rows, hidden] -> the same shape."""
        x = x + self.attention(self.before(x))
        return x + self.down(functional.gelu(self.up(self.between(x))))


class Gpt(nn.Module):
    """Tokens to the mean loss of the next tokens."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.places = nn.Embedding(shape.length, shape.hidden)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.hidden)
        self.head = nn.Linear(shape.hidden, shape.vocab, bias=False)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """tokens, labels [batch, rows] -> scalar."""
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


def gpt(shape: Shape, seed: int = 0) -> Gpt:
    """The model with random weights that only depend on the seed."""
    torch.manual_seed(seed)
    return Gpt(shape).train()


def batch(shape: Shape, seed: int) -> tuple[Tensor, Tensor]:
    """Random tokens and labels, [batch, rows] each, that only depend on the seed."""
    draw = torch.Generator().manual_seed(seed)
    size = (shape.batch, shape.length)
    return torch.randint(shape.vocab, size, generator=draw), torch.randint(shape.vocab, size, generator=draw)
