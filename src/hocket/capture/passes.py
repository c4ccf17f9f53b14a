"""Small passes over recorded operations; each keeps the meaning and makes the list shorter or cleaner."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from hocket.graph.types import Argument, Operation, Ref, TensorType

Types = Mapping[str, TensorType]

# Operations that cost nothing, or next to it: made again in the backward pass rather than kept for it.
REPEATED = frozenset({
    "aten.view.default", "aten.permute.default", "aten.expand.default", "aten.slice.Tensor",
    "aten.split_with_sizes.default", "aten.full.default", "aten.arange.start_step", "hocket.constant.default",
})  # fmt: skip


def substituted(argument: Argument, names: Mapping[str, str]) -> Argument:
    """The argument with values replaced by `names`."""
    if isinstance(argument, Ref):
        return Ref(names.get(argument.name, argument.name))
    if isinstance(argument, tuple):
        return tuple(substituted(item, names) for item in argument)
    return argument


def renamed(op: Operation, names: Mapping[str, str]) -> Operation:
    """The operation reading other values where `names` says so."""
    if not any(name in names for name in op.inputs):
        return op
    args = tuple(substituted(a, names) for a in op.args)
    return replace(op, args=args, kwargs=tuple((k, substituted(a, names)) for k, a in op.kwargs))


def simplify(operations: Iterable[Operation], types: Types) -> tuple[list[Operation], dict[str, str]]:
    """Views of views become one view, and operations that change nothing go.

    Returns the operations and what replaces the outputs of those that went.
    """
    names: dict[str, str] = {}
    made: dict[str, Operation] = {}
    kept: list[Operation] = []
    for operation in operations:
        op = _composed(renamed(operation, names), made)
        same = _identity(op, types)
        if same is not None:
            names[op.outputs[0]] = same
            continue
        for output in op.outputs:
            made[output] = op
        kept.append(op)
    return kept, names


def _composed(op: Operation, made: Mapping[str, Operation]) -> Operation:
    """A view of a view, or a permute of a permute, as one operation on the first one's source."""
    inner = made.get(op.inputs[0]) if op.inputs else None
    if inner is None or inner.op != op.op:
        return op
    if op.op in ("aten.view.default", "aten.expand.default"):
        return replace(op, args=(inner.args[0], op.args[1])) if op.kind == "view" else op
    if op.op == "aten.permute.default":
        outer, first = op.args[1], inner.args[1]
        if isinstance(outer, tuple) and isinstance(first, tuple):
            order = tuple(first[d] for d in outer if isinstance(d, int))
            return replace(op, args=(inner.args[0], order))
    return op


def _identity(op: Operation, types: Types) -> str | None:
    """The value that an operation leaves unchanged, if it does."""
    if not op.inputs:
        return None
    source = op.inputs[0]
    if types[source] != types[op.outputs[0]]:
        return None
    if op.op in ("aten.view.default", "aten.expand.default", "aten._to_copy.default"):
        return source
    if op.op == "aten.permute.default" and op.args[1] == tuple(range(len(types[source].shape))):
        return source
    if op.op in ("aten.mul.Tensor", "aten.div.Tensor", "aten.pow.Tensor_Scalar") and _is_number(op.args, 1.0):
        return source
    if op.op in ("aten.add.Tensor", "aten.sub.Tensor") and _is_number(op.args, 0.0):
        return source
    return None


def _is_number(args: Sequence[Argument], number: float) -> bool:
    return len(args) == 2 and isinstance(args[0], Ref) and isinstance(args[1], (int, float)) and args[1] == number


def merge(operations: Iterable[Operation], random: Collection[str]) -> tuple[list[Operation], dict[str, str]]:
    """Of operations that compute the same from the same, the first is kept; never of random ones."""
    names: dict[str, str] = {}
    seen: dict[tuple[object, ...], Operation] = {}
    kept: list[Operation] = []
    for operation in operations:
        op = renamed(operation, names)
        key = (op.op, _key(op.args), _key(op.kwargs))
        first = None if op.op in random else seen.get(key)
        if first is not None:
            names.update(zip(op.outputs, first.outputs, strict=True))
            continue
        seen[key] = op
        kept.append(op)
    return kept, names


def _key(argument: object) -> object:
    """A hashable form that tells 1, 1.0 and True, and 0.0 and -0.0, apart."""
    if isinstance(argument, tuple):
        return tuple(_key(item) for item in argument)
    if isinstance(argument, (bool, int, float)):
        return type(argument).__name__, repr(argument)
    return argument


def live(operations: Sequence[Operation], wanted: Iterable[str]) -> list[Operation]:
    """The operations that lead to the wanted values."""
    needed = set(wanted)
    kept: list[Operation] = []
    for op in reversed(operations):
        if any(name in needed for name in op.outputs):
            needed.update(op.inputs)
            kept.append(op)
    kept.reverse()
    return kept


def repeat_views(
    forward: Sequence[Operation], backward: Sequence[Operation], types: dict[str, TensorType]
) -> list[Operation]:
    """The backward operations with free operations of the forward made again, so only their sources cross."""
    made = {name: op for op in forward if op.op in REPEATED for name in op.outputs}
    names: dict[str, str] = {}
    result: list[Operation] = []

    def again(name: str) -> None:
        op = made.get(name)
        if op is None or name in names:
            return
        for source in op.inputs:
            again(source)
        outputs = tuple(f"{output}_again" for output in op.outputs)
        for old, new in zip(op.outputs, outputs, strict=True):
            types[new] = types[old]
            names[old] = new
        result.append(replace(renamed(op, names), outputs=outputs))

    for op in backward:
        for name in op.inputs:
            again(name)
        result.append(renamed(op, names))
    return result


def named(operations: Iterable[Operation], taken: Collection[str]) -> dict[str, str]:
    """Readable names for the outputs: the operation's kind, counted: `mm`, `mm_1`, `topk_0`, `topk_1_1`."""
    used = set(taken)
    counts: dict[str, int] = {}
    names: dict[str, str] = {}
    for op in operations:
        count = counts.get(op.kind, 0)
        counts[op.kind] = count + 1
        stem = op.kind.lstrip("_") + (f"_{count}" if count else "")
        for index, output in enumerate(op.outputs):
            name = stem if len(op.outputs) == 1 else f"{stem}_o{index}"
            while name in used:
                name += "_"
            used.add(name)
            names[output] = name
    return names
