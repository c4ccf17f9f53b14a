"""A small GPT-2 over bytes, and text to train it on: the sources of Python's own library."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

BATCH, LENGTH, BYTES = 16, 128, 256


def gpt(seed: int = 0) -> tuple[GPT2LMHeadModel, dict[str, Tensor]]:
    """A GPT-2 of 3.3 million parameters with random weights, and a batch for it."""
    torch.manual_seed(seed)
    config = GPT2Config(
        n_embd=256, n_layer=4, n_head=4, n_positions=LENGTH, vocab_size=BYTES, use_cache=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config).train(), batch(text(), 0)


def text(files: int = 60) -> Tensor:
    """Bytes of some of the standard library's modules, always the same ones on one installation."""
    folder = Path(sysconfig.get_path("stdlib"))
    sources = b"\n".join(path.read_bytes() for path in sorted(folder.glob("*.py"))[:files])
    return torch.frombuffer(bytearray(sources), dtype=torch.uint8)


def batch(source: Tensor, step: int) -> dict[str, Tensor]:
    """Random pieces of the text, the same on every rank for the same step."""
    draw = torch.Generator().manual_seed(step)
    starts = torch.randint(len(source) - LENGTH, (BATCH, 1), generator=draw)
    pieces = source[starts + torch.arange(LENGTH)].long()
    return {"input_ids": pieces, "labels": pieces}
