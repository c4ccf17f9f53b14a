"""Reference tensors: which layouts each may have, what converting between them costs, and its properties as bits.

A property `tensor | layout` says that the tensor is there in that layout (HAP, section 4.2: the instruction that
would make it whole). Of a tensor of the backward pass, which is looked at from the end, it says that what follows
needs it so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from hocket.graph.types import TensorType
from hocket.search.problem import Problem
from hocket.sharding.layout import Layout
from hocket.sharding.reshard import Ways
from hocket.sharding.strategy import Strategy

FREE = frozenset({"slice", "addend"})


@dataclass(frozen=True, slots=True, eq=False)
class Space:
    """The layouts of tensors that are alike: `seconds[i][j]` from one to another, `free[i]` the layouts (as a mask
    of bits) that are there at no cost where layout i is, itself included."""

    layouts: tuple[Layout, ...]
    seconds: tuple[tuple[float, ...], ...]
    free: tuple[int, ...]

    @property
    def all(self) -> int:
        """The mask of all layouts."""
        return (1 << len(self.layouts)) - 1

    def strongest(self, mask: int) -> int:
        """The layouts of a mask without those that others of it give for free."""
        for i, free in enumerate(self.free):
            if mask >> i & 1:
                mask &= ~free | 1 << i
        return mask

    def mask(self, layouts: Iterable[Layout]) -> int:
        """The mask of some layouts."""
        found = 0
        for layout in layouts:
            found |= 1 << self.layouts.index(layout)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A reference tensor with its bits: a property per layout, that it was communicated, and how it is stored.

    `first` is the place of its first bit. `stored` are the layouts in which an input may be stored (none: it is
    made by an operation); `late`: it is made in the backward pass; `width` is the number of bits of
    what is no tensor.
    """

    name: str
    space: Space
    first: int
    stored: tuple[int, ...]
    late: bool
    width: int = 0

    @property
    def size(self) -> int:
        """Number of bits."""
        if self.width:
            return self.width
        count = len(self.space.layouts)
        return count + 1 + (count if self.stored else 0)

    @property
    def communicated(self) -> int:
        """The bit that says that it was communicated, seen from the tensor's first bit."""
        return 1 << len(self.space.layouts)

    def kept(self, layout: int) -> int:
        """The bit that says that it is stored so, seen from the tensor's first bit."""
        return 1 << (len(self.space.layouts) + 1 + layout)


def find_tensors(problem: Problem, options: dict[int, tuple[Strategy, ...]]) -> dict[str, Tensor]:
    """All tensors of a problem; `options` are the strategies of every class of operations."""
    graph, flow = problem.graph, problem.flow
    stored: dict[str, tuple[Layout, ...]] = {}
    for node in problem.nodes:
        if node.kind == "stored":
            stored.update(dict.fromkeys(node.members, node.options))  # type: ignore[arg-type]
    wanted: dict[str, dict[Layout, None]] = {n: dict.fromkeys(layouts) for n, layouts in stored.items()}
    for index, operation in enumerate(graph.operations):
        for option in options[problem.fold.operations[index]]:
            pairs = zip((*operation.inputs, *operation.outputs), (*option.inputs, *option.outputs), strict=True)
            for name, layout in pairs:
                wanted.setdefault(name, {})[layout] = None
    for goal, names in problem.structure.goals.items():
        for name in names:
            wanted.setdefault(goal, {}).update(dict.fromkeys(stored[name]))
    made_forward = flow.forward_made
    spaces: dict[object, Space] = {}
    found: dict[str, Tensor] = {}
    first = 0
    for name, layouts in wanted.items():
        apart = name in flow.early or name in flow.late
        key = (graph.types[name], apart, tuple(layouts))
        if key not in spaces:
            spaces[key] = _space(problem, graph.types[name], apart, tuple(layouts))
        space = spaces[key]
        kept = tuple(space.layouts.index(layout) for layout in stored.get(name, ()))
        found[name] = Tensor(name, space, first, kept, name not in made_forward)
        first += found[name].size
    return found


def _space(problem: Problem, tensor: TensorType, apart: bool, layouts: tuple[Layout, ...]) -> Space:
    ways = problem.ways.get((tensor, apart)) or problem.ways.get((tensor, not apart))
    seconds, free = [], []
    for i, source in enumerate(layouts):
        row, mask = [], 0
        for j, target in enumerate(layouts):
            cost = 0.0 if i == j else _cost(ways, source, target)
            if i == j or (cost < inf and _is_free(ways, source, target)):
                cost, mask = 0.0, mask | 1 << j
            row.append(cost)
        seconds.append(tuple(row))
        free.append(mask)
    return Space(layouts, tuple(seconds), tuple(free))


def _cost(ways: Ways | None, source: Layout, target: Layout) -> float:
    if ways is None or source not in ways.index or target not in ways.index:
        return inf
    return ways.cost(source, target)


def _is_free(ways: Ways | None, source: Layout, target: Layout) -> bool:
    return ways is not None and all(step.kind in FREE for step in ways.steps(source, target))
