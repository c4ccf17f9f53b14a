"""The decision: everything that is fixed about a training step before it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from os import PathLike

from hocket.cluster.types import Cluster, Device
from hocket.graph.types import Graph
from hocket.pipeline.schedule import Schedule
from hocket.sharding.layout import Layout, Split
from hocket.sharding.mesh import Mesh
from hocket.sharding.strategy import Token


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the graph on one mesh.

    `shares[part][axis]` are the fractions that the positions of an axis get in each part of the stage (empty: as
    even as can be); layouts and strategies already say the sizes that come of them.

    `stored` is how parameters, buffers and batch are held (by input name); `strategies` has the tokens of every
    operation (see sharding.strategy), in the graph's order; `used` and `saved` name the layout that a value with
    several readers is converted to once: `used` in the pass that makes it, `kept` what the backward pass finds of
    it, `reused` what the backward pass converts that to once. Where the stage is one of several, `sent` says in
    which layout values leave it (`stored` how those that come are received). Where `working` says how parameters
    are worked with, they are brought there once in a step, and their gradients, added up over microbatches as they
    are made, back to where they are stored once.
    """

    mesh: Mesh
    stored: Mapping[str, Layout]
    strategies: tuple[str, ...]
    used: Mapping[str, Layout] = field(default_factory=dict)
    kept: Mapping[str, Layout] = field(default_factory=dict)
    reused: Mapping[str, Layout] = field(default_factory=dict)
    shares: tuple[tuple[tuple[float, ...], ...], ...] = ()
    sent: Mapping[str, Layout] = field(default_factory=dict)
    working: Mapping[str, Layout] = field(default_factory=dict)

    def held(self, name: str) -> Layout:
        """How an input is held while the graph runs."""
        return self.working.get(name, self.stored[name])

    def unlike_ranks(self, devices: Sequence[Device]) -> tuple[int, ...]:
        """One rank of every kind: ranks with the same device and the same sizes of everything do alike."""
        cut = self._uneven_sizes()
        kinds: dict[object, int] = {}
        for rank in self.mesh.ranks:
            places = self.mesh.coordinates(rank)
            own = tuple(sizes[places[axis]] for axis, sizes in cut)
            kinds.setdefault((devices[rank], own), rank)
        return tuple(kinds.values())

    def _uneven_sizes(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """The sizes of all uneven splits, each with its mesh axis."""
        found: dict[tuple[int, tuple[int, ...]], None] = {}
        for text in dict.fromkeys(self.strategies):
            for axis, token in enumerate(text.split(" ")):
                if sizes := Token.parse(token).sizes:
                    found[axis, sizes] = None
        for layouts in (self.stored, self.used, self.kept, self.reused, self.sent, self.working):
            for layout in set(layouts.values()):
                for axis, placement in enumerate(layout.placements):
                    if isinstance(placement, Split) and placement.sizes:
                        found[axis, placement.sizes] = None
        return tuple(sorted(found))


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on the fullest device: what is held all the time, and the peak within a step."""

    parameters: int = 0
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0

    @property
    def total(self) -> int:
        """Bytes at the peak."""
        return self.parameters + self.gradients + self.optimizer + self.activations


@dataclass(frozen=True, slots=True)
class Alternative:
    """A plan that was not chosen: its title, judged seconds (infinite when it does not fit) and why."""

    title: str
    seconds: float
    lower_bound: float
    reason: str = ""
    stage: Stage | None = None


@dataclass(frozen=True, slots=True)
class SearchRecord:
    """How a plan was found: the searcher, its space in words, its certificate, and what it left behind."""

    searcher: str
    space: str
    seconds: float
    complete: bool
    alternatives: tuple[Alternative, ...] = ()
    seed: int = 0
    whole: tuple[str, ...] = ()
    pins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """A training step, decided: the graph, the cluster, its stages and schedule, and what is predicted.

    `seconds` is the judged step time, `lower_bound` a proven bound on every plan of the stated space;
    `recompute` names the blocks whose forward is run again in the backward pass (already part of `graph`).
    """

    graph: Graph
    cluster: Cluster
    stages: tuple[Stage, ...]
    schedule: Schedule
    seconds: float
    lower_bound: float
    memory: Memory
    search: SearchRecord
    recompute: tuple[str, ...] = ()
    fingerprint: str = ""
    model_fingerprint: str = ""
    optimizer_bytes: float = 8.0

    @property
    def stage(self) -> Stage:
        """The only stage of a plan without a pipeline."""
        return self.stages[0]

    @property
    def staged(self) -> bool:
        """Whether it is a pipeline."""
        return len(self.stages) > 1

    @property
    def world_size(self) -> int:
        """Number of ranks the plan runs on."""
        return max(stage.mesh.ranks[-1] for stage in self.stages) + 1

    def save(self, path: str | PathLike[str]) -> None:
        """Write the plan to a file, whole or not at all; raises FileError."""
        from hocket.plan.file import save_plan

        save_plan(self, path)

    @staticmethod
    def load(path: str | PathLike[str]) -> Plan:
        """Read a plan file (format hocket-plan/1) exactly as it was saved; raises FileError."""
        from hocket.plan.file import load_plan

        return load_plan(path)

    def explain(self) -> str:
        """Why these layouts, as text of 100 columns: alternatives, time, memory, what would flip it."""
        # the report lives floors above: it is looked up when asked for
        text: str = import_module("hocket.report.explain").explain(self)
        return text

    @property
    def gap(self) -> float:
        """How far the plan can be from the best of the space, as a share of its own time."""
        return max(0.0, 1.0 - self.lower_bound / self.seconds) if self.seconds > 0 else 0.0
