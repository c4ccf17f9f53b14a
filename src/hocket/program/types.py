"""What one rank does in a step, instruction by instruction. The simulator clocks it, the runtime runs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hocket.graph.types import Operation, TensorType
from hocket.sharding.layout import Interval, Layout
from hocket.sharding.mesh import Mesh


@dataclass(frozen=True, slots=True)
class Compute:
    """A local operation on local shards; `salt` distinguishes the random streams of ranks that hold
    different shards, `source` is the index of the graph's operation it came from (-1: none)."""

    operation: Operation
    seconds: float
    source: int = -1
    salt: int = 0

    @property
    def inputs(self) -> tuple[str, ...]:
        """Values it reads."""
        return self.operation.inputs

    @property
    def outputs(self) -> tuple[str, ...]:
        """Values it makes."""
        return self.operation.outputs


GATHERS = frozenset({"all_gather", "grouped_all_gather"})
SCATTERS = frozenset({"reduce_scatter", "grouped_reduce_scatter"})
"""Kinds of collectives that join shards, and that cut sums into them."""


@dataclass(frozen=True, slots=True)
class Collective:
    """Communication along one mesh axis of one or more tensors of one dtype at once.

    `kind` is all_gather, reduce_scatter, all_reduce, all_to_all or resize. all_gather joins the ranks' pieces
    along `dims[i]`, reduce_scatter cuts along it, all_to_all cuts along `dims[i]` and joins along `joins[i]`,
    resize exchanges what the lengths `join_pieces[i]` before and `pieces[i]` after differ in. Uneven shards are
    padded to the longest, or travel one after the other (`grouped_all_gather`, `grouped_reduce_scatter`).
    `pieces[i]` are the lengths along the cut or joined dim, one per segment and position of the axis
    (positions vary slowest). `reduce` is sum or max. A blocking one holds the compute stream too.
    """

    kind: str
    axis: int
    group: tuple[int, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    dims: tuple[int, ...]
    pieces: tuple[tuple[tuple[int, ...], ...], ...]
    bytes: int
    seconds: float
    blocking: bool
    reduce: str = "sum"
    joins: tuple[int, ...] = ()
    join_pieces: tuple[tuple[tuple[int, ...], ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Send:
    """Send a value to another rank."""

    value: str
    peer: int
    bytes: int
    seconds: float

    @property
    def inputs(self) -> tuple[str, ...]:
        """Values it reads."""
        return (self.value,)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Values it makes."""
        return ()


@dataclass(frozen=True, slots=True)
class Receive:
    """Receive a value from another rank."""

    value: str
    peer: int
    bytes: int
    seconds: float

    @property
    def inputs(self) -> tuple[str, ...]:
        """Values it reads."""
        return ()

    @property
    def outputs(self) -> tuple[str, ...]:
        """Values it makes."""
        return (self.value,)


@dataclass(frozen=True, slots=True)
class Free:
    """Drop values that no later instruction reads."""

    values: tuple[str, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        """Values it reads."""
        return self.values

    @property
    def outputs(self) -> tuple[str, ...]:
        """Values it makes."""
        return ()


Instruction = Compute | Collective | Send | Receive | Free


@dataclass(frozen=True, slots=True)
class Shard:
    """What a rank holds of an input: its layout and, per dim, the intervals of the global tensor."""

    name: str
    layout: Layout
    intervals: tuple[tuple[Interval, ...], ...]


@dataclass(frozen=True, slots=True)
class Program:
    """All instructions of one rank. `instructions[:forward]` end with the loss.

    `types` are local types. `gradients` and `updates` map input names to the local values that leave. A stage of a
    pipeline also has what is `received` for its forward pass and `arriving` for its backward pass, and maps the
    values that are `sent` to local ones. From instruction `halfway` on nothing is left to do for other stages.
    """

    rank: int
    mesh: Mesh
    inputs: tuple[Shard, ...]
    instructions: tuple[Instruction, ...]
    forward: int
    types: Mapping[str, TensorType]
    loss: str
    gradients: tuple[tuple[str, str], ...]
    updates: tuple[tuple[str, str], ...]
    received: tuple[Shard, ...] = ()
    arriving: tuple[Shard, ...] = ()
    sent: tuple[tuple[str, str], ...] = ()
    halfway: int = -1

    @property
    def edges(self) -> tuple[int, int, int, int]:
        """Where the three parts of the instructions begin and end: forward, backward, weights' gradients."""
        count = len(self.instructions)
        return 0, self.forward, count if self.halfway < 0 else self.halfway, count

    @property
    def leaving(self) -> frozenset[str]:
        """Local values that leave the step."""
        loss = {self.loss} if self.loss else set()
        return frozenset(loss | {value for _, value in (*self.gradients, *self.updates, *self.sent)})
