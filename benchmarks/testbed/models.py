"""The four models of HAP's evaluation (section 7.1), scaled to fit a testbed of fractions of cores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Made = tuple[nn.Module, dict[str, Tensor]]
VGG19 = (64, 64, "M", 128, 128, "M", 256, 256, 256, 256, "M", 512, 512, 512, 512, "M", 512, 512, 512, 512, "M")
"""Channels of the convolutions of VGG-19 (Simonyan and Zisserman 2014, table 1, E); M is max pooling."""


class Vgg(nn.Module):
    """VGG-19 for images of 32 x 32, channels and classifier divided by `shrink`."""

    def __init__(self, shrink: int, classes: int = 10) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = 3
        for item in VGG19:
            if isinstance(item, str):
                layers.append(nn.MaxPool2d(2, 2))
                continue
            layers += [nn.Conv2d(before, item // shrink, 3, padding=1), nn.ReLU()]
            before = item // shrink
        self.features = nn.Sequential(*layers)
        width = 4096 // shrink
        self.classifier = nn.Sequential(
            nn.Linear(before, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, classes)
        )

    def forward(self, pixels: Tensor, labels: Tensor) -> Tensor:
        """pixels [batch, 3, 32, 32], labels [batch] -> the mean loss."""
        return functional.cross_entropy(self.classifier(self.features(pixels).flatten(1)), labels)


def vgg19(batch: int, shrink: int = 4) -> Made:
    """VGG-19, by default at a quarter of its width, with random images."""
    torch.manual_seed(0)
    return Vgg(shrink).train(), {"pixels": torch.randn(batch, 3, 32, 32), "labels": torch.randint(10, (batch,))}


def vit(batch: int, hidden: int = 192, layers: int = 4, heads: int = 4) -> Made:
    """A ViT of transformers for images of 32 x 32, by default a small one."""
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=4 * hidden,
        image_size=32, patch_size=4, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=10,
    )  # fmt: skip
    data = {"pixel_values": torch.randn(batch, 3, 32, 32), "labels": torch.randint(10, (batch,))}
    return ViTForImageClassification(config).train(), data


def bert(
    batch: int, hidden: int = 256, layers: int = 4, heads: int = 4, length: int = 64, vocab: int = 2048
) -> Made:
    """A BERT of transformers with its masked language model's head, by default a small one."""
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=vocab, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=4 * hidden, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        max_position_embeddings=length,
    )  # fmt: skip
    tokens = torch.randint(vocab, (batch, length))
    return BertForMaskedLM(config).train(), {"input_ids": tokens, "labels": tokens}


class Experts(nn.Module):
    """A feed-forward of experts as GShard writes it (Lepikhin et al. 2020, algorithm 1), one expert per token.

    Dispatch and combine are einsums over a one-hot of expert and place; samples are groups, and an expert has a
    fixed capacity per group.
    """

    def __init__(self, hidden: int, experts: int, factor: float = 1.25) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, hidden, 4 * hidden) * hidden**-0.5)
        self.down = nn.Parameter(torch.randn(experts, 4 * hidden, hidden) * (4 * hidden) ** -0.5)
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        """x [group, tokens, hidden] -> the same shape."""
        experts = self.up.shape[0]
        capacity = max(1, int(x.shape[1] * self.factor / experts))
        gates = self.gate(x).softmax(-1)
        chosen = functional.one_hot(gates.argmax(-1), experts).to(x.dtype)
        place = (chosen.cumsum(1) - 1.0) * chosen
        slots = functional.one_hot(place.sum(-1).clamp(0, capacity - 1).long(), capacity).to(x.dtype)
        kept = (place.sum(-1) < capacity).to(x.dtype)
        dispatch = torch.einsum("gte,gtc,gt->gtec", chosen, slots, kept)
        inside = torch.einsum("gtec,gtd->egcd", dispatch, x)
        hidden = functional.gelu(torch.einsum("egcd,edh->egch", inside, self.up))
        done = torch.einsum("egch,ehd->egcd", hidden, self.down)
        return torch.einsum("gtec,egcd->gtd", dispatch * (gates * chosen).sum(-1)[..., None, None], done)


class _Close(nn.Module):
    """What ends a BERT layer: the residual and the norm."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)

    def forward(self, done: Tensor, x: Tensor) -> Tensor:
        """Both [batch, tokens, hidden] -> the same shape."""
        return self.norm(done + x)


def bert_moe(batch: int, experts: int = 8, **sizes: int) -> Made:
    """A BERT with experts in place of every second layer's feed-forward."""
    model, data = bert(batch, **sizes)
    hidden = model.config.hidden_size
    for layer in model.bert.encoder.layer[1::2]:
        layer.intermediate, layer.output = Experts(hidden, experts), _Close(hidden)
    return model.train(), data


MODELS: dict[str, Callable[[int], Made]] = {"VGG19": vgg19, "ViT": vit, "BERT": bert, "BERT-MoE": bert_moe}
BATCH: dict[str, int] = {"VGG19": 32, "ViT": 32, "BERT": 16, "BERT-MoE": 16}


def make(name: str) -> tuple[Any, dict[str, Tensor]]:
    """A model and its batch, the same on every rank."""
    return MODELS[name](BATCH[name])
