"""For one parameter: what every other way to hold it would cost, all else left as it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import inf

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from hocket.cost.prices import MeshPrices
from hocket.errors import PlanError
from hocket.plan.types import Plan, Stage
from hocket.report.tables import table
from hocket.report.words import layout_words, percent
from hocket.search.builder import build_problem
from hocket.search.model import TIMES, held_of
from hocket.search.parts import find_parts
from hocket.search.problem import Node, Problem
from hocket.search.structure import find_structure
from hocket.sharding.layout import Layout
from hocket.units import format_bytes, format_seconds

VERY_LONG = 1e9
"""Seconds beyond any step."""


@dataclass(frozen=True, slots=True)
class Change:
    """One way to hold a parameter: change of the step in seconds and of memory in bytes per device.

    Infinite seconds: it cannot be with all else as it is. `chosen` marks the plan's own.
    """

    layout: Layout
    seconds: float
    memory: float
    chosen: bool
    fits: bool


def price_changes(plan: Plan, pattern: str) -> tuple[tuple[str, ...], tuple[Change, ...]]:
    """The paths of the parameters that a pattern names (and those bound to be alike), and their changes.

    Raises PlanError where the pattern names nothing, or the plan's problem cannot be built again.
    """
    stage = plan.stage
    parts = find_parts(plan.graph, len(stage.shares)) if len(stage.shares) > 1 else ()
    problem = build_problem(
        plan.graph, stage.mesh, MeshPrices(plan.cluster, stage.mesh), inf, plan.optimizer_bytes,
        structure=find_structure(plan.graph, parts=parts), shares=stage.shares,
    )  # fmt: skip
    paths = {i.name: i.paths[0] for i in plan.graph.parameters}
    number = _find(problem, pattern, paths)
    choice = choice_of(problem, plan.stage)
    limit = min(plan.cluster.memory_limit(rank) for rank in plan.stage.mesh.ranks)
    node, model = problem.nodes[number], problem.model
    now, held = model.seconds(choice), held_of(model.totals(choice))
    changes = []
    for place, option in enumerate(node.options):
        if not isinstance(option, Layout):
            continue
        other = _settled(problem, [*choice[:number], place, *choice[number + 1 :]], number)
        memory = held_of(model.totals(other)) - held
        fits = plan.memory.total + memory <= limit
        changes.append(Change(option, model.seconds(other) - now, memory, place == choice[number], fits))
    changes.sort(key=lambda c: (not c.chosen, c.seconds))
    return tuple(paths[name] for name in node.members), tuple(changes)


def choice_of(problem: Problem, stage: Stage) -> list[int]:
    """The assignment that a stage means; raises PlanError where the problem has no such choice."""
    groups = {"stored": stage.stored, "used": stage.used, "kept": stage.kept, "reused": stage.reused}
    tokens = dict(zip((op.outputs for op in problem.graph.operations), stage.strategies, strict=True))
    choice: list[int] = []
    twins: dict[int, list[int]] = {}
    for node in problem.nodes:
        if node.kind == "operation":
            wanted = tokens[node.members]
        else:
            wanted = str(groups[node.kind].get(node.members[0], ""))
        places = [k for k, option in enumerate(node.options) if str(option) == wanted]
        if not places:
            raise PlanError(
                f"{node.kind} {node.members[0]}", "is laid out in a way that the search knows", wanted,
                "plan again with this version",
            )  # fmt: skip
        choice.append(places[0])
        if len(places) > 1:
            twins[len(choice) - 1] = places
    for number, places in twins.items():
        choice[number] = min(places, key=lambda place: _local(problem, choice, number, place))
    return choice


def _local(problem: Problem, choice: list[int], number: int, place: int) -> float:
    """Seconds around one node if it takes an option; what is impossible counts as very long."""
    total = float(problem.model.nodes[number][:TIMES, place].sum())
    for (u, v), costs in problem.model.edges.items():
        if number in (u, v):
            pair = costs[:, place, choice[v]] if u == number else costs[:, choice[u], place]
            total += min(float(pair.sum()), VERY_LONG)
    return total


def _settled(problem: Problem, choice: list[int], fixed: int) -> list[int]:
    """The assignment with the shared copies of the parameter chosen anew, one after the other."""
    model = problem.model
    near = {v for pair in model.edges for v in pair if fixed in pair} - {fixed}
    for number in sorted(near):
        node: Node = problem.nodes[number]
        if node.kind == "operation":
            continue
        options = range(len(node.options))
        tried = [model.seconds([*choice[:number], k, *choice[number + 1 :]]) for k in options]
        choice[number] = int(np.argmin(tried))
    return choice


def _find(problem: Problem, pattern: str, paths: dict[str, str]) -> int:
    for number, node in enumerate(problem.nodes):
        names = [paths[m] for m in node.members if m in paths] if node.kind == "stored" else []
        if any(fnmatchcase(n, pattern) or fnmatchcase(n, f"*{pattern}*") for n in names):
            return number
    raise PlanError(
        f"parameter {pattern!r}", "names a parameter of the plan's model",
        f"parameters are {', '.join(list(paths.values())[:4])} ...", "use a path, * stands for anything",
    )  # fmt: skip


def parameter_parts(plan: Plan, pattern: str, most: int = 16) -> list[RenderableType]:
    """Every other layout of a parameter and its price."""
    paths, changes = price_changes(plan, pattern)
    more = f" and {len(paths) - 1} that are laid out alike" if len(paths) > 1 else ""
    made = table(
        "", ["held as", "layout", ">step", ">memory per device", ""],
        "with all else as it is, in the search's own prices",
    )  # fmt: skip
    for change in changes[:most]:
        words = layout_words(change.layout, plan.stage.mesh)
        if change.chosen:
            made.add_row(words, str(change.layout), "as planned", "", "chosen", style="bold")
            continue
        seconds = "impossible" if change.seconds == inf else _signed(change.seconds, format_seconds)
        share = percent(change.seconds / plan.seconds) if change.seconds < inf else ""
        note = (f"{'+' if change.seconds > 0 else ''}{share}") if share else ""
        note = note if change.fits else "does not fit"
        made.add_row(words, str(change.layout), seconds, _signed(change.memory, format_bytes), note)
    title = Text.assemble((paths[0], "bold green"), more)
    left = len(changes) - most
    return [title, made, *([Text(f"{left} dearer ones are not shown", style="dim")] if left > 0 else [])]


def _signed(value: float, text: Callable[[float], str]) -> str:
    words = text(abs(value))
    return "equal" if abs(value) < 1e-12 else f"{'+' if value > 0 else '-'}{words}"
