"""Plans and explanations as tables for the terminal: readable at 100 columns, and when piped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from io import StringIO
from math import inf

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from hocket.plan.types import Plan
from hocket.report.clock import Share, Traffic
from hocket.report.explain import Explanation, Verdict
from hocket.report.layers import Layer, small
from hocket.report.words import cluster_words, mesh_words, percent, shares_words, shown
from hocket.units import format_bytes, format_seconds

WIDTH = 100
LONGEST_NAME = 34
NO_FLIP = "no bandwidth between 1/256 and 256 times today's makes one of these alternatives better"
ALL_KNOWN = "every operation of the model has a rule: nothing is kept whole for want of one"


def as_text(parts: Iterable[RenderableType], width: int = WIDTH) -> str:
    """Parts rendered as plain text."""
    console = Console(width=width, file=StringIO(), color_system=None, legacy_windows=False)
    for part in parts:
        console.print(part)
    file = console.file
    text = file.getvalue() if isinstance(file, StringIO) else ""
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def table(title: str, columns: Sequence[str], caption: str = "") -> Table:
    """An empty table in the house's style; columns that start with > are aligned to the right."""
    made = Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False,
        caption=caption or None, caption_justify="left", caption_style="dim", header_style="cyan",
    )  # fmt: skip
    for number, column in enumerate(columns):
        right = column.startswith(">")
        made.add_column(
            column.lstrip(">"), justify="right" if right else "left", no_wrap=right or number == 0,
            overflow="fold", min_width=len(column.lstrip(">")),
        )  # fmt: skip
    return made


