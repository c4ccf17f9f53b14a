"""How often a graph runs in a step, and what that shares."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Repeats:
    """A graph that runs for each of so many `microbatches`, of which `in_flight` wait for their backward pass.

    With `once` parameters are brought from where they are stored to where they are used once in a step, and
    gradients, added up as they are made, back once (ZeRO stages 1 and 2); else with every microbatch (stage 3).
    """

    microbatches: int = 1
    in_flight: int = 1
    once: bool = False

    @property
    def often(self) -> float:
        """How often a microbatch brings a parameter, or a gradient, from or to where it is stored."""
        return 1.0 / self.microbatches if self.once else 1.0


ONCE = Repeats()
"""One microbatch: the graph is the step."""
