"""One operation as its rule sees it: argument values, and types in place of names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hocket.graph.types import Argument, Dtype, Operation, Ref, TensorType
from hocket.sharding.layout import Split
from hocket.sharding.rule import Factor


@dataclass(frozen=True, slots=True)
class Operand:
    """An argument that is a tensor: its index among the operation's inputs."""

    index: int


CallArgument = None | bool | int | float | str | Dtype | Operand | tuple["CallArgument", ...]


@dataclass(frozen=True, slots=True)
class Call:
    """An operation without names: everything its rule may depend on, hashable.

    `same[i]` is the first operand that is the same value as operand i. An output that does
    not exist (masked out: without a type, or an empty vector) is None.
    """

    op: str
    args: tuple[CallArgument, ...]
    kwargs: tuple[tuple[str, CallArgument], ...]
    operands: tuple[TensorType, ...]
    same: tuple[int, ...]
    outputs: tuple[TensorType | None, ...]

    def argument(self, position: int, name: str = "", default: CallArgument = None) -> CallArgument:
        """The argument given at `position` or by `name`, else `default`."""
        if 0 <= position < len(self.args):
            return self.args[position]
        return dict(self.kwargs).get(name, default)

    def operand(self, position: int) -> int | None:
        """Index of the operand that stands at an argument position, None where there is no tensor."""
        argument = self.argument(position)
        return argument.index if isinstance(argument, Operand) else None

    def dim(self, position: int, name: str, rank: int) -> int | None:
        """A dim given as an argument, made non-negative; None where it is not one of `rank` dims."""
        value = self.argument(position, name, -1 if name else None)
        if not isinstance(value, int) or not -rank <= value < rank:
            return None
        return value % rank

    def numbers(self, position: int, name: str = "") -> tuple[int, ...] | None:
        """An argument that is a tuple of integers (a single one counts), None where it is not."""
        value = self.argument(position, name)
        if isinstance(value, int) and not isinstance(value, bool):
            return (value,)
        if not isinstance(value, tuple):
            return None
        found = tuple(n for n in value if isinstance(n, int))
        return found if len(found) == len(value) else None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the first operand."""
        return self.operands[0].shape

    @property
    def result(self) -> tuple[int, ...]:
        """Shape of the first output; empty where it has no type."""
        first = self.outputs[0] if self.outputs else None
        return first.shape if first else ()


def call_of(operation: Operation, types: Mapping[str, TensorType]) -> Call:
    """The nameless form of an operation."""
    names = operation.inputs
    count = iter(range(len(names)))

    def nameless(argument: Argument) -> CallArgument:
        if isinstance(argument, Ref):
            return Operand(next(count))
        if isinstance(argument, tuple):
            return tuple(nameless(item) for item in argument)
        return argument

    return Call(
        operation.op,
        tuple(nameless(a) for a in operation.args),
        tuple((key, nameless(a)) for key, a in operation.kwargs),
        tuple(types[n] for n in names),
        tuple(names.index(n) for n in names),
        tuple(_wanted(types.get(n)) for n in operation.outputs),
    )


def _wanted(output: TensorType | None) -> TensorType | None:
    # An output that nobody wants (a masked gradient) is recorded as an empty vector.
    return None if output is None or output.shape == (0,) else output


def factor(
    call: Call,
    name: str,
    size: int,
    inputs: Mapping[int, int | Split],
    outputs: Mapping[int, int | Split],
    recipe: str = "",
) -> Factor:
    """A factor carried by the given operands and outputs at the given dims (or splits)."""

    def carried(places: Mapping[int, int | Split], index: int) -> Split | None:
        place = places.get(index)
        return Split(place) if isinstance(place, int) else place

    before = tuple(carried(inputs, i) for i in range(len(call.operands)))
    after = tuple(carried(outputs, j) for j in range(len(call.outputs)))
    pairs = [*zip(call.operands, before, strict=True), *zip(call.outputs, after, strict=True)]
    lengths = {tensor.shape[split.dim] for tensor, split in pairs if tensor and split and not split.segments}
    return Factor(name, size, before, after, recipe, scaled=lengths != {size})
