"""The order of a pipeline: what every rank does in turn, as data and as text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hocket.errors import ScheduleError

Kind = Literal["F", "B", "I", "W"]
"""Forward, backward, and the halves of a backward: gradients of inputs and gradients of weights."""
_ACTION = re.compile(r"(\d+)([FBIW])(\d+)")


@dataclass(frozen=True, slots=True, order=True)
class Action:
    """One piece of work: a pass of a stage on a microbatch. Stages are numbered along the model, from 0."""

    stage: int
    kind: Kind
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"

    @staticmethod
    def parse(text: str) -> Action:
        """Read `2F0`: stage 2, forward, microbatch 0. Raises ScheduleError."""
        match = _ACTION.fullmatch(text)
        if match is None:
            raise ScheduleError(f"action {text!r}", "is stage, F, B, I or W, and microbatch, as 2F0", text)
        return Action(int(match[1]), match[2], int(match[3]))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Order:
    """What every rank does in turn. `title` is what people call it."""

    ranks: tuple[tuple[Action, ...], ...]
    title: str = ""

    @property
    def stages(self) -> int:
        """Number of stages (chunks of layers)."""
        return 1 + max((a.stage for rank in self.ranks for a in rank), default=-1)

    @property
    def microbatches(self) -> int:
        """Number of microbatches."""
        return 1 + max((a.microbatch for rank in self.ranks for a in rank), default=-1)

    @property
    def places(self) -> dict[int, int]:
        """The rank of every stage."""
        return {a.stage: rank for rank, actions in enumerate(self.ranks) for a in actions}

    def __str__(self) -> str:
        return "\n".join(" ".join(map(str, actions)) for actions in self.ranks)

    @staticmethod
    def parse(text: str, title: str = "") -> Order:
        """Read one line per rank; raises ScheduleError."""
        lines = text.strip().splitlines()
        return Order(tuple(tuple(Action.parse(word) for word in line.split()) for line in lines), title)


def loop(ranks: int, chunks: int) -> tuple[tuple[int, ...], ...]:
    """Stages of every rank where the model goes round: rank r has r, r + ranks ... (Narayanan et al. 2021)."""
    return tuple(tuple(range(rank, ranks * chunks, ranks)) for rank in range(ranks))


def vee(ranks: int) -> tuple[tuple[int, ...], ...]:
    """Stages of every rank where the model goes there and back: rank 0 has the first and last (Qi et al. 2024)."""
    return tuple((rank, 2 * ranks - 1 - rank) for rank in range(ranks))


def actions(kind: Kind, stage: int, microbatches: Sequence[int]) -> list[Action]:
    """The same work on several microbatches."""
    return [Action(stage, kind, m) for m in microbatches]
