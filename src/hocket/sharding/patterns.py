"""Factors of an operation from its einops-like pattern in the table."""

from __future__ import annotations

from math import gcd

from hocket.graph.types import TensorType
from hocket.sharding.call import Call, factor
from hocket.sharding.rule import Factor
from hocket.sharding.table import Line, Slot

Labels = tuple[str, ...]  # one per dim of a tensor; "" for a whole one


def elementwise(call: Call, words: tuple[str, ...]) -> tuple[Factor, ...] | None:
    """Every dim of the result is a factor; operands broadcast to it."""
    shape = call.result
    if any(output is not None and output.shape != shape for output in call.outputs):
        return None
    factors = []
    for dim, size in enumerate(shape):
        if size < 2:
            continue
        inputs = {}
        for index, operand in enumerate(call.operands):
            own = dim - len(shape) + len(operand.shape)
            if own < 0 or operand.shape[own] == 1:
                continue
            if operand.shape[own] != size:
                return None
            inputs[index] = own
        factors.append(factor(call, f"d{dim}", size, inputs, dict.fromkeys(range(len(call.outputs)), dim)))
    return tuple(factors)


def from_pattern(call: Call, line: Line) -> tuple[Factor, ...] | None:
    """Factors by the table's pattern, or None where the tensors don't have the pattern's dims."""
    operands: list[tuple[int, Slot]] = []
    for position in range(len(call.args)):
        index = call.operand(position)
        if index is None:
            continue
        if position >= len(line.inputs) or line.inputs[position] == ("_",):
            return None
        operands.append((index, line.inputs[position]))
    if len(operands) != len(call.operands) or len(call.outputs) > len(line.outputs):
        return None
    outputs = [(j, line.outputs[j], t) for j, t in enumerate(call.outputs) if t is not None]
    counts = _counts(
        call, line, [(call.operands[i], slot) for i, slot in operands] + [(t, s) for _, s, t in outputs]
    )
    if counts is None:
        return None
    inside = {i: _labels(slot, counts, call.operands[i]) for i, slot in operands}
    outside = {j: _labels(slot, counts, t) for j, slot, t in outputs}
    if any(labels is None for labels in (*inside.values(), *outside.values())):
        return None
    return _factors(
        call, line, {i: x for i, x in inside.items() if x is not None},
        {j: x for j, x in outside.items() if x is not None},
    )  # fmt: skip


def _counts(call: Call, line: Line, tensors: list[tuple[TensorType, Slot]]) -> dict[str, int] | None:
    """How many dims each variadic word stands for."""
    counts: dict[str, int] = {}
    for name, position in line.lengths:
        numbers = call.numbers(position)
        if numbers is None:
            return None
        counts[name + "*"] = len(numbers)
    for tensor, slot in tensors:
        if slot[:1] == ("*",):
            continue
        open_words = [w for w in slot if _variadic(w) and w not in counts]
        if len(open_words) == 1:
            fixed = sum(counts[w] if _variadic(w) else 1 for w in slot if w != open_words[0])
            counts[open_words[0]] = len(tensor.shape) - fixed
    return counts if all(n >= 0 for n in counts.values()) else None


def _variadic(word: str) -> bool:
    return word == "..." or (len(word) > 1 and word.endswith("*"))


def _labels(slot: Slot, counts: dict[str, int], tensor: TensorType) -> Labels | None:
    """One label per dim of the tensor, or None where their number is wrong."""
    labels: list[str] = []
    for word in slot:
        if word == "*":
            continue
        if word == "...":
            labels += [f"d{i}" for i in range(counts.get(word, 0))]
        elif _variadic(word):
            labels += [""] * counts.get(word, 0)
        else:
            labels.append(word if word.islower() else "")
    rank = len(tensor.shape)
    if slot[:1] == ("*",) and rank <= len(labels):
        labels = labels[len(labels) - rank :]
        return tuple("" if n == 1 else label for n, label in zip(tensor.shape, labels, strict=True))
    return tuple(labels) if len(labels) == rank else None


def _factors(call: Call, line: Line, inside: dict[int, Labels], outside: dict[int, Labels]) -> tuple[Factor, ...]:
    carried: dict[str, set[int]] = {}
    for index, labels in inside.items():
        for dim, label in enumerate(labels):
            carried.setdefault(label, set()).add(call.operands[index].shape[dim])
    for index, labels in outside.items():
        output = call.outputs[index]
        for dim, label in enumerate(labels):
            carried.setdefault(label, set()).add(output.shape[dim] if output else 1)
    recipes = dict(line.recipes)
    factors = []
    for name, sizes in carried.items():
        size = gcd(*sizes)
        if not name or size < 2 or (len(sizes) > 1 and name not in line.shared):
            continue
        if any(name not in labels for labels in outside.values()) and not _may_sum(name, line):
            continue
        factors.append(
            factor(
                call, name, size, {i: x.index(name) for i, x in inside.items() if name in x},
                {j: x.index(name) for j, x in outside.items() if name in x}, recipes.get(name, ""),
            )
        )  # fmt: skip
    return tuple(factors)


def _may_sum(name: str, line: Line) -> bool:
    return name in line.sums or (
        name not in line.sums and "..." in line.sums and name[0] == "d" and name[1:].isdigit()
    )
