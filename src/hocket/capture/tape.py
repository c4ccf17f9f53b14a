"""The tape: operations in the canonical vocabulary, appended while a model runs on fake tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from hocket.graph.types import Argument, Dtype, Operation, Ref, TensorType


@dataclass(slots=True)
class Tape:
    """Operations recorded so far and the type of every value; `module` is stamped on each new operation."""

    operations: list[Operation] = field(default_factory=list)
    types: dict[str, TensorType] = field(default_factory=dict)
    module: str = ""
    count: int = 0

    def name(self, type_: TensorType) -> str:
        """A new value name of the given type."""
        name = f"v{self.count}"
        self.count += 1
        self.types[name] = type_
        return name

    def emit(
        self,
        op: str,
        args: Sequence[Argument],
        types: Sequence[TensorType],
        kwargs: Mapping[str, Argument] | None = None,
    ) -> tuple[str, ...]:
        """Appends one operation and returns the names of its outputs."""
        outputs = tuple(self.name(type_) for type_ in types)
        items = tuple((kwargs or {}).items())
        self.operations.append(Operation(op, tuple(args), items, outputs, self.module))
        return outputs

    def view(self, source: str, shape: tuple[int, ...]) -> str:
        """`source` with another shape of the same elements; itself when the shape is the same."""
        type_ = self.types[source]
        if type_.shape == shape:
            return source
        return self.emit("aten.view.default", (Ref(source), shape), [TensorType(shape, type_.dtype)])[0]

    def permute(self, source: str, dims: tuple[int, ...]) -> str:
        """`source` with its dims reordered; itself when the order is the same."""
        type_ = self.types[source]
        if dims == tuple(range(len(dims))):
            return source
        shape = tuple(type_.shape[d] for d in dims)
        return self.emit("aten.permute.default", (Ref(source), dims), [TensorType(shape, type_.dtype)])[0]

    def expand(self, source: str, shape: tuple[int, ...]) -> str:
        """`source` repeated to `shape` by broadcasting; itself when the shape is the same."""
        type_ = self.types[source]
        if type_.shape == shape:
            return source
        return self.emit("aten.expand.default", (Ref(source), shape), [TensorType(shape, type_.dtype)])[0]

    def slice(self, source: str, dim: int, start: int, end: int, step: int = 1) -> str:
        """Elements `start:end:step` of `source` along `dim`; itself when that is everything."""
        type_ = self.types[source]
        if start == 0 and end == type_.shape[dim] and step == 1:
            return source
        length = len(range(start, end, step))
        shape = (*type_.shape[:dim], length, *type_.shape[dim + 1 :])
        args = (Ref(source), dim, start, end, step)
        return self.emit("aten.slice.Tensor", args, [TensorType(shape, type_.dtype)])[0]

    def split(self, source: str, sizes: tuple[int, ...], dim: int) -> tuple[str, ...]:
        """`source` cut along `dim` into pieces of `sizes`."""
        if len(sizes) == 1:
            return (source,)
        type_ = self.types[source]
        before, after = type_.shape[:dim], type_.shape[dim + 1 :]
        types = [TensorType((*before, size, *after), type_.dtype) for size in sizes]
        return self.emit("aten.split_with_sizes.default", (Ref(source), sizes, dim), types)

    def cat(self, sources: Sequence[str], dim: int) -> str:
        """`sources` joined along `dim`; values that are empty along it are left out."""
        kept = [s for s in sources if len(self.types[s].shape) > dim and self.types[s].shape[dim] > 0]
        if not kept:
            return sources[0]
        if len(kept) == 1:
            return kept[0]
        first = self.types[kept[0]]
        length = sum(self.types[s].shape[dim] for s in kept)
        type_ = TensorType((*first.shape[:dim], length, *first.shape[dim + 1 :]), first.dtype)
        return self.emit("aten.cat.default", (tuple(Ref(s) for s in kept), dim), [type_])[0]

    def full(self, type_: TensorType, value: bool | int | float) -> str:
        """A tensor of one value."""
        return self.emit("aten.full.default", (type_.shape, value), [type_], {"dtype": Dtype(type_.dtype)})[0]

    def cast(self, source: str, dtype: str) -> str:
        """`source` as another element type; itself when it is the same."""
        type_ = self.types[source]
        if type_.dtype == dtype:
            return source
        new = TensorType(type_.shape, dtype)
        return self.emit("aten._to_copy.default", (Ref(source),), [new], {"dtype": Dtype(dtype)})[0]

    def mean(self, source: str, dims: tuple[int, ...], keepdim: bool, type_: TensorType) -> str:
        """Mean over `dims`: a sum times one over the global number of summed elements."""
        count = prod(self.types[source].shape[d] for d in dims)
        total = self.emit("aten.sum.dim_IntList", (Ref(self.cast(source, type_.dtype)), dims, keepdim), [type_])
        return self.emit("aten.mul.Tensor", (Ref(total[0]), 1.0 / count if count else float("nan")), [type_])[0]
