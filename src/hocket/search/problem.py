"""A search problem: a model of choices, and what an assignment of it means as a stage.

One node per class of operations (its strategies), per class of inputs (how they are stored), per value
with several readers (the layout that its readers share): see Stage for `used`, `kept` and `reused`, and per value
that is sent to another stage. Edges
are resharding on the cheapest way. What the model leaves out is said by `Problem.space`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from hocket.cost.prices import MeshPrices
from hocket.graph.flow import Flow
from hocket.graph.fold import Fold
from hocket.graph.types import Graph, TensorType
from hocket.plan.types import Stage
from hocket.search.cones import Wish
from hocket.search.model import Model
from hocket.search.structure import Structure
from hocket.sharding.layout import Layout
from hocket.sharding.mesh import Mesh
from hocket.sharding.reshard import Ways
from hocket.sharding.rule import Rule
from hocket.sharding.shares import Shares
from hocket.sharding.strategy import Segments, Strategy

Kind = Literal["operation", "stored", "used", "kept", "reused", "working", "sent"]


@dataclass(frozen=True, slots=True)
class Node:
    """What a model's node decides: for which members (operations or values), among which options."""

    kind: Kind
    members: tuple[str, ...]
    options: tuple[Strategy, ...] | tuple[Layout, ...]


@dataclass
class Problem:
    """A graph on a mesh, ready to be searched: what each node of the model decides."""

    structure: Structure
    mesh: Mesh
    prices: MeshPrices
    model: Model
    shares: tuple[tuple[Shares, ...], ...] = ()
    nodes: list[Node] = field(default_factory=list)
    wishes: list[Wish] = field(default_factory=list)
    operation_nodes: dict[int, int] = field(default_factory=dict)
    ways: dict[tuple[TensorType, bool], Ways] = field(default_factory=dict)

    @property
    def graph(self) -> Graph:
        """The graph that is laid out."""
        return self.structure.graph

    @property
    def flow(self) -> Flow:
        """The flow of the graph's values."""
        return self.structure.flow

    @property
    def fold(self) -> Fold:
        """The classes of operations and inputs that are laid out alike."""
        return self.structure.fold

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rule of every operation."""
        return self.structure.rules

    @property
    def segments(self) -> Segments:
        """Segmentations of every value's dims."""
        return self.structure.segments

    def stage(self, choice: Sequence[int]) -> Stage:
        """The stage that an assignment means."""
        chosen: dict[Kind, dict[str, Layout]] = {kind: {} for kind in get_args(Kind)}
        tokens: dict[int, str] = {}
        for number, (node, k) in enumerate(zip(self.nodes, choice, strict=True)):
            option = node.options[k]
            if isinstance(option, Strategy):
                tokens[number] = str(option)
            else:
                chosen[node.kind].update(dict.fromkeys(node.members, option))
        texts = tuple(tokens[self.operation_nodes[c]] for c in self.fold.operations)
        copies = chosen["used"], chosen["kept"], chosen["reused"]
        return Stage(self.mesh, chosen["stored"], texts, *copies, self.shares, chosen["sent"], chosen["working"])

    @property
    def space(self) -> str:
        """What is searched, in words."""
        return (
            f"every {'split by the given shares' if self.shares else 'even split'} of every operation that its "
            "rule allows, on every mesh axis; operations of "
            "equal role in repeated blocks are laid out alike; operations that only pass dims on follow their "
            "main operand; a value is converted to at most one shared layout per pass, from which each reader "
            "takes its own; operations run in the captured order"
        )
