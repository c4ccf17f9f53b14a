"""One rank's messages in a step: what it sends after each action, what it must have received before it, and in
which order a peer's messages come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hocket.pipeline.order import Action, Order
from hocket.program.transfer import Piece, Transfer


@dataclass(frozen=True, slots=True)
class Message:
    """A piece of a value of one microbatch on its way."""

    value: str
    microbatch: int
    stage: int
    piece: Piece
    dtype: str

    @property
    def title(self) -> str:
        """What it is, in words."""
        return f"{self.value} of microbatch {self.microbatch}"


@dataclass
class Routes:
    """`after[action]` are the messages that an action's rank sends, `before[action]` those it needs; `coming[peer]`
    are all messages of a peer in the order in which it sends them, `numbers[message]` the place of one there."""

    after: dict[Action, list[Message]] = field(default_factory=dict)
    before: dict[Action, list[Message]] = field(default_factory=dict)
    coming: dict[int, list[Message]] = field(default_factory=dict)
    numbers: dict[Message, int] = field(default_factory=dict)


def find_routes(
    rank: int, order: Order, transfers: tuple[Transfer, ...], arriving: Mapping[int, frozenset[str]]
) -> Routes:
    """The routes of a rank. `arriving[stage]` are the values that come for a stage's backward pass."""
    routes = Routes()
    by_source: dict[tuple[int, bool], list[Transfer]] = {}
    for transfer in transfers:
        if not transfer.tied:
            back = transfer.value in arriving.get(transfer.target, frozenset())
            by_source.setdefault((transfer.source, back), []).append(transfer)
    for todo in order.ranks:
        for action in todo:
            if action.kind == "W":
                continue
            for transfer in by_source.get((action.stage, action.kind != "F"), ()):
                _note(rank, action, transfer, routes, order, transfer.value in arriving.get(transfer.target, ()))
    return routes


def _note(rank: int, action: Action, transfer: Transfer, routes: Routes, order: Order, back: bool) -> None:
    """A value's pieces once an action has made it."""
    for piece in transfer.pieces:
        message = Message(transfer.value, action.microbatch, transfer.target, piece, transfer.dtype)
        if piece.source == rank:
            routes.after.setdefault(action, []).append(message)
        if piece.target == rank:
            kinds = ("B", "I") if back else ("F",)
            for kind in kinds:
                needed = Action(transfer.target, kind, action.microbatch)  # type: ignore[arg-type]
                routes.before.setdefault(needed, []).append(message)
            if piece.source != rank:
                coming = routes.coming.setdefault(piece.source, [])
                routes.numbers[message] = len(coming)
                coming.append(message)
