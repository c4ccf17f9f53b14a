"""Special local code that some splits need: one operation becomes a few local steps and all-reduces.

A recipe runs where a factor is split that the operation itself cannot bear: a vocabulary, a softmax's row,
a dim that is gathered from or scattered to. Every rank knows the interval of the factor that it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Literal

from hocket.graph.types import Argument, Dtype, Operation, Ref, TensorType

LOW_PRECISION = ("float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class Reduce:
    """An all-reduce of a value over the mesh axes that split the factor."""

    value: str
    output: str
    reduce: Literal["sum", "max"]


Step = Operation | Reduce


class _Steps:
    """Steps under way; names new values after the operation's output and records their types."""

    def __init__(self, operation: Operation, types: MutableMapping[str, TensorType], size: int) -> None:
        self.operation = operation
        self.size = size
        self.types = types
        self.steps: list[Step] = []
        self.result = operation.outputs[0]

    def name(self, hint: str, kind: TensorType) -> str:
        wanted = f"{self.result}_{hint}"
        while wanted in self.types:
            wanted += "_"
        self.types[wanted] = kind
        return wanted

    def run(self, op: str, hint: str, kind: TensorType, *args: Argument) -> str:
        """A local operation into a new value."""
        name = self.name(hint, kind)
        self.steps.append(Operation(op, args, (), (name,), self.operation.module))
        return name

    def finish(self, op: str, *args: Argument, kwargs: tuple[tuple[str, Argument], ...] = ()) -> None:
        """A local operation into the result."""
        self.steps.append(Operation(op, args, kwargs, (self.result,), self.operation.module))

    def reduce(self, value: str, how: Literal["sum", "max"]) -> str:
        name = self.name(f"all{how}", self.types[value])
        self.steps.append(Reduce(value, name, how))
        return name

    def convert(self, value: str, dtype: str, hint: str) -> str:
        if self.types[value].dtype == dtype:
            return value
        name = self.name(hint, TensorType(self.types[value].shape, dtype))
        kwargs: tuple[tuple[str, Argument], ...] = (("dtype", Dtype(dtype)),)
        self.steps.append(Operation("aten._to_copy.default", (Ref(value),), kwargs, (name,)))
        return name

    def deliver(self, hint: str, op: str, dtype: str, shape: tuple[int, ...], *args: Argument) -> None:
        """The last operation, computed in `dtype` and converted to what the result is."""
        wanted = self.types[self.result].dtype
        if wanted == dtype:
            self.finish(op, *args)
            return
        wide = self.run(op, hint, TensorType(shape, dtype), *args)
        self.finish("aten._to_copy.default", Ref(wide), kwargs=(("dtype", Dtype(wanted)),))


def expand(
    recipe: str, operation: Operation, start: int, length: int, types: MutableMapping[str, TensorType]
) -> tuple[Step, ...]:
    """The steps of a local operation whose factor is split by a recipe.

    A recipe is a name, for index followed by the dim's global size, from which negative indices count.
    `operation` is already local (see local_operation); `start` and `length` are the interval of the factor
    that the rank holds; `types` has the local types of the operation's values and receives those of the
    values that steps make on the way.
    """
    name, _, size = recipe.partition(" ")
    steps = _Steps(operation, types, int(size or 0))
    _RECIPES[name](steps, operation, start, length)
    return tuple(steps.steps)


def recipe_reduces(
    recipe: str, operation: Operation, types: Mapping[str, TensorType]
) -> tuple[tuple[Literal["sum", "max"], TensorType], ...]:
    """What a recipe all-reduces over the axes that split its factor, in order: how, and the value's type.

    `types` are those of the operation's values as they lie on the rank (or global, for the global volume).
    """
    known = dict(types)
    steps = expand(recipe, operation, 0, 1, known)
    return tuple((step.reduce, known[step.value]) for step in steps if isinstance(step, Reduce))


def _embedding(steps: _Steps, operation: Operation, start: int, length: int) -> None:
    weight, indices, *_ = operation.args
    steps.finish("hocket.embedding_shard.default", weight, indices, start)


def _embedding_backward(steps: _Steps, operation: Operation, start: int, length: int) -> None:
    gradient, indices, _, padding, by_frequency = operation.args
    op = "hocket.embedding_shard_backward.default"
    steps.finish(op, gradient, indices, length, padding, by_frequency, start)


def _gather(steps: _Steps, operation: Operation, start: int, length: int) -> None:
    source, dim, index, *_ = operation.args
    steps.finish("hocket.gather_shard.default", source, dim, index, start)


def _grouped_mm(steps: _Steps, operation: Operation, start: int, length: int) -> None:
    left, right, ends, *_ = operation.args
    steps.finish("hocket.grouped_mm_shard.default", left, right, ends, start, length)


