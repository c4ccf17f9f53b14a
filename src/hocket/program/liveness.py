"""Memory of a program: which bytes are held when, views sharing the storage they look at."""

from __future__ import annotations

from dataclasses import replace

from hocket.plan.types import Memory
from hocket.program.types import Compute, Free, Instruction, Program, Shard

VIEWS = frozenset({"view", "permute", "expand", "slice", "split_with_sizes", "pick"})
"""Kinds of operations whose result is (as a rule) a view: the runtime reshapes and narrows without a copy."""


def with_frees(program: Program) -> Program:
    """The program with a Free after the last reader of every value that does not leave the step.

    Inputs of the step are never freed. Values that the backward pass reads are freed in it.
    """
    keep = {i.name for i in program.inputs} | program.leaving
    last: dict[str, int] = {}
    for index, instruction in enumerate(program.instructions):
        for name in (*instruction.inputs, *instruction.outputs):
            last[name] = index
    ends: dict[int, list[str]] = {}
    for name, index in last.items():
        if name not in keep:
            ends.setdefault(index, []).append(name)
    result: list[Instruction] = []
    edges: list[int] = []
    for index, instruction in enumerate(program.instructions):
        edges.append(len(result))
        result.append(instruction)
        if index in ends:
            result.append(Free(tuple(ends[index])))
    edges.append(len(result))
    halfway = edges[program.halfway] if program.halfway >= 0 else -1
    return replace(program, instructions=tuple(result), forward=edges[program.forward], halfway=halfway)


def held_bytes(program: Program) -> tuple[int, ...]:
    """Bytes held beyond the inputs while each instruction runs (what it makes included).

    What other stages send is held from the beginning of the pass that it is for, what they are sent to the end of
    the pass that makes it.
    """
    return _trace(program)[0]


def waiting_bytes(program: Program) -> int:
    """Bytes held beyond the inputs between the forward and the backward pass."""
    return _trace(program)[1]


def _trace(program: Program) -> tuple[tuple[int, ...], int]:
    storage: dict[str, str] = {i.name: i.name for i in program.inputs}
    inputs = set(storage)
    given: dict[int, list[Shard]] = {0: list(program.received)}
    given.setdefault(program.forward, []).extend(program.arriving)
    users: dict[str, int] = {}
    held, waiting, trace = 0, 0, []
    for index, instruction in enumerate(program.instructions):
        if index == program.forward:
            held = waiting = held - _gone(program, storage, inputs)
        for shard in given.get(index, ()):
            storage[shard.name] = shard.name
            users[shard.name] = 1
            held += program.types[shard.name].bytes
        if isinstance(instruction, Free):
            for name in instruction.values:
                root = storage[name]
                if root in inputs:
                    continue
                users[root] -= 1
                if users[root] == 0:
                    held -= program.types[root].bytes
        else:
            view = isinstance(instruction, Compute) and instruction.operation.kind in VIEWS
            for name in instruction.outputs:
                root = storage[instruction.inputs[0]] if view else name
                storage[name] = root
                if root in inputs:
                    continue
                if root == name:
                    held += program.types[name].bytes
                users[root] = users.get(root, 0) + 1
        trace.append(held)
    return tuple(trace), waiting


def _gone(program: Program, storage: dict[str, str], inputs: set[str]) -> int:
    """Bytes of what is sent when forward ends and not read later."""
    later = {name for i in program.instructions[program.forward :] for name in i.inputs}
    roots = {storage[value] for _, value in program.sent if value in storage}
    kept = {storage[name] for name in later if name in storage}
    return sum(program.types[root].bytes for root in roots - kept - inputs)


def memory_of(program: Program, optimizer_bytes: float) -> Memory:
    """Peak memory of a rank: what it stores, optimizer state per trained element, gradients, the rest.

    `program` must have its frees. Gradients are counted as they all stand at the end of the step.
    """
    stored = sum(program.types[i.name].bytes for i in program.inputs)
    trained = sum(program.types[p].elements for p, _ in program.gradients)
    gradients = sum(program.types[v].bytes for _, v in program.gradients)
    peak = max(held_bytes(program), default=0)
    return Memory(stored, gradients, int(trained * optimizer_bytes), max(0, peak - gradients))
