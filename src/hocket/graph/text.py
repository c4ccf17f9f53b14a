"""The text form of a graph: one line per operation, printed and parsed back exactly."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import get_args

from hocket.errors import FileError
from hocket.graph.types import DTYPE_BYTES, Argument, Dtype, Graph, Input, Operation, Ref, Role, TensorType

_WORDS: Mapping[str, Argument] = {
    "None": None, "True": True, "False": False, "inf": math.inf, "nan": math.nan,
}  # fmt: skip
_NAME = re.compile(r"[A-Za-z_]\w*")


def print_graph(graph: Graph) -> str:
    """The graph as text; `parse_graph` gives it back exactly.

    Raises FileError for a value name that the text form cannot carry.
    """
    for name in graph.types:
        if not _NAME.fullmatch(name) or name in _WORDS:
            raise FileError(f"value {name!r}", "must be an identifier, and no word of the text form")
    lines = [f"graph {json.dumps(graph.name)}"]
    if graph.model:
        lines.append(f"model {graph.model}")
    for i in graph.inputs:
        paths = " ".join(json.dumps(path) for path in i.paths)
        trainable = " trainable" if i.trainable else ""
        lines.append(f"input {i.name}: {graph.types[i.name]} {i.role}{trainable} {paths}".rstrip())
    lines.append(f"forward {graph.forward}")
    lines.append(f"loss {graph.loss}".rstrip())
    if graph.sent:
        lines.append(f"sent {' '.join(graph.sent)}")
    lines += [f"gradient {parameter} {value}" for parameter, value in graph.gradients]
    lines += [f"update {buffer} {value}" for buffer, value in graph.updates]
    lines += [print_operation(op, graph.types) for op in graph.operations]
    return "\n".join(lines) + "\n"


def print_operation(op: Operation, types: Mapping[str, TensorType]) -> str:
    """One operation as its line: `out: float32[4] = aten.add.Tensor(a, b, alpha=2)  # layer.0`."""
    outputs = ", ".join(f"{name}: {types[name]}" for name in op.outputs)
    arguments = [print_argument(a) for a in op.args]
    arguments += [f"{key}={print_argument(a)}" for key, a in op.kwargs]
    module = f"  # {op.module}" if op.module else ""
    return f"{outputs} = {op.op}({', '.join(arguments)}){module}"


def print_argument(argument: Argument) -> str:
    """One argument: a value by its name, strings in JSON quotes, `dtype.float32` for an element type."""
    if isinstance(argument, Ref):
        return argument.name
    if isinstance(argument, Dtype):
        return f"dtype.{argument.name}"
    if isinstance(argument, tuple):
        inner = ", ".join(print_argument(item) for item in argument)
        return f"({inner},)" if len(argument) == 1 else f"({inner})"
    if isinstance(argument, str):
        return json.dumps(argument)
    return repr(argument)


def parse_graph(text: str) -> Graph:
    """The graph that `print_graph` printed. Raises FileError naming the line that cannot be read."""
    return _Parser(text).graph()


_TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>-?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|inf\b))
    |(?P<word>[A-Za-z_][\w.]*)
    |(?P<string>"(?:[^"\\]|\\.)*")
    |(?P<mark>[(),=])
    )""",
    re.VERBOSE,
)
_VALUE = re.compile(r"([A-Za-z_]\w*): (\w+)\[([\d,]*)\](?:, | = )")
_CALL = re.compile(r"([A-Za-z_]\w*(?:\.\w+)+)\(")
_INPUT = re.compile(r'input ([A-Za-z_]\w*): (\w+)\[([\d,]*)\] (\w+)( trainable)?((?: "(?:[^"\\]|\\.)*")*)$')
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


