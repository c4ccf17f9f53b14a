"""What must hold of a program, each rule with its own message."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import NoReturn

from hocket.errors import ProgramError
from hocket.graph.types import TensorType
from hocket.program.types import GATHERS, Collective, Free, Instruction, Program, Receive, Send


def verify_program(program: Program) -> None:
    """Raise ProgramError naming the rank, the instruction, the rule and the values."""
    _Verification(program).run()


def verify_programs(programs: Sequence[Program]) -> None:
    """Verify each program, and that the ranks of a group call the same collectives in the same order.

    Groups with ranks that are not among `programs` are held against the ranks that are.
    """
    calls: dict[tuple[int, ...], dict[int, list[Collective]]] = {}
    for program in programs:
        verify_program(program)
        for instruction in program.instructions:
            if isinstance(instruction, Collective):
                mine = calls.setdefault(instruction.group, {}).setdefault(program.rank, [])
                mine.append(instruction)
    ranks = {program.rank for program in programs}
    for group, by_rank in calls.items():
        members = [rank for rank in group if rank in ranks]
        first = members[0]
        for rank in members[1:]:
            _compare(group, first, by_rank.get(first, []), rank, by_rank.get(rank, []))


def _compare(
    group: tuple[int, ...], first: int, wanted: list[Collective], rank: int, found: list[Collective]
) -> None:
    culprit = f"group {list(group)}"
    if len(wanted) != len(found):
        raise ProgramError(culprit, "all its ranks call equally many collectives",
                           f"rank {first} {len(wanted)}, rank {rank} {len(found)}")  # fmt: skip
    for number, (one, other) in enumerate(zip(wanted, found, strict=True)):
        if _call(one) != _call(other):
            raise ProgramError(f"{culprit}, collective {number}", "is the same call on all its ranks",
                               f"rank {first} {one.kind} of {', '.join(one.inputs)}, "
                               f"rank {rank} {other.kind} of {', '.join(other.inputs)}")  # fmt: skip


def _call(call: Collective) -> tuple[object, ...]:
    """What ranks must agree on."""
    pieces = (call.pieces, call.join_pieces)
    return (call.kind, call.reduce, call.dims, call.joins, pieces, len(call.inputs))


class _Verification:
    """One program's check under way: which values are there, and which are gone."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.there: set[str] = {shard.name for shard in program.inputs}
        self.gone: set[str] = set()
        self.kept = self.there | program.leaving
        self.there |= {shard.name for shard in program.received}
        self.place = f"rank {program.rank}"

    def fail(self, rule: str, values: str) -> NoReturn:
        raise ProgramError(self.place, rule, values)

    def run(self) -> None:
        program = self.program
        if program.rank not in program.mesh.ranks:
            self.fail("is a rank of its mesh", f"mesh {program.mesh} has ranks {list(program.mesh.ranks)}")
        self.inputs()
        for index, instruction in enumerate(program.instructions):
            self.place = f"rank {program.rank}, instruction {index} ({_title(instruction)})"
            if index == program.forward:
                self.loss()
                self.there |= {shard.name for shard in program.arriving}
            self.instruction(instruction)
        self.place = f"rank {program.rank}"
        if program.forward == len(program.instructions):
            self.loss()
        self.leaving()

    def inputs(self) -> None:
        for shard in (*self.program.inputs, *self.program.received, *self.program.arriving):
            held = tuple(sum(length for _, length in dim) for dim in shard.intervals)
            if self.type(shard.name).shape != held:
                self.fail(f"input {shard.name} has the shape of its intervals",
                          f"{self.type(shard.name)}, intervals of {list(held)}")  # fmt: skip

    def type(self, name: str) -> TensorType:
        if name not in self.program.types:
            self.fail("every value has a local type", f"{name} has none")
        return self.program.types[name]

    def loss(self) -> None:
        if not 0 <= self.program.forward <= len(self.program.instructions):
            self.fail("forward is a number of its instructions", str(self.program.forward))
        if self.program.loss and self.program.loss not in self.there:
            self.fail("the loss is there when forward ends", f"{self.program.loss} is not")

    def instruction(self, instruction: Instruction) -> None:
        for name in instruction.inputs:
            if name in self.gone:
                rule = "frees a value once" if isinstance(instruction, Free) else "reads no freed value"
                self.fail(rule, f"{name} was freed before")
            if name not in self.there:
                self.fail("reads only what was made before it", f"{name} was not")
        if isinstance(instruction, Free):
            self.free(instruction)
            return
        if not (isfinite(instruction.seconds) and instruction.seconds >= 0):
            self.fail("takes a finite time", f"{instruction.seconds} s")
        for name in instruction.outputs:
            self.type(name)
            if name in self.there:
                self.fail("makes new values", f"{name} was made before and not freed")
            self.there.add(name)
            self.gone.discard(name)
        if isinstance(instruction, (Send, Receive)) and instruction.peer == self.program.rank:
            self.fail("talks to another rank", f"rank {instruction.peer}")
        if isinstance(instruction, Collective):
            self.collective(instruction)

    def free(self, instruction: Free) -> None:
        if len(set(instruction.values)) != len(instruction.values):
            self.fail("frees a value once", ", ".join(instruction.values))
        for name in instruction.values:
            if name in self.kept:
                self.fail("frees no input, and nothing that leaves the step", name)
            self.there.discard(name)
            self.gone.add(name)

    def collective(self, call: Collective) -> None:
        if self.program.rank not in call.group or len(set(call.group)) != len(call.group):
            self.fail("its group holds this rank, and each rank once", str(list(call.group)))
        counts = {len(call.inputs), len(call.outputs), len(call.dims), len(call.pieces)}
        if len(counts) != 1:
            self.fail("has as many outputs, dims and lists of pieces as inputs", str(sorted(counts)))
        if len({self.type(name).dtype for name in (*call.inputs, *call.outputs)}) != 1:
            self.fail("its tensors have one element type", str([str(self.type(n)) for n in call.inputs]))
        for number, (source, target) in enumerate(zip(call.inputs, call.outputs, strict=True)):
            self.shapes(call, number, self.type(source), self.type(target))

    def shapes(self, call: Collective, number: int, source: TensorType, target: TensorType) -> None:
        if call.kind == "all_reduce":
            if source.shape != target.shape:
                self.fail("an all_reduce keeps the shape", f"{source} -> {target}")
            return
        if len(call.pieces[number]) != len(call.group):
            self.fail("has pieces for each rank of its group", f"{call.pieces[number]} of {list(call.group)}")
        own = sum(call.pieces[number][call.group.index(self.program.rank)])
        cut = source if call.kind in GATHERS else target
        dim = call.dims[number]
        if dim >= len(cut.shape) or cut.shape[dim] != own:
            self.fail(f"this rank's pieces have the length of its part along dim {dim}", f"{own} of {cut}")
        total = sum(map(sum, call.pieces[number]))
        if call.kind == "resize":
            self.resized(call, number, source, total)
            return
        whole = target if call.kind in GATHERS else source
        if whole.shape[dim] != total:
            self.fail(f"all pieces together have the whole's length along dim {dim}", f"{total} of {whole}")

    def resized(self, call: Collective, number: int, source: TensorType, total: int) -> None:
        before = call.join_pieces[number]
        held = sum(before[call.group.index(self.program.rank)])
        if sum(map(sum, before)) != total or source.shape[call.dims[number]] != held:
            self.fail("a resize has the same length before and after, and this rank its part of it",
                      f"{before} -> {call.pieces[number]} of {source}")  # fmt: skip

    def leaving(self) -> None:
        for name, value in self.program.sent:
            if value not in self.there:
                self.fail("everything that is sent is there at the end", f"{value} of {name} is not")
        shards = {shard.name for shard in self.program.inputs}
        for word, pairs in (("gradient", self.program.gradients), ("update", self.program.updates)):
            for name, value in pairs:
                if name not in shards:
                    self.fail(f"a {word} belongs to an input", name)
                if value not in self.there:
                    self.fail(f"every {word} is there at the end", f"{value} of {name} is not")
                if self.type(value).shape != self.type(name).shape:
                    self.fail(f"a {word} has the shape of the stored shard",
                              f"{value}: {self.type(value)} of {name}: {self.type(name)}")  # fmt: skip


def _title(instruction: Instruction) -> str:
    made = ", ".join(instruction.outputs) or ", ".join(instruction.inputs)
    if isinstance(instruction, Collective):
        return f"{instruction.kind} -> {made}"
    word = type(instruction).__name__.lower()
    return f"{word} {made}" if isinstance(instruction, (Free, Send)) else f"{word} -> {made}"
