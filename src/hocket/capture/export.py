"""From a PyTorch module and a sample batch to the graph of its training step, with nothing allocated."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.autograd.grad_mode import _force_original_view_tracking

from hocket.capture.convert import Recorded, convert
from hocket.capture.dropout import fused_dropout
from hocket.capture.fingerprint import model_fingerprint
from hocket.capture.modules import watched
from hocket.capture.recorder import Recorder
from hocket.errors import CaptureError, HocketError
from hocket.graph.types import Graph, Input, Role

Sample = Sequence[torch.Tensor] | Mapping[str, torch.Tensor]


def capture(
    model: torch.nn.Module,
    sample: Sample,
    loss: Callable[[Any], torch.Tensor] | None = None,
    name: str = "",
) -> Graph:
    """One training step of `model` on a batch like `sample`: forward, backward and buffer updates.

    `sample` is a tuple or list of tensors (inputs of the graph named by position) or a dict of keyword
    tensors. `model(*sample)` must give the scalar loss, an output with a `.loss`, or something that `loss`
    maps to it. The model may live on any device, meta included; neither it nor the sample is read. Raises
    CaptureError for a model that cannot be captured as one fixed step.
    """
    tensors = _tensors(sample)
    _check_devices(model, tensors)
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    twin, sources = _fake_twin(model, fake)
    recorder = Recorder(fake)
    entered = _enter(recorder, twin, sources)
    with fake:
        batch = {k: torch.empty(v.shape, dtype=v.dtype, device="cpu") for k, v in tensors.items()}
    inputs = [e.input for e in entered]
    labels = [e.label for e in entered]
    for path, tensor in batch.items():
        inputs.append(Input(recorder.enter(tensor), "batch", (path,)))
        labels.append(f"x_{_identifier(path)}")
    value = _forward(twin, batch, isinstance(sample, Mapping), loss, recorder)
    forward = len(recorder.tape.operations)
    gradients = _backward(value, entered, recorder)
    with recorder:
        updates = tuple((e.input.name, recorder.value(e.tensor)) for e in entered if e.input.role == "buffer")
    recorded = Recorded(
        tuple(inputs),
        tuple(labels),
        tuple(recorder.tape.operations),
        forward,
        recorder.tape.types,
        recorder.value(value),
        gradients,
        tuple((buffer, new) for buffer, new in updates if buffer != new),
        frozenset(recorder.random),
    )
    return replace(convert(recorded, name or type(model).__name__), model=model_fingerprint(model))


@dataclass(frozen=True, slots=True)
class _Entered:
    """A parameter or buffer as an input of the step."""

    input: Input
    label: str
    tensor: torch.Tensor


def _tensors(sample: Sample) -> dict[str, torch.Tensor]:
    """The sample's tensors by path."""
    repair = "pass a tuple or list of tensors, or a dict of keyword tensors"
    if isinstance(sample, Mapping):
        items = {str(key): value for key, value in sample.items()}
    elif isinstance(sample, (tuple, list)):
        items = {str(index): value for index, value in enumerate(sample)}
    else:
        raise CaptureError("sample", "must be a batch of tensors", type(sample).__name__, repair)
    for path, value in items.items():
        if not isinstance(value, torch.Tensor):
            raise CaptureError(f"sample[{path}]", "must be a tensor", type(value).__name__, repair)
    return items


