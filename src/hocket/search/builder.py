"""Building a search problem: nodes for what is decided, edges for what resharding between them costs.

Of every value the chain made -> used -> (readers, kept -> reused -> readers in the backward pass) is laid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from hocket.cost.prices import BUCKET_BYTES, MeshPrices
from hocket.graph.recompute import random_pairs
from hocket.graph.types import Graph, TensorType
from hocket.program.bundle import PREFETCH_BYTES
from hocket.search.inputs import add_conversions, add_inputs, hold_sums
from hocket.search.model import BACKWARD, MEMORY, MOMENTS, ROWS, TIMES, TRAFFIC, WORK, Costs, Model
from hocket.search.pins import Pins
from hocket.search.pricing import AnyShares, OneRank, busiest_rank, fullest_rank
from hocket.search.problem import Kind, Node, Problem
from hocket.search.repeats import ONCE, Repeats
from hocket.search.structure import Structure, find_structure
from hocket.search.wishes import find_wishes
from hocket.sharding.layout import Layout, Partial
from hocket.sharding.mesh import Mesh
from hocket.sharding.reshard import Ways, find_ways
from hocket.sharding.rule import Factor
from hocket.sharding.shares import Cuts, Shares
from hocket.sharding.strategy import strategies


def build_problem(
    graph: Graph,
    mesh: Mesh,
    prices: MeshPrices,
    limit: float = inf,
    optimizer_bytes: float = 8.0,
    pins: Pins | None = None,
    folded: bool = True,
    structure: Structure | None = None,
    shares: tuple[tuple[Shares, ...], ...] = (),
    weights: tuple[float, ...] = (),
    repeats: Repeats = ONCE,
) -> Problem:
    """The search problem of a graph on a mesh; `limit` is in bytes per device. Raises PinError.

    `structure` is the graph's, where it is known already. `shares[part][axis]` are the fractions of the
    positions of an axis in every part of the structure (none: as even as can be). With `weights` of the first
    axis's positions, prices are bounds that hold whatever its shares are (see pricing.AnyShares). `repeats` says
    how often the graph runs in a step.
    """
    structure = structure or find_structure(graph, folded, pins)
    problem = Problem(structure, mesh, prices, Model(limit=limit), shares)
    pricing: OneRank | AnyShares
    if weights:
        pricing = AnyShares(mesh, prices, weights)
    else:
        fullest = mesh.coordinates(fullest_rank(prices.cluster, mesh, shares))
        pricing = OneRank(mesh, prices, busiest_rank(prices.cluster, mesh, shares), fullest)
    Builder(problem, optimizer_bytes, pins or Pins(), pricing, repeats).run()
    return problem


@dataclass(frozen=True, slots=True)
class Port:
    """One end of an edge: a node and the layout that each of its options means there.

    The last `direct` options do not come from what the edge starts at (see Builder._direct). A conversion to it
    is done `often` per run of the graph.
    """

    node: int
    layouts: tuple[Layout, ...]
    direct: int = 0
    often: float = 1.0


class Builder:
    """Builds a problem's nodes and edges, one group of like values at a time."""

    def __init__(
        self,
        problem: Problem,
        optimizer_bytes: float,
        pins: Pins,
        pricing: OneRank | AnyShares,
        repeats: Repeats = ONCE,
    ) -> None:
        self.p, self.optimizer_bytes, self.pins, self.pricing = problem, optimizer_bytes, pins, pricing
        self.repeats = repeats
        self.graph, self.flow, self.fold, self.mesh = problem.graph, problem.flow, problem.fold, problem.mesh
        self.shared: dict[tuple[object, Kind], int] = {}
        self.stored: dict[int, int] = {}
        self.working: dict[int, int] = {}
        self.conversions: list[tuple[int, int, TensorType, int]] = []
        self.members: dict[tuple[object, Kind], list[str]] = {}
        self.wanted: dict[TensorType, dict[Layout, None]] = {}
        self.alike: tuple[str, ...] = ()
        self.counted: dict[tuple[Port, Port, TensorType, bool, bool, float], int] = {}
        self.counts: dict[int, int] = {}
        self.directs: dict[int, int] = {}
        self.leaving: dict[str, int] = {}
        self.trained = frozenset(name for name, _ in self.graph.gradients)
        self.goal_values = frozenset(value for _, value in self.graph.gradients)
        self.memory: dict[int, Costs] = {}
        self.cuts = Cuts(problem.structure.units, problem.shares, problem.structure.parts, pricing.fair)

    def run(self) -> None:
        """Fill the problem."""
        for index, number in enumerate(self.fold.operations):
            if number not in self.p.operation_nodes:
                self._operation(index, number)
            self.counts[number] = self.counts.get(number, 0) + 1
        add_inputs(self)
        for alike in self.p.structure.alike:
            self.alike = alike
            self._value(alike[0])
        for (kind_value, kind), names in self.members.items():
            number = self.shared[kind_value, kind]
            node = self.p.nodes[number]
            self.p.nodes[number] = Node(kind, tuple(names), node.options)
        for number, place in self.p.operation_nodes.items():
            self.p.model.nodes[place] *= self.counts[number]
        for place, held in self.memory.items():
            self.p.model.nodes[place][MEMORY:] += held
        add_conversions(self)
        self._edges()
        self._same_numbers()
        find_wishes(self)

    def _same_numbers(self) -> None:
        """Random numbers that are drawn again are drawn alike: no other pair of strategies is possible."""
        pairs = {
            (self.p.operation_nodes[self.fold.operations[u]], self.p.operation_nodes[self.fold.operations[v]])
            for u, v in random_pairs(self.graph)
        }
        for first, again in sorted(pairs):
            rows, columns = (np.array([str(o) for o in self.p.nodes[n].options]) for n in (first, again))
            costs = np.zeros((TIMES, len(rows), len(columns)))
            costs[WORK][rows[:, None] != columns[None, :]] = inf
            self.p.model.add_edge(first, again, costs)

    def _operation(self, index: int, number: int) -> None:
        operation, rule = self.graph.operations[index], self.p.rules[index]

        def sizes_of(axis: int, factor: Factor) -> tuple[int, ...] | None:
            if not self.cuts.uneven(axis):
                return ()
            return self.cuts.of_factor(index, operation.inputs, operation.outputs, factor, axis)

        options = strategies(rule, operation, self.mesh, self.p.segments, sizes_of)
        options = self.pins.operations(operation, options)
        costs = np.zeros((ROWS, len(options)))
        costs[WORK + (BACKWARD if index >= self.graph.forward else 0)] = [
            self.pricing.seconds(self.graph, operation, rule, o) for o in options
        ]
        self.p.operation_nodes[number] = self.node(Node("operation", operation.outputs, options), costs)

    def node(self, node: Node, costs: Costs) -> int:
        """A new node; its number."""
        self.p.nodes.append(node)
        return self.p.model.add_node(f"{node.kind} {node.members[0]}", costs)

    def elements(self, layout: Layout, tensor: TensorType) -> float:
        """Elements of a tensor on the fullest device."""
        return tensor.elements * self.pricing.held(layout)

    def _value(self, value: str) -> None:
        """Lay the chain made -> used -> (readers, kept -> reused -> readers in the backward pass)."""
        made, key = self.maker(value)
        if made is None:
            return
        if self.repeats.once and value in self.goal_values:
            hold_sums(self, made, value)
        tensor = self.graph.types[value]
        crossing = value in self.flow.crossing
        forward = self._readers(value, self.flow.forward_readers[value])
        backward = self._readers(value, self.flow.backward_readers[value])
        leaving = self._leaving(value)
        if not crossing:
            back = not forward and (bool(backward) or value not in self.flow.forward_made)
            readers = [*forward, *backward, *leaving]
            source = self._hub(value, key, "used", made, readers, tensor, back)
            self._join(value, source, readers, tensor, back)
            if value not in self.fold.inputs:
                self._hold(made, source, tensor, backward=False)
            return
        forward = [*forward, *leaving]
        kept = self._kept(value, key, made, [*forward, *backward], tensor, bool(forward))
        source = self._hub(value, key, "used", made, [*forward, kept], tensor, False) if forward else made
        self._join(value, source, [*forward, kept], tensor, False)
        again = self._hub(value, key, "reused", kept, backward, tensor, True)
        self._join(value, again, backward, tensor, True)
        if value not in self.fold.inputs:
            self._hold(kept, again, tensor, backward=True)

    def maker(self, value: str) -> tuple[Port | None, object]:
        """The port that makes a value, and what tells it apart; None where nothing makes it."""
        if value in self.fold.inputs:
            number = self.fold.inputs[value]
            node = self.working.get(number, self.stored[number])
            return Port(node, self.p.nodes[node].options), ("input", number)  # type: ignore[arg-type]
        index = self.p.structure.producers.get(value)
        if index is None:
            return None, None
        slot = self.graph.operations[index].outputs.index(value)
        number = self.fold.operations[index]
        node = self.p.operation_nodes[number]
        layouts = tuple(o.outputs[slot] for o in self.p.nodes[node].options)  # type: ignore[union-attr]
        return Port(node, layouts), (number, slot)

    def _readers(self, value: str, indices: Sequence[int]) -> list[Port]:
        ports = []
        for index in indices:
            node = self.p.operation_nodes[self.fold.operations[index]]
            options = self.p.nodes[node].options
            for position, name in enumerate(self.graph.operations[index].inputs):
                if name == value:
                    ports.append(Port(node, tuple(o.inputs[position] for o in options)))  # type: ignore[union-attr]
        return ports

    def _leaving(self, value: str) -> list[Port]:
        """Readers outside the graph: a gradient or a new buffer goes where its input is stored, others
        elsewhere."""
        ports = []
        often = self.repeats.often
        for name in self.p.structure.goals.get(value, ()):
            node = self.stored[self.fold.inputs[name]]
            ports.append(self._layouts(node, often if name in self.trained else 1.0))
        if value in self.leaving:
            ports.append(self._layouts(self.leaving[value]))
        return ports

    def _layouts(self, node: int, often: float = 1.0) -> Port:
        """A node that decides on a layout, as an end of an edge."""
        return Port(node, self.p.nodes[node].options, 0, often)  # type: ignore[arg-type]

    def _hub(
        self,
        value: str,
        key: object,
        kind: Kind,
        source: Port,
        readers: list[Port],
        tensor: TensorType,
        back: bool,
    ) -> Port:
        """The node that several readers share, fed by the source; the source itself where one reader is."""
        if len(readers) < 2:
            return source
        port = self._shared_node(value, key, kind, [source, *readers])
        self._count(source, port, tensor, value, back)
        return port

    def _shared_node(self, value: str, key: object, kind: Kind, ends: list[Port]) -> Port:
        self.members.setdefault((key, kind), []).extend(self.alike)
        number = self.shared.get((key, kind))
        if number is None:
            found = dict.fromkeys(layout for end in ends for layout in end.layouts)
            options = tuple(o for o in found if not any(isinstance(p, Partial) for p in o.placements))
            number = self.node(Node(kind, (value,), options), np.zeros((ROWS, len(options))))
            self.shared[key, kind] = number
        return Port(number, self.p.nodes[number].options)  # type: ignore[arg-type]

    def _direct(self, made: Port, kept: Port) -> Port:
        """The kept value also as it was made, which costs nothing whatever was shared in between."""
        node = self.p.nodes[kept.node]
        if kept.node not in self.directs:
            extra = tuple(layout for layout in kept.layouts if layout in made.layouts)
            self.directs[kept.node] = len(extra)
            options = (*kept.layouts, *extra)
            self.p.nodes[kept.node] = Node(node.kind, node.members, options)
            self.p.model.nodes[kept.node] = np.zeros((ROWS, len(options)))
            costs = np.zeros((TIMES, len(made.layouts), len(options)))
            for column, layout in enumerate(extra, len(kept.layouts)):
                same = np.array([o == layout for o in made.layouts])
                costs[WORK, ~same, column] = inf
                costs[WORK, same, kept.layouts.index(layout)] = inf
            self.p.model.add_edge(made.node, kept.node, costs)
        options = self.p.nodes[kept.node].options  # type: ignore[assignment]
        return Port(kept.node, options, self.directs[kept.node])

    def _kept(
        self, value: str, key: object, made: Port, ends: list[Port], tensor: TensorType, shared: bool
    ) -> Port:
        """What the backward pass finds of a value; it takes memory where forward ends.

        Of an input it is the stored part itself, or more, of which what goes beyond that part counts. It comes
        from the copy that the forward pass shares, where one is, or is the value as it was made.
        """
        port = self._shared_node(value, key, "kept", [made, *ends])
        if shared:
            port = self._direct(made, port)
        if value in self.fold.inputs:
            sizes, own = self.bytes(port, tensor), self.bytes(made, tensor)
            for row, moment in enumerate(self.p.structure.moments):
                count = sum(name in moment.awaited for name in self.alike)
                count += (self.repeats.in_flight - 1) * len(self.alike)
                self.remember(port.node)[row] += sizes * count
                self.remember(made.node)[row] -= own * count
            same = np.array([[a == b for b in port.layouts] for a in made.layouts])
            least = own[:, None] - 0.5 if self.pricing.fair else own[:, None] + 0.5
            penalty = np.where((sizes[None, :] < least) & ~same, inf, 0.0)
            blocked = np.zeros((TIMES, *penalty.shape))
            blocked[WORK] = penalty
            self.p.model.add_edge(made.node, port.node, blocked)
        return port

    def _hold(self, first: Port, then: Port, tensor: TensorType, backward: bool) -> None:
        """Count the values alike where they are held: one copy until the first reader (of the backward pass), the
        copy that the readers share from then on."""
        readers = self.flow.backward_readers
        moments, waiting = self.p.structure.moments, self.repeats.in_flight - 1
        for row, moment in enumerate(moments):
            for name in self.alike:
                if name in moment.held:
                    known = (*(() if backward else self.flow.forward_readers[name]), *readers[name])
                    port = first if moment.at <= min(known) else then
                    self.remember(port.node)[row] += self.bytes(port, tensor)
                if waiting and name in moments[0].held:
                    self.remember(first.node)[row] += waiting * self.bytes(first, tensor)

    def bytes(self, port: Port, tensor: TensorType) -> Costs:
        """Bytes of a tensor on the fullest device, in each of the port's layouts."""
        each = tensor.bytes / max(1, tensor.elements)
        return np.array([self.elements(o, tensor) * each for o in port.layouts])

    def remember(self, node: int) -> Costs:
        """What a node's options hold at each moment, counted so far."""
        options = self.p.model.nodes[node].shape[1]
        return self.memory.setdefault(node, np.zeros((MOMENTS, options)))

    def _join(self, value: str, source: Port, readers: list[Port], tensor: TensorType, back: bool) -> None:
        for reader in readers:
            self._count(source, reader, tensor, value, back)

    def _count(self, source: Port, reader: Port, tensor: TensorType, value: str, back: bool) -> None:
        apart = value in self.flow.early or value in self.flow.late
        key = (source, reader, tensor, apart, back, self._beside(value, reader.node, back))
        self.counted[key] = self.counted.get(key, 0) + len(self.alike)
        self.wanted.setdefault(tensor, {}).update(dict.fromkeys((*source.layouts, *reader.layouts)))

    def _beside(self, value: str, reader: int, back: bool) -> float:
        """Most seconds of work that a conversion can hide behind; infinite except at the ends of a step."""
        end = self.p.structure.ends[back]
        if end is None or value != end.value or len(self.alike) > 1:
            return inf
        node = self.p.nodes[reader]
        direct = reader == self.p.operation_nodes[self.fold.operations[end.operation]]
        if not back and node.kind != "used" and not direct:
            return inf
        beyond = [self.p.operation_nodes[self.fold.operations[index]] for index in end.beyond]
        waits = 0.0  # what asynchronous communication costs the computation may pass meanwhile
        if self.p.prices.cluster.overlap < 1:
            size = PREFETCH_BYTES + BUCKET_BYTES
            axes = range(len(self.mesh.sizes))
            longest = max(self.p.prices.collective("all_reduce", axis, size) for axis in axes)
            waits = (1 - self.p.prices.cluster.overlap) * longest
        return waits + sum(float(costs[:TIMES].sum(axis=0)[np.isfinite(costs[WORK])].max(initial=0.0))
                   for costs in (self.p.model.nodes[number] for number in beyond))  # fmt: skip

    def _edges(self) -> None:
        """Resharding on every edge: it holds the communication stream, and what does not hide the other."""
        for (source, reader, tensor, apart, back, beside), count in self.counted.items():
            ways = self.ways(tensor, apart)
            rows = [ways.index[layout] for layout in source.layouts]
            columns = [ways.index[layout] for layout in reader.layouts]
            seconds = ways.seconds[np.ix_(rows, columns)] * count
            if reader.direct:
                seconds[:, -reader.direct :] = 0.0
            seconds = seconds * reader.often
            finite = np.where(np.isfinite(seconds), seconds, 0.0)
            costs = np.zeros((TIMES, *seconds.shape))
            row = BACKWARD if back else 0
            costs[row + WORK] = finite * (1.0 - self.p.prices.cluster.overlap if apart else 1.0)
            costs[row + WORK] = np.maximum(costs[row + WORK], finite - beside)
            costs[row + TRAFFIC] = finite
            costs[WORK][np.isinf(seconds)] = inf
            self.p.model.add_edge(source.node, reader.node, costs)

    def ways(self, tensor: TensorType, apart: bool) -> Ways:
        """The cheapest ways between all layouts that are wanted of a tensor."""
        key = (tensor, apart)
        if key not in self.p.ways:
            price = self.p.prices.bundled if apart else self.p.prices.collective
            self.p.ways[key] = find_ways(tensor, self.mesh, tuple(self.wanted[tensor]), price, self.pricing.fair)
        return self.p.ways[key]
