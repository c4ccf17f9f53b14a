"""Which values can be made early, which may arrive late, and who reads what in which pass."""

from __future__ import annotations

from dataclasses import dataclass

from hocket.graph.types import Graph


@dataclass(frozen=True, slots=True)
class Flow:
    """How values move through a step.

    `early` values depend on parameters, buffers and batch alone through operations of one input, so their
    communication can run ahead of the computation; `late` values only lead to gradients or buffers that
    leave the step, so theirs can run behind it. `forward_readers` and `backward_readers` are operation
    indices per value; `forward_made` values exist before the backward pass, `crossing` ones are read in it.
    """

    early: frozenset[str]
    late: frozenset[str]
    forward_readers: dict[str, tuple[int, ...]]
    backward_readers: dict[str, tuple[int, ...]]
    crossing: frozenset[str]
    forward_made: frozenset[str]
    leaving: frozenset[str]


def find_flow(graph: Graph) -> Flow:
    """Derive the flow of a graph's values in one pass each way."""
    early = {i.name for i in graph.inputs if i.role not in ("received", "arriving")}
    for operation in graph.operations:
        if len(set(operation.inputs)) == 1 and operation.inputs[0] in early and len(operation.outputs) == 1:
            early.add(operation.outputs[0])
    leaving = {v for _, v in graph.gradients} | {v for _, v in graph.updates}
    users = graph.consumers()
    sent = frozenset(graph.sent)
    late: set[str] = set()
    for operation in reversed(graph.operations):
        for name in operation.outputs:
            readers = users[name]
            if name == graph.loss or name in sent or not (readers or name in leaving):
                continue
            ends = [graph.operations[r] for r in readers]
            if all(len(set(e.inputs)) == 1 and all(o in late for o in e.outputs) for e in ends):
                late.add(name)
    forward = {n: tuple(r for r in rs if r < graph.forward) for n, rs in users.items()}
    backward = {n: tuple(r for r in rs if r >= graph.forward) for n, rs in users.items()}
    made_forward = {i.name for i in graph.inputs if i.role != "arriving"}
    made_forward |= {name for op in graph.operations[: graph.forward] for name in op.outputs}
    crossing = {name for name in made_forward if backward[name]}
    sets = (frozenset(crossing), frozenset(made_forward), frozenset(leaving))
    return Flow(frozenset(early), frozenset(late), forward, backward, *sets)