class _Parser:
    """Reads the lines of a graph one by one."""

    def __init__(self, text: str) -> None:
        self.lines = text.split("\n")
        self.number = 0
        self.types: dict[str, TensorType] = {}
        self.seen: dict[tuple[str, str], TensorType] = {}
        self.references: dict[str, Ref] = {}

    def fail(self, rule: str, found: str = "") -> FileError:
        line = self.lines[self.number] if self.number < len(self.lines) else "end of text"
        return FileError(f"graph text, line {self.number + 1}", rule, found or line)

    def graph(self) -> Graph:
        name = ""
        inputs: list[Input] = []
        operations: list[Operation] = []
        single: dict[str, str] = {}
        pairs: dict[str, list[tuple[str, str]]] = {"gradient": [], "update": []}
        for number, line in enumerate(self.lines):
            self.number = number
            if not line:
                continue
            head, _, rest = line.partition(" ")
            if head.endswith((":", ",")):
                operations.append(self.operation(line))
            elif head == "input":
                inputs.append(self.input(line))
            elif head == "graph":
                name = self.string(rest)
                single["graph"] = name
            elif head in ("forward", "loss", "model", "sent"):
                single[head] = rest
            elif head in pairs:
                pairs[head].append(self.pair(rest))
            else:
                raise self.fail("must be a header line or an operation")
        for key in ("graph", "forward", "loss"):
            if key not in single:
                raise self.fail(f"must have a line '{key} ...'", "none")
        if not single["forward"].isdecimal():
            raise self.fail("forward must be a number of operations", single["forward"])
        return Graph(
            name, tuple(inputs), tuple(operations), self.types, int(single["forward"]), single["loss"],
            tuple(pairs["gradient"]), tuple(pairs["update"]), single.get("model", ""),
            tuple(single.get("sent", "").split()),
        )  # fmt: skip

    def string(self, text: str) -> str:
        try:
            value = json.loads(text)
        except json.JSONDecodeError as error:
            raise self.fail("must be a string in double quotes", text) from error
        if not isinstance(value, str):
            raise self.fail("must be a string in double quotes", text)
        return value

    def pair(self, text: str) -> tuple[str, str]:
        first, _, second = text.partition(" ")
        if not _NAME.fullmatch(first) or not _NAME.fullmatch(second):
            raise self.fail("must name an input and a value")
        return first, second

    def input(self, line: str) -> Input:
        match = _INPUT.match(line)
        if match is None:
            raise self.fail("must be 'input NAME: TYPE ROLE [trainable] \"PATH\"...'")
        name, dtype, shape, role, trainable, paths = match.groups()
        if role not in get_args(Role):
            raise self.fail(f"an input must be one of {', '.join(get_args(Role))}", role)
        self.types[name] = self.type(dtype, shape)
        known: dict[str, Role] = {role: role for role in get_args(Role)}
        strings = tuple(self.string(s) for s in _STRING.findall(paths))
        return Input(name, known[role], strings, bool(trainable))

    def type(self, dtype: str, shape: str) -> TensorType:
        found = self.seen.get((dtype, shape))
        if found is None:
            if dtype not in DTYPE_BYTES:
                raise self.fail("must be a known element type", dtype)
            try:
                sizes = tuple(int(size) for size in shape.split(",")) if shape else ()
            except ValueError as error:
                raise self.fail("a shape must be sizes between commas", shape) from error
            found = self.seen[dtype, shape] = TensorType(sizes, dtype)
        return found

    def operation(self, line: str) -> Operation:
        position = 0
        outputs: list[str] = []
        while match := _VALUE.match(line, position):
            name, dtype, shape = match.groups()
            self.types[name] = self.type(dtype, shape)
            outputs.append(name)
            position = match.end()
        call = _CALL.match(line, position)
        if not outputs or call is None:
            raise self.fail("must be 'NAME: TYPE = OPERATION(...)'")
        args, kwargs, position = self.arguments(line, call.end())
        tail = line[position:]
        if tail and not tail.startswith("  # "):
            raise self.fail("nothing but a module may follow the call", tail)
        return Operation(call[1], args, kwargs, tuple(outputs), tail[4:])

    def arguments(
        self, line: str, position: int
    ) -> tuple[tuple[Argument, ...], tuple[tuple[str, Argument], ...], int]:
        """The arguments of a call up to its closing parenthesis, and where that ends."""
        stack: list[list[Argument]] = [[]]
        kwargs: list[tuple[str, Argument]] = []
        key = ""
        while True:
            match = _TOKEN.match(line, position)
            if match is None:
                raise self.fail("an argument cannot be read", line[position:] or "end of line")
            position = match.end()
            kind, token = match.lastgroup, match[match.lastindex or 0]
            if token == "(":
                stack.append([])
                continue
            if token == ",":
                continue
            if token == "=":
                raise self.fail("'=' must follow the name of an argument")
            if token == ")":
                closed = tuple(stack.pop())
                if not stack:
                    return closed, tuple(kwargs), position
                value: Argument = closed
            elif kind == "word" and len(stack) == 1 and line.startswith("=", position):
                key = token
                position += 1
                continue
            else:
                value = self.scalar(kind or "", token)
            if key and len(stack) == 1:
                kwargs.append((key, value))
                key = ""
            else:
                stack[-1].append(value)

    def scalar(self, kind: str, token: str) -> Argument:
        if kind == "number":
            return int(token) if token.lstrip("-").isdecimal() else float(token)
        if kind == "string":
            return self.string(token)
        if token in _WORDS:
            return _WORDS[token]
        if token.startswith("dtype."):
            return Dtype(token.removeprefix("dtype."))
        if "." in token:
            raise self.fail("an argument must be a value, a number, a string or an element type", token)
        found = self.references.get(token)
        if found is None:
            found = self.references[token] = Ref(token)
        return found