def _check_devices(model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """The sample lies where the model does; a model on meta takes a sample from anywhere."""
    homes = {p.device for p in model.parameters()}
    if not homes or torch.device("meta") in homes:
        return
    for path, tensor in tensors.items():
        if tensor.device not in homes:
            raise CaptureError(
                f"sample[{path}]",
                "must be on the model's device",
                f"sample on {tensor.device}, model on {', '.join(sorted(map(str, homes)))}",
                "move it with .to(device)",
            )


def _fake_twin(
    model: torch.nn.Module, fake: FakeTensorMode
) -> tuple[torch.nn.Module, dict[int, list[tuple[Role, str]]]]:
    """A copy of the model whose parameters and buffers are fake; and the paths of each of them by its id."""
    memo: dict[int, Any] = {}
    sources: dict[int, list[tuple[Role, str]]] = {}
    roles: list[tuple[Role, Any]] = [
        ("parameter", model.named_parameters(remove_duplicate=False)),
        ("buffer", model.named_buffers(remove_duplicate=False)),
    ]
    for role, tensors in roles:
        for path, tensor in tensors:
            if id(tensor) not in memo:
                with fake:
                    twin = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
                    if role == "parameter":
                        twin = torch.nn.Parameter(twin, tensor.requires_grad)
                memo[id(tensor)] = twin
            sources.setdefault(id(memo[id(tensor)]), []).append((role, path))
    keep = list(memo.values())
    copied = copy.deepcopy(model, memo)
    del keep
    return copied, sources


def _enter(
    recorder: Recorder, twin: torch.nn.Module, sources: Mapping[int, list[tuple[Role, str]]]
) -> list[_Entered]:
    """Makes every parameter and buffer an input of the step."""
    tensors: list[tuple[Role, torch.Tensor]] = [("parameter", p) for p in twin.parameters()]
    tensors += [("buffer", b) for b in twin.buffers()]
    entered = []
    for role, tensor in tensors:
        paths = tuple(path for _, path in sources[id(tensor)])
        value = Input(recorder.enter(tensor), role, paths, role == "parameter" and tensor.requires_grad)
        entered.append(_Entered(value, f"{role[0]}_{_identifier(paths[0])}", tensor))
    if not any(e.input.trainable for e in entered):
        raise CaptureError(
            type(twin).__name__, "must have a trainable parameter", "none requires a gradient",
            "call requires_grad_() on what shall be trained",
        )  # fmt: skip
    return entered


def _identifier(path: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in path)


def _forward(
    model: torch.nn.Module,
    batch: Mapping[str, torch.Tensor],
    keywords: bool,
    loss: Callable[[Any], torch.Tensor] | None,
    recorder: Recorder,
) -> torch.Tensor:
    """Runs the model and gives the loss."""
    with (
        watched(model, recorder) as running,
        _as_capture_error(type(model).__name__, running),
        torch.enable_grad(),
        _force_original_view_tracking(True),
        fused_dropout(),
        recorder,
    ):
        output = model(**batch) if keywords else model(*batch.values())
        value = loss(output) if loss is not None else getattr(output, "loss", output)
    if isinstance(value, (tuple, list)) and len(value) == 1:
        value = value[0]
    if not isinstance(value, torch.Tensor) or value.dim() != 0 or not value.is_floating_point():
        found = (
            f"{value.dtype} of shape {tuple(value.shape)}"
            if isinstance(value, torch.Tensor)
            else type(value).__name__
        )
        raise CaptureError(
            "loss", "must be one floating-point number", found,
            "return a scalar from the model, or pass loss= to map its output to one",
        )  # fmt: skip
    return value


def _backward(value: torch.Tensor, entered: Sequence[_Entered], recorder: Recorder) -> tuple[tuple[str, str], ...]:
    """Runs autograd and gives the gradient of every trainable parameter that has one."""
    trainable = [e for e in entered if e.input.trainable]
    if not value.requires_grad:
        raise CaptureError(
            "loss", "must depend on a trainable parameter", "no gradient reaches any",
            "check for torch.no_grad() or detach() on the way to the loss",
        )  # fmt: skip
    recorder.in_backward = True
    with _as_capture_error("backward pass", []), _force_original_view_tracking(True), recorder:
        gradients = torch.autograd.grad(value, [e.tensor for e in trainable], allow_unused=True)
    return tuple(
        (e.input.name, recorder.value(g)) for e, g in zip(trainable, gradients, strict=True) if g is not None
    )


@contextmanager
def _as_capture_error(model: str, running: Sequence[str]) -> Iterator[None]:
    """Errors of the running model as capture errors that name the submodule at fault."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    except HocketError:
        raise
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise CaptureError(
            _culprit(model, running),
            "must not choose what to compute by the values of tensors",
            f"{type(error).__name__}: {error}",
            "use torch.where or a fixed capacity instead of item(), nonzero() or a Python if",
        ) from error
    except Exception as error:
        raise CaptureError(
            _culprit(model, running),
            "must run on a sample like this one",
            f"{type(error).__name__}: {error}",
            "run the model on a small real batch to see the error by itself",
        ) from error
    finally:
        log.setLevel(level)


def _culprit(model: str, running: Sequence[str]) -> str:
    return f"module {running[-1]}" if running and running[-1] else model
