"""Layouts that people pick by hand, judged beside a plan."""

from __future__ import annotations

import threading
from math import inf, isfinite
from time import monotonic

from hocket import api
from hocket.errors import HocketError, MemoryLimitError
from hocket.plan.types import Alternative, Plan
from hocket.search.auto import Watcher


def known_texts(plan: Plan) -> dict[str, str]:
    """Titles and `like` texts of what is usually tried on so many devices."""
    devices = plan.cluster.size
    inside = max(machine.count for machine in plan.cluster.machines)
    found = {
        "data parallel": f"dp={devices}",
        "ZeRO-3 (FSDP)": f"dp={devices},zero=3",
    }
    for degree in sorted({2, inside, min(devices, 8)}):
        if 1 < degree <= devices and devices % degree == 0:
            rest = devices // degree
            title = f"tensor parallel {degree}" + (f" x data parallel {rest}" if rest > 1 else "")
            found[title] = f"tp={degree},dp={rest}"
            if rest > 1:
                found[f"{title}, ZeRO-3"] = f"tp={degree},dp={rest},zero=3"
    return found


def known_alternatives(
    plan: Plan, budget: float = inf, watcher: Watcher | None = None, stop: threading.Event | None = None
) -> tuple[Alternative, ...]:
    """Each known layout of the plan's own graph, its open choices filled in as well as can be.

    `budget` is in seconds for all together. Seconds of the alternatives are of the whole step.
    """
    told = {a.title for a in plan.search.alternatives}
    texts = {t: like for t, like in known_texts(plan).items() if t not in told} if plan.cluster.size > 1 else {}
    end = monotonic() + budget
    found = []
    for number, (title, text) in enumerate(texts.items()):
        if stop is not None and stop.is_set():
            break
        if watcher is not None:
            watcher("known", number, len(texts), title)
        left = (end - monotonic()) / (len(texts) - number) if isfinite(budget) else inf
        found.append(_judged(plan, title, text, max(1.0, left), stop))
    return tuple(found)


def _judged(plan: Plan, title: str, text: str, seconds: float, stop: threading.Event | None) -> Alternative:
    optimizer = next((k for k, v in api.OPTIMIZER_BYTES.items() if v == plan.optimizer_bytes), "adam")
    try:
        found = api.plan(
            plan.graph, plan.cluster, like=text, budget=seconds, optimizer=optimizer,
            microbatches=plan.schedule.microbatches, stop=stop,
        )  # fmt: skip
    except MemoryLimitError as error:
        return Alternative(title, inf, inf, error.values.rpartition(" needs ")[2].join(("needs ", "")))
    except HocketError as error:
        return Alternative(title, inf, 0.0, error.values or error.rule)
    return Alternative(title, found.seconds, found.lower_bound, "slower", found.stage)
