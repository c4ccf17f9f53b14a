"""The nodes of what enters and leaves a graph: how inputs are stored, in which layouts they are worked with where a
step has many microbatches, and in which layouts values are sent to other stages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from hocket.cost.prices import BUCKET_BYTES
from hocket.graph.types import Input
from hocket.program.bundle import BUNDLED
from hocket.search.model import MEMORY, MOMENTS, ROWS, TIMES, TRAFFIC, WORK, Costs
from hocket.search.moments import Moment
from hocket.search.problem import Node
from hocket.sharding.layout import Layout
from hocket.sharding.strategy import stored_layouts

if TYPE_CHECKING:
    from hocket.search.builder import Builder, Port

GIVEN = ("received", "arriving")
"""Roles of what other stages send."""


def add_inputs(builder: Builder) -> None:
    """A node per class of inputs, and one for every value that is sent."""
    roles = {i.name: i for i in builder.graph.inputs}
    classes: dict[int, list[str]] = {}
    for entry in builder.graph.inputs:
        classes.setdefault(builder.fold.inputs[entry.name], []).append(entry.name)
    waiting = [False] * MOMENTS
    for number, names in classes.items():
        entries = [roles[name] for name in names]
        options = _options(builder, names[0], entries[0].role in ("parameter", *GIVEN))
        options = builder.pins.stored(entries, options, builder.mesh)
        costs = np.zeros((ROWS, len(options)))
        held = np.array([builder.elements(o, builder.graph.types[names[0]]) for o in options])
        if entries[0].role in GIVEN:
            _given(builder, names, costs, held)
        else:
            _stored(builder, entries, costs, held, waiting)
        builder.stored[number] = builder.node(Node("stored", tuple(names), options), costs)
        if builder.repeats.once and entries[0].role == "parameter":
            _working(builder, number, names)
    for value in builder.graph.sent:
        options = _options(builder, value, True)
        costs = np.zeros((ROWS, len(options)))
        builder.leaving[value] = builder.node(Node("sent", (value,), options), costs)


def _options(builder: Builder, value: str, free: bool) -> tuple[Layout, ...]:
    if not free:
        return (Layout.replicated(len(builder.mesh.sizes)),)
    tensor = builder.graph.types[value]
    cuts = {d: builder.p.segments.get((value, d), frozenset()) for d in range(len(tensor.shape))}
    return stored_layouts(tensor, builder.mesh, cuts, partial(_sizes, builder, value))


def _stored(builder: Builder, entries: list[Input], costs: Costs, held: Costs, waiting: list[bool]) -> None:
    """Memory of parameters, buffers and batch: themselves, optimizer state, gradients that are there."""
    names, graph, repeats = [e.name for e in entries], builder.graph, builder.repeats
    tensor = graph.types[names[0]]
    each = tensor.bytes / max(1, tensor.elements)
    state = builder.optimizer_bytes if names[0] in builder.trained else 0.0
    own = 0.0 if repeats.once and entries[0].role == "parameter" else each  # the working copy counts instead
    many = repeats.microbatches > 1
    for row, moment in enumerate(builder.p.structure.moments, MEMORY):
        there = sum(name in (builder.trained if many else moment.gradients) for name in names)
        costs[row] = held * (len(names) * (own + state) + (0 if repeats.once else there) * each)
        if there and moment.at < len(graph.operations) and not waiting[row - MEMORY]:
            costs[row] -= 0.0 if repeats.once else _waiting(builder)
            waiting[row - MEMORY] = True


def _given(builder: Builder, names: Sequence[str], costs: Costs, held: Costs) -> None:
    """Memory of what other stages send, as long as it is read."""
    tensor = builder.graph.types[names[0]]
    each = tensor.bytes / max(1, tensor.elements)
    moments = builder.p.structure.moments
    waiting = (builder.repeats.in_flight - 1) * _read_later(builder, names, 0, moments[0])
    for number, moment in enumerate(moments):
        costs[MEMORY + number] = held * each * (waiting + _read_later(builder, names, number, moment))


def _read_later(builder: Builder, names: Sequence[str], number: int, moment: Moment) -> int:
    """How many of the values that other stages send are there at a moment and still read."""
    return sum(name in moment.awaited and (number > 0 or name in builder.flow.forward_made) for name in names)


def _working(builder: Builder, number: int, names: Sequence[str]) -> None:
    """The layouts in which parameters are worked with for a whole step, and what it takes to bring them there."""
    value = names[0]
    stored = builder.p.nodes[builder.stored[number]]
    tensor = builder.graph.types[value]
    options: tuple[Layout, ...] = stored.options  # type: ignore[assignment]
    costs = np.zeros((ROWS, len(options)))
    costs[MEMORY:] = (
        np.array([builder.elements(o, tensor) for o in options]) * tensor.bytes / max(1, tensor.elements)
    )
    costs[MEMORY:] *= len(names)
    node = builder.working[number] = builder.node(Node("working", tuple(names), options), costs)
    builder.conversions.append((builder.stored[number], node, tensor, len(names)))
    builder.wanted.setdefault(tensor, {}).update(dict.fromkeys(options))


def add_conversions(builder: Builder) -> None:
    """What bringing parameters from where they are stored to where they are worked with costs a microbatch."""
    for source, target, tensor, count in builder.conversions:
        ways = builder.ways(tensor, True)
        index = [ways.index[o] for o in builder.p.nodes[source].options]  # type: ignore[index]
        seconds = ways.seconds[np.ix_(index, index)] * count * builder.repeats.often
        costs = np.zeros((TIMES, *seconds.shape))
        finite = np.where(np.isfinite(seconds), seconds, 0.0)
        costs[WORK] = np.where(np.isfinite(seconds), finite * (1.0 - builder.p.prices.cluster.overlap), inf)
        costs[TRAFFIC] = finite
        builder.p.model.add_edge(source, target, costs)


def hold_sums(builder: Builder, made: Port, value: str) -> None:
    """Gradients that are added up as they are made are held all the time."""
    tensor = builder.graph.types[value]
    for row in range(MOMENTS):
        builder.remember(made.node)[row] += builder.bytes(made, tensor) * len(builder.alike)


def _waiting(builder: Builder) -> float:
    """Most bytes of gradients that wait in bundles: less than a full one per kind of collective and axis."""
    return float(len(BUNDLED) * len(builder.mesh.sizes) * BUCKET_BYTES)


def _sizes(builder: Builder, value: str, axis: int, dim: int) -> list[tuple[int, ...]]:
    """Relative sizes that a dim of an input may have along an axis: those of every part that may read it."""
    if not builder.cuts.uneven(axis):
        return [()]
    parts = range(len(builder.p.shares))
    found = dict.fromkeys(builder.cuts.of_dim((value, dim), axis, part) for part in parts)
    return [sizes for sizes in found if sizes is not None]
