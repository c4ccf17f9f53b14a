"""Memory of a program: which bytes are held when, views sharing the storage they look at."""

from __future__ import annotations

from dataclasses import replace

from hocket.plan.types import Memory
from hocket.program.types import Compute, Free, Instruction, Program

VIEWS = frozenset({"view", "permute", "expand", "slice", "split_with_sizes", "pick"})
"""Kinds of operations whose result is (as a rule) a view: the runtime reshapes and narrows without a copy."""


def with_frees(program: Program) -> Program:
    """The program with a Free after the last reader of every value that does not leave the step.

    Inputs of the step are never freed. Values that the backward pass reads are freed in it.
    """
    keep = {i.name for i in program.inputs} | {program.loss}
    keep |= {v for _, v in program.gradients} | {v for _, v in program.updates}
    last: dict[str, int] = {}
    for index, instruction in enumerate(program.instructions):
        for name in (*instruction.inputs, *instruction.outputs):
            last[name] = index
    ends: dict[int, list[str]] = {}
    for name, index in last.items():
        if name not in keep:
            ends.setdefault(index, []).append(name)
    result: list[Instruction] = []
    forward = 0
    for index, instruction in enumerate(program.instructions):
        if index == program.forward:
            forward = len(result)
        result.append(instruction)
        if index in ends:
            result.append(Free(tuple(ends[index])))
    if program.forward == len(program.instructions):
        forward = len(result)
    return replace(program, instructions=tuple(result), forward=forward)


def held_bytes(program: Program) -> tuple[int, ...]:
    """Bytes held beyond the inputs while each instruction runs (what it makes included)."""
    storage: dict[str, str] = {i.name: i.name for i in program.inputs}
    users: dict[str, int] = {}
    inputs = set(storage)
    held, trace = 0, []
    for instruction in program.instructions:
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
    return tuple(trace)


def memory_of(program: Program, optimizer_bytes: float) -> Memory:
    """Peak memory of a rank: what it stores, optimizer state per trained element, gradients, the rest.

    `program` must have its frees. Gradients are counted as they all stand at the end of the step.
    """
    stored = sum(program.types[i.name].bytes for i in program.inputs)
    trained = sum(program.types[p].elements for p, _ in program.gradients)
    gradients = sum(program.types[v].bytes for _, v in program.gradients)
    peak = max(held_bytes(program), default=0)
    return Memory(stored, gradients, int(trained * optimizer_bytes), max(0, peak - gradients))