def facts(rows: Iterable[tuple[str, str]]) -> Table:
    """Names and values in two columns."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="cyan", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(name, value)
    return grid


def heading(text: str) -> Text:
    """A title line."""
    return Text(text, style="bold")


def summary(plan: Plan) -> Table:
    """A plan in a few lines: where it runs, how long a step takes, how good that is, what memory it needs."""
    rows = [
        ("cluster", cluster_words(plan.cluster) + (f" ({plan.cluster.name})" if plan.cluster.name else "")),
        ("mesh", mesh_words(plan.stage.mesh)),
        ("step", step_words(plan)),
        ("proven", certificate(plan)),
        ("memory", memory_words(plan)),
    ]
    if plan.stage.shares:
        rows.insert(2, ("shares", shares_words(plan.stage, plan.cluster)))
    if plan.recompute:
        rows.append(("recompute", f"{len(plan.recompute)} blocks: {shown(plan.recompute, 3)}"))
    if plan.search.pins:
        rows.append(("pinned", shown(plan.search.pins)))
    rows.append(("search", search_words(plan)))
    return facts(rows)


def step_words(plan: Plan) -> str:
    """Predicted time of a step."""
    count = plan.schedule.microbatches
    each = f" = {count} microbatches of {format_seconds(plan.seconds / count)}" if count > 1 else ""
    return f"{format_seconds(plan.seconds)} predicted{each}"


def certificate(plan: Plan) -> str:
    """The proven bound in words."""
    if plan.lower_bound <= 0:
        return "no bound" + ("" if plan.search.complete else ": the search ended before it had one")
    bound = format_seconds(plan.lower_bound)
    if plan.gap < 5e-4:
        return f"optimal: no plan of the space searched takes less than {bound}"
    return f"no plan of the space searched takes less than {bound}: this one is within {percent(plan.gap)}"


def memory_words(plan: Plan) -> str:
    """Bytes on the fullest device, by part, and what there is."""
    memory = plan.memory
    limit = min(plan.cluster.memory_limit(rank) for rank in plan.stage.mesh.ranks)
    parts = [
        (memory.parameters, "parameters and batch"), (memory.gradients, "gradients"),
        (memory.optimizer, "optimizer"), (memory.activations, "activations"),
    ]  # fmt: skip
    words = " + ".join(f"{format_bytes(size)} {name}" for size, name in parts if size)
    return f"{format_bytes(memory.total)} of {format_bytes(limit)} per device: {words}"


def search_words(plan: Plan) -> str:
    """How the plan was found."""
    ended = "" if plan.search.complete else ", ended by its budget"
    return f"{plan.search.searcher}, {format_seconds(plan.search.seconds)}{ended}"


def layers_table(layers: Sequence[Layer]) -> Table:
    """How weights are held and what is split, by kind of layer; vectors that are held alike are one row."""
    prefix = common_prefix([x.path for x in layers])
    made = table(
        f"Layers (names start with {prefix})" if prefix else "Layers",
        ["parameter", ">count", "shape", "held as", ">on each", "work shared by"],
        "samples: of the batch; features: of the outputs; inner: of the sums; copies: repeated",
    )
    matrices, vectors = small(layers)
    for x in matrices:
        shape = "x".join(map(str, x.shape))
        cells = (str(x.count), shape, x.stored, format_bytes(x.held), work(x.forward, x.backward))
        made.add_row(_short(x.path, prefix), *cells)
    groups: dict[tuple[str, str, str], list[Layer]] = {}
    for x in vectors:
        groups.setdefault((x.stored, x.forward, x.backward), []).append(x)
    for (stored, forward, backward), group in groups.items():
        name = _short(group[0].path, prefix) if len(group) == 1 else _vectors(group)
        count, held = sum(x.count for x in group), sum(x.held for x in group)
        made.add_row(name, str(count), "", stored, format_bytes(held), work(forward, backward), style="dim")
    return made


def _short(path: str, prefix: str) -> str:
    """A path without the common start, broken after a dot where it is long: columns do not wrap names."""
    name = path.removeprefix(prefix)
    cut = name.rfind(".", 0, LONGEST_NAME) + 1
    return name if len(name) <= LONGEST_NAME or not cut else f"{name[:cut]}\n  {name[cut:]}"


def _vectors(group: Sequence[Layer]) -> str:
    names = list(dict.fromkeys(".".join(x.path.split(".")[-2:]).removeprefix("*.") for x in group))
    rest = len(names) - 1
    more = f"\n  and {rest} kind{'s' if rest > 1 else ''} more" if rest else ""
    return f"vectors: {names[0]}{more}"


def work(forward: str, gradient: str) -> str:
    """How the forward is divided, and the gradient where that differs."""
    return forward if gradient in (forward, "-") else f"{forward}; gradient {gradient}"


def common_prefix(paths: Sequence[str]) -> str:
    """The modules that all paths start with, with the dot after them."""
    heads = [path.split(".")[:-1] for path in paths]
    shared: list[str] = []
    for parts in zip(*heads, strict=False):
        if len(set(parts)) > 1 or "*" in parts:
            break
        shared.append(parts[0])
    return ".".join(shared) + "." if shared else ""


def traffic_table(traffic: Sequence[Traffic]) -> Table:
    """Communication of one rank and microbatch."""
    made = table(
        "Communication of one device",
        ["for", "collective", ">axis", ">calls", ">bytes", ">time", ">not hidden"],
    )
    for t in traffic:
        made.add_row(
            t.purpose, t.kind.replace("_", "-"), t.axis, str(t.calls), format_bytes(t.bytes),
            format_seconds(t.seconds), format_seconds(t.exposed),
        )  # fmt: skip
    if not traffic:
        made.add_row("nothing", "", "", "0", "0 B", "0 s", "0 s")
    return made


def work_table(explanation: Explanation, most: int = 10) -> Table:
    """Where the time of one rank and microbatch goes."""
    made = table("Where the time goes", ["", ">calls", ">time", ">share"])
    total = explanation.microbatch or 1.0
    for share in explanation.work[:most]:
        made.add_row(*_work_row(share, total))
    rest = explanation.work[most:]
    if rest:
        other = Share(f"{len(rest)} other kinds", sum(s.calls for s in rest), sum(s.seconds for s in rest))
        made.add_row(*_work_row(other, total))
    hidden = sum(t.seconds for t in explanation.traffic) - sum(t.exposed for t in explanation.traffic)
    made.add_row(
        f"waiting for communication ({format_seconds(max(0.0, hidden))} more is hidden)", "",
        format_seconds(explanation.exposed), percent(explanation.exposed / total), style="yellow",
    )  # fmt: skip
    return made


def _work_row(share: Share, total: float) -> tuple[str, str, str, str]:
    return share.name, str(share.calls), format_seconds(share.seconds), percent(share.seconds / total)


def verdict_table(verdicts: Sequence[Verdict]) -> Table:
    """The alternatives judged."""
    made = table("What else was judged", ["plan", ">step", ">slower", "why not"])
    for v in verdicts:
        if v.seconds < inf:
            sign = "+" if v.slower > 0 else "-"
            slower = f"{sign}{percent(abs(v.slower))}" if abs(v.slower) >= 5e-4 else "equal"
            reason = v.reason if v.reason != "slower" else ""
            made.add_row(v.title, format_seconds(v.seconds), slower, reason)
        else:
            made.add_row(v.title, "-", "-", v.reason, style="dim")
    return made


def plan_parts(explanation: Explanation) -> list[RenderableType]:
    """A plan on one screen."""
    plan = explanation.plan
    title = Text.assemble((plan.graph.name or "model", "bold green"), " on ", (cluster_words(plan.cluster), "bold"))
    return [title, Text(), summary(plan), Text(), layers_table(explanation.layers), Text(),
            traffic_table(explanation.traffic)]  # fmt: skip


def explanation_parts(explanation: Explanation) -> list[RenderableType]:
    """A plan, and why it is as it is."""
    plan = explanation.plan
    parts = [*plan_parts(explanation), work_table(explanation)]
    if explanation.verdicts:
        parts.append(verdict_table(explanation.verdicts))
    if explanation.flips:
        parts += [heading("What would change the choice"), *map(bullet, map(str, explanation.flips)), Text()]
    elif any(v.seconds < inf for v in explanation.verdicts):
        parts += [heading("What would change the choice"), bullet(NO_FLIP), Text()]
    whole = plan.search.whole
    kept = f"operations without a rule, which every device runs whole: {shown(whole)}" if whole else ALL_KNOWN
    words = (plan.search.space, kept, certificate(plan))
    parts += [heading("The space searched"), *map(bullet, words)]
    return parts


def bullet(text: str) -> Table:
    """A sentence with a mark before it, lines after the first indented."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row("-", text)
    return grid
