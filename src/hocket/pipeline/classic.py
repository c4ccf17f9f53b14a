"""Schedules with one stage per rank: all forward then all backward, and one forward one backward."""

from __future__ import annotations

from hocket.pipeline.order import Action, Order, actions


def forward_then_backward(ranks: int, microbatches: int) -> Order:
    """All forward passes, then all backward ones (GPipe; Huang et al. 2019)."""
    every = range(microbatches)
    return Order(
        tuple((*actions("F", r, every), *actions("B", r, every)) for r in range(ranks)),
        "FThenB",
    )


def one_forward_one_backward(ranks: int, microbatches: int) -> Order:
    """A rank does as many forward passes ahead as there are ranks behind it, then one of each in turn, so that it
    holds no more activations than that (PipeDream-Flush; Narayanan et al. 2021, section 2.2)."""
    return Order(
        tuple(
            alternate(
                actions("F", rank, range(microbatches)), actions("B", rank, range(microbatches)), ranks - 1 - rank
            )
            for rank in range(ranks)
        ),
        "1F1B",
    )


def eager(ranks: int, microbatches: int) -> Order:
    """One forward, one backward with about twice as many forward passes ahead, so that what travels between ranks
    has time to: no rank waits for it as long as it takes less than a pass (Zhuang et al. 2023, section 4:
    eager-1F1B)."""
    every = range(microbatches)
    made = (
        alternate(actions("F", rank, every), actions("B", rank, every), 2 * (ranks - 1 - rank))
        for rank in range(ranks)
    )
    return Order(tuple(made), "eager 1F1B")


def alternate(forwards: list[Action], backwards: list[Action], ahead: int) -> tuple[Action, ...]:
    """Some forward passes ahead, then one forward and one backward in turn, then the backward passes left."""
    ahead = min(ahead, len(forwards))
    found = forwards[:ahead]
    for forward, backward in zip(forwards[ahead:], backwards, strict=False):
        found += [forward, backward]
    return (*found, *backwards[len(forwards) - ahead :])
