"""When each stage works on which microbatch, as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Schedule:
    """The order of work across stages; with one stage: `microbatches` times forward and backward in turn.

    Gradients of the microbatches are averaged, so the loss is the mean of the microbatches' losses.
    """

    kind: str = "1F1B"
    microbatches: int = 1
