"""What a rank sends and receives in one step: values between stages, and once what several stages hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from hocket.pipeline.order import Action
from hocket.program.staged import StagedProgram
from hocket.program.transfer import Box, Piece, Transfer, positions
from hocket.program.types import Shard
from hocket.runtime.mail import Mail, Wait
from hocket.runtime.routes import Message, Routes
from hocket.runtime.shards import put_part, shard_shape, take_part

Part = tuple[Piece, Tensor]


class Exchange:
    """One step's messages. Receives are posted in the order in which their peer sends; sends go on by
    themselves."""

    def __init__(self, program: StagedProgram, routes: Routes, mail: Mail, device: torch.device) -> None:
        self.program, self.routes, self.mail, self.device = program, routes, mail, device
        self.waits: dict[Message, Wait] = {}
        self.posted: dict[int, int] = {}
        self.sending: list[Callable[[], object]] = []
        self.here: dict[tuple[str, int, int], list[Part]] = {}

    def post(self, action: Action) -> None:
        """Begin to receive what an action needs, and whatever the same peers send before that."""
        for message in self.routes.before.get(action, ()):
            peer = message.piece.source
            if peer == self.program.rank:
                continue
            coming, number = self.routes.coming[peer], self.routes.numbers[message]
            for following in coming[self.posted.get(peer, 0) : number + 1]:
                self.waits[following] = self._receive(following)
            self.posted[peer] = max(self.posted.get(peer, 0), number + 1)

    def send(self, action: Action, values: Mapping[str, Tensor]) -> None:
        """Send what an action has made to whoever reads it."""
        for message in self.routes.after.get(action, ()):
            box = self.program.boxes[action.stage, message.value]
            part = self._give(values[message.value], box, message)
            if part is not None:
                self.here.setdefault((message.value, message.microbatch, message.stage), []).append(part)

    def received(self, shard: Shard, action: Action) -> Tensor:
        """This rank's part of what other stages send for an action, put together from its pieces."""
        parts = self.here.pop((shard.name, action.microbatch, action.stage), [])
        for message in self.routes.before.get(action, ()):
            if message.value == shard.name and message.piece.source != self.program.rank:
                parts.append((message.piece, self.waits.pop(message)()))
        program = self.program.stages[action.stage].run
        return joined(parts, shard.intervals, getattr(torch, program.types[shard.name].dtype), self.device)

    def share(self, what: str, values: Mapping[int, Mapping[str, Tensor]]) -> dict[tuple[int, str], Tensor]:
        """Give what several stages hold (`what`: a parameter, or its gradient) to the others, or to its home: what
        comes of it for this rank, by stage and name; from several stages it is added up."""
        coming: list[tuple[Transfer, list[tuple[Piece, Wait]]]] = []
        for transfer in self.program.transfers:
            if transfer.tied != what:
                continue
            waits: list[tuple[Piece, Wait]] = []
            for piece in transfer.pieces:
                message = Message(transfer.value, -1, transfer.target, piece, transfer.dtype)
                if piece.source != self.program.rank:
                    waits.append((piece, self._receive(message)))
                    continue
                box = self.program.boxes[transfer.source, transfer.value]
                part = self._give(values[transfer.source][transfer.value], box, message)
                if part is not None:
                    waits.append((piece, partial(_itself, part[1])))
            if transfer.target in self.program.stages:
                coming.append((transfer, waits))
        found: dict[tuple[int, str], Tensor] = {}
        for transfer, waits in coming:
            key = transfer.target, transfer.value
            parts = [(piece, wait()) for piece, wait in waits]
            whole = joined(parts, self.program.boxes[key], getattr(torch, transfer.dtype), self.device)
            found[key] = found[key] + whole if key in found else whole
        return found

    def finish(self) -> None:
        """Wait until everything is sent."""
        for wait in self.sending:
            wait()
        self.sending = []

    def _give(self, tensor: Tensor, box: Box, message: Message) -> Part | None:
        """Send a piece of what this rank has; a piece for itself is given back."""
        part = take_part(tensor, positions(box, message.piece.box))
        if message.piece.target == self.program.rank:
            return message.piece, part
        wire = part.to(torch.uint8) if part.dtype == torch.bool else part
        self.sending.append(self.mail.send(wire, message.piece.target, message.title))
        return None

    def _receive(self, message: Message) -> Wait:
        dtype = getattr(torch, message.dtype)
        wire = torch.uint8 if dtype == torch.bool else dtype
        buffer = torch.empty(message.piece.shape, dtype=wire, device=self.device)
        wait = self.mail.receive(buffer, message.piece.source, message.title)
        return lambda: wait().to(dtype)


def joined(parts: Sequence[Part], box: Box, dtype: torch.dtype, device: torch.device) -> Tensor:
    """What a rank holds, from pieces of it; of a box without elements there are none."""
    if len(parts) == 1 and parts[0][0].box == box:
        return parts[0][1]
    whole = torch.empty(shard_shape(box), dtype=dtype, device=device)
    for piece, part in parts:
        put_part(whole, part, positions(box, piece.box))
    return whole


def _itself(tensor: Tensor) -> Tensor:
    return tensor
