"""Models by name: a function in a file, or an architecture of transformers with real or given sizes."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from hocket.capture.configs import CONFIGS, TINY, Config
from hocket.errors import CaptureError

Loaded = tuple[torch.nn.Module, dict[str, torch.Tensor] | tuple[torch.Tensor, ...]]

ATTRIBUTES = {
    "hidden": "hidden_size", "heads": "num_attention_heads", "kv_heads": "num_key_value_heads",
    "intermediate": "intermediate_size", "vocab": "vocab_size",
}  # fmt: skip


def load_model(
    text: str,
    layers: int | None = None,
    batch: int = 1,
    sequence: int | None = None,
    dtype: str = "float32",
    dropout: float = 0.0,
    **overrides: Any,
) -> Loaded:
    """The model and sample that `text` names.

    `file.py:function` calls the function, which returns (model, sample). `hf:NAME` builds one of CONFIGS, or
    the model of a directory with config.json, on the meta device with nothing allocated. `layers`, `hidden`,
    `heads`, `kv_heads`, `intermediate`, `vocab` and any attribute of the configuration override its values.
    Raises CaptureError when something named is unknown.
    """
    if text.startswith("hf:"):
        config, task, length = _configuration(text.removeprefix("hf:"))
        _override(config, layers, overrides)
        _set_dropout(config, dropout)
        with torch.device("meta"), _default_dtype(dtype):
            model = _model_class(task)(config)
            sample = _sample(config, batch, sequence or length, dtype)
        return model.train(), sample
    if ":" not in text:
        raise CaptureError(
            f"model {text}",
            "must be hf:NAME or file.py:function",
            repair=f"names known: {', '.join(CONFIGS)}",
        )
    return _from_file(text)


def tiny(architecture: str, seed: int = 0) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """A two-layer model of the architecture with random weights, no dropout, and a random sample.

    Some labels are -100 (ignored). `architecture` is a key of TINY.
    """
    if architecture not in TINY:
        raise CaptureError(f"model {architecture}", "must be a tiny model", repair=f"one of {', '.join(TINY)}")
    entry = TINY[architecture]
    config = _build(entry)
    _set_dropout(config, 0.0)
    torch.manual_seed(seed)
    model = _model_class(entry.family + entry.task)(config)
    _randomize(model)
    sample = _sample(config, 4, entry.sequence, "float32")
    if "input_ids" in sample:
        sample["labels"][torch.rand(sample["labels"].shape) < 0.2] = -100
    return model.train(), sample


def _randomize(model: torch.nn.Module) -> None:
    """Every weight random, also those that start at zero or one, so that no gradient is trivial."""
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn_like(parameter) * 0.1
            parameter.copy_(noise + parameter if parameter.dim() == 1 else noise * 2)


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise CaptureError(
            "transformers", "must be installed for hf: models", str(error), "pip install 'hocket[models]'"
        ) from error
    return transformers


def _model_class(name: str) -> Any:
    found = getattr(_transformers(), name, None)
    if found is None:
        raise CaptureError(f"model class {name}", "must exist in the installed transformers")
    return found


def _build(entry: Config) -> Any:
    config = _model_class(entry.family + "Config")(**entry.values)
    if hasattr(config, "use_cache"):
        config.use_cache = False
    return config


def _configuration(name: str) -> tuple[Any, str, int]:
    """The configuration, the class of the model, and the default sequence length."""
    if name in CONFIGS:
        entry = CONFIGS[name]
        return _build(entry), entry.family + entry.task, entry.sequence
    path = Path(name) / "config.json"
    if not path.is_file():
        raise CaptureError(
            f"model hf:{name}",
            "must be a known name or a directory with config.json",
            repair=f"names known: {', '.join(CONFIGS)}",
        )
    try:
        classes = json.loads(path.read_text()).get("architectures") or []
    except (json.JSONDecodeError, AttributeError) as error:
        raise CaptureError(str(path), "must be a JSON object", str(error)) from error
    if not classes:
        raise CaptureError(str(path), "must name the model's class in 'architectures'", "none")
    config = _transformers().AutoConfig.from_pretrained(name, local_files_only=True)
    if hasattr(config, "use_cache"):
        config.use_cache = False
    longest = getattr(config, "max_position_embeddings", 0)
    return config, classes[0], min(longest, 1024)


def _override(config: Any, layers: int | None, overrides: Mapping[str, Any]) -> None:
    values = {ATTRIBUTES.get(key, key): value for key, value in overrides.items()}
    if layers is not None:
        if hasattr(config, "encoder_layers"):
            values.update(encoder_layers=layers, decoder_layers=layers)
        else:
            values["num_hidden_layers"] = layers
    for key, value in values.items():
        if not hasattr(config, key):
            raise CaptureError(
                f"override {key}", f"must be an attribute of {type(config).__name__}",
                repair=f"one of {', '.join(sorted(k for k in vars(config) if not k.startswith('_')))}",
            )  # fmt: skip
        setattr(config, key, value)
    kinds = getattr(config, "layer_types", None)
    if layers is not None and kinds:
        config.layer_types = [kinds[i % len(kinds)] for i in range(layers)]


def _set_dropout(config: Any, rate: float) -> None:
    """Sets every dropout rate of the configuration; dropping whole layers is turned off."""
    for key, value in list(vars(config).items()):
        if "drop" in key and isinstance(value, (int, float)) and not isinstance(value, bool):
            setattr(config, key, 0.0 if "layer" in key else rate)


@contextmanager
def _default_dtype(name: str) -> Iterator[None]:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise CaptureError(f"dtype {name}", "must be a floating-point type of torch", repair="as bfloat16")
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _sample(config: Any, batch: int, sequence: int, dtype: str) -> dict[str, torch.Tensor]:
    """A random batch with labels that fits the configuration; images for models without a vocabulary."""
    vocab = getattr(config, "vocab_size", None)
    if vocab is None:
        size = 224 if getattr(config, "embedding_size", 64) >= 64 else 32
        images = torch.randn(batch, config.num_channels, size, size, dtype=getattr(torch, dtype))
        return {"pixel_values": images, "labels": torch.randint(config.num_labels, (batch,))}
    length = min(sequence, getattr(config, "max_position_embeddings", sequence))
    return {
        "input_ids": torch.randint(2, vocab, (batch, length)),
        "labels": torch.randint(2, vocab, (batch, length)),
    }


def _from_file(text: str) -> Loaded:
    """Calls `function` of `file.py` for (model, sample)."""
    name, _, function = text.rpartition(":")
    path = Path(name)
    if not path.is_file():
        raise CaptureError(f"file {name}", "must exist", repair="give file.py:function")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise CaptureError(f"file {name}", "must be a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    make = getattr(module, function, None)
    if not callable(make):
        raise CaptureError(f"function {function}", f"must be defined in {name}")
    result = make()
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], torch.nn.Module)):
        raise CaptureError(f"function {function}", "must return (model, sample)", type(result).__name__)
    return result
