"""A program written out as Python functions, one for each of its passes: one line for each instruction.

Values are local variables `x<n>`, collectives under way `p<n>`, kernels `f<n>`, constants `c<n>`. Every
decision (who waits for what, what is dropped when) is taken once, here, so that running a step costs nothing
but the calls themselves.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from hocket.errors import ProgramError
from hocket.graph.types import Argument, Operation, Ref
from hocket.program.types import Collective, Compute, Free, Instruction, Program
from hocket.runtime.kernels import CREATES, kernel, torch_argument

Function = Callable[..., Any]
Sent = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the written functions call besides kernels.

    `start(collective, tensors)` begins a collective and gives the function that ends it; `dropout(operation,
    salt)` gives the kernel of one dropout, called with the value and the step; `begin()` and
    `end(index, begun)` enclose each instruction where a timeline is recorded. `compile` compiles a run of
    local operations without communication between them; a timeline has it under its first instruction.
    """

    start: Function
    dropout: Callable[[Operation, int], Function]
    begin: Function | None = None
    end: Function | None = None
    compile: Callable[[Function], Function] | None = None


@dataclass(frozen=True, slots=True)
class Script:
    """The functions of a program and how they are called.

    `forward(inputs, step)` gives (loss, new buffers, what is sent, what is kept), inputs in the order of the
    program's, what is received after them; `backward(kept, step, arriving)` empties the list of what was kept and
    gives (what is sent, what is kept on), `weights(kept, step)` the gradients in the program's order;
    `finish(kept)` only waits for what is under way. `sent` are the values that forward sends and those that
    backward sends. `text` is the source.
    """

    forward: Function
    backward: Function
    weights: Function
    finish: Function
    sent: tuple[tuple[str, ...], tuple[str, ...]]
    text: str


@dataclass(frozen=True, slots=True)
class _Pass:
    """A function to be written: its head, what arrives with it, the values that it gives and how."""

    head: str
    given: list[str]
    leaving: list[str]
    results: str


def write(program: Program, device: torch.device, hooks: Hooks) -> Script:
    """The functions of a program; raises ProgramError for an instruction that this runtime does not know."""
    return _Writer(program, device, hooks).write()


