"""What is given of a pipeline, as data and as text."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hocket.errors import PlanError

KEYS = ("stages", "chunks", "kind", "layers")
"""What a text may give."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What is given of a pipeline: `ranks` along it, `chunks` of layers on each, `microbatches`, the `kind` of its
    schedule, and `layers` per rank where the user says (blocks that repeat)."""

    ranks: int = 1
    chunks: int = 1
    microbatches: int = 1
    kind: str = "1f1b"
    layers: tuple[int, ...] = ()

    def __str__(self) -> str:
        chunks = f" x {self.chunks} chunks" if self.chunks > 1 else ""
        return f"{self.ranks} stages{chunks}, {self.microbatches} microbatches, {self.kind}"

    @staticmethod
    def parse(text: str, microbatches: int = 1) -> Shape:
        """Read `stages=4,chunks=2,kind=vpp,layers=6+6+6+6`; raises PlanError."""
        shape = Shape(microbatches=microbatches)
        for word in text.split(","):
            key, _, value = word.strip().partition("=")
            numbers = value.split("+")
            if key not in KEYS or not value or (key != "kind" and not all(n.isdecimal() for n in numbers)):
                rule = "is stages=N, chunks=N, kind=NAME, layers=N+N+..., joined by commas"
                raise PlanError(f"pipeline {text!r}", rule, word, "as stages=4,chunks=2,kind=vpp")
            if key == "kind":
                shape = replace(shape, kind=value)
            elif key == "layers":
                shape = replace(shape, layers=tuple(map(int, numbers)))
            elif key == "stages":
                shape = replace(shape, ranks=int(value))
            else:
                shape = replace(shape, chunks=int(value))
        return shape
