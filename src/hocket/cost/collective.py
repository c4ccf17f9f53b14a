"""What communication costs: the fabric of a mesh axis, and the seconds of a collective on it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

from hocket.cluster.types import Cluster, CollectiveFit
from hocket.errors import ClusterError
from hocket.sharding.mesh import Mesh

LINK_SHARE = 0.8
"""Share of a link's bandwidth that a collective of many bytes reaches: all-reduce of 1 GiB on 8 GPUs reaches
0.76 of NVLink's 300 GB/s on A100 and 0.9 of 150 GB/s on V100 (nccl-tests tables published with vTrain)."""

KINDS = (
    "all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "send",
    "grouped_all_gather", "grouped_reduce_scatter", "resize",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fabric:
    """What connects the members of one group of ranks.

    `size` members, up to `together` of them in one machine. Bandwidths are bytes per second: `inside` of each
    device, `between` of all members of the group in one machine together; latencies are seconds per hop.
    `measured` are fits that go before the formulas.
    """

    size: int
    together: int
    inside: float
    inside_latency: float
    between: float = inf
    between_latency: float = 0.0
    measured: tuple[CollectiveFit, ...] = ()

    @property
    def crosses(self) -> bool:
        """Whether the group spans machines."""
        return self.together < self.size

    @property
    def machines(self) -> int:
        """Number of machines that the group spans (members spread evenly, rounded up)."""
        return -(-self.size // self.together)


def axis_fabric(cluster: Cluster, mesh: Mesh, axis: int) -> Fabric:
    """The fabric of the groups along a mesh axis, all of them communicating at once: the slowest of them.

    Mesh ranks are the cluster's ranks. A machine's network link is shared by the groups that leave it.
    Raises ClusterError when the mesh has ranks that the cluster lacks.
    """
    if mesh.first + mesh.devices > cluster.size:
        raise ClusterError(
            f"mesh {mesh} from rank {mesh.first}",
            "fits in the cluster",
            f"{cluster.size} devices",
            "use fewer ranks",
        )
    return groups_fabric(cluster, tuple(mesh.groups(axis)))


def pair_fabric(cluster: Cluster, source: int, target: int) -> Fabric:
    """The fabric between two ranks, nothing else going on."""
    return groups_fabric(cluster, ((source, target),))


def groups_fabric(cluster: Cluster, groups: Sequence[Sequence[int]]) -> Fabric:
    """The fabric of groups of equal size that communicate at the same time: the slowest values of all."""
    places = cluster.places
    size = len(groups[0])
    counts = [_count(places[rank] for rank in group) for group in groups]
    together = min(max(count.values()) for count in counts)
    leaving = _count(m for count in counts if len(count) > 1 for m in count)
    inside, inside_latency = inf, 0.0
    for index in {m for count in counts for m in count}:
        machine = cluster.machines[index]
        active = sum(count.get(index, 0) for count in counts if count.get(index, 0) > 1)
        if not active and leaving:
            continue
        sharing = max(1, active) if machine.link.per == "machine" else 1
        inside = min(inside, LINK_SHARE * machine.link.bandwidth / sharing)
        inside_latency = max(inside_latency, machine.link.latency)
    measured = cluster.collectives
    if not leaving:
        return Fabric(size, size, inside, inside_latency, measured=measured)
    between = inf
    for count in counts:
        for index, members in count.items():
            if len(count) > 1:
                own = members if cluster.network.per == "device" else 1 / leaving[index]
                between = min(between, LINK_SHARE * cluster.network.bandwidth * own)
    return Fabric(size, together, inside, inside_latency, between, cluster.network.latency, measured)


def _count(items: Iterable[int]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for item in items:
        counts[item] = counts.get(item, 0) + 1
    return counts


def collective_seconds(kind: str, bytes: float, fabric: Fabric) -> float:
    """Seconds of one collective on every group of the fabric at once.

    `bytes` is per rank: the gathered size of all_gather, the input's size of reduce_scatter, the tensor's
    size of all_reduce, broadcast and send, the local tensor's size of all_to_all. The cheaper of the ring and
    the form in two levels. A grouped one is a broadcast of every position's shard, or a reduction to it, one
    after the other (HAP, section 2.5.1); a resize is an exchange of as much as a rank sends or receives at most.
    Raises ClusterError for an unknown kind.
    """
    if kind not in KINDS:
        raise ClusterError(f"collective {kind!r}", f"is one of {', '.join(KINDS)}", kind)
    if fabric.size == 1:
        return 0.0
    if kind.startswith("grouped_"):
        return fabric.size * collective_seconds("broadcast", bytes / fabric.size, fabric)
    if kind == "resize":
        return collective_seconds("all_to_all", bytes * fabric.size / (fabric.size - 1), fabric)
    fit = _measured(kind, fabric)
    if fit is not None:
        return _fitted(kind, bytes, fit, fabric.size)
    ring = _ring_seconds(kind, bytes, fabric)
    return min(ring, _two_level_seconds(kind, bytes, fabric)) if fabric.crosses else ring


def _ring_seconds(kind: str, bytes: float, fabric: Fabric) -> float:
    """One ring through all members; the slowest hop sets its pace.

    Thakur, Rabenseifner, Gropp 2005, sections 4.1 (ring all-gather), 4.2 (pairwise reduce-scatter), 4.3
    (all-reduce as both); NCCL's documentation of bus bandwidth has the same factors.
    """
    n = fabric.size
    bandwidth = min(fabric.inside, fabric.between)
    latency = max(fabric.inside_latency if fabric.together > 1 else 0.0, fabric.between_latency)
    if kind == "all_to_all":
        return _exchange_seconds(bytes, fabric)
    if kind == "send":
        return bytes / bandwidth + latency
    if kind == "broadcast":  # in chunks that follow each other through the ring
        return bytes / bandwidth + (n - 1) * latency
    once = (n - 1) / n * bytes / bandwidth + (n - 1) * latency
    return 2 * once if kind == "all_reduce" else once


def _exchange_seconds(bytes: float, fabric: Fabric) -> float:
    """Every member sends 1/n of its tensor to each other one (Thakur et al. 2005, section 4.4: pairwise).

    What stays in the machine and what leaves it are counted one after the other.
    """
    n, m = fabric.size, fabric.together
    seconds = (m - 1) / n * bytes / fabric.inside + (m - 1) * fabric.inside_latency if m > 1 else 0.0
    if fabric.crosses:
        seconds += m * (n - m) / n * bytes / fabric.between + (n - m) * fabric.between_latency
    return seconds


def _two_level_seconds(kind: str, bytes: float, fabric: Fabric) -> float:
    """Inside the machines, and among members of the same position between them.

    All-gather: between machines first, each of m members 1/m of the bytes, m flows on one network link; then
    inside. Reduce-scatter is its mirror, all-reduce both (Alpa, section 5.1, and NCCL's CollNet/hierarchical
    forms use the same split).
    """
    m, k = fabric.together, fabric.machines
    if kind in ("all_to_all", "send"):
        return _ring_seconds(kind, bytes, fabric)
    if kind == "broadcast":
        between = bytes / fabric.between + (k - 1) * fabric.between_latency
        inside = bytes / fabric.inside + (m - 1) * fabric.inside_latency if m > 1 else 0.0
        return between + inside
    between = (k - 1) / k * bytes / fabric.between + (k - 1) * fabric.between_latency
    inside = (m - 1) / m * bytes / fabric.inside + (m - 1) * fabric.inside_latency if m > 1 else 0.0
    return (2 if kind == "all_reduce" else 1) * (between + inside)


def _measured(kind: str, fabric: Fabric) -> CollectiveFit | None:
    """The fit of this kind whose group size is nearest, by ratio."""
    fits = [fit for fit in fabric.measured if fit.kind == kind]
    n = fabric.size
    return min(fits, key=lambda fit: max(fit.ranks / n, n / fit.ranks)) if fits else None


def _fitted(kind: str, bytes: float, fit: CollectiveFit, size: int) -> float:
    """A fit's seconds, carried over to another group size by the ring's factors."""
    steps, share = 1.0, 1.0
    if fit.ranks != size and kind != "send":
        steps = (size - 1) / (fit.ranks - 1)
        if kind != "broadcast":
            share = (size - 1) / size * fit.ranks / (fit.ranks - 1)
    return steps * fit.latency + share * bytes / fit.bandwidth
