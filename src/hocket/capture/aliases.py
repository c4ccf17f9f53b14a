"""Which tensors share memory, so that writing in place becomes new values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hocket.capture.tape import Tape
from hocket.errors import CaptureError
from hocket.graph.types import Operation, Ref


@dataclass(slots=True)
class Memory:
    """One storage: the value of the tensor that owns it, and how often it was written."""

    value: str
    version: int = 0


@dataclass(slots=True)
class Held:
    """A tensor: its value when its memory was at `version`, and the views that lead from the memory to it.

    A step of the chain is an operation and which of its outputs; a chain of None cannot be followed.
    """

    value: str
    memory: Memory
    version: int
    chain: tuple[tuple[Operation, int], ...] | None


@dataclass(slots=True)
class Aliases:
    """The value of every tensor seen, kept right while tensors are written in place."""

    tape: Tape
    held: dict[int, Held] = field(default_factory=dict)
    memories: dict[int, Memory] = field(default_factory=dict)
    alive: list[Any] = field(default_factory=list)

    def known(self, tensor: Any) -> bool:
        """Whether the tensor was seen before."""
        return id(tensor) in self.held

    def hold(self, tensor: Any, value: str, source: Any = None, emitted: int | None = None) -> None:
        """Notes that `tensor` has `value`; `source` is the tensor it may view.

        `emitted` is how many operations the tape had before the view was recorded.
        """
        key = tensor.untyped_storage()._cdata
        memory = self.memories.get(key)
        self.alive.append(tensor)
        if memory is None:
            memory = self.memories[key] = Memory(value)
            self.held[id(tensor)] = Held(value, memory, 0, ())
            return
        chain = None
        origin = self.held.get(id(source)) if source is not None else None
        if origin is not None and origin.memory is memory and origin.chain is not None and emitted is not None:
            steps = self._steps(value, origin.value, emitted)
            chain = None if steps is None else (*origin.chain, *steps)
        self.held[id(tensor)] = Held(value, memory, memory.version, chain)

    def _steps(self, value: str, origin: str, emitted: int) -> tuple[tuple[Operation, int], ...] | None:
        """The recorded views that lead from the value `origin` to `value`."""
        steps: list[tuple[Operation, int]] = []
        for op in reversed(self.tape.operations[emitted:]):
            if value in op.outputs:
                if op.op not in INVERSE:
                    return None
                steps.append((op, op.outputs.index(value)))
                value = op.inputs[0]
        return tuple(reversed(steps)) if value == origin else None

    def value(self, tensor: Any) -> str:
        """The tensor's current value; views of memory written meanwhile are taken again."""
        held = self.held[id(tensor)]
        if held.version != held.memory.version:
            held.value = self._follow(held, len(_chain(held)))
            held.version = held.memory.version
        return held.value

    def _follow(self, held: Held, steps: int) -> str:
        value = held.memory.value
        for op, output in _chain(held)[:steps]:
            args = (Ref(value), *op.args[1:])
            types = [self.tape.types[name] for name in op.outputs]
            value = self.tape.emit(op.op, args, types, dict(op.kwargs))[output]
        return value

    def write(self, tensor: Any, value: str) -> None:
        """Notes that `value` was written into `tensor`, and so into all that share its memory."""
        held = self.held[id(tensor)]
        chain = _chain(held)
        whole = value
        for index in range(len(chain) - 1, -1, -1):
            op, output = chain[index]
            whole = INVERSE[op.op](self.tape, op, output, whole, self._follow(held, index))
        held.memory.value = whole
        held.memory.version += 1
        held.value, held.version = value, held.memory.version


def _chain(held: Held) -> tuple[tuple[Operation, int], ...]:
    if held.chain is None:
        raise CaptureError(
            f"value {held.value}",
            "a tensor written in place must share memory only through view, permute, slice, select or split",
            "memory shared in another way",
            "write the result to a new tensor instead of in place",
        )
    return held.chain


def _undo_view(tape: Tape, op: Operation, output: int, value: str, parent: str) -> str:
    return tape.view(value, tape.types[parent].shape)


def _undo_permute(tape: Tape, op: Operation, output: int, value: str, parent: str) -> str:
    dims = op.args[1]
    order = dims if isinstance(dims, tuple) else ()
    return tape.permute(value, tuple(order.index(d) for d in range(len(order))))


def _undo_slice(tape: Tape, op: Operation, output: int, value: str, parent: str) -> str:
    dim, start, end, step = (a if isinstance(a, int) else 0 for a in op.args[1:])
    if step != 1:
        args = (Ref(parent), Ref(value), dim, start, end, step)
        return tape.emit("aten.slice_scatter.default", args, [tape.types[parent]])[0]
    return _between(tape, value, parent, dim, start, end)


def _undo_split(tape: Tape, op: Operation, output: int, value: str, parent: str) -> str:
    dim = op.args[2] if isinstance(op.args[2], int) else 0
    sizes = [tape.types[name].shape[dim] for name in op.outputs]
    start = sum(sizes[:output])
    return _between(tape, value, parent, dim, start, start + sizes[output])


def _between(tape: Tape, value: str, parent: str, dim: int, start: int, end: int) -> str:
    """`parent` with its rows `start:end` along `dim` replaced by `value`."""
    size = tape.types[parent].shape[dim]
    pieces = [value]
    if start > 0:
        pieces.insert(0, tape.slice(parent, dim, 0, start))
    if end < size:
        pieces.append(tape.slice(parent, dim, end, size))
    return tape.cat(pieces, dim)


INVERSE = {
    "aten.view.default": _undo_view,
    "aten.permute.default": _undo_permute,
    "aten.slice.Tensor": _undo_slice,
    "aten.split_with_sizes.default": _undo_split,
}
