"""The rule of an operation: its table line made concrete by its arguments and types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

from hocket.graph.types import Operation, TensorType
from hocket.sharding import families, indexing, patterns, views
from hocket.sharding.call import Call, Operand, call_of
from hocket.sharding.rule import UNKNOWN, Factor, Rule
from hocket.sharding.table import Condition, Line, line_of

Family = Callable[[Call, tuple[str, ...]], tuple[Factor, ...] | None]

FAMILIES: Mapping[str, Family] = {
    "elementwise": patterns.elementwise,
    "view": views.view,
    "permute": views.permute,
    "expand": views.expand,
    "repeat": views.repeat,
    "whole": families.whole,
    "create": families.create,
    "reduce": families.reduce,
    "row": families.row,
    "slice": families.slice,
    "slice_backward": families.slice_backward,
    "select_backward": families.select_backward,
    "slice_scatter": families.slice_scatter,
    "split": families.split,
    "cat": families.cat,
    "pad": families.pad,
    "flip": families.flip,
    "roll": families.roll,
    "grouped_mm": families.grouped_mm,
    "gather": indexing.gather,
    "scatter": indexing.scatter,
    "index": indexing.index,
    "index_put": indexing.index_put,
    "index_select": indexing.index_select,
}


def rule_of(operation: Operation, types: Mapping[str, TensorType]) -> Rule:
    """The rule of an operation by the global types of its values.

    An operation that the table does not know, or whose tensors don't have the dims that its line says,
    has the rule UNKNOWN and is kept whole.
    """
    return _rule(call_of(operation, types))


@lru_cache(maxsize=1 << 14)
def _rule(call: Call) -> Rule:
    line = line_of(call.op)
    if line is None or not _is_plain(call, line):
        return UNKNOWN
    factors = FAMILIES[line.family](call, line.words) if line.family else patterns.from_pattern(call, line)
    if factors is None:
        return UNKNOWN
    refused = [c.names for c in line.conditions if not _holds(call, c)]
    kept = tuple(f for f in factors if not any(_named(f.name, names) for names in refused))
    additive = frozenset(i for n in line.additive if (i := call.operand(n)) is not None)
    linear = () if any("linear" in names for names in refused) else _linear(call, line)
    return Rule(kept, additive, linear)


def _is_plain(call: Call, line: Line) -> bool:
    """Whether tensors stand only where the line can see them."""
    if any(isinstance(value, Operand | tuple) and _holds_operand(value) for _, value in call.kwargs):
        return False
    nested = any(isinstance(value, tuple) and _holds_operand(value) for value in call.args)
    return not nested or line.family in ("cat", "index", "index_put")


def _holds_operand(value: object) -> bool:
    return isinstance(value, Operand) or (isinstance(value, tuple) and any(map(_holds_operand, value)))


def _holds(call: Call, condition: Condition) -> bool:
    return call.argument(condition.position) == condition.value


def _named(name: str, names: frozenset[str]) -> bool:
    return name in names or ("..." in names and name[0] == "d" and name[1:].isdigit())


def _linear(call: Call, line: Line) -> tuple[frozenset[int], ...]:
    groups = [frozenset(range(len(call.operands)))] if line.jointly else []
    for positions in line.linear:
        group = _group(call, positions)
        if group:
            groups.append(group)
    return tuple(dict.fromkeys(group for group in groups if _adds_up(call, group)))


def _group(call: Call, positions: frozenset[int]) -> frozenset[int] | None:
    """Operands at these argument positions; None where one of them is a number other than 0."""
    found = set()
    for position in positions:
        argument = call.argument(position)
        if isinstance(argument, Operand):
            found.add(argument.index)
        elif argument is not None and argument != 0:
            return None
    return frozenset(found)


def _adds_up(call: Call, group: frozenset[int]) -> bool:
    """Whether partial sums mean something for the types, and no value is both in the group and outside."""
    inside = [call.operands[i].dtype for i in group]
    results = [output.dtype for output in call.outputs if output is not None]
    if not group or "bool" in inside or "bool" in results:
        return False
    if any(_real(dtype) for dtype in inside) and not all(_real(dtype) for dtype in results):
        return False
    values = {call.same[i] for i in group}
    return not any(same in values for i, same in enumerate(call.same) if i not in group)


def _real(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat", "complex"))
