"""Strategies of one operation on a mesh, derived from its rule: one token per mesh axis.

A token is `R` (every position computes the same), the name of a factor to split, a factor with segments
(`j:64,64,64`), or `P0+1` (the named operands are partial sums, and so are all outputs).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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


def axis_tokens(rule: Rule, operation: Operation, parts: int, segments: Segments) -> tuple[str, ...]:
    """Tokens that one axis of `parts` positions may take for an operation; nothing is split in one part."""
    tokens = ["R"]
    if parts == 1:
        return ("R",)
    for factor in rule.factors:
        if factor.size % parts == 0 and factor.size >= parts:
            tokens.append(factor.name)
        for cut in _segmentations(factor, operation, segments):
            if all(n % parts == 0 for n in cut):
                tokens.append(f"{factor.name}:{','.join(map(str, cut))}")
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
    used: dict[str, tuple[str, int]] = {}
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
            name, _, text = token.partition(":")
            factor = factors[name]
            before = used.get(name, (text, 1))
            cut = tuple(int(n) for n in text.split(",")) if text else ()
            if before[0] != text or any(n % (before[1] * parts) for n in (cut or (factor.size,))):
                return None
            used[name] = (text, before[1] * parts)
            division *= parts
            if factor.recipe:
                recipes.append((axis, name))
            placed = _split_placements(rule, factor, cut)
        for slot, placement in zip((*inputs, *outputs), (*placed[0], *placed[1]), strict=True):
            slot.append(placement)
    layouts = [Layout(tuple(p)) for p in inputs], [Layout(tuple(p)) for p in outputs]
    if _clashes(layouts[0]) or _clashes(layouts[1]):
        return None
    return Strategy(tuple(tokens), tuple(layouts[0]), tuple(layouts[1]), division, tuple(recipes))


def _split_placements(rule: Rule, factor: Factor, cut: tuple[int, ...]) -> tuple[list[Placement], list[Placement]]:
    def place(split: Split | None, absent: Placement) -> Placement:
        return absent if split is None else (Split(split.dim, segments=cut) if cut else split)

    inputs = [
        place(split, PARTIAL if factor.sums and index in rule.additive else REPLICATE)
        for index, split in enumerate(factor.inputs)
    ]
    return inputs, [place(split, PARTIAL) for split in factor.outputs]


def _clashes(layouts: Iterable[Layout]) -> bool:
    """Whether a dim is cut by two axes with different segments, which no shard can mean."""
    for layout in layouts:
        seen: dict[int, tuple[int, ...]] = {}
        for placement in layout.placements:
            if (
                isinstance(placement, Split)
                and seen.setdefault(placement.dim, placement.segments) != placement.segments
            ):
                return True
    return False


def strategies(rule: Rule, operation: Operation, mesh: Mesh, segments: Segments) -> tuple[Strategy, ...]:
    """Every strategy of an operation on a mesh; the first one replicates."""
    choices = [axis_tokens(rule, operation, parts, segments) for parts in mesh.sizes]
    made = (make_strategy(rule, operation, tokens, mesh) for tokens in product(*choices))
    return tuple(strategy for strategy in made if strategy is not None)


def parse_strategy(text: str, rule: Rule, operation: Operation, mesh: Mesh) -> Strategy:
    """Read a strategy's tokens; raises LayoutError where the operation's rule does not allow them."""
    tokens = text.split(" ")
    names = {factor.name for factor in rule.factors}
    groups = {"P" + "+".join(map(str, sorted(g))) for g in rule.linear}
    unknown = [t for t in tokens if t != "R" and t not in groups and t.partition(":")[0] not in names]
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
    tensor: TensorType, mesh: Mesh, cuts: Mapping[int, frozenset[tuple[int, ...]]]
) -> tuple[Layout, ...]:
    """Every layout in which a parameter can be kept: whole, or split evenly along dims and segments."""
    options: list[Placement] = [REPLICATE]
    for dim in range(len(tensor.shape)):
        options += [Split(dim), *(Split(dim, segments=cut) for cut in sorted(cuts.get(dim, ())))]
    layouts = []
    for placements in product(*(options if size > 1 else [REPLICATE] for size in mesh.sizes)):
        layout = Layout(placements)
        if not _clashes([layout]) and divides(layout, tensor.shape, mesh):
            layouts.append(layout)
    return tuple(layouts)


def divides(layout: Layout, shape: Sequence[int], mesh: Mesh) -> bool:
    """Whether every split of the layout is even on this mesh."""
    for dim, length in enumerate(shape):
        axes = layout.splits_of(dim)
        if not axes:
            continue
        first = layout.placements[axes[0]]
        pieces = (first.segments if isinstance(first, Split) else ()) or (length,)
        parts = prod(mesh.sizes[a] for a in axes)
        if any(n % parts or n == 0 for n in pieces):
            return False
    return True
