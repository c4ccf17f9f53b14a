"""Which light operation would follow which operand, and which shared copy what is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hocket.search.cones import Wish, is_light
from hocket.search.problem import Kind

if TYPE_CHECKING:
    from hocket.search.builder import Builder


def find_wishes(builder: Builder) -> None:
    """Say which operation of a problem follows which of its operands: what is light itself before what is heavy."""
    heavy = set()
    for index, number in enumerate(builder.fold.operations):
        if not is_light(builder.graph.operations[index].kind, builder.p.rules[index]):
            heavy.add(builder.p.operation_nodes[number])
    told: set[int] = set()
    for index, number in enumerate(builder.fold.operations):
        node = builder.p.operation_nodes[number]
        if node in heavy or node in told:
            continue
        told.add(node)
        operation = builder.graph.operations[index]
        single = len(set(operation.inputs)) == 1
        order = sorted(dict.fromkeys(operation.inputs), key=lambda n: -builder.graph.types[n].elements)
        # only an operand with all the operation's dims can lead: one without would keep them whole
        rule = builder.p.rules[index]
        full = [n for n in order if all(f.inputs[operation.inputs.index(n)] for f in rule.factors)]
        leaders = [_source_node(builder, name, index) for name in full]
        wanted = [n for n in leaders if n is not None and (single or n not in heavy)]
        builder.p.wishes.append(Wish(node, tuple(wanted)))
    _hub_wishes(builder, heavy)


def _hub_wishes(builder: Builder, heavy: set[int]) -> None:
    """A shared conversion that light operations alone would read is none: they follow what is made."""
    for (key, kind), node in builder.shared.items():
        if kind == "kept":
            continue
        value = builder.members[key, kind][0]
        backward = kind == "reused" or value not in builder.flow.crossing
        forward = kind == "used"
        readers = [
            *(builder.flow.forward_readers[value] if forward else ()),
            *(builder.flow.backward_readers[value] if backward else ()),
        ]
        light = all(builder.p.operation_nodes[builder.fold.operations[r]] not in heavy for r in readers)
        source = builder.shared.get((key, "kept")) if kind == "reused" else None
        made, _ = builder.maker(value)
        if light and made is not None and value not in builder.fold.inputs:
            builder.p.wishes.append(Wish(node, (made.node if source is None else source,)))


def _source_node(builder: Builder, value: str, reader: int) -> int | None:
    """The node that a reader takes a value from."""
    made, key = builder.maker(value)
    if made is None or value in builder.fold.inputs:
        return None
    kinds: tuple[Kind, ...] = ("used",)
    if value in builder.flow.crossing and reader >= builder.graph.forward:
        kinds = ("reused", "kept")
    for kind in kinds:
        if (key, kind) in builder.shared:
            return builder.shared[key, kind]
    return made.node
