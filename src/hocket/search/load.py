"""A judged program as the balancer sees it: what of it is proportional to a device's share."""

from __future__ import annotations

from collections.abc import Sequence

from hocket.cluster.types import Cluster
from hocket.cost.prices import MeshPrices
from hocket.plan.types import Stage
from hocket.program.liveness import memory_of
from hocket.program.types import Collective, Compute, Program, Shard
from hocket.search.balance import Line, Load, Pass, Section, line
from hocket.search.uneven import kind_of
from hocket.sharding.layout import Split

AXIS = 0
"""The mesh axis whose positions have shares."""
PROPORTIONAL = frozenset({"all_gather", "reduce_scatter", "all_to_all", "resize"})
"""Kinds that take as long as the largest shard does; others move whole tensors whatever the shares."""


def load_of(
    programs: Sequence[Program],
    stage: Stage,
    cluster: Cluster,
    prices: MeshPrices,
    optimizer_bytes: float,
    parts: Sequence[int] = (),
) -> Load:
    """What a stage's programs (one per kind of device and share) ask of the devices of a mesh's first axis.

    `parts[index]` is the part of the graph that an operation belongs to (none: all are in the first). Every
    program's rank must have shares. Lines go through what the programs take at their present shares; of ranks that
    rounding alone tells apart the first stands for all.
    """
    programs = one_per_kind(programs, stage, cluster)
    kinds = [kind_of(program.rank, stage, cluster) for program in programs]
    mesh = stage.mesh
    rows = [kind_of(mesh.first + p * mesh.stride(AXIS), stage, cluster) for p in range(mesh.sizes[AXIS])]
    reader = _Reader(programs, stage, prices, [shares for _, shares in kinds], parts)
    memory = tuple(
        _memory(program, shares, optimizer_bytes) for program, (_, shares) in zip(programs, kinds, strict=True)
    )
    limits = tuple(float(cluster.memory_limit(program.rank)) for program in programs)
    return Load(reader.passes(), tuple(rows.count(kind) for kind in kinds), memory, limits, len(stage.shares))


def one_per_kind(programs: Sequence[Program], stage: Stage, cluster: Cluster) -> tuple[Program, ...]:
    """The first program of every kind of device and share."""
    found: dict[object, Program] = {}
    for program in programs:
        found.setdefault(kind_of(program.rank, stage, cluster), program)
    return tuple(found.values())


def _splits(text: str) -> bool:
    token = text.split(" ")[AXIS]
    return token != "R" and not token.startswith("P")


class _Reader:
    """Reads the instructions of all programs side by side; they differ in sizes only."""

    def __init__(
        self,
        programs: Sequence[Program],
        stage: Stage,
        prices: MeshPrices,
        shares: list[tuple[float, ...]],
        parts: Sequence[int],
    ) -> None:
        self.programs, self.prices, self.shares, self.parts = programs, prices, shares, parts
        self.split = [_splits(text) for text in stage.strategies]
        self.launches = [prices.devices[p.rank].launch_seconds for p in programs]
        self.largest = [max(part[AXIS]) for part in stage.shares]
        self.part = 0

    def passes(self) -> tuple[Pass, ...]:
        first, count = self.programs[0].forward, len(self.programs[0].instructions)
        return self._pass(0, first), self._pass(first, count)

    def _pass(self, start: int, end: int) -> Pass:
        sections = [Section([Line() for _ in self.programs])]
        traffic = Line()
        for step in zip(*(p.instructions[start:end] for p in self.programs), strict=True):
            if isinstance(step[0], Compute):
                works = sections[-1].work
                for k, one in enumerate(one for one in step if isinstance(one, Compute)):
                    works[k] = works[k] + self._compute(k, one)
            elif isinstance(step[0], Collective):
                taken = self._collective(step[0])
                traffic = traffic + taken
                if step[0].blocking:
                    sections.append(Section([Line() for _ in self.programs], taken))
                else:
                    exposed = taken.times(1.0 - self.prices.cluster.overlap)
                    sections[-1].wait = sections[-1].wait + exposed
        return Pass(sections, traffic)

    def _compute(self, kind: int, call: Compute) -> Line:
        if call.source >= 0 and self.parts:
            self.part = self.parts[call.source]
        fixed = min(self.launches[kind], call.seconds)
        share = self.shares[kind][self.part]
        if call.source < 0 or not self.split[call.source] or share <= 0:
            return Line(call.seconds)
        return line(fixed, (call.seconds - fixed) / share, self.part)

    def _collective(self, call: Collective) -> Line:
        """A collective counts to the part of the operation before it."""
        if call.axis != AXIS or call.kind not in PROPORTIONAL:
            return Line(call.seconds)
        fixed = min(call.seconds, self.prices.collective(call.kind, AXIS, 0))
        return line(fixed, (call.seconds - fixed) / self.largest[self.part], self.part)


def _memory(program: Program, shares: tuple[float, ...], optimizer_bytes: float) -> Line:
    """Bytes in a device's mean share: inputs by their layouts, what a step holds for a while as if split."""
    trained = {name for name, _ in program.gradients}
    mean = sum(shares) / len(shares)
    fixed = slope = 0.0
    for shard in program.inputs:
        kind = program.types[shard.name]
        held = float(kind.bytes)
        if shard.name in trained:
            held += kind.bytes + kind.elements * optimizer_bytes
        if mean > 0 and _is_split(shard):
            slope += held / mean
        else:
            fixed += held
    if mean > 0:
        slope += memory_of(program, optimizer_bytes).activations / mean
    return Line(fixed, (slope / len(shares),) * len(shares))


def _is_split(shard: Shard) -> bool:
    return isinstance(shard.layout.placements[AXIS], Split)
