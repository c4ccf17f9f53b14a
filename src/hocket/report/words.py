"""Words for what a plan does: folded names of repeated layers, layouts and splits of work in words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import groupby
from math import prod

from hocket.cluster.types import Cluster, Machine
from hocket.graph.types import Operation
from hocket.plan.types import Stage
from hocket.sharding.layout import Layout, Partial, Split
from hocket.sharding.mesh import Mesh
from hocket.sharding.rule import Rule
from hocket.sharding.strategy import Token

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
_FACTORS: Mapping[str, str] = {"h": "heads"}


def folded(path: str) -> str:
    """A path with its numbers taken out, so that repeated layers have one name: `h.*.mlp.c_fc.weight`."""
    return _NUMBER.sub("*", path)


def layout_words(layout: Layout, mesh: Mesh) -> str:
    """How a tensor is held: `whole`, or `dim 0 in 4, 2 copies`."""
    parts: dict[str, int] = {}
    copies = 1
    for size, placement in zip(mesh.sizes, layout.placements, strict=True):
        if isinstance(placement, Split):
            uneven = " unevenly" if placement.sizes else ""
            each = f" (each of {len(placement.segments)} segments)" if placement.segments else ""
            key = f"dim {placement.dim}{uneven}{each}"
            parts[key] = parts.get(key, 1) * size
        elif isinstance(placement, Partial):
            parts["addends"] = parts.get("addends", 1) * size
        else:
            copies *= size
    if not parts:
        return "whole"
    words = ", ".join(f"{key} in {count}" for key, count in parts.items())
    return words + (f", {copies} copies" if copies > 1 else "")


def work_words(
    operation: Operation, tokens: str, rule: Rule, mesh: Mesh, samples: Mapping[str, int]
) -> dict[str, int]:
    """By what an operation's work is divided, and into how many parts: `{"samples": 4, "features": 2}`.

    `samples` says which dim of a value runs over the samples. A factor that is summed over is `inner`, one
    that is not and that a parameter carries `features`; `all alike` is work that ranks repeat.
    """
    found: dict[str, int] = {}
    for size, token in zip(mesh.sizes, tokens.split(" "), strict=True):
        word = _token_word(operation, Token.parse(token).factor, rule, samples) if size > 1 else ""
        if word:
            found[word] = found.get(word, 1) * size
    return found


def _token_word(operation: Operation, token: str, rule: Rule, samples: Mapping[str, int]) -> str:
    if token == "R":
        return ALIKE
    if token.startswith("P") and token[1:2].isdigit():
        return "addends"
    factor = next((f for f in rule.factors if f.name == token), None)
    if factor is None:
        return token
    pairs = zip(operation.inputs, factor.inputs, strict=True)
    if any(split is not None and samples.get(name, -1) == split.dim for name, split in pairs):
        return "samples"
    if factor.sums:
        return "inner"
    return _FACTORS.get(token, "features" if operation.kind in PRODUCTS else "positions")


ALIKE = "all alike"
"""Work that every device repeats."""

PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "embedding", "embedding_dense_backward"})


def joined(parts: Mapping[str, int]) -> str:
    """`samples/4, features/2` of the parts' words; repeated work beside divided work as `2 copies`."""
    divided = [f"{word}/{n}" for word, n in parts.items() if word != ALIKE]
    if not divided:
        return ALIKE if parts else "-"
    return ", ".join([*divided, *(f"{n} copies" for word, n in parts.items() if word == ALIKE)])


def mesh_words(mesh: Mesh) -> str:
    """`4x2 (axis 0 of 4, axis 1 of 2)`."""
    if len(mesh.sizes) == 1:
        return f"{mesh}, one axis"
    return f"{mesh} ({', '.join(f'axis {a} of {n}' for a, n in enumerate(mesh.sizes))})"


def shares_words(stage: Stage, cluster: Cluster) -> str:
    """`2 x 30 % on V100-16GB, 2 x 20 % on P100-16GB`, part by part, of the first axis's positions."""
    mesh = stage.mesh
    devices = [cluster.devices[mesh.first + p * mesh.stride(0)].name for p in range(mesh.sizes[0])]
    parts = []
    for part in stage.shares:
        runs = [(key, len(list(same))) for key, same in groupby(zip(part[0], devices, strict=True))]
        each = [f"{f'{n} x ' if n > 1 else ''}{share:.3g} on {device}" for (share, device), n in runs]
        parts.append(", ".join(each))
    if len(set(parts)) == 1:
        return parts[0]
    return "; ".join(f"part {number} of the layers: {words}" for number, words in enumerate(parts, 1))


def cluster_words(cluster: Cluster) -> str:
    """`2 machines of 8 x H100` of a cluster."""
    runs: list[tuple[Machine, int]] = []
    for machine in cluster.machines:
        if runs and runs[-1][0] == machine:
            runs[-1] = (machine, runs[-1][1] + 1)
        else:
            runs.append((machine, 1))
    return " + ".join(
        f"{f'{times} machines of ' if times > 1 else ''}{m.count} x {m.device.name}" for m, times in runs
    )


def percent(share: float) -> str:
    """A share as a short text: `12 %`, `0.4 %`."""
    value = 100 * share
    return f"{value:.0f} %" if abs(value) >= 9.95 else f"{value:.1f} %".replace("0.0 %", "0 %")


def shown(names: Iterable[str], most: int = 6) -> str:
    """Some names, and how many more there are."""
    names = list(names)
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def parts_of(layout: Layout, mesh: Mesh) -> int:
    """Into how many different pieces a tensor is cut."""
    pairs = zip(mesh.sizes, layout.placements, strict=True)
    return prod(n for n, p in pairs if isinstance(p, Split))
