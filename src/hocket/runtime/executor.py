"""Runs one rank's program on real tensors."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hocket.errors import RuntimeFault
from hocket.graph.types import Operation
from hocket.program.types import Collective, Program
from hocket.runtime.script import Hooks, sources, write
from hocket.runtime.shards import Intervals
from hocket.runtime.transport import Transport
from hocket.simulate.timeline import COMMUNICATION, COMPUTE, Span, Timeline


@dataclass(slots=True)
class Run:
    """A step whose forward pass is done: `loss` (None where another stage has it), new buffers by input name, what
    is `sent` to other stages by name, and what backward needs."""

    loss: Tensor | None
    updates: dict[str, Tensor]
    sent: dict[str, Tensor]
    kept: list[Any]
    step: int
    done: bool = False

    @property
    def whole_loss(self) -> Tensor:
        """The loss, of a step that has one; raises RuntimeFault."""
        if self.loss is None:
            raise RuntimeFault("stage of a pipeline", "makes the loss", "another stage does")
        return self.loss


@dataclass(slots=True)
class _Recorder:
    """Spans of the step under way. On CUDA every instruction is waited for, so that its time is its own."""

    program: Program
    device: torch.device
    names: Mapping[int, str]
    spans: list[Span] = field(default_factory=list)
    begun: dict[int, float] = field(default_factory=dict)
    origin: float = 0.0

    def restart(self) -> None:
        self.spans, self.begun = [], {}
        self.origin = self._now()

    def begin(self, index: int = -1) -> float:
        now = self._now()
        if index >= 0:
            self.begun[index] = now
        return now

    def end(self, index: int, begun: float | None) -> None:
        stream = COMPUTE
        if begun is None:
            stream, begun = COMMUNICATION, self.begun.pop(index)
        start, now = begun - self.origin, self._now() - self.origin
        self.spans.append(Span(self.program.rank, stream, self.names[index], start, now, index))

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


class Executor:
    """One rank's program, turned into functions once and run as often as wanted.

    Collectives start as soon as they are reached and are waited for by the first reader of their results.
    With `compile`, local operations between communication are compiled together by torch.compile.
    With `record`, every run leaves a measured Timeline in `timeline`.
    """

    def __init__(
        self,
        program: Program,
        transport: Transport,
        device: torch.device,
        seed: int = 0,
        record: bool = False,
        compile: bool = False,
    ) -> None:
        self.program, self.transport, self.device, self.seed = program, transport, device, seed
        self.recorder = _Recorder(program, device, sources(program)) if record else None
        begin, end = (self.recorder.begin, self.recorder.end) if self.recorder else (None, None)
        hooks = Hooks(self._start, self._dropout, begin, end, _compiled if compile else None)
        self.script = write(program, device, hooks)
        self.order = [shard.name for shard in (*program.inputs, *program.received)]

    @property
    def timeline(self) -> Timeline:
        """What the last recorded step measured; empty without `record`."""
        return Timeline(tuple(self.recorder.spans) if self.recorder else (), "measured")

    def forward(self, inputs: Mapping[str, Tensor], step: int = 0) -> Run:
        """Run up to the loss. `inputs` are this rank's shards by name, what other stages send included; `step`
        enters dropout's seed."""
        if self.recorder is not None:
            self.recorder.restart()
        loss, new, sent, kept = self.script.forward([inputs[name] for name in self.order], step)
        updates = {b: value for (b, _), value in zip(self.program.updates, new, strict=True)}
        return Run(loss, updates, dict(zip(self.script.sent[0], sent, strict=True)), kept, step)

    def backward(self, run: Run, arriving: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Run the rest, which uses up what forward kept; the gradients by parameter input name.

        What it sends to other stages takes the place of what forward sent.
        """
        self.inputs(run, arriving)
        return self.weights(run)

    def inputs(self, run: Run, arriving: Mapping[str, Tensor] | None = None) -> None:
        """The first half of backward: up to what is sent to other stages, which is put in the run."""
        run.done = True
        given = [(arriving or {})[shard.name] for shard in self.program.arriving]
        sent, run.kept = self.script.backward(run.kept, run.step, given)
        run.sent = dict(zip(self.script.sent[1], sent, strict=True))

    def weights(self, run: Run) -> dict[str, Tensor]:
        """The second half of backward: the gradients by parameter input name."""
        found = self.script.weights(run.kept, run.step)
        return {p: gradient for (p, _), gradient in zip(self.program.gradients, found, strict=True)}

    def drop(self, run: Run) -> None:
        """Give up the backward pass of a run: wait for what is under way, and keep nothing."""
        run.done = True
        self.script.finish(run.kept)

    def _start(self, call: Collective, tensors: list[Tensor]) -> Callable[[], list[Tensor]]:
        return self.transport.start(call, tensors).finish

    def _dropout(self, operation: Operation, salt: int) -> Callable[[Tensor, int], tuple[Tensor, Tensor]]:
        """Dropout whose mask depends on seed, step, operation and part of the work, not on the rank.

        Ranks that hold the same part draw the same mask, and a recomputed forward draws it again.
        """
        share = float(operation.args[1])  # type: ignore[arg-type]
        name = operation.outputs[0].split("__again")[0]
        stamp = zlib.crc32(name.encode())
        generator = torch.Generator(device=self.device)
        scale = 1.0 / (1.0 - share) if share < 1 else 0.0

        def run(x: Tensor, step: int) -> tuple[Tensor, Tensor]:
            generator.manual_seed(hash((self.seed, step, stamp, salt)) & 0x7FFF_FFFF_FFFF_FFFF)
            mask = torch.empty_like(x, dtype=torch.bool).bernoulli_(1.0 - share, generator=generator)
            return x * mask * scale, mask

        return run


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=False)


def shards_of(program: Program) -> Mapping[str, Intervals]:
    """Intervals that the program's rank holds of every input."""
    return {shard.name: shard.intervals for shard in program.inputs}
