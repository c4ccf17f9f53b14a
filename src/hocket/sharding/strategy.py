"""Strategies of one operation on a mesh, derived from its rule: one token per mesh axis.

A token is `R` (every position computes the same), the name of a factor to split, a factor with relative sizes
(`j|3,5`) or segments (`j:64,64,64`, `j|3,5:64,64,64`), or `P0+1` (the named operands are partial sums, and so are
all outputs).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod

from hocket.errors import LayoutError
from hocket.graph.types import Graph, Operation, TensorType
from hocket.sharding.layout import PARTIAL, REPLICATE, Layout, Placement, Split
from hocket.sharding.mesh import Mesh
from hocket.sharding.rule import Factor, Rule

Segments = Mapping[tuple[str, int], frozenset[tuple[int, ...]]]
"""Known segmentations of a value's dim, from the operations that cut or join it."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to run an operation on a mesh: the layouts it needs, gives, and how far work is divided.

    `division` is the number of ranks that share the operation's work; `recipes` are (axis, factor) pairs
    whose split needs special local code.
    """

    tokens: tuple[str, ...]
    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    division: int
    recipes: tuple[tuple[int, str], ...] = ()

    def __str__(self) -> str:
        return " ".join(self.tokens)


SizesOf = Callable[[Factor], tuple[int, ...] | None]
"""Relative sizes of a factor along an axis: empty for even ones, None where it cannot be cut."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token that splits a factor, taken apart."""

    factor: str
    sizes: tuple[int, ...] = ()
    segments: tuple[int, ...] = ()

    def __str__(self) -> str:
        sizes = "|" + ",".join(map(str, self.sizes)) if self.sizes else ""
        segments = ":" + ",".join(map(str, self.segments)) if self.segments else ""
        return f"{self.factor}{sizes}{segments}"

    @staticmethod
    def parse(text: str) -> Token:
        """Read a token; one that splits nothing has its whole text as `factor`."""
        rest, _, segments = text.partition(":")
        factor, _, sizes = rest.partition("|")
        return Token(factor, _numbers(sizes), _numbers(segments))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split(",")) if text else ()


def axis_tokens(
    rule: Rule, operation: Operation, parts: int, segments: Segments, sizes_of: SizesOf = lambda factor: ()
) -> tuple[str, ...]:
    """Tokens that one axis of `parts` positions may take for an operation; nothing is split in one part."""
    tokens = ["R"]
    if parts == 1:
        return ("R",)
    for factor in rule.factors:
        sizes = sizes_of(factor)
        if sizes is None:
            continue
        blocks = sum(sizes) or parts
        if factor.size % blocks == 0:
            tokens.append(str(Token(factor.name, sizes)))
        for cut in _segmentations(factor, operation, segments):
            if all(n % blocks == 0 for n in cut):
                tokens.append(str(Token(factor.name, sizes, cut)))
    tokens += ["P" + "+".join(map(str, sorted(group))) for group in rule.linear]
    return tuple(tokens)


def _segmentations(factor: Factor, operation: Operation, segments: Segments) -> set[tuple[int, ...]]:
    found: set[tuple[int, ...]] = set()
    carriers = [
        *zip(operation.inputs, factor.inputs, strict=True),
        *zip(operation.outputs, factor.outputs, strict=True),
    ]
    for name, split in carriers:
        if split is None:
            continue
        if split.segments or factor.recipe or factor.scaled:
            return set()
        found |= {cut for cut in segments.get((name, split.dim), ()) if sum(cut) == factor.size}
    return found


