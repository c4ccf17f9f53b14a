"""When each stage works on which microbatch, as data."""

from __future__ import annotations

from dataclasses import dataclass

from hocket.pipeline.classic import one_forward_one_backward
from hocket.pipeline.order import Order


@dataclass(frozen=True, slots=True)
class Schedule:
    """The order of work across stages; with one stage: `microbatches` times forward and backward in turn.

    Gradients of the microbatches are averaged, so the loss is the mean of the microbatches' losses. `cuts` are the
    operations of the forward pass at which stages 1, 2 ... begin; `order` is the text of what every pipeline rank
    does (none: 1F1B).
    """

    kind: str = "1F1B"
    microbatches: int = 1
    cuts: tuple[int, ...] = ()
    order: str = ""

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.cuts) + 1

    @property
    def halved(self) -> bool:
        """Whether backward passes are in halves: gradients of weights may come later than what other stages
        need."""
        return "W" in self.order

    def actions(self) -> Order:
        """What every pipeline rank does in turn; raises ScheduleError where the text is none."""
        if self.order:
            return Order.parse(self.order, self.kind)
        return one_forward_one_backward(self.stages, self.microbatches)
