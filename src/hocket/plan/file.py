"""Plan files: JSON of format hocket-plan/1, strict, that give exactly the saved plan back."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import TypeVar

import msgspec

from hocket.cluster.types import Cluster
from hocket.cluster.writing import write_whole
from hocket.errors import FileError, PlanError, ScheduleError
from hocket.graph.cut import cut_graph
from hocket.graph.text import parse_graph, print_graph
from hocket.graph.types import Graph
from hocket.pipeline.check import check_order
from hocket.pipeline.schedule import Schedule
from hocket.plan.entries import (
    MEMORY_ENTRY,
    SCHEDULE_ENTRY,
    AlternativeEntry,
    PlanEntry,
    SearchEntry,
    StageEntry,
    finite,
    infinite,
    key_names,
    read_search,
    read_stage,
    search_entry,
    stage_entry,
)
from hocket.plan.types import Memory, Plan, Stage

FORMAT = "hocket-plan/1"
AGAIN = "the file is cut short or was edited: make it again with 'hocket plan ... -o FILE'"
ENTRIES = (PlanEntry, StageEntry, SearchEntry, AlternativeEntry, MEMORY_ENTRY, SCHEDULE_ENTRY)
T = TypeVar("T")


def save_plan(plan: Plan, path: str | PathLike[str]) -> None:
    """Write a plan whole or not at all; `load_plan` gives exactly it back. Raises FileError."""
    entry = PlanEntry(
        format=FORMAT,
        fingerprint=plan.fingerprint,
        model_fingerprint=plan.model_fingerprint,
        seconds=finite(plan.seconds),
        lower_bound=finite(plan.lower_bound),
        memory=dataclasses.asdict(plan.memory),
        schedule=dataclasses.asdict(plan.schedule),
        recompute=list(plan.recompute),
        optimizer_bytes=plan.optimizer_bytes,
        stages=[stage_entry(stage) for stage in plan.stages],
        search=search_entry(plan.search),
        cluster=plan.cluster.to_dict(),
        graph=print_graph(plan.graph).splitlines(),
    )
    write_whole(path, msgspec.json.format(msgspec.json.encode(entry), indent=1) + b"\n")


def load_plan(path: str | PathLike[str]) -> Plan:
    """Read a plan file; raises FileError for one that is missing, cut short, edited or of another version."""
    source = str(path)
    try:
        values = msgspec.json.decode(Path(path).read_bytes())
    except OSError as error:
        repair = "make one with 'hocket plan ... -o FILE'"
        raise FileError(source, "is a readable plan file", error.strerror or str(error), repair) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FileError(source, "is a whole JSON file", str(error), AGAIN) from None
    found = values.get("format") if isinstance(values, Mapping) else None
    if found != FORMAT:
        repair = "plan again with this version of hocket" if found else "give a file that 'hocket plan -o' wrote"
        raise FileError(f"{source}: format", f"is {FORMAT}", repr(found), repair)
    return _plan(_convert(values, PlanEntry, source), source)


def _plan(entry: PlanEntry, source: str) -> Plan:
    graph = _graph(entry, source)
    memory = _convert(entry.memory, MEMORY_ENTRY, f"{source}: memory")
    schedule = _convert(entry.schedule, SCHEDULE_ENTRY, f"{source}: schedule")
    stages = tuple(read_stage(s, f"{source}: stages[{i}]") for i, s in enumerate(entry.stages))
    plan = Plan(
        graph=graph,
        cluster=Cluster.from_dict(entry.cluster, f"{source}: cluster"),
        stages=stages,
        schedule=Schedule(**msgspec.structs.asdict(schedule)),
        seconds=infinite(entry.seconds),
        lower_bound=infinite(entry.lower_bound),
        memory=Memory(**msgspec.structs.asdict(memory)),
        search=read_search(entry.search, source),
        recompute=tuple(entry.recompute),
        fingerprint=entry.fingerprint,
        model_fingerprint=entry.model_fingerprint,
        optimizer_bytes=entry.optimizer_bytes,
    )
    _check(plan, source)
    return plan


def _graph(entry: PlanEntry, source: str) -> Graph:
    try:
        return parse_graph("\n".join(entry.graph) + "\n")
    except FileError as error:
        raise FileError(f"{source}: {error.culprit}", error.rule, error.values, AGAIN) from None


def _check(plan: Plan, source: str) -> None:
    """Raise FileError where the parts of a plan do not belong together."""
    if not plan.stages:
        raise FileError(f"{source}: stages", "a plan has at least one stage", "none", AGAIN)
    if plan.world_size > plan.cluster.size:
        rule = f"meshes have at most as many positions as the cluster has devices, {plan.cluster.size}"
        raise FileError(f"{source}: stages", rule, str(plan.world_size), AGAIN)
    if not plan.staged:
        _check_stage(plan.graph, plan.stage, f"{source}: stages[0]")
        return
    try:
        order = plan.schedule.actions()
        check_order(order)
        graphs = cut_graph(plan.graph, plan.schedule.cuts, plan.schedule.halved).graphs
    except (ScheduleError, PlanError) as error:
        raise FileError(f"{source}: schedule, {error.culprit}", error.rule, error.values, AGAIN) from None
    counts = len(graphs), order.stages, len(plan.stages)
    if len(set(counts)) > 1 or order.microbatches != plan.schedule.microbatches:
        found = (
            f"{counts[0]} by its cuts, {counts[1]} and {order.microbatches} microbatches by its order, {counts[2]}"
        )
        raise FileError(f"{source}: schedule", "has the plan's stages and microbatches", found, AGAIN)
    for number, (graph, stage) in enumerate(zip(graphs, plan.stages, strict=True)):
        _check_stage(graph, stage, f"{source}: stages[{number}]")


def _check_stage(graph: Graph, stage: Stage, source: str) -> None:
    if len(stage.strategies) != len(graph.operations):
        rule = f"has a strategy for each of the graph's {len(graph.operations)} operations"
        raise FileError(f"{source}.places", rule, str(len(stage.strategies)), AGAIN)
    missing = [i.name for i in graph.inputs if i.name not in stage.stored]
    if missing:
        rule = "says how every input is stored"
        raise FileError(f"{source}.stored", rule, f"nothing of {', '.join(missing[:5])}", AGAIN)


def _convert(values: object, entry: type[T], source: str) -> T:
    try:
        return msgspec.convert(values, entry)
    except msgspec.ValidationError as error:
        rule, _, place = str(error).partition(" - at ")
        key = place.strip("`").removeprefix("$").lstrip(".") or "top level"
        raise FileError(f"{source}: {key}", rule, repair=_key_repair(rule)) from None


def _key_repair(rule: str) -> str:
    found = re.search(r"unknown field `(.*)`", rule)
    if found is None:
        return AGAIN
    near = get_close_matches(found.group(1), key_names(ENTRIES), 1)
    return f"did you mean {near[0]}?" if near else "take the key away"


__all__ = ["FORMAT", "load_plan", "save_plan"]
