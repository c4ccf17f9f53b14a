"""Moving communication off the critical path: asynchronous collectives are bundled, run ahead, or run behind.

Collectives on parameters go ahead of the computation: they travel in bundles, each started when the one before
it is first needed. Collectives on gradients run behind it: they collect in bundles that start when full. A
bundle holds at most BUCKET_BYTES unless one tensor alone is larger. Nothing moves between forward and backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from hocket.program.types import GATHERS, SCATTERS, Collective, Compute, Instruction, Program

Price = Callable[[str, int, int], float]
PREFETCH_BYTES = 256 * 2**20
"""Bytes of parameters under way before the bundle that is needed: about one block of an 8-billion-parameter model
in bfloat16, what FSDP2 gathers ahead."""
BUNDLED = GATHERS | SCATTERS | {"all_reduce"}


def bundle(program: Program, price: Price, limit: int) -> Program:
    """The program with its asynchronous collectives bundled and moved; `limit` is in bytes."""
    ahead = _early(program)
    behind = _late(program)
    phases = []
    for start, end in zip(program.edges, program.edges[1:], strict=False):
        moved = _run_ahead(list(program.instructions[start:end]), ahead, program, price, limit)
        phases.append(_run_behind(moved, behind, program, price, limit))
    halfway = len(phases[0]) + len(phases[1]) if program.halfway >= 0 else -1
    instructions = tuple(i for phase in phases for i in phase)
    return replace(program, instructions=instructions, forward=len(phases[0]), halfway=halfway)


def _early(program: Program) -> frozenset[int]:
    """Ids of instructions that depend on inputs alone through instructions of one input."""
    known = {i.name for i in program.inputs}
    found: set[int] = set()
    for instruction in program.instructions:
        moves = isinstance(instruction, Compute) or (
            isinstance(instruction, Collective) and not instruction.blocking
        )
        if moves and len(set(instruction.inputs)) == 1 and instruction.inputs[0] in known:
            known.update(instruction.outputs)
            found.add(id(instruction))
    return frozenset(found)


def _late(program: Program) -> frozenset[int]:
    """Ids of instructions whose results only lead out of the step, through asynchronous collectives."""
    out = {v for _, v in program.gradients}
    readers: dict[str, list[Instruction]] = {}
    for instruction in program.instructions:
        for name in instruction.inputs:
            readers.setdefault(name, []).append(instruction)
    late: set[int] = set()
    for instruction in reversed(program.instructions):
        if isinstance(instruction, Collective) and instruction.blocking:
            continue
        followers = [r for name in instruction.outputs for r in readers.get(name, ())]
        leads = all(name in out or readers.get(name) for name in instruction.outputs)
        if leads and instruction.outputs and all(id(f) in late for f in followers):
            late.add(id(instruction))
    return frozenset(late)


def _key(call: Collective, program: Program) -> tuple[object, ...]:
    return (call.kind, call.group, call.reduce, program.types[call.inputs[0]].dtype)


def _merge(calls: Sequence[Collective], price: Price) -> Collective:
    """Several collectives of one key as one."""
    if len(calls) == 1:
        return calls[0]
    first = calls[0]
    size = sum(c.bytes for c in calls)
    return replace(
        first,
        inputs=tuple(n for c in calls for n in c.inputs),
        outputs=tuple(n for c in calls for n in c.outputs),
        dims=tuple(d for c in calls for d in c.dims),
        pieces=tuple(p for c in calls for p in c.pieces),
        bytes=size,
        seconds=price(first.kind, first.axis, size),
    )


@dataclass
class _Chain:
    """What leads from an input to its last early collective, and where its result is first needed."""

    instructions: list[Instruction]
    need: int

    def signature(self, program: Program) -> tuple[object, ...]:
        return tuple(
            _key(i, program) if isinstance(i, Collective) else i.operation.kind  # type: ignore[union-attr]
            for i in self.instructions
        )

    @property
    def bytes(self) -> int:
        return max(i.bytes for i in self.instructions if isinstance(i, Collective))


def _run_ahead(
    part: list[Instruction], early: frozenset[int], program: Program, price: Price, limit: int
) -> list[Instruction]:
    """Bundle the early chains of one phase; start each bundle when the one before it is first needed."""
    chains, rest = _chains(part, early)
    groups: list[list[_Chain]] = []
    open_groups: dict[tuple[object, ...], list[_Chain]] = {}
    filled: dict[tuple[object, ...], int] = {}
    for chain in sorted(chains, key=lambda c: c.need):
        signature = chain.signature(program)
        group = open_groups.get(signature)
        if group is None or filled[signature] + chain.bytes > limit:
            group = open_groups[signature] = []
            filled[signature] = 0
            groups.append(group)
        group.append(chain)
        filled[signature] += chain.bytes
    needs = [min(c.need for c in group) for group in groups]
    sizes = [sum(c.bytes for c in group) for group in groups]
    starts: dict[int, list[int]] = {}
    first, under_way = 0, 0
    for number in range(len(groups)):
        under_way += sizes[number]
        while under_way > PREFETCH_BYTES and first < number:
            under_way -= sizes[first]
            first += 1
        at = needs[first - 1] if first else 0
        starts.setdefault(min(at, needs[number]), []).append(number)
    home = {name: n for n, g in enumerate(groups) for c in g for i in c.instructions for name in i.outputs}
    result: list[Instruction] = []
    emitted: set[int] = set()

    def emit(number: int) -> None:
        if number in emitted:
            return
        emitted.add(number)
        for chain in groups[number]:
            for name in chain.instructions[0].inputs:
                if name in home:
                    emit(home[name])
        result.extend(_joined(groups[number], price))

    for index, instruction in enumerate(part):
        for number in starts.get(index, ()):
            emit(number)
        if id(instruction) in rest:
            result.append(instruction)
    return result


def _chains(part: list[Instruction], early: frozenset[int]) -> tuple[list[_Chain], frozenset[int]]:
    """The early chains that communicate, and the ids of all instructions that stay where they are.

    A chain ends in a collective that no other early collective reads; where chains share a beginning, the
    first one has it.
    """
    maker = {name: i for i in part if id(i) in early for name in i.outputs}
    moving = [i for i in part if isinstance(i, Collective) and id(i) in early]
    feeding = {name for i in moving for name in _sources(i, maker)}
    taken: set[int] = set()
    found: list[list[Instruction]] = []
    for last in moving:
        if any(name in feeding for name in last.outputs):
            continue
        chain: list[Instruction] = [last]
        while (before := maker.get(chain[0].inputs[0])) is not None and id(before) not in taken:
            chain.insert(0, before)
        taken.update(id(i) for i in chain)
        found.append(chain)
    needed: dict[str, int] = {}
    for index, instruction in enumerate(part):
        if id(instruction) not in taken:
            for name in instruction.inputs:
                needed.setdefault(name, index)
    end = len(part) - 1
    chains = [_Chain(c, min(needed.get(name, end) for i in c for name in i.outputs)) for c in found]
    return chains, frozenset(id(i) for i in part) - taken


def _sources(instruction: Instruction, maker: dict[str, Instruction]) -> list[str]:
    """Values that lead to an early collective, its input first."""
    names, name = [], instruction.inputs[0]
    while name in maker:
        names.append(name)
        name = maker[name].inputs[0]
    return names


def _joined(group: list[_Chain], price: Price) -> list[Instruction]:
    """The instructions of chains of equal shape, level by level, collectives merged."""
    result: list[Instruction] = []
    for level in zip(*(c.instructions for c in group), strict=True):
        if isinstance(level[0], Collective) and level[0].kind in BUNDLED:
            result.append(_merge([i for i in level if isinstance(i, Collective)], price))
        else:
            result += level
    return result


@dataclass
class _Behind:
    """Bundles filling up, and what waits for them."""

    open: dict[tuple[object, ...], list[Collective]] = field(default_factory=dict)
    pending: dict[str, tuple[object, ...]] = field(default_factory=dict)
    waiting: list[Instruction] = field(default_factory=list)


def _run_behind(
    part: list[Instruction], late: frozenset[int], program: Program, price: Price, limit: int
) -> list[Instruction]:
    """Collect late collectives of one phase in bundles; emit each when full, or when it must be."""
    state, result = _Behind(), list[Instruction]()

    def feed(instruction: Instruction) -> None:
        if any(name in state.pending for name in instruction.inputs):
            if id(instruction) in late:
                state.waiting.append(instruction)
                state.pending.update(dict.fromkeys(instruction.outputs, ()))
                return
            while any(name in state.pending for name in instruction.inputs):
                flush(next(iter(state.open)))
        if id(instruction) not in late or not isinstance(instruction, Collective):
            result.append(instruction)
            return
        if instruction.kind not in BUNDLED:
            result.append(instruction)
            return
        key = _key(instruction, program)
        if sum(c.bytes for c in state.open.get(key, ())) + instruction.bytes > limit and key in state.open:
            flush(key)
        state.open.setdefault(key, []).append(instruction)
        state.pending.update(dict.fromkeys(instruction.outputs, key))
        if instruction.bytes >= limit:
            flush(key)

    def flush(key: tuple[object, ...]) -> None:
        calls = state.open.pop(key)
        result.append(_merge(calls, price))
        for name in [n for c in calls for n in c.outputs]:
            del state.pending[name]
        again, state.waiting = state.waiting, []
        for instruction in again:
            for name in instruction.outputs:
                state.pending.pop(name, None)
        for instruction in again:
            feed(instruction)

    for instruction in part:
        feed(instruction)
    while state.open:
        flush(next(iter(state.open)))
    return result
