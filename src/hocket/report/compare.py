"""The best plan beside layouts picked by hand: how much slower those are, what the best does differently."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import RenderableType
from rich.text import Text

from hocket.plan.types import Plan
from hocket.report.layers import Layer, find_layers
from hocket.report.tables import bullet, common_prefix, table
from hocket.report.words import percent, shown
from hocket.units import format_bytes, format_seconds


@dataclass(frozen=True, slots=True)
class Difference:
    """What the best plan does otherwise with parameters: how they are `held`, or how `work` is divided."""

    aspect: str
    best: str
    other: str
    paths: tuple[str, ...]


def differences(best: Plan, other: Plan) -> tuple[Difference, ...]:
    """Kinds of parameters that two plans hold or use in different ways, those that differ alike together."""
    here, there = _by_path(find_layers(best)), _by_path(find_layers(other))
    groups: dict[tuple[str, str, str], list[str]] = {}
    for path, mine in here.items():
        for aspect, words, theirs in zip(("held", "work"), mine, there.get(path, ("-", "-")), strict=True):
            if words != theirs:
                groups.setdefault((aspect, words, theirs), []).append(path)
    return tuple(Difference(*key, tuple(paths)) for key, paths in groups.items())


def _by_path(layers: Sequence[Layer]) -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[list[str], list[str]]] = {}
    for x in layers:
        held, work = found.setdefault(x.path, ([], []))
        held.append(x.stored)
        work.append(x.forward)
    return {
        path: (" or ".join(dict.fromkeys(held)), " or ".join(dict.fromkeys(work)))
        for path, (held, work) in found.items()
    }


def comparison_parts(best: Plan, others: Sequence[tuple[str, Plan | str]]) -> list[RenderableType]:
    """Plans picked by hand beside the best; a text in place of a plan says why there is none."""
    made = table("Picked by hand", ["layout", ">step", ">slower", ">memory", "mesh"])
    made.add_row("hocket", format_seconds(best.seconds), "", format_bytes(best.memory.total), str(best.stage.mesh))
    for text, plan in others:
        if isinstance(plan, str):
            made.add_row(text, "-", "-", "-", "does not fit", style="dim")
            continue
        slower = plan.seconds / best.seconds - 1
        made.add_row(
            text, format_seconds(plan.seconds), f"{slower * 100:+.1f} %", format_bytes(plan.memory.total),
            str(plan.stage.mesh),
        )  # fmt: skip
    parts: list[RenderableType] = [Text(), made]
    for text, plan in others:
        if isinstance(plan, str):
            parts.append(Text.assemble((text, "bold"), f" does not fit: {plan}\n"))
        else:
            parts += _told(best, text, plan)
    return parts


def _told(best: Plan, text: str, plan: Plan, most: int = 6) -> list[RenderableType]:
    slower = plan.seconds / best.seconds - 1
    if abs(slower) < 5e-4:
        return [Text.assemble((text, "bold"), " is as fast as the best plan found.\n")]
    word = "slower" if slower > 0 else "faster"
    lines = [Text.assemble((text, "bold"), f" is {percent(abs(slower))} {word} than the best plan found.")]
    found = differences(best, plan)
    if not found:
        return [*lines, Text("Parameters are laid out alike; other tensors are not.")]
    prefix = common_prefix([path for d in found for path in d.paths])
    parts: list[RenderableType] = [*lines, Text("The best does this differently:")]
    parts += [bullet(_sentence(d, prefix)) for d in found[:most]]
    if len(found) > most:
        parts.append(bullet(f"and {len(found) - most} differences more"))
    return [*parts, Text()]


def _sentence(difference: Difference, prefix: str) -> str:
    names = shown([path.removeprefix(prefix) for path in difference.paths], 4)
    if difference.aspect == "held":
        return f"holds {names}: {difference.best}, not {difference.other}"
    return f"divides the work of {names} by {difference.best}, not {difference.other}"
