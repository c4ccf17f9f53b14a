"""What it takes to bring tensors from the ranks of one stage to those of another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from hocket.cluster.types import Cluster
from hocket.cost.collective import LINK_SHARE

Message = tuple[int, int, int]
"""Sender, receiver, bytes."""


def transfer_seconds(cluster: Cluster, messages: Sequence[Message]) -> float:
    """Seconds in which all messages arrive that are sent at once: the busiest port or link sets the pace.

    A device sends and receives at the bandwidth of the link of its machine, or of the network, or shares one with
    the others of its machine, as the cluster says. A rank's messages to itself cost nothing.
    """
    loads: dict[tuple[str, str, int], float] = defaultdict(float)
    rates: dict[tuple[str, str, int], float] = {}
    latency, places = 0.0, cluster.places
    for source, target, size in messages:
        if source == target:
            continue
        near = places[source] == places[target]
        link = cluster.machines[places[source]].link if near else cluster.network
        latency = max(latency, link.latency)
        for side, rank in (("out", source), ("in", target)):
            owner = rank if link.per == "device" else places[rank]
            key = (side, f"{'link' if near else 'network'} of {link.per}", owner)
            loads[key] += size
            rates[key] = link.bandwidth * LINK_SHARE
    return latency + max((load / rates[key] for key, load in loads.items()), default=0.0)