def _index(steps: _Steps, operation: Operation, start: int, length: int) -> None:
    source, indices, *_ = operation.args
    if not isinstance(indices, tuple):
        return
    dim = next(d for d, item in enumerate(indices) if item is not None)
    steps.finish("hocket.index_shard.default", source, dim, indices[dim], start, steps.size)


def _scatter(steps: _Steps, operation: Operation, start: int, length: int) -> None:
    target, dim, index, source, *_ = operation.args
    steps.finish("hocket.scatter_shard.default", target, dim, index, source, start)


def _scatter_add(steps: _Steps, operation: Operation, start: int, length: int) -> None:
    target, dim, index, source, *_ = operation.args
    steps.finish("hocket.scatter_add_shard.default", target, dim, index, source, start)


def _wide(dtype: str) -> str:
    return "float32" if dtype in LOW_PRECISION else dtype


def _row_total(steps: _Steps, value: str, dim: Argument, op: str, how: Literal["sum", "max"]) -> str:
    """The sum or maximum along a row that lies on several ranks."""
    kind = steps.types[value]
    axis = dim % len(kind.shape) if isinstance(dim, int) else 0
    shape = tuple(1 if d == axis else n for d, n in enumerate(kind.shape))
    local = steps.run(op, how, TensorType(shape, kind.dtype), Ref(value), (axis,), True)
    return steps.reduce(local, how)


def _shifted(steps: _Steps, operation: Operation) -> tuple[str, str, str]:
    """The row minus its maximum, its exponential and that one's sum; in float32 where inputs are narrower."""
    source = operation.inputs[0]
    dtype = _wide(steps.types[source].dtype)
    wide = steps.convert(source, dtype, "wide")
    kind = steps.types[wide]
    top = _row_total(steps, wide, operation.args[1], "aten.amax.default", "max")
    shifted = steps.run("aten.sub.Tensor", "shifted", kind, Ref(wide), Ref(top))
    powers = steps.run("aten.exp.default", "exp", kind, Ref(shifted))
    return shifted, powers, _row_total(steps, powers, operation.args[1], "aten.sum.dim_IntList", "sum")


def _softmax(steps: _Steps, operation: Operation, start: int, length: int) -> None:
    _, powers, total = _shifted(steps, operation)
    kind = steps.types[powers]
    steps.deliver("soft", "aten.div.Tensor", kind.dtype, kind.shape, Ref(powers), Ref(total))


def _log_softmax(steps: _Steps, operation: Operation, start: int, length: int) -> None:
    shifted, _, total = _shifted(steps, operation)
    logarithm = steps.run("aten.log.default", "log", steps.types[total], Ref(total))
    kind = steps.types[shifted]
    steps.deliver("soft", "aten.sub.Tensor", kind.dtype, kind.shape, Ref(shifted), Ref(logarithm))


def _backward_values(steps: _Steps, operation: Operation) -> tuple[str, str, TensorType]:
    gradient, output = operation.inputs[:2]
    dtype = _wide(steps.types[gradient].dtype)
    wide = steps.convert(gradient, dtype, "widegrad"), steps.convert(output, dtype, "wide")
    return *wide, steps.types[wide[0]]


def _softmax_backward(steps: _Steps, operation: Operation, start: int, length: int) -> None:
    gradient, output, kind = _backward_values(steps, operation)
    product = steps.run("aten.mul.Tensor", "product", kind, Ref(gradient), Ref(output))
    total = _row_total(steps, product, operation.args[2], "aten.sum.dim_IntList", "sum")
    share = steps.run("aten.mul.Tensor", "share", kind, Ref(output), Ref(total))
    steps.deliver("soft", "aten.sub.Tensor", kind.dtype, kind.shape, Ref(product), Ref(share))


def _log_softmax_backward(steps: _Steps, operation: Operation, start: int, length: int) -> None:
    gradient, output, kind = _backward_values(steps, operation)
    total = _row_total(steps, gradient, operation.args[2], "aten.sum.dim_IntList", "sum")
    powers = steps.run("aten.exp.default", "exp", kind, Ref(output))
    share = steps.run("aten.mul.Tensor", "share", kind, Ref(powers), Ref(total))
    steps.deliver("soft", "aten.sub.Tensor", kind.dtype, kind.shape, Ref(gradient), Ref(share))


_RECIPES: Mapping[str, Callable[[_Steps, Operation, int, int], None]] = {
    "embedding": _embedding,
    "embedding_backward": _embedding_backward,
    "gather": _gather,
    "grouped_mm": _grouped_mm,
    "index": _index,
    "scatter": _scatter,
    "scatter_add": _scatter_add,
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "softmax_backward": _softmax_backward,
    "log_softmax_backward": _log_softmax_backward,
}

RECIPES: frozenset[str] = frozenset(_RECIPES)
"""Names of all recipes."""
