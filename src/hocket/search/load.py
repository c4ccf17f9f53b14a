"""A judged program as the balancer sees it: what of it is proportional to a device's share."""

from __future__ import annotations

from collections.abc import Sequence

from hocket.cluster.types import Cluster
from hocket.cost.prices import MeshPrices
from hocket.plan.types import Stage
from hocket.program.liveness import memory_of
from hocket.program.types import Collective, Compute, Instruction, Program, Shard
from hocket.search.balance import Line, Load, Pass, Section
from hocket.sharding.layout import Split

AXIS = 0
"""The mesh axis whose positions have shares."""
PROPORTIONAL = frozenset({"all_gather", "reduce_scatter", "all_to_all", "resize"})
"""Kinds that take as long as the largest shard does; others move whole tensors whatever the shares."""


def load_of(
    programs: Sequence[Program], stage: Stage, cluster: Cluster, prices: MeshPrices, optimizer_bytes: float
) -> Load:
    """What a stage's programs (one per kind of device and share) ask of the devices of a mesh's first axis.

    Every program's rank must have a share. Lines go through what the programs take at their present shares.
    """
    shares = stage.shares[0][AXIS]
    own = [shares[stage.mesh.coordinates(p.rank)[AXIS]] for p in programs]
    kinds = [cluster.devices[p.rank] for p in programs]
    rows = [cluster.devices[stage.mesh.first + i * stage.mesh.stride(AXIS)] for i in range(stage.mesh.sizes[AXIS])]
    counts = tuple(sum(1 for d, s in zip(rows, shares, strict=True) if d == k and s == o)
                   for k, o in zip(kinds, own, strict=True))  # fmt: skip
    split = [_splits(text) for text in stage.strategies]
    passes = []
    for start, end in ((0, programs[0].forward), (programs[0].forward, len(programs[0].instructions))):
        parts = [p.instructions[start:end] for p in programs]
        passes.append(_pass(parts, [k.launch_seconds for k in kinds], own, split, prices, max(shares)))
    memory = tuple(_memory(p, share, optimizer_bytes) for p, share in zip(programs, own, strict=True))
    limits = tuple(float(cluster.memory_limit(p.rank)) for p in programs)
    return Load(tuple(passes), counts, memory, limits)


def _splits(text: str) -> bool:
    token = text.split(" ")[AXIS]
    return token != "R" and not token.startswith("P")


def _pass(
    parts: list[tuple[Instruction, ...]],
    launches: list[float],
    shares: list[float],
    split: list[bool],
    prices: MeshPrices,
    largest: float,
) -> Pass:
    sections = [Section([Line() for _ in parts])]
    traffic = Line()
    for step in zip(*parts, strict=True):
        if isinstance(step[0], Compute):
            works = sections[-1].work
            for k, one in enumerate(one for one in step if isinstance(one, Compute)):
                fixed = min(launches[k], one.seconds)
                proportional = one.source >= 0 and split[one.source] and shares[k] > 0
                line = Line(fixed, (one.seconds - fixed) / shares[k]) if proportional else Line(one.seconds)
                works[k] = works[k] + line
        elif isinstance(step[0], Collective):
            line = _collective(step[0], prices, largest)
            traffic = traffic + line
            if step[0].blocking:
                sections.append(Section([Line() for _ in parts], line))
            else:
                hidden = 1.0 - prices.cluster.overlap
                sections[-1].wait = sections[-1].wait + Line(hidden * line.fixed, hidden * line.slope)
    return Pass(sections, traffic)


def _collective(call: Collective, prices: MeshPrices, largest: float) -> Line:
    if call.axis != AXIS or call.kind not in PROPORTIONAL:
        return Line(call.seconds)
    fixed = min(call.seconds, prices.collective(call.kind, AXIS, 0))
    return Line(fixed, (call.seconds - fixed) / largest)


def _memory(program: Program, share: float, optimizer_bytes: float) -> Line:
    """Bytes in a share: inputs by their layouts, what a step holds for a while as if all of it were split."""
    trained = {name for name, _ in program.gradients}
    fixed = slope = 0.0
    for shard in program.inputs:
        kind = program.types[shard.name]
        held = float(kind.bytes)
        if shard.name in trained:
            held += kind.bytes + kind.elements * optimizer_bytes
        if share > 0 and _is_split(shard):
            slope += held / share
        else:
            fixed += held
    beside = memory_of(program, optimizer_bytes).activations
    return Line(fixed, slope + (beside / share if share > 0 else 0.0))


def _is_split(shard: Shard) -> bool:
    return isinstance(shard.layout.placements[AXIS], Split)
