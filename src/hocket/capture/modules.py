"""Which module of a model is running, known through hooks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from hocket.capture.recorder import Recorder


@contextmanager
def watched(model: torch.nn.Module, recorder: Recorder) -> Iterator[list[str]]:
    """Keeps `recorder.module` at the path of the running submodule; yields the stack of running paths.

    When the model raises, the stack is left as it was, so that its last entry names the culprit.
    """
    paths = {id(module): path for path, module in model.named_modules(remove_duplicate=True)}
    stack: list[str] = []

    def enter(module: torch.nn.Module, args: object) -> None:
        path = paths.get(id(module))
        if path is not None:
            stack.append(path)
            recorder.module = path

    def leave(module: torch.nn.Module, args: object, output: object) -> None:
        if id(module) in paths and stack:
            stack.pop()
            recorder.module = stack[-1] if stack else ""

    before = register_module_forward_pre_hook(enter)
    after = register_module_forward_hook(leave)
    try:
        yield stack
    finally:
        before.remove()
        after.remove()
