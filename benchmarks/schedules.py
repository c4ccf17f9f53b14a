"""Idle slots of interleaved schedules over a grid of ranks, chunks and microbatches, against bound and textbook."""

from __future__ import annotations

import time
from itertools import product
from typing import Any

from record import Results

RANKS, CHUNKS, MICROBATCHES = range(1, 9), range(1, 5), range(1, 25)
SHOWN = ((4, 2), (8, 2), (8, 4))
"""Ranks and chunks whose rows are shown; all are in the JSON file."""


def row_of(ranks: int, chunks: int, microbatches: int) -> dict[str, Any]:
    """Idle slots and activations of hocket's and the textbook's schedule, one slot for forward and backward."""
    from hocket.errors import ScheduleError
    from hocket.pipeline.bound import bound_of
    from hocket.pipeline.clock import run
    from hocket.pipeline.interleaved import interleaved, textbook

    timed = run(interleaved(ranks, chunks, microbatches))
    work = 2 * chunks * microbatches
    found: dict[str, Any] = {
        "ranks": ranks, "chunks": chunks, "microbatches": microbatches, "bound": bound_of(timed.order) - work,
        "idle": timed.worst, "share": timed.worst / timed.makespan,
        "held": max(timed.peak(rank) for rank in range(ranks)), "order": timed.order.title,
        "textbook": None, "textbook_held": None,
    }  # fmt: skip
    try:
        known = run(textbook(ranks, chunks, microbatches))
    except ScheduleError:
        return found
    return found | {"textbook": known.worst, "textbook_held": max(known.peak(rank) for rank in range(ranks))}


def main() -> None:
    columns = ("ranks x chunks, microbatches", "bound", "idle slots", "share", "held", "textbook idle",
               "textbook held", "arrangement")  # fmt: skip
    results = Results("schedules", "Idle slots of interleaved schedules", columns)
    begun = time.monotonic()
    rows = [row_of(*sizes) for sizes in product(RANKS, CHUNKS, MICROBATCHES)]
    taken = time.monotonic() - begun
    for row in rows:
        if (row["ranks"], row["chunks"]) in SHOWN:
            known = (
                (f"{row['textbook']:g}", str(row["textbook_held"])) if row["textbook"] is not None else ("-", "-")
            )
            results.rows.append((
                f"{row['ranks']} x {row['chunks']}, {row['microbatches']}", f"{row['bound']:g}", f"{row['idle']:g}",
                f"{row['share']:.0%}", str(row["held"]), *known, row["order"],
            ))  # fmt: skip
    reached = sum(row["idle"] <= row["bound"] + 1e-9 for row in rows)
    results.target("idle slots at the bound everywhere", reached == len(rows), f"{reached} of {len(rows)}")
    better = [row for row in rows if row["textbook"] is not None and row["idle"] < row["textbook"]]
    worse = [row for row in rows if row["textbook"] is not None and row["idle"] > row["textbook"]]
    stuck = sum(row["textbook"] is None for row in rows)
    results.target("never worse than the textbook", not worse, f"better in {len(better)}, worse in {len(worse)}")
    more = max(row["held"] / row["textbook_held"] for row in rows if row["textbook_held"])
    results.remarks += [
        f"{len(rows)} schedules made and checked in {taken:.0f} s.",
        f"The textbook's order (what is left over last) lets ranks wait for each other in {stuck} cases: '-'.",
        f"Most activations held: up to {more:.2f} times the textbook's.",
    ]
    results.data = {"rows": rows}
    results.show()
    results.save("python benchmarks/schedules.py")


if __name__ == "__main__":
    main()
