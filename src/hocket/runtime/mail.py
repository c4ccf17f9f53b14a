"""Messages between two ranks: on torch.distributed, or between threads that stand for ranks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from hocket.errors import RuntimeFault
from hocket.runtime.transport import GRACE, Meeting, missing_ranks

Wait = Callable[[], Tensor]


class Mail(Protocol):
    """What a pipeline asks of communication. Messages of a pair of ranks are received in the order they are
    sent."""

    def send(self, tensor: Tensor, peer: int, title: str) -> Callable[[], object]:
        """Begin to send; what is returned waits until the tensor may change."""

    def receive(self, buffer: Tensor, peer: int, title: str) -> Wait:
        """Begin to receive into a buffer; what is returned waits for it and gives it."""

    def tell(self, value: Tensor, source: int) -> Tensor:
        """A number that one rank has, on every rank."""


class DistributedMail:
    """Messages on torch.distributed, asynchronous. Each direction of a pair has its messages in order."""

    def __init__(self, rank: int, timeout: float) -> None:
        self.rank, self.timeout = rank, timeout

    def send(self, tensor: Tensor, peer: int, title: str) -> Callable[[], object]:
        """Begin to send; raises RuntimeFault naming the peer where it is gone."""
        payload = tensor.contiguous()
        work = self._try(lambda: dist.isend(payload, peer), peer, title)

        def wait() -> Tensor:
            self._try(work.wait, peer, title)
            return payload

        return wait

    def receive(self, buffer: Tensor, peer: int, title: str) -> Wait:
        """Begin to receive."""
        work = self._try(lambda: dist.irecv(buffer, peer), peer, title)

        def wait() -> Tensor:
            self._try(work.wait, peer, title)
            return buffer

        return wait

    def tell(self, value: Tensor, source: int) -> Tensor:
        """A broadcast."""
        if dist.is_initialized():
            dist.broadcast(value, source)
        return value

    def _try(self, what: Callable[[], Any], peer: int, title: str) -> Any:
        started = time.monotonic()
        try:
            return what()
        except RuntimeError as error:
            waited = time.monotonic() - started
            missing = missing_ranks(self.rank, (self.rank, peer), min(GRACE, self.timeout)) or [peer]
            raise RuntimeFault(
                f"rank {self.rank}, {title}",
                f"rank {peer} answers within {self.timeout:g} s",
                f"missing: rank {', rank '.join(map(str, missing))}, after {waited:.0f} s; {error}",
                "look at the output of those ranks; raise the timeout if they are only slow",
            ) from error


class ThreadMail:
    """Messages between threads of this process."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.meeting, self.rank = meeting, rank

    def send(self, tensor: Tensor, peer: int, title: str) -> Callable[[], object]:
        """Put a copy in the peer's box."""
        with self.meeting.lock:
            self.meeting.letters.setdefault((self.rank, peer), []).append(tensor.clone())
            self.meeting.lock.notify_all()
        return lambda: tensor

    def receive(self, buffer: Tensor, peer: int, title: str) -> Wait:
        """Wait for the next message of a peer; raises RuntimeFault where none comes."""
        with self.meeting.lock:
            box = (peer, self.rank)
            number = self.meeting.opened.get(box, 0)
            self.meeting.opened[box] = number + 1

        def wait() -> Tensor:
            with self.meeting.lock:
                letters = self.meeting.letters.setdefault(box, [])
                self.meeting.lock.wait_for(
                    lambda: self.meeting.failed or len(letters) > number, self.meeting.timeout
                )
                if len(letters) <= number:
                    why = f"; {self.meeting.failed[0]}" if self.meeting.failed else ""
                    raise RuntimeFault(f"rank {self.rank}, {title}", f"rank {peer} sends it", f"nothing came{why}")
                found = letters[number]
                letters[number] = torch.empty(0)
            return found.view(buffer.shape)

        return wait

    def tell(self, value: Tensor, source: int) -> Tensor:
        """The source's number, from a meeting of all."""
        box = self.meeting.exchange(self.meeting.everyone, self._turn(), self.rank, [value])
        return box[source][0].clone()

    def _turn(self) -> int:
        self.meeting.told[self.rank] = self.meeting.told.get(self.rank, 0) + 1
        return -self.meeting.told[self.rank]
