"""Runs one rank's program on real tensors."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from hocket.errors import RuntimeFault
from hocket.graph.types import Argument, Operation, Ref
from hocket.program.types import Collective, Compute, Free, Program
from hocket.runtime.kernels import CREATES, kernel, torch_argument
from hocket.runtime.transport import Pending, Transport
from hocket.simulate.timeline import COMMUNICATION, COMPUTE, Span, Timeline

Values = dict[str, Any]
Action = Callable[[Values], None]


class Executor:
    """One rank's program, turned into calls once and run as often as wanted.

    `forward` leaves what the backward pass needs in the values it returns; `backward` consumes it.
    Collectives start as soon as they are reached and are waited for by the first reader of their results.
    With `record`, every run leaves a measured Timeline in `timeline`.
    """

    def __init__(
        self,
        program: Program,
        transport: Transport,
        device: torch.device,
        seed: int = 0,
        record: bool = False,
    ) -> None:
        self.program, self.transport, self.device, self.seed = program, transport, device, seed
        self.step = 0
        self.record = record
        self.spans: list[Span] = []
        self.origin = 0.0
        self.pending: dict[str, tuple[Pending, tuple[str, ...], int, str, float]] = {}
        late = {name for i in program.instructions if isinstance(i, Collective) for name in i.outputs}
        self.actions = [self._action(n, i, late) for n, i in enumerate(program.instructions)]

    @property
    def timeline(self) -> Timeline:
        """What the last recorded step measured."""
        return Timeline(tuple(self.spans), "measured")

    def forward(self, values: Values) -> Tensor:
        """Run up to the loss. `values` holds the inputs by name and is filled with what is kept."""
        self.step += 1
        if self.record:
            self.spans, self.origin = [], time.perf_counter()
        for action in self.actions[: self.program.forward]:
            action(values)
        self._arrive(values, (self.program.loss, *(v for _, v in self.program.updates)))
        loss: Tensor = values[self.program.loss]
        return loss

    def backward(self, values: Values) -> dict[str, Tensor]:
        """Run the rest; the gradients by parameter input name."""
        for action in self.actions[self.program.forward :]:
            action(values)
        self._arrive(values, tuple(v for _, v in self.program.gradients))
        return {p: values[v] for p, v in self.program.gradients}

    def _arrive(self, values: Values, names: tuple[str, ...]) -> None:
        for name in names:
            if name in self.pending:
                self._finish(values, name)

    def _finish(self, values: Values, name: str) -> None:
        pending, outputs, index, kind, start = self.pending[name]
        for output, tensor in zip(outputs, pending.finish(), strict=True):
            values[output] = tensor
            del self.pending[output]
        if self.record:
            self._span(COMMUNICATION, kind, start, index)

    def _span(self, stream: str, name: str, start: float, index: int) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = time.perf_counter()
        self.spans.append(
            Span(self.program.rank, stream, name, start - self.origin, now - self.origin, index)
        )

    def _action(self, index: int, instruction: object, late: set[str]) -> Action:
        if isinstance(instruction, Compute):
            return self._compute(index, instruction, late)
        if isinstance(instruction, Collective):
            return self._collective(index, instruction, late)
        if isinstance(instruction, Free):
            names = instruction.values

            def free(values: Values) -> None:
                for name in names:
                    if name in self.pending:
                        self._finish(values, name)
                    del values[name]

            return free
        raise RuntimeFault(
            f"instruction {index}", "is one that this runtime can carry out", repr(instruction)
        )

    def _collective(self, index: int, call: Collective, late: set[str]) -> Action:
        waits = tuple(n for n in call.inputs if n in late)

        def run(values: Values) -> None:
            self._arrive(values, waits)
            start = time.perf_counter() if self.record else 0.0
            pending = self.transport.start(call, [values[n] for n in call.inputs])
            entry = (pending, call.outputs, index, call.kind, start)
            for name in call.outputs:
                self.pending[name] = entry
            if call.blocking:
                self._finish(values, call.outputs[0])

        return run

    def _compute(self, index: int, instruction: Compute, late: set[str]) -> Action:
        operation = instruction.operation
        call = self._call(operation, instruction.salt)
        waits = tuple(dict.fromkeys(n for n in operation.inputs if n in late))
        outputs = operation.outputs
        single = outputs[0] if len(outputs) == 1 else ""

        def run(values: Values) -> None:
            if waits and self.pending:
                self._arrive(values, waits)
            start = time.perf_counter() if self.record else 0.0
            result = call(values)
            if single:
                values[single] = result
            else:
                for name, tensor in zip(outputs, result, strict=True):
                    values[name] = tensor
            if self.record:
                self._span(COMPUTE, operation.kind, start, index)

        return run

    def _call(self, operation: Operation, salt: int) -> Callable[[Values], Any]:
        if operation.kind == "native_dropout":
            return self._dropout(operation, salt)
        function = kernel(operation.op)
        kwargs = {k: torch_argument(a) for k, a in operation.kwargs}
        if operation.op in CREATES:
            kwargs["device"] = self.device
        getters = [_getter(argument) for argument in operation.args]
        if len(getters) == 1 and not kwargs:
            (first,) = getters
            return lambda values: function(first(values))
        if len(getters) == 2 and not kwargs:
            left, right = getters
            return lambda values: function(left(values), right(values))
        return lambda values: function(*[get(values) for get in getters], **kwargs)

    def _dropout(self, operation: Operation, salt: int) -> Callable[[Values], Any]:
        """Dropout whose mask depends on seed, step, operation and part of the work, not on the rank.

        Ranks that hold the same part draw the same mask, and a recomputed forward draws it again.
        """
        source = _getter(operation.args[0])
        share = float(operation.args[1])  # type: ignore[arg-type]
        name = operation.outputs[0].split("__again")[0]
        stamp = zlib.crc32(name.encode())
        generator = torch.Generator(device=self.device)

        def run(values: Values) -> Any:
            x = source(values)
            generator.manual_seed(hash((self.seed, self.step, stamp, salt)) & 0x7FFF_FFFF_FFFF_FFFF)
            mask = torch.empty_like(x, dtype=torch.bool).bernoulli_(1.0 - share, generator=generator)
            return x * mask * (1.0 / (1.0 - share) if share < 1.0 else 0.0), mask

        return run


def _getter(argument: Argument) -> Callable[[Values], Any]:
    """How an argument is read from the values: by name, as a constant, or as a list of both."""
    if isinstance(argument, Ref):
        name = argument.name
        return lambda values: values[name]
    if isinstance(argument, tuple) and any(isinstance(a, Ref) for a in argument):
        getters = [_getter(a) for a in argument]
        return lambda values: [get(values) for get in getters]
    constant = torch_argument(argument)
    return lambda _: constant


def take_shard(whole: Tensor, intervals: tuple[tuple[tuple[int, int], ...], ...]) -> Tensor:
    """A copy of the part of a tensor that a rank holds."""
    part = whole
    for dim, held in enumerate(intervals):
        if len(held) == 1:
            start, length = held[0]
            if length != whole.shape[dim]:
                part = part.narrow(dim, start, length)
        else:
            part = torch.cat([part.narrow(dim, start, length) for start, length in held], dim)
    return part.detach().clone(memory_format=torch.contiguous_format)


def put_shard(whole: Tensor, part: Tensor, intervals: tuple[tuple[tuple[int, int], ...], ...]) -> None:
    """Write a rank's part into its place in the whole tensor."""
    index = [torch.cat([torch.arange(s, s + n) for s, n in held]) for held in intervals]
    if index:
        whole[torch.meshgrid(*index, indexing="ij")] = part
    else:
        whole.copy_(part)


def shards_of(program: Program) -> Mapping[str, tuple[tuple[tuple[int, int], ...], ...]]:
    """Intervals that the program's rank holds of every input."""
    return {shard.name: shard.intervals for shard in program.inputs}
