"""What a plan file holds: strict types, in which layouts, meshes and strategies are texts.

Infinite seconds are written as null. A stage's strategies are a table of the distinct ones and, for every
operation, its place in the table; its layouts are grouped: each layout with the names that have it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from math import inf, isfinite
from typing import Any, get_type_hints

import msgspec

from hocket.errors import FileError, LayoutError
from hocket.pipeline.schedule import Schedule
from hocket.plan.types import Alternative, Memory, SearchRecord, Stage
from hocket.sharding.layout import Layout
from hocket.sharding.mesh import Mesh

Layouts = Mapping[str, Layout]


def _strict(values: type[Any]) -> type[msgspec.Struct]:
    """A strict file type with the fields of a dataclass of plain values."""
    hints = get_type_hints(values)
    required: list[Any] = []
    optional: list[Any] = []
    for f in dataclasses.fields(values):
        if f.default is dataclasses.MISSING:
            required.append((f.name, hints[f.name]))
        else:
            optional.append((f.name, hints[f.name], f.default))
    return msgspec.defstruct(
        f"{values.__name__}Entry", [*required, *optional], forbid_unknown_fields=True, module=__name__
    )


MEMORY_ENTRY = _strict(Memory)
SCHEDULE_ENTRY = _strict(Schedule)


class StageEntry(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A stage in a file; `places` are numbers joined by spaces, layouts map to names joined by spaces."""

    mesh: str
    stored: dict[str, str]
    table: list[str]
    places: str
    first: int = 0
    used: dict[str, str] = {}
    kept: dict[str, str] = {}
    reused: dict[str, str] = {}
    shares: list[list[list[float]]] = []
    sent: dict[str, str] = {}
    working: dict[str, str] = {}


class AlternativeEntry(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A plan that was not chosen, in a file."""

    title: str
    seconds: float | None
    lower_bound: float | None
    reason: str = ""
    stage: StageEntry | None = None


class SearchEntry(msgspec.Struct, forbid_unknown_fields=True):
    """How a plan was found, in a file."""

    searcher: str
    space: str
    seconds: float | None
    complete: bool
    alternatives: list[AlternativeEntry]
    seed: int
    whole: list[str]
    pins: list[str]


class PlanEntry(msgspec.Struct, forbid_unknown_fields=True):
    """A whole plan file."""

    format: str
    fingerprint: str
    model_fingerprint: str
    seconds: float | None
    lower_bound: float | None
    memory: dict[str, Any]
    schedule: dict[str, Any]
    recompute: list[str]
    optimizer_bytes: float
    stages: list[StageEntry]
    search: SearchEntry
    cluster: dict[str, Any]
    graph: list[str]


def finite(seconds: float) -> float | None:
    """Seconds as a file has them: None stands for infinite."""
    return seconds if isfinite(seconds) else None


def infinite(seconds: float | None) -> float:
    """Seconds of a file's entry."""
    return inf if seconds is None else seconds


def stage_entry(stage: Stage) -> StageEntry:
    """The file's entry of a stage."""
    table = {text: number for number, text in enumerate(dict.fromkeys(stage.strategies))}
    return StageEntry(
        mesh=str(stage.mesh),
        stored=_grouped(stage.stored),
        table=list(table),
        places=" ".join(str(table[text]) for text in stage.strategies),
        first=stage.mesh.first,
        used=_grouped(stage.used),
        kept=_grouped(stage.kept),
        reused=_grouped(stage.reused),
        shares=[[list(axis) for axis in part] for part in stage.shares],
        sent=_grouped(stage.sent),
        working=_grouped(stage.working),
    )


def read_stage(entry: StageEntry, culprit: str) -> Stage:
    """The stage of a file's entry; raises FileError naming `culprit` and the key."""
    try:
        mesh = Mesh(Mesh.parse(entry.mesh).sizes, entry.first)
        layouts = [
            _spread(g) for g in (entry.stored, entry.used, entry.kept, entry.reused, entry.sent, entry.working)
        ]
    except LayoutError as error:
        raise FileError(f"{culprit}: {error.culprit}", error.rule, error.values, error.repair) from None
    for group in layouts:
        for name, layout in group.items():
            if len(layout.placements) != len(mesh.sizes):
                rule = "a layout has one placement per mesh axis"
                raise FileError(f"{culprit}: {name}", rule, f"{layout} on mesh {mesh}")
    shares = tuple(tuple(tuple(axis) for axis in part) for part in entry.shares)
    for part in shares:
        if len(part) != len(mesh.sizes):
            raise FileError(f"{culprit}: shares", "have one list per mesh axis", f"{len(part)} on mesh {mesh}")
        for axis, (positions, values) in enumerate(zip(mesh.sizes, part, strict=True)):
            if values and len(values) != positions:
                rule = "are one fraction per position of their axis"
                raise FileError(f"{culprit}: shares of axis {axis}", rule, f"{len(values)} on mesh {mesh}")
    stored, used, kept, reused, sent, working = layouts
    return Stage(mesh, stored, _strategies(entry, culprit), used, kept, reused, shares, sent, working)


def _strategies(entry: StageEntry, culprit: str) -> tuple[str, ...]:
    chosen = []
    for place in entry.places.split():
        if not place.isdecimal() or int(place) >= len(entry.table):
            rule = f"is numbers below {len(entry.table)}, the length of the table"
            raise FileError(f"{culprit}: places", rule, repr(place))
        chosen.append(entry.table[int(place)])
    return tuple(chosen)


def _grouped(layouts: Layouts) -> dict[str, str]:
    groups: dict[str, list[str]] = {}
    for name, layout in layouts.items():
        groups.setdefault(str(layout), []).append(name)
    return {text: " ".join(names) for text, names in groups.items()}


def _spread(groups: Mapping[str, str]) -> dict[str, Layout]:
    found: dict[str, Layout] = {}
    for text, names in groups.items():
        found.update(dict.fromkeys(names.split(), Layout.parse(text)))
    return found


def search_entry(search: SearchRecord) -> SearchEntry:
    """The file's entry of a search record."""
    alternatives = [
        AlternativeEntry(
            a.title,
            finite(a.seconds),
            finite(a.lower_bound),
            a.reason,
            stage_entry(a.stage) if a.stage else None,
        )
        for a in search.alternatives
    ]
    return SearchEntry(
        search.searcher, search.space, finite(search.seconds), search.complete, alternatives, search.seed,
        list(search.whole), list(search.pins),
    )  # fmt: skip


def read_search(entry: SearchEntry, culprit: str) -> SearchRecord:
    """The search record of a file's entry; raises FileError."""
    return SearchRecord(
        entry.searcher, entry.space, infinite(entry.seconds), entry.complete,
        tuple(_alternative(a, f"{culprit}: alternative {a.title!r}") for a in entry.alternatives),
        entry.seed, tuple(entry.whole), tuple(entry.pins),
    )  # fmt: skip


def _alternative(entry: AlternativeEntry, culprit: str) -> Alternative:
    stage = read_stage(entry.stage, culprit) if entry.stage else None
    return Alternative(entry.title, infinite(entry.seconds), infinite(entry.lower_bound), entry.reason, stage)


def key_names(entries: Sequence[type[msgspec.Struct]]) -> list[str]:
    """Every key that these file types know."""
    return sorted({f.name for entry in entries for f in msgspec.structs.fields(entry)})
