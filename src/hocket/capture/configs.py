"""Real model configurations, written out so that nothing is downloaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Config:
    """A transformers architecture and the values its configuration has.

    `family` is the prefix of the classes in transformers, `task` their suffix, `sequence` the default
    sequence length of the sample (0 for images).
    """

    family: str
    task: str
    sequence: int
    values: Mapping[str, Any] = field(default_factory=dict)


def _gpt2(hidden: int, layers: int, heads: int, sequence: int = 1024, vocab: int = 50257) -> Config:
    values = {
        "n_embd": hidden,
        "n_layer": layers,
        "n_head": heads,
        "n_positions": sequence,
        "vocab_size": vocab,
    }
    return Config("GPT2", "LMHeadModel", sequence, values)


def _llama_like(
    family: str, hidden: int, layers: int, heads: int, kv_heads: int, inner: int, vocab: int, **more: Any
) -> Config:
    values = {
        "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "intermediate_size": inner, "vocab_size": vocab, **more,
    }  # fmt: skip
    return Config(family, "ForCausalLM", 4096, values)


def _bert(family: str, hidden: int, layers: int, heads: int, vocab: int) -> Config:
    values = {
        "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "intermediate_size": 4 * hidden, "vocab_size": vocab,
    }  # fmt: skip
    if family == "Roberta":
        values.update(max_position_embeddings=514, type_vocab_size=1)
    return Config(family, "ForMaskedLM", 512, values)


_LLAMA3 = {"rope_theta": 500000.0, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5}

CONFIGS: Mapping[str, Config] = {
    "gpt2": _gpt2(768, 12, 12),
    "gpt2-medium": _gpt2(1024, 24, 16),
    "gpt2-large": _gpt2(1280, 36, 20),
    "gpt2-xl": _gpt2(1600, 48, 25),
    "gpt3-1.3b": _gpt2(2048, 24, 32, 1024, 51200),
    "gpt3-7b": _gpt2(4096, 32, 32, 1024, 51200),
    "gpt-39b": _gpt2(8192, 48, 64, 1024, 51200),
    "llama-2-7b": _llama_like("Llama", 4096, 32, 32, 32, 11008, 32000, max_position_embeddings=4096),
    "llama-3-8b": _llama_like("Llama", 4096, 32, 32, 8, 14336, 128256, **_LLAMA3),
    "llama-3.1-405b": _llama_like("Llama", 16384, 126, 128, 8, 53248, 128256, **_LLAMA3),
    "llama-3-70b": _llama_like("Llama", 8192, 80, 64, 8, 28672, 128256, **_LLAMA3),
    "qwen2-7b": _llama_like("Qwen2", 3584, 28, 28, 4, 18944, 152064, max_position_embeddings=32768),
    "qwen3-8b": _llama_like(
        "Qwen3", 4096, 36, 32, 8, 12288, 151936, head_dim=128, max_position_embeddings=40960
    ),
    "mistral-7b": _llama_like("Mistral", 4096, 32, 32, 8, 14336, 32000, sliding_window=4096),
    "mixtral-8x7b": _llama_like(
        "Mixtral", 4096, 32, 32, 8, 14336, 32000, num_local_experts=8, num_experts_per_tok=2
    ),
    "gemma-2-9b": _llama_like("Gemma2", 3584, 42, 16, 8, 14336, 256000, head_dim=256, sliding_window=4096),
    "phi-3-mini": _llama_like("Phi3", 3072, 32, 32, 32, 8192, 32064, max_position_embeddings=4096),
    "opt-1.3b": Config(
        "OPT", "ForCausalLM", 2048,
        {"hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 32, "ffn_dim": 8192,
         "word_embed_proj_dim": 2048, "vocab_size": 50272, "max_position_embeddings": 2048},
    ),
    "gpt-neox-20b": Config(
        "GPTNeoX", "ForCausalLM", 2048,
        {"hidden_size": 6144, "num_hidden_layers": 44, "num_attention_heads": 64,
         "intermediate_size": 24576, "vocab_size": 50432, "max_position_embeddings": 2048},
    ),
    "falcon-7b": Config(
        "Falcon", "ForCausalLM", 2048,
        {"hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71, "vocab_size": 65024,
         "multi_query": True, "parallel_attn": True, "bias": False, "new_decoder_architecture": False},
    ),
    "bert-base": _bert("Bert", 768, 12, 12, 30522),
    "bert-large": _bert("Bert", 1024, 24, 16, 30522),
    "roberta-base": _bert("Roberta", 768, 12, 12, 50265),
    "distilbert": Config(
        "DistilBert", "ForMaskedLM", 512,
        {"dim": 768, "n_layers": 6, "n_heads": 12, "hidden_dim": 3072, "vocab_size": 30522},
    ),
    "resnet-50": Config("ResNet", "ForImageClassification", 0, {"num_labels": 1000}),
    "bart-large": Config(
        "Bart", "ForConditionalGeneration", 1024,
        {"d_model": 1024, "encoder_layers": 12, "decoder_layers": 12, "encoder_attention_heads": 16,
         "decoder_attention_heads": 16, "encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096,
         "vocab_size": 50265},
    ),
}  # fmt: skip

_SMALL = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 64, "vocab_size": 128, "max_position_embeddings": 32, "pad_token_id": 0,
}  # fmt: skip
_SMALL_BERT = {k: v for k, v in _SMALL.items() if k != "num_key_value_heads"}

TINY: Mapping[str, Config] = {
    "gpt2": _gpt2(32, 2, 4, 32, 128),
    "llama": Config("Llama", "ForCausalLM", 16, _SMALL),
    "qwen2": Config("Qwen2", "ForCausalLM", 16, _SMALL),
    "qwen3": Config("Qwen3", "ForCausalLM", 16, {**_SMALL, "head_dim": 8}),
    "mistral": Config("Mistral", "ForCausalLM", 16, {**_SMALL, "sliding_window": 8}),
    "mixtral": Config(
        "Mixtral", "ForCausalLM", 16, {**_SMALL, "num_local_experts": 4, "num_experts_per_tok": 2}
    ),
    "gemma2": Config(
        "Gemma2", "ForCausalLM", 16,
        {**_SMALL, "head_dim": 8, "sliding_window": 8, "query_pre_attn_scalar": 8},
    ),
    "opt": Config(
        "OPT", "ForCausalLM", 16,
        {**_SMALL_BERT, "ffn_dim": 64, "word_embed_proj_dim": 32},
    ),
    "phi3": Config("Phi3", "ForCausalLM", 16, _SMALL),
    "gpt_neox": Config("GPTNeoX", "ForCausalLM", 16, _SMALL_BERT),
    "falcon": Config("Falcon", "ForCausalLM", 16, {**_SMALL_BERT, "new_decoder_architecture": False}),
    "bert": Config("Bert", "ForMaskedLM", 16, _SMALL_BERT),
    "roberta": Config("Roberta", "ForMaskedLM", 16, {**_SMALL_BERT, "type_vocab_size": 1}),
    "distilbert": Config(
        "DistilBert", "ForMaskedLM", 16,
        {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "vocab_size": 128,
         "max_position_embeddings": 32},
    ),
    "resnet": Config(
        "ResNet", "ForImageClassification", 0,
        {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "bottleneck",
         "num_labels": 8},
    ),
    "bart": Config(
        "Bart", "ForConditionalGeneration", 16,
        {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
         "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "vocab_size": 128,
         "max_position_embeddings": 32, "pad_token_id": 0},
    ),
}  # fmt: skip
