"""Reads the table of operations (table.txt): one line per operation, checked when it is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from hocket.errors import GraphError

Slot = tuple[str, ...]
"""Words of one argument or output of a pattern; empty for a scalar tensor, ("_",) for no tensor."""

_VALUES: Mapping[str, bool | int] = {"True": True, "False": False}


@dataclass(frozen=True, slots=True)
class Condition:
    """`names` hold only when the argument at `position` equals `value`."""

    position: int
    value: bool | int
    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table, for one operation: a pattern (inputs, outputs) or a family with its words.

    `linear` is in argument positions; `jointly` says that all operands together are one linear group.
    """

    name: str
    family: str = ""
    words: tuple[str, ...] = ()
    inputs: tuple[Slot, ...] = ()
    outputs: tuple[Slot, ...] = ()
    sums: frozenset[str] = frozenset()
    additive: frozenset[int] = frozenset()
    linear: tuple[frozenset[int], ...] = ()
    jointly: bool = False
    conditions: tuple[Condition, ...] = ()
    shared: frozenset[str] = frozenset()
    lengths: tuple[tuple[str, int], ...] = ()
    recipes: tuple[tuple[str, str], ...] = ()


def parse_line(text: str) -> tuple[Line, ...]:
    """The table entries of one line (several where several names share it); raises GraphError."""
    head, separator, rest = text.partition(" : ")
    body, *clauses = (part.strip() for part in rest.split(" ; "))
    if not separator or not head.split() or not body:
        raise GraphError(f"table line {text!r}", "is 'names : body ; clause ; ...'")
    family: str = ""
    words: tuple[str, ...] = ()
    inputs: tuple[Slot, ...] = ()
    outputs: tuple[Slot, ...] = ()
    if "->" in body:
        left, right = body.split("->")
        inputs, outputs = _slots(left), _slots(right)
    else:
        family, *more = body.split()
        words = tuple(more)
    said = _Clauses(text)
    for clause in clauses:
        said.read(clause)
    return tuple(
        Line(
            name, family, words, inputs, outputs, frozenset(said.sums), frozenset(said.additive),
            tuple(said.linear), said.jointly, tuple(said.conditions), frozenset(said.shared),
            tuple(said.lengths), tuple(said.recipes),
        )
        for name in head.split()
    )  # fmt: skip


def _slots(text: str) -> tuple[Slot, ...]:
    slots = []
    for slot in text.split(","):
        words = slot.split()
        if words and words[0].startswith("*"):
            words = ["*", *([words[0][1:]] if len(words[0]) > 1 else []), *words[1:]]
        slots.append(tuple(words))
    return tuple(slots)


class _Clauses:
    """What the clauses of one line say, collected while they are read."""

    def __init__(self, line: str) -> None:
        self.line = line
        self.sums: list[str] = []
        self.additive: list[int] = []
        self.linear: list[frozenset[int]] = []
        self.jointly = False
        self.conditions: list[Condition] = []
        self.shared: list[str] = []
        self.lengths: list[tuple[str, int]] = []
        self.recipes: list[tuple[str, str]] = []

    def read(self, clause: str) -> None:
        word, _, rest = clause.partition(" ")
        if word == "sum":
            self.sums += rest.split()
        elif word == "add":
            self.additive += [int(n) for n in rest.split()]
        elif word == "linear" and rest == "all":
            self.jointly = True
        elif word == "linear":
            self.linear += [frozenset(int(n) for n in group.split("+")) for group in rest.split("|")]
        elif word == "when":
            test, _, names = rest.partition(" : ")
            position, _, value = test.partition("=")
            known = _VALUES[value] if value in _VALUES else int(value)
            self.conditions.append(Condition(int(position), known, frozenset(names.split())))
        elif word == "gcd":
            self.shared += rest.split()
        elif word == "len":
            name, position = rest.split()
            self.lengths.append((name, int(position)))
        elif word == "recipe":
            name, recipe = rest.split()
            self.recipes.append((name, recipe))
        else:
            rule = "a clause starts with one of the words that the table's head explains"
            raise GraphError(f"table line {self.line!r}", rule, repr(word))


@cache
def table() -> Mapping[str, Line]:
    """Every operation of the table, by name; raises GraphError where a name stands twice."""
    lines: dict[str, Line] = {}
    text = files("hocket.sharding").joinpath("table.txt").read_text(encoding="utf-8")
    for row in text.splitlines():
        if not row.strip() or row.startswith("#"):
            continue
        for line in parse_line(row):
            if line.name in lines:
                raise GraphError(f"operation {line.name}", "stands once in the table", row)
            lines[line.name] = line
    return lines


def line_of(op: str) -> Line | None:
    """The table's line for an operation's full name (its overload first, then its kind), or None."""
    known = table()
    namespace, kind, overload = (*op.split("."), "", "")[:3]
    prefix = "" if namespace == "aten" else f"{namespace}."
    return known.get(f"{prefix}{kind}.{overload}") or known.get(f"{prefix}{kind}")