def find_segments(graph: Graph, rules: Sequence[Rule]) -> Segments:
    """Segmentations of every value's dims, spread from split and cat operations through all factors."""
    known: dict[tuple[str, int], set[tuple[int, ...]]] = {}
    carriers: list[tuple[tuple[str, int], ...]] = []
    for operation, rule in zip(graph.operations, rules, strict=True):
        for factor in rule.factors:
            pairs = [
                *zip(operation.inputs, factor.inputs, strict=True),
                *zip(operation.outputs, factor.outputs, strict=True),
            ]
            plain = [
                (name, split.dim)
                for name, split in pairs
                if split is not None and not split.segments and graph.types[name].shape[split.dim] == factor.size
            ]
            for name, split in pairs:
                if split is not None and split.segments:
                    known.setdefault((name, split.dim), set()).add(split.segments)
            if len(plain) > 1 and not any(split is not None and split.segments for _, split in pairs):
                carriers.append(tuple(dict.fromkeys(plain)))
    return _spread(known, carriers)


def _spread(
    known: dict[tuple[str, int], set[tuple[int, ...]]], carriers: list[tuple[tuple[str, int], ...]]
) -> Segments:
    joined: dict[tuple[str, int], list[int]] = {}
    for index, group in enumerate(carriers):
        for place in group:
            joined.setdefault(place, []).append(index)
    waiting = list(known)
    while waiting:
        place = waiting.pop()
        for index in joined.get(place, ()):
            for other in carriers[index]:
                fresh = known[place] - known.setdefault(other, set())
                if fresh:
                    known[other] |= fresh
                    waiting.append(other)
    return {place: frozenset(cuts) for place, cuts in known.items() if cuts}


def make_strategy(rule: Rule, operation: Operation, tokens: Sequence[str], mesh: Mesh) -> Strategy | None:
    """The strategy of these tokens, or None where the axes contradict each other (a factor cut too fine)."""
    factors = {factor.name: factor for factor in rule.factors}
    used: dict[str, tuple[Token, int]] = {}
    inputs: list[list[Placement]] = [[] for _ in operation.inputs]
    outputs: list[list[Placement]] = [[] for _ in operation.outputs]
    recipes: list[tuple[int, str]] = []
    division = 1
    for axis, token in enumerate(tokens):
        parts = mesh.sizes[axis]
        placed: tuple[list[Placement], list[Placement]]
        if token == "R":
            placed = [REPLICATE for _ in inputs], [REPLICATE for _ in outputs]
        elif token.startswith("P"):
            group = {int(n) for n in token[1:].split("+")}
            joined: list[Placement] = [PARTIAL if i in group else REPLICATE for i in range(len(inputs))]
            placed = joined, [PARTIAL for _ in outputs]
        else:
            wanted = Token.parse(token)
            factor = factors[wanted.factor]
            before = used.get(wanted.factor, (wanted, 1))
            if before[0] != wanted or (wanted.sizes and wanted.factor in used):
                return None
            blocks = before[1] * (sum(wanted.sizes) or parts)
            if any(n % blocks for n in (wanted.segments or (factor.size,))):
                return None
            used[wanted.factor] = (wanted, before[1] * parts)
            division *= parts
            if factor.recipe:
                recipes.append((axis, wanted.factor))
            placed = _split_placements(rule, factor, wanted)
        for slot, placement in zip((*inputs, *outputs), (*placed[0], *placed[1]), strict=True):
            slot.append(placement)
    layouts = [Layout(tuple(p)) for p in inputs], [Layout(tuple(p)) for p in outputs]
    if _clashes(layouts[0]) or _clashes(layouts[1]):
        return None
    return Strategy(tuple(tokens), tuple(layouts[0]), tuple(layouts[1]), division, tuple(recipes))


def _split_placements(rule: Rule, factor: Factor, token: Token) -> tuple[list[Placement], list[Placement]]:
    def place(split: Split | None, absent: Placement) -> Placement:
        return absent if split is None else Split(split.dim, token.sizes, token.segments or split.segments)

    inputs = [
        place(split, PARTIAL if factor.sums and index in rule.additive else REPLICATE)
        for index, split in enumerate(factor.inputs)
    ]
    return inputs, [place(split, PARTIAL) for split in factor.outputs]