@dataclass
class _Writer:
    """Functions under construction. `waiting` maps values under way to the collective that makes them."""

    program: Program
    device: torch.device
    hooks: Hooks
    names: dict[str, str] = field(default_factory=dict)
    world: dict[str, Any] = field(default_factory=dict)
    bound: dict[object, str] = field(default_factory=dict)
    waiting: dict[str, int] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)

    def write(self) -> Script:
        program, edges = self.program, self.program.edges
        self.world |= {"start": self.hooks.start, "begin": self.hooks.begin, "end": self.hooks.end}
        entry = [f"{self._unpacked([i.name for i in (*program.inputs, *program.received)])} = inputs", "del inputs"]
        known = {shard.name for shard in (*program.inputs, *program.received)}
        functions = []
        for number, one in enumerate(self._passes()):
            self.lines = entry
            if one.given:
                self.lines += [f"{self._unpacked(one.given)} = arriving", "arriving.clear()"]
                known.update(one.given)
            instructions = program.instructions[edges[number] : edges[number + 1]]
            self._body(instructions, edges[number])
            self._arrive(one.leaving)
            known.update(n for i in instructions for n in i.outputs)
            pending = [f"p{n}" for n in dict.fromkeys(self.waiting.values())]
            held = [*(self._x(n) for n in self._kept(edges[number + 1], known)), *pending]
            tail = f", [{', '.join(held)}]" if number < 2 else ""
            functions.append(_function(one.head, [*self.lines, f"return {one.results}{tail}"]))
            entry = [f"[{', '.join(held)}] = kept", "kept.clear()"] if held else []
            if number == 0:
                lines = [*entry, *(f"{p}()" for p in pending), "return None"]
                functions.append(_function("finish(kept)", lines))
        return self._compiled("\n".join((*self.runs, *functions)))

    def _passes(self) -> tuple[_Pass, _Pass, _Pass]:
        """Forward, backward and the gradients of weights: what each is given and gives."""
        program = self.program
        loss = [program.loss] if program.loss else []
        updates, gradients = [v for _, v in program.updates], [v for _, v in program.gradients]
        early, late = ([v for _, v in sent] for sent in self._sent())
        first = self._x(program.loss) if program.loss else "None"
        results = f"{first}, {self._unpacked(updates)}, {self._unpacked(early)}"
        arriving = [shard.name for shard in program.arriving]
        return (
            _Pass("forward(inputs, step)", [], [*loss, *updates, *early], results),
            _Pass("backward(kept, step, arriving)", arriving, late, self._unpacked(late)),
            _Pass("weights(kept, step)", [], gradients, self._unpacked(gradients)),
        )

    def _sent(self) -> tuple[Sent, Sent]:
        """What the forward pass sends, and what the backward pass does."""
        program = self.program
        made = {n for i in program.instructions[: program.forward] for n in i.outputs}
        made |= {shard.name for shard in (*program.inputs, *program.received)}
        early = tuple((name, value) for name, value in program.sent if value in made)
        return early, tuple(pair for pair in program.sent if pair not in early)

    def _compiled(self, text: str) -> Script:
        """The functions of their source."""
        file = f"<hocket program of rank {self.program.rank} at {id(self):x}>"
        linecache.cache[file] = (len(text), None, text.splitlines(True), file)
        exec(compile(text, file, "exec"), self.world)
        for number in range(len(self.runs)):
            self.world[f"r{number}"] = (self.hooks.compile or _same)(self.world[f"r{number}"])
        forward, backward, weights, finish = (
            self.world[name] for name in ("forward", "backward", "weights", "finish")
        )
        early, late = (tuple(name for name, _ in sent) for sent in self._sent())
        return Script(forward, backward, weights, finish, (early, late), text)

    def _kept(self, edge: int, known: set[str]) -> list[str]:
        """Values that later passes read and earlier ones (or the caller) have, those under way left out."""
        program = self.program
        read = [n for i in program.instructions[edge:] if not isinstance(i, Free) for n in i.inputs]
        read += [value for _, value in program.gradients]
        return [n for n in dict.fromkeys(read) if n in known and n not in self.waiting]

    def _x(self, name: str) -> str:
        return self.names.setdefault(name, f"x{len(self.names)}")

    def _unpacked(self, names: Iterable[str]) -> str:
        return f"[{', '.join(self._x(n) for n in names)}]"

    def _bind(self, kind: str, value: Any) -> str:
        key = (kind, id(value))
        if key not in self.bound:
            self.bound[key] = f"{kind}{len(self.bound)}"
            self.world[self.bound[key]] = value
        return self.bound[key]

    def _body(self, instructions: Sequence[Instruction], first: int) -> None:
        run: list[Compute | Free] = []
        for index, instruction in enumerate(instructions, first):
            if self._joins(run, instruction):
                run.append(instruction)  # type: ignore[arg-type]
                continue
            self._run(index - len(run), run)
            run = []
            if self._joins(run, instruction):
                run.append(instruction)  # type: ignore[arg-type]
            elif isinstance(instruction, Compute):
                self._arrive(instruction.inputs)
                self._timed(index, [self._compute(instruction)])
            elif isinstance(instruction, Collective):
                self._arrive(instruction.inputs)
                self._collective(index, instruction)
            elif isinstance(instruction, Free):
                self._arrive(instruction.values)
                if instruction.values:
                    self.lines.append(f"{' = '.join(self._x(n) for n in instruction.values)} = None")
            else:
                raise ProgramError(
                    f"instruction {index}", "is one that this runtime can carry out", repr(instruction)
                )

        self._run(first + len(instructions) - len(run), run)

    def _joins(self, run: Sequence[Compute | Free], instruction: Instruction) -> bool:
        """Whether an instruction is compiled together with those of a run before it."""
        if self.hooks.compile is None or any(n in self.waiting for n in instruction.inputs):
            return False
        if isinstance(instruction, Compute):
            return instruction.operation.kind != "native_dropout"
        return isinstance(instruction, Free) and bool(run)

    def _run(self, index: int, run: Sequence[Compute | Free]) -> None:
        """One call for a run of local operations: a function of what it reads, giving what outlives it."""
        calls = [i for i in run if isinstance(i, Compute)]
        if not calls:
            return
        made = dict.fromkeys(n for i in calls for n in i.outputs)
        freed = dict.fromkeys(n for i in run if isinstance(i, Free) for n in i.values)
        read = dict.fromkeys(n for i in calls for n in i.inputs if n not in made)
        given = [n for n in made if n not in freed]
        body = [*map(self._compute, calls), f"return {self._unpacked(given)}"]
        name = f"r{len(self.runs)}"
        arguments = ", ".join(self._x(n) for n in read)
        self.runs.append(_function(f"{name}({arguments})", body))
        self._timed(index, [f"{self._unpacked(given)} = {name}({arguments})"])
        self.lines += [f"{self._x(n)} = None" for n in freed if n not in made]

    def _timed(self, index: int, lines: list[str]) -> None:
        if self.hooks.begin is None:
            self.lines += lines
        else:
            self.lines += ["t = begin()", *lines, f"end({index}, t)"]

    def _arrive(self, names: Iterable[str]) -> None:
        """Wait for those of the values that are under way."""
        for name in names:
            if name in self.waiting:
                index = self.waiting[name]
                call = self.program.instructions[index]
                self.lines.append(f"{self._unpacked(call.outputs)} = p{index}()")
                self.lines.append(f"p{index} = None")
                if self.hooks.begin is not None:
                    self.lines.append(f"end({index}, None)")
                for output in call.outputs:
                    self.waiting.pop(output, None)

    def _collective(self, index: int, call: Collective) -> None:
        if len(call.group) == 1:  # a mesh axis of one: nobody to talk to
            self.lines.append(f"{self._unpacked(call.outputs)} = {self._unpacked(call.inputs)}")
            return
        tensors = ", ".join(self._x(n) for n in call.inputs)
        if self.hooks.begin is not None:
            self.lines.append(f"begin({index})")
        self.lines.append(f"p{index} = start({self._bind('c', call)}, [{tensors}])")
        self.waiting.update(dict.fromkeys(call.outputs, index))
        if call.blocking:
            self._arrive(call.outputs[:1])

    def _compute(self, instruction: Compute) -> str:
        operation = instruction.operation
        outputs = [self._x(name) for name in operation.outputs]
        target = outputs[0] if len(outputs) == 1 else ", ".join(outputs)
        if operation.kind == "native_dropout":
            function = self._bind("f", self.hooks.dropout(operation, instruction.salt))
            return f"{target} = {function}({self._argument(operation.args[0])}, step)"
        function = self._bind("f", kernel(operation.op, self.hooks.compile is not None))
        arguments = [self._argument(a) for a in operation.args]
        arguments += [f"{key}={self._argument(a)}" for key, a in operation.kwargs]
        if operation.op in CREATES:
            arguments.append(f"device={self._constant(self.device)}")
        return f"{target} = {function}({', '.join(arguments)})"

    def _argument(self, argument: Argument) -> str:
        if isinstance(argument, Ref):
            return self._x(argument.name)
        if isinstance(argument, tuple) and any(isinstance(a, Ref) for a in argument):
            return f"[{', '.join(self._argument(a) for a in argument)}]"
        return self._constant(torch_argument(argument))

    def _constant(self, value: Any) -> str:
        if value is None or isinstance(value, (bool, int)):
            return repr(value)
        key = (type(value), repr(value))
        if key not in self.bound:
            self.bound[key] = f"c{len(self.bound)}"
            self.world[self.bound[key]] = value
        return self.bound[key]


def _same(function: Function) -> Function:
    return function


def _function(head: str, lines: list[str]) -> str:
    return f"def {head}:\n" + "".join(f"    {line}\n" for line in lines or ["pass"])


def sources(program: Program) -> Mapping[int, str]:
    """The kind of every instruction that takes time, by index."""
    names = {}
    for index, instruction in enumerate(program.instructions):
        if isinstance(instruction, Compute):
            names[index] = instruction.operation.kind
        elif isinstance(instruction, Collective):
            names[index] = instruction.kind
    return names
