"""A synthesised program: its instructions in the order of time, and their cost in stages (HAP, section 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hocket.search.synthesis.theory import Theory, Triple
from hocket.sharding.layout import Layout

Work = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Instruction:
    """A computation (`strategy`, seconds of `work` per kind of device) or a conversion (`target`, `seconds`)."""

    name: str
    strategy: str = ""
    work: Work = ()
    target: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        if self.strategy:
            return f"{self.name} by {self.strategy}"
        return f"{self.name} to {self.target}"


@dataclass(frozen=True, slots=True)
class SynthesisedProgram:
    """The strategies of all operations, how inputs are stored, and the instructions in the order of time."""

    strategies: tuple[str, ...]
    stored: dict[str, Layout]
    instructions: tuple[Instruction, ...]


def stages_seconds(instructions: Sequence[Instruction], kinds: int) -> float:
    """Seconds of a program: every communication starts a stage, which takes as long as its slowest device."""
    total, stage = 0.0, (0.0,) * kinds
    for instruction in instructions:
        if instruction.strategy:
            stage = tuple(a + b for a, b in zip(stage, instruction.work, strict=True))
        elif instruction.seconds:
            total, stage = total + max(stage) + instruction.seconds, (0.0,) * kinds
    return total + max(stage)


def program_of(theory: Theory, triples: Sequence[Triple]) -> SynthesisedProgram:
    """The program that triples, in the theory's order, put together."""
    graph = theory.problem.graph
    strategies = [""] * len(graph.operations)
    front: list[Instruction] = []
    end: list[Instruction] = []
    inputs = {t.name: t.space.layouts[t.stored[0]] for t in theory.tensors.values() if t.stored}
    every = tuple(theory.tensors.values())
    for triple in triples:
        if not triple.work:
            inputs.update({every[n].name: every[n].space.layouts[k] for n, k in triple.stored})
    placed = [t for t in triples if t.work]
    for place, triple in zip(theory.places, placed, strict=True):
        operation = graph.operations[place.index]
        strategies[place.index] = str(theory.strategies(place.index)[triple.option])
        before: list[tuple[str, str]] = []
        after: list[tuple[str, str]] = []
        for slot, target in triple.fetched:
            tensor = place.tensors[slot]
            made = tensor.name in operation.outputs
            (after if made else before).append((tensor.name, str(tensor.space.layouts[target])))
        inputs.update({place.tensors[n].name: place.tensors[n].space.layouts[k] for n, k in triple.stored})
        compute = Instruction(operation.outputs[0], strategies[place.index], triple.work)
        front += _conversions(before, triple.before)
        if place.late:
            end[:0] = [compute, *_conversions(after, triple.after)]
        else:
            front += [compute, *_conversions(after, triple.after)]
    return SynthesisedProgram(tuple(strategies), inputs, (*front, *end))


def _conversions(targets: Sequence[tuple[str, str]], seconds: float) -> list[Instruction]:
    """Conversions that are done together: the first one stands for the time of all."""
    return [Instruction(n, target=t, seconds=0.0 if k else seconds) for k, (n, t) in enumerate(targets)]