def _clashes(layouts: Iterable[Layout]) -> bool:
    """Whether a dim is cut by two axes with different segments, which no shard can mean, or unevenly."""
    for layout in layouts:
        seen: dict[int, Split] = {}
        for placement in layout.placements:
            if isinstance(placement, Split):
                other = seen.setdefault(placement.dim, placement)
                if other is not placement and (other.segments != placement.segments or other.sizes):
                    return True
                if other is not placement and placement.sizes:
                    return True
    return False


def strategies(
    rule: Rule,
    operation: Operation,
    mesh: Mesh,
    segments: Segments,
    sizes_of: Callable[[int, Factor], tuple[int, ...] | None] = lambda axis, factor: (),
) -> tuple[Strategy, ...]:
    """Every strategy of an operation on a mesh; the first one replicates.

    `sizes_of` gives the relative sizes of a factor along an axis.
    """
    choices = [
        axis_tokens(rule, operation, parts, segments, partial(sizes_of, axis))
        for axis, parts in enumerate(mesh.sizes)
    ]
    made = (make_strategy(rule, operation, tokens, mesh) for tokens in product(*choices))
    return tuple(strategy for strategy in made if strategy is not None)


def parse_strategy(text: str, rule: Rule, operation: Operation, mesh: Mesh) -> Strategy:
    """Read a strategy's tokens; raises LayoutError where the operation's rule does not allow them."""
    tokens = text.split(" ")
    names = {factor.name for factor in rule.factors}
    groups = {"P" + "+".join(map(str, sorted(g))) for g in rule.linear}
    unknown = [t for t in tokens if t != "R" and t not in groups and Token.parse(t).factor not in names]
    made = None if unknown or len(tokens) != len(mesh.sizes) else make_strategy(rule, operation, tokens, mesh)
    if made is None:
        raise LayoutError(
            f"{operation.op} -> {', '.join(operation.outputs)}",
            "a strategy has one token per mesh axis, each allowed by the operation's rule",
            f"{text!r} on mesh {mesh}; factors {sorted(names)}, partial {sorted(groups)}",
            "plan again: the rules have changed since this plan was made",
        )
    return made


def stored_layouts(
    tensor: TensorType,
    mesh: Mesh,
    cuts: Mapping[int, frozenset[tuple[int, ...]]],
    sizes_of: Callable[[int, int], Collection[tuple[int, ...]]] = lambda axis, dim: ((),),
) -> tuple[Layout, ...]:
    """Every layout in which a parameter can be kept: whole, or split along dims and segments.

    `sizes_of` gives the relative sizes that a dim may have along an axis.
    """

    def options(axis: int) -> list[Placement]:
        found: list[Placement] = [REPLICATE]
        for dim in range(len(tensor.shape)) if mesh.sizes[axis] > 1 else ():
            for sizes in sizes_of(axis, dim):
                found += [Split(dim, sizes), *(Split(dim, sizes, cut) for cut in sorted(cuts.get(dim, ())))]
        return found

    layouts = []
    for placements in product(*(options(axis) for axis in range(len(mesh.sizes)))):
        layout = Layout(placements)
        if not _clashes([layout]) and divides(layout, tensor.shape, mesh):
            layouts.append(layout)
    return tuple(layouts)


def divides(layout: Layout, shape: Sequence[int], mesh: Mesh) -> bool:
    """Whether every split of the layout comes out whole on this mesh."""
    for dim, length in enumerate(shape):
        axes = layout.splits_of(dim)
        if not axes:
            continue
        first = layout.placements[axes[0]]
        pieces = (first.segments if isinstance(first, Split) else ()) or (length,)
        parts = prod(mesh.sizes[a] for a in axes)
        if isinstance(first, Split) and first.sizes and len(axes) == 1:
            parts = sum(first.sizes)
        if any(n % parts or n == 0 for n in pieces):
            return False
    return True
