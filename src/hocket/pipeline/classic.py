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


def alternate(forwards: list[Action], backwards: list[Action], ahead: int) -> tuple[Action, ...]:
    """Some forward passes ahead, then one forward and one backward in turn, then the backward passes left."""
    ahead = min(ahead, len(forwards))
    found = forwards[:ahead]
    for forward, backward in zip(forwards[ahead:], backwards, strict=False):
        found += [forward, backward]
    return (*found, *backwards[len(forwards) - ahead :])
