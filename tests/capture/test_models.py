"""Models by name: real configurations, overrides, files and directories."""

from __future__ import annotations

import pytest
import torch
from transformers import GPT2Config

from hocket.capture import capture
from hocket.capture.configs import CONFIGS
from hocket.capture.models import load_model
from hocket.errors import CaptureError
from hocket.graph.verify import verify_graph


@pytest.mark.parametrize("name", list(CONFIGS))
def test_real_configurations_are_captured_on_meta(name: str) -> None:
    layers = None if name == "resnet-50" else 2
    model, sample = load_model(f"hf:{name}", layers=layers, batch=2, sequence=32)
    assert all(p.is_meta for p in model.parameters())
    graph = capture(model, sample)
    verify_graph(graph)
    assert len(graph.gradients) == sum(i.trainable for i in graph.parameters)


def test_overrides_and_their_errors() -> None:
    model, sample = load_model("hf:llama-3-8b", layers=1, batch=3, sequence=8, dtype="bfloat16", hidden=64, heads=4, kv_heads=2, head_dim=16, vocab=32)  # fmt: skip
    assert sample["input_ids"].shape == (3, 8)
    assert model.lm_head.weight.shape == (32, 64)
    assert model.lm_head.weight.dtype == torch.bfloat16
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32
    with pytest.raises(CaptureError, match="attribute of LlamaConfig"):
        load_model("hf:llama-3-8b", colour="blue")
    with pytest.raises(CaptureError, match="known name"):
        load_model("hf:no-such-model")
    with pytest.raises(CaptureError, match="hf:NAME or file"):
        load_model("no-such-model")


def test_models_from_files(tmp_path) -> None:
    path = tmp_path / "net.py"
    path.write_text(
        "import torch\ndef make():\n    return torch.nn.Linear(2, 1), (torch.ones(3, 2),)\ndef bad():\n    return 1\n"
    )
    model, sample = load_model(f"{path}:make")
    assert capture(model, sample, loss=torch.mean).batch[0].paths == ("0",)
    for text, rule in (
        (f"{path}:bad", "return"),
        (f"{path}:none", "defined"),
        (f"{tmp_path}/x.py:make", "exist"),
    ):
        with pytest.raises(CaptureError, match=rule):
            load_model(text)


def test_models_from_directories(tmp_path) -> None:
    config = GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=32, architectures=["GPT2LMHeadModel"])
    config.save_pretrained(tmp_path)
    model, _ = load_model(f"hf:{tmp_path}", layers=1)
    assert len(model.transformer.h) == 1
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CaptureError, match="architectures"):
        load_model(f"hf:{tmp_path}")
