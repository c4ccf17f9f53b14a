"""The computation: one training step (forward, backward, parameter gradients) as immutable values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Literal

DTYPE_BYTES: Mapping[str, int] = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1, "complex64": 8,
}  # fmt: skip

Role = Literal["parameter", "buffer", "batch", "received", "arriving"]
"""What an input is. What a stage of a pipeline gets from others is `received` in its forward pass or `arriving` in
its backward pass."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and element type of a value; `shape` is global unless said otherwise."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return self.elements * DTYPE_BYTES[self.dtype]

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Ref:
    """A value used as an argument."""

    name: str


@dataclass(frozen=True, slots=True)
class Dtype:
    """An element type used as an argument."""

    name: str


Argument = None | bool | int | float | str | Ref | Dtype | tuple["Argument", ...]


def refs(argument: Argument) -> Iterator[str]:
    """Names of the values inside an argument, in order, repetitions included."""
    if isinstance(argument, Ref):
        yield argument.name
    elif isinstance(argument, tuple):
        for item in argument:
            yield from refs(item)


def _exchange(argument: Argument, names: Iterator[str]) -> Argument:
    if isinstance(argument, Ref):
        return Ref(next(names))
    if isinstance(argument, tuple):
        return tuple(_exchange(item, names) for item in argument)
    return argument


def pattern(argument: Argument | tuple[tuple[str, Argument], ...]) -> object:
    """An argument with the names of values taken out, to compare calls on different values."""
    if isinstance(argument, Ref):
        return Ref
    if isinstance(argument, tuple):
        return tuple(pattern(item) for item in argument)
    return (type(argument), argument)


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of an ATen operation (`op` is its full name, as `aten.mm.default`) on values and constants.

    `inputs` are the names of the values it reads, in the order of its arguments; they are derived from
    `args` and `kwargs`. An output that nobody reads is still named.
    """

    op: str
    args: tuple[Argument, ...]
    kwargs: tuple[tuple[str, Argument], ...]
    outputs: tuple[str, ...]
    module: str = ""
    inputs: tuple[str, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        names = [*refs(self.args), *(name for _, value in self.kwargs for name in refs(value))]
        object.__setattr__(self, "inputs", tuple(names))

    @property
    def kind(self) -> str:
        """The operation's name without namespace and overload: `mm` of `aten.mm.default`."""
        return self.op.split(".")[1]

    def with_inputs(self, names: Sequence[str]) -> Operation:
        """The same call on other values, given in the order of `inputs`."""
        rest = iter(names)
        args = tuple(_exchange(a, rest) for a in self.args)
        kwargs = tuple((k, _exchange(a, rest)) for k, a in self.kwargs)
        return Operation(self.op, args, kwargs, self.outputs, self.module)

    def argument(self, position: int, name: str, default: Argument = None) -> Argument:
        """The argument given at `position` or by `name`, else `default`."""
        if position < len(self.args):
            return self.args[position]
        return dict(self.kwargs).get(name, default)


@dataclass(frozen=True, slots=True)
class Input:
    """A value that enters the step: a parameter, a buffer, a tensor of the batch, or what another stage sends.

    `paths` are its names in the module (several when tied), or the position in the batch, or its own name.
    """

    name: str
    role: Role
    paths: tuple[str, ...]
    trainable: bool = False


@dataclass(frozen=True, slots=True)
class Graph:
    """One training step. `operations[:forward]` are the forward pass, the rest the backward pass.

    `gradients` maps parameter input names to gradient values, `updates` buffer input names to their new
    values; `types` holds every value's global type. Operations stand in an order that respects their inputs.
    `model` is the fingerprint of the module that was captured. A stage of a pipeline has values that are `sent` to
    other stages, and no `loss` unless it is the one that makes it.
    """

    name: str
    inputs: tuple[Input, ...]
    operations: tuple[Operation, ...]
    types: Mapping[str, TensorType]
    forward: int
    loss: str
    gradients: tuple[tuple[str, str], ...]
    updates: tuple[tuple[str, str], ...] = ()
    model: str = ""
    sent: tuple[str, ...] = ()

    @property
    def parameters(self) -> tuple[Input, ...]:
        """The inputs that are parameters, in order."""
        return tuple(i for i in self.inputs if i.role == "parameter")

    @property
    def buffers(self) -> tuple[Input, ...]:
        """The inputs that are buffers, in order."""
        return tuple(i for i in self.inputs if i.role == "buffer")

    @property
    def batch(self) -> tuple[Input, ...]:
        """The inputs that are tensors of the batch, in order."""
        return tuple(i for i in self.inputs if i.role == "batch")

    @property
    def outputs(self) -> tuple[str, ...]:
        """Values that leave the step: loss, gradients, new buffers, and what is sent."""
        loss = (self.loss,) if self.loss else ()
        return (*loss, *(v for _, v in self.gradients), *(v for _, v in self.updates), *self.sent)

    @property
    def given(self) -> tuple[Input, ...]:
        """The inputs that other stages send, in order."""
        return tuple(i for i in self.inputs if i.role in ("received", "arriving"))

    def producers(self) -> dict[str, int]:
        """Index of the operation that produces each value (inputs of the graph are absent)."""
        return {name: index for index, op in enumerate(self.operations) for name in op.outputs}

    def consumers(self) -> dict[str, list[int]]:
        """Indices of the operations that read each value, ascending, without repetitions."""
        users: dict[str, list[int]] = {name: [] for name in self.types}
        for index, op in enumerate(self.operations):
            for name in dict.fromkeys(op.inputs):
                users[name].append(index)
        return users
