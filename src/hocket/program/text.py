"""The text form of a program: one line per instruction, printed and parsed back exactly."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from hocket.errors import FileError, HocketError, ProgramError
from hocket.graph.text import parse_graph, print_operation
from hocket.graph.types import Operation, TensorType
from hocket.program.types import Collective, Compute, Free, Instruction, Program, Receive, Send, Shard
from hocket.sharding.layout import Layout
from hocket.sharding.mesh import Mesh

_DEFAULTS: Mapping[str, Any] = {"source": -1, "salt": 0, "reduce": "sum", "joins": (), "join_pieces": ()}


_FIELDS: Mapping[str, str] = {"shard": "inputs", "received": "received", "arriving": "arriving"}
SHARDS = tuple(_FIELDS)
"""Words of the lines that say what a rank holds of an input."""


def print_program(program: Program) -> str:
    """The program as text; `parse_program` gives it back exactly."""
    mesh = f"{program.mesh}@{program.mesh.first}" if program.mesh.first else str(program.mesh)
    lines = [f"program rank {program.rank} mesh {mesh}"]
    for key in SHARDS:
        lines += [f"{key} {_print_shard(shard)}" for shard in getattr(program, _FIELDS[key])]
    made = {name for i in program.instructions for name in i.outputs}
    lines += [f"type {name}: {tensor}" for name, tensor in program.types.items() if name not in made]
    lines += [f"forward {program.forward}", f"loss {program.loss}".rstrip()]
    if program.halfway >= 0:
        lines.append(f"halfway {program.halfway}")
    lines += [f"sent {name} {value}" for name, value in program.sent]
    lines += [f"gradient {name} {value}" for name, value in program.gradients]
    lines += [f"update {name} {value}" for name, value in program.updates]
    lines += [print_instruction(instruction, program.types) for instruction in program.instructions]
    return "\n".join(lines) + "\n"


def print_instruction(instruction: Instruction, types: Mapping[str, TensorType]) -> str:
    """One instruction as its line: its kind, its numbers (seconds, bytes), and what it makes of what."""
    made = ", ".join(f"{name}: {types[name]}" for name in instruction.outputs)
    if isinstance(instruction, Compute):
        numbers = _options(instruction, ("operation",))
        return f"compute {numbers} | {print_operation(instruction.operation, types)}"
    if isinstance(instruction, Collective):
        numbers = _options(instruction, ("kind", "inputs", "outputs"))
        return f"collective {instruction.kind} {numbers} | {made} = {', '.join(instruction.inputs)}"
    if isinstance(instruction, Send):
        return f"send {_options(instruction, ('value',))} | {instruction.value}"
    if isinstance(instruction, Receive):
        return f"receive {_options(instruction, ('value',))} | {made}"
    return f"free {' '.join(instruction.values)}"


def _options(instruction: Any, without: tuple[str, ...]) -> str:
    """The fields that are not at their defaults, as key=JSON without spaces."""
    parts = []
    for field in dataclasses.fields(instruction):
        value = getattr(instruction, field.name)
        if field.name not in without and not (field.name in _DEFAULTS and value == _DEFAULTS[field.name]):
            parts.append(f"{field.name}={json.dumps(value, separators=(',', ':'))}")
    return " ".join(parts)


def _print_shard(shard: Shard) -> str:
    dims = " ".join(",".join(f"{start}+{length}" for start, length in dim) or "-" for dim in shard.intervals)
    return f"{shard.name} {shard.layout} {dims}".rstrip()


def parse_program(text: str) -> Program:
    """The program that `print_program` printed; raises ProgramError naming the line that cannot be read."""
    reader = _Reader(text)
    try:
        return reader.program()
    except (ValueError, KeyError, TypeError, IndexError, HocketError) as error:
        values = error.rule if isinstance(error, HocketError) else repr(error)
        raise ProgramError(f"program text, line {reader.number}", "is a line of a program",
                           f"{reader.line[:200]!r} ({values})") from None  # fmt: skip


class _Reader:
    """Reads the lines of a program one by one."""

    def __init__(self, text: str) -> None:
        self.lines = text.split("\n")
        self.number, self.line = 0, ""
        self.types: dict[str, TensorType] = {}
        self.head: dict[str, str] = {}
        self.shards: dict[str, list[Shard]] = {key: [] for key in SHARDS}
        self.pairs: dict[str, list[tuple[str, str]]] = {"gradient": [], "update": [], "sent": []}
        self.instructions: list[Instruction] = []

    def program(self) -> Program:
        for number, line in enumerate(self.lines, 1):
            self.number, self.line = number, line
            if line:
                self.read(*line.split(" ", 1))
        self.line = "end of text"
        rank, mesh = self.head["program"].removeprefix("rank ").split(" mesh ")
        sizes, _, first = mesh.partition("@")
        return Program(
            int(rank), Mesh(Mesh.parse(sizes).sizes, int(first or 0)), tuple(self.shards["shard"]),
            tuple(self.instructions), int(self.head["forward"]), self.types, self.head["loss"],
            tuple(self.pairs["gradient"]), tuple(self.pairs["update"]), tuple(self.shards["received"]),
            tuple(self.shards["arriving"]), tuple(self.pairs["sent"]), int(self.head.get("halfway", -1)),
        )  # fmt: skip

    def read(self, key: str, rest: str = "") -> None:
        if key in ("program", "forward", "loss", "halfway"):
            self.head[key] = rest
        elif key in self.pairs:
            name, value = rest.split(" ")
            self.pairs[key].append((name, value))
        elif key in self.shards:
            self.shards[key].append(_read_shard(rest))
        elif key == "type":
            self.values(rest)
        elif key == "free":
            self.instructions.append(Free(tuple(rest.split(" "))))
        else:
            numbers, _, body = rest.partition(" | ")
            self.instructions.append(self.instruction(key, numbers, body))

    def instruction(self, key: str, numbers: str, body: str) -> Instruction:
        words = numbers.split(" ")
        kind = words.pop(0) if key == "collective" else ""
        options = {k: _tuple(json.loads(v)) for k, _, v in (word.partition("=") for word in words)}
        if key == "compute":
            return Compute(self.operation(body), **options)
        if key == "collective":
            made, _, read = body.partition(" = ")
            outputs = self.values(made)
            return Collective(kind=kind, inputs=tuple(read.split(", ")), outputs=outputs, **options)
        if key == "send":
            return Send(body, **options)
        if key == "receive":
            return Receive(self.values(body)[0], **options)
        raise FileError(self.line, "starts with the word of an instruction")

    def operation(self, line: str) -> Operation:
        """An operation's line, read as a graph of this one operation."""
        graph = parse_graph(f'graph ""\nforward 0\nloss none\n{line}\n')
        self.types.update(graph.types)
        (operation,) = graph.operations
        return operation

    def values(self, text: str) -> tuple[str, ...]:
        """Names of `a: float32[2], b: int64[]`, whose types are noted."""
        names = []
        for item in text.split(", "):
            name, _, written = item.partition(": ")
            dtype, _, shape = written.rstrip("]").partition("[")
            self.types[name] = TensorType(tuple(int(n) for n in shape.split(",")) if shape else (), dtype)
            names.append(name)
        return tuple(names)


def _read_shard(text: str) -> Shard:
    name, layout, *dims = text.split(" ")
    held = []
    for dim in dims:
        pairs = [piece.split("+") for piece in dim.split(",")] if dim != "-" else []
        held.append(tuple((int(start), int(length)) for start, length in pairs))
    return Shard(name, Layout.parse(layout), tuple(held))


def _tuple(value: Any) -> Any:
    return tuple(map(_tuple, value)) if isinstance(value, list) else value
