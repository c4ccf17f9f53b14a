"""A step for another batch size, from the same step captured for two."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from math import isclose

from hocket.errors import GraphError
from hocket.graph.types import Argument, Graph, Operation, TensorType


@dataclass(frozen=True)
class Family:
    """One step captured for two batch sizes: `first` samples and `second`, which differ.

    Every size and whole number of it is taken to be linear in the number of samples, every other number to be
    constant or in inverse proportion to it.
    """

    one: Graph
    two: Graph
    first: int
    second: int

    def at(self, samples: int) -> Graph:
        """The step for so many samples; raises GraphError where the two are not one step."""
        if samples == self.first:
            return self.one
        if samples == self.second:
            return self.two
        if [op.op for op in self.one.operations] != [op.op for op in self.two.operations]:
            raise GraphError(self.one.name, "has the same operations for every batch size", "they differ")
        types = {
            name: TensorType(self._sizes(kind.shape, other.shape, samples), kind.dtype)
            for (name, kind), other in zip(self.one.types.items(), self.two.types.values(), strict=True)
        }
        pairs = zip(self.one.operations, self.two.operations, strict=True)
        return replace(self.one, types=types, operations=tuple(self._operation(a, b, samples) for a, b in pairs))

    def _operation(self, one: Operation, two: Operation, samples: int) -> Operation:
        args = tuple(self._argument(a, b, samples) for a, b in zip(one.args, two.args, strict=True))
        kwargs = tuple(
            (k, self._argument(a, b, samples)) for (k, a), (_, b) in zip(one.kwargs, two.kwargs, strict=True)
        )
        return replace(one, args=args, kwargs=kwargs)

    def _sizes(self, one: tuple[int, ...], two: tuple[int, ...], samples: int) -> tuple[int, ...]:
        return tuple(self._whole(a, b, samples) for a, b in zip(one, two, strict=True))

    def _argument(self, one: Argument, two: Argument, samples: int) -> Argument:
        if one == two and type(one) is type(two):
            return one
        if isinstance(one, tuple) and isinstance(two, tuple) and len(one) == len(two):
            return tuple(self._argument(a, b, samples) for a, b in zip(one, two, strict=True))
        if isinstance(one, int) and isinstance(two, int):
            return self._whole(one, two, samples)
        if isinstance(one, float) and isinstance(two, float) and isclose(one * self.first, two * self.second):
            return one * self.first / samples
        raise GraphError(self.one.name, "has constants that follow from the batch size", f"{one!r} and {two!r}")

    def _whole(self, one: int, two: int, samples: int) -> int:
        value = one + Fraction((two - one) * (samples - self.first), self.second - self.first)
        if value.denominator != 1:
            raise GraphError(self.one.name, "has whole sizes for this batch size", f"{one}, {two}: {value}")
        return int(value)
