"""Carrying out collectives: on torch.distributed, or between threads that stand for ranks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from hocket.errors import RuntimeFault
from hocket.program.types import GATHERS, Collective
from hocket.runtime import pack
from hocket.sharding.mesh import Mesh

ALL_GATHER = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
GRACE = 5.0
"""Seconds that ranks which met a broken collective wait for each other's word before they blame someone."""
REDUCTIONS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}


@dataclass(slots=True)
class Pending:
    """A collective under way; `finish` waits for it and gives its outputs."""

    finish: Callable[[], list[Tensor]]


class _All:
    """Several works as one."""

    def __init__(self, works: list[Any]) -> None:
        self.works = works

    def wait(self) -> None:
        for work in self.works:
            work.wait()


class Transport(Protocol):
    """What the executor asks of communication."""

    def start(self, call: Collective, tensors: Sequence[Tensor]) -> Pending:
        """Begin a collective on this rank's tensors."""


class DistributedTransport:
    """Collectives on torch.distributed, asynchronous, one process group per group of every mesh axis."""

    def __init__(self, meshes: Sequence[Mesh], rank: int, timeout: float = 600.0) -> None:
        self.rank, self.timeout = rank, timeout
        self.groups: dict[tuple[int, ...], Any] = {}
        axes = ((mesh, axis) for mesh in meshes for axis, size in enumerate(mesh.sizes) if size > 1)
        for members in dict.fromkeys(group for mesh, axis in axes for group in mesh.groups(axis)):
            made = dist.new_group(list(members), timeout=timedelta(seconds=timeout))
            if rank in members:
                self.groups[members] = made

    def start(self, call: Collective, tensors: Sequence[Tensor]) -> Pending:
        """Begin a collective; raises RuntimeFault naming the ranks that are missing."""
        try:
            return getattr(self, f"_{call.kind}")(call, list(tensors))
        except RuntimeError as error:
            raise self._fault(call, error) from error

    def _pending(self, call: Collective, work: Any, unpack: Callable[[], list[Tensor]]) -> Pending:
        def finish() -> list[Tensor]:
            try:
                work.wait()
            except RuntimeError as error:
                raise self._fault(call, error) from error
            return unpack()

        return Pending(finish)

    def _fault(self, call: Collective, error: RuntimeError) -> RuntimeFault:
        missing = missing_ranks(self.rank, call.group, min(GRACE, self.timeout))
        blamed = ", ".join(f"rank {rank}" for rank in missing) or "none, but the connection broke"
        return RuntimeFault(
            f"rank {self.rank}, {call.kind} of {', '.join(call.inputs[:3])}",
            f"every rank of group {list(call.group)} answers within {self.timeout:g} s",
            f"missing: {blamed}; {error}",
            "look at the output of those ranks; raise the timeout if they are only slow",
        )

    def _all_reduce(self, call: Collective, tensors: list[Tensor]) -> Pending:
        flat = pack.flatten(tensors)
        flat = flat.clone() if flat.data_ptr() == tensors[0].data_ptr() else flat
        work = dist.all_reduce(flat, REDUCTIONS[call.reduce], self.groups[call.group], async_op=True)
        shapes = [t.shape for t in tensors]

        def unpack() -> list[Tensor]:
            parts = torch.split(flat, [s.numel() for s in shapes])
            return [p.view(s) for p, s in zip(parts, shapes, strict=True)]

        return self._pending(call, work, unpack)

    def _all_gather(self, call: Collective, tensors: list[Tensor]) -> Pending:
        places = list(zip(tensors, call.dims, call.pieces, strict=True))
        sizes = [pack.longest(p, t.shape, d) for t, d, p in places]
        mine = pack.flatten([pack.pad(_wire(t).reshape(-1), n) for t, n in zip(tensors, sizes, strict=True)])
        everyone = mine.new_empty(len(call.group), mine.numel())
        work = ALL_GATHER(everyone.view(-1), mine, self.groups[call.group], async_op=True)

        def unpack() -> list[Tensor]:
            results, offset = [], 0
            for (tensor, dim, pieces), size in zip(places, sizes, strict=True):
                block = everyone[:, offset : offset + size]
                offset += size
                even = all(p == pieces[0] for p in pieces)
                if dim == 0 and len(pieces[0]) == 1 and even:
                    whole = block.reshape(sum(map(sum, pieces)), *tensor.shape[1:])
                else:
                    shapes = [pack.shard_shape(tensor.shape, dim, p) for p in pieces]
                    shards = [_shaped(row, shape) for row, shape in zip(block, shapes, strict=True)]
                    whole = pack.join(shards, dim, pieces)
                results.append(_unwire(whole, tensor.dtype))
            return results

        return self._pending(call, work, unpack)

    def _reduce_scatter(self, call: Collective, tensors: list[Tensor]) -> Pending:
        position = call.group.index(self.rank)
        columns, sizes, shapes = [], [], []
        for tensor, dim, pieces in zip(tensors, call.dims, call.pieces, strict=True):
            shards = pack.cut(tensor, dim, pieces)
            size = max(s.numel() for s in shards)
            columns.append(torch.stack([pack.pad(s.reshape(-1), size) for s in shards]))
            sizes.append(size)
            shapes.append(list(shards[position].shape))
        everyone = columns[0] if len(columns) == 1 else torch.cat(columns, 1)
        mine = everyone.new_empty(everyone.shape[1])
        group = self.groups[call.group]
        work = REDUCE_SCATTER(mine, everyone.view(-1), REDUCTIONS[call.reduce], group, async_op=True)

        def unpack() -> list[Tensor]:
            parts = torch.split(mine, sizes)
            kept = everyone  # the collective reads it until it is done
            del kept
            return [_shaped(p, s) for p, s in zip(parts, shapes, strict=True)]

        return self._pending(call, work, unpack)

    def _grouped_all_gather(self, call: Collective, tensors: list[Tensor]) -> Pending:
        """Every position's shards as one broadcast each, so that nothing is padded."""
        position, group = call.group.index(self.rank), self.groups[call.group]
        shapes = [
            [pack.shard_shape(t.shape, d, p[q]) for t, d, p in zip(tensors, call.dims, call.pieces, strict=True)]
            for q in range(len(call.group))
        ]
        mine = pack.flatten([_wire(t) for t in tensors]).contiguous()
        buffers, works = [], []
        for other, (rank, wanted) in enumerate(zip(call.group, shapes, strict=True)):
            count = sum(torch.Size(s).numel() for s in wanted)
            buffers.append(mine if other == position else mine.new_empty(count))
            if count:
                works.append(dist.broadcast(buffers[-1], rank, group=group, async_op=True))

        def unpack() -> list[Tensor]:
            parts = [
                [
                    flat.view(s)
                    for flat, s in zip(torch.split(b, [torch.Size(s).numel() for s in w]), w, strict=True)
                ]
                for b, w in zip(buffers, shapes, strict=True)
            ]
            places = zip(tensors, call.dims, call.pieces, strict=True)
            return [
                _unwire(pack.join([held[i] for held in parts], dim, pieces), tensor.dtype)
                for i, (tensor, dim, pieces) in enumerate(places)
            ]

        return self._pending(call, _All(works), unpack)

    def _grouped_reduce_scatter(self, call: Collective, tensors: list[Tensor]) -> Pending:
        """Every position's shards as one reduction each to that position."""
        position, group = call.group.index(self.rank), self.groups[call.group]
        places = zip(tensors, call.dims, call.pieces, strict=True)
        columns = [pack.cut(tensor, dim, pieces) for tensor, dim, pieces in places]
        buffers, works = [], []
        for other, rank in enumerate(call.group):
            flat = torch.cat([column[other].reshape(-1) for column in columns])
            buffers.append(flat)
            if flat.numel():
                works.append(dist.reduce(flat, rank, REDUCTIONS[call.reduce], group, async_op=True))
        shapes = [column[position].shape for column in columns]

        def unpack() -> list[Tensor]:
            parts = torch.split(buffers[position], [s.numel() for s in shapes])
            return [p.view(s) for p, s in zip(parts, shapes, strict=True)]

        return self._pending(call, _All(works), unpack)

    def _resize(self, call: Collective, tensors: list[Tensor]) -> Pending:
        """Exchange what lies with one rank before and with another one after."""
        (tensor,) = tensors
        position, dim = call.group.index(self.rank), call.dims[0]
        before, after = call.join_pieces[0], call.pieces[0]
        source = _wire(tensor)
        sent, received = [], []
        for other in range(len(call.group)):
            parts = pack.common(before, position, after, other)
            sent.append(torch.cat([source.narrow(dim, here, n).reshape(-1) for here, _, n in parts])
                        if parts else source.new_empty(0))  # fmt: skip
            received.append(pack.common(before, other, after, position))
        shape = pack.shard_shape(tensor.shape, dim, after[position])
        line = torch.Size(pack.shard_shape(tensor.shape, dim, (1,))).numel()
        lengths = [line * sum(n for _, _, n in parts) for parts in received]
        buffer = source.new_empty(sum(lengths))
        splits = [s.numel() for s in sent]
        work = dist.all_to_all_single(
            buffer, torch.cat(sent), lengths, splits, group=self.groups[call.group], async_op=True
        )

        def unpack() -> list[Tensor]:
            whole = source.new_empty(shape)
            for flat, parts in zip(torch.split(buffer, lengths), received, strict=True):
                for piece, (_, there, n) in zip(
                    torch.split(flat, [line * n for *_, n in parts]), parts, strict=True
                ):
                    whole.narrow(dim, there, n).copy_(piece.view(pack.shard_shape(shape, dim, (n,))))
            return [_unwire(whole, tensor.dtype)]

        return self._pending(call, work, unpack)

    def _all_to_all(self, call: Collective, tensors: list[Tensor]) -> Pending:
        (tensor,) = tensors
        position = call.group.index(self.rank)
        cut_pieces, join_pieces, join_dim = call.pieces[0], call.join_pieces[0], call.joins[0]
        sent = [s.contiguous() for s in pack.cut(_wire(tensor), call.dims[0], cut_pieces)]
        mine = pack.shard_shape(tensor.shape, call.dims[0], cut_pieces[position])
        shapes = [pack.shard_shape(mine, join_dim, p) for p in join_pieces]
        lengths = [torch.Size(s).numel() for s in shapes]
        buffer = sent[0].new_empty(sum(lengths))
        work = dist.all_to_all_single(
            buffer,
            pack.flatten(sent),
            lengths,
            [s.numel() for s in sent],
            group=self.groups[call.group],
            async_op=True,
        )

        def unpack() -> list[Tensor]:
            parts = [p.view(s) for p, s in zip(torch.split(buffer, lengths), shapes, strict=True)]
            return [_unwire(pack.join(parts, join_dim, join_pieces), tensor.dtype)]

        return self._pending(call, work, unpack)


def missing_ranks(rank: int, group: Sequence[int], grace: float) -> list[int]:
    """Ranks to blame for a broken collective, found out by all that met it through the process group's store.

    Every rank that fails says so and whom it misses; whoever of the group has not spoken after `grace`
    seconds is missing. A rank that fails because of another passes that one on.
    """
    store = dist.distributed_c10d._get_default_store()
    try:
        store.set(f"hocket/alive/{rank}", "1")
        end = time.monotonic() + grace
        silent = [r for r in group if r != rank]
        while silent and time.monotonic() < end:
            silent = [r for r in silent if not store.check([f"hocket/alive/{r}"])]
            if silent:
                time.sleep(0.05)
        blamed = set(silent)
        for other in group:
            if other != rank and store.check([f"hocket/missing/{other}"]):
                blamed |= {int(r) for r in store.get(f"hocket/missing/{other}").decode().split(",") if r}
        blamed = {r for r in blamed if not store.check([f"hocket/alive/{r}"])}
        store.set(f"hocket/missing/{rank}", ",".join(map(str, sorted(blamed))))
    except RuntimeError:  # the store is gone with the rank that kept it
        return [0]
    return sorted(blamed)


def _wire(tensor: Tensor) -> Tensor:
    """What travels for a tensor: bool goes as bytes, which every backend knows."""
    return tensor.to(torch.uint8) if tensor.dtype == torch.bool else tensor


def _unwire(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(torch.bool) if dtype == torch.bool else tensor


def _shaped(flat: Tensor, shape: Sequence[int]) -> Tensor:
    return flat[: torch.Size(shape).numel()].reshape(list(shape))


class Meeting:
    """Where the threads of one process meet for a collective; shared by all their transports."""

    def __init__(self, timeout: float = 120.0, everyone: tuple[int, ...] = ()) -> None:
        self.timeout, self.everyone = timeout, everyone
        self.letters: dict[tuple[int, int], list[Tensor]] = {}
        self.opened: dict[tuple[int, int], int] = {}
        self.told: dict[int, int] = {}
        self.lock = threading.Condition()
        self.boxes: dict[tuple[tuple[int, ...], int], dict[int, list[Tensor]]] = {}
        self.failed: list[str] = []

    def fail(self, why: str) -> None:
        """Release everybody who waits, because a rank cannot go on."""
        with self.lock:
            self.failed.append(why)
            self.lock.notify_all()

    def exchange(
        self, group: tuple[int, ...], number: int, rank: int, tensors: list[Tensor]
    ) -> dict[int, list[Tensor]]:
        """Everybody's tensors, once the whole group is there; raises RuntimeFault naming who is missing."""
        with self.lock:
            box = self.boxes.setdefault((group, number), {})
            box[rank] = tensors
            self.lock.notify_all()
            self.lock.wait_for(lambda: self.failed or len(box) == len(group), self.timeout)
            if len(box) < len(group):
                missing = sorted(set(group) - set(box))
                raise RuntimeFault(
                    f"rank {rank}",
                    f"every rank of group {list(group)} reaches collective {number}",
                    f"missing: ranks {missing}" + (f"; {self.failed[0]}" if self.failed else ""),
                )
            return box


class ThreadTransport:
    """Collectives between threads of this process, by plain tensor operations."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.meeting, self.rank = meeting, rank
        self.count: dict[tuple[int, ...], int] = {}

    def start(self, call: Collective, tensors: Sequence[Tensor]) -> Pending:
        """Carry out a collective at once."""
        number = self.count.get(call.group, 0)
        self.count[call.group] = number + 1
        box = self.meeting.exchange(call.group, number, self.rank, list(tensors))
        everyone = [box[rank] for rank in call.group]
        results = [self._one(call, i, [held[i] for held in everyone]) for i in range(len(tensors))]
        return Pending(lambda: results)

    def _one(self, call: Collective, index: int, tensors: list[Tensor]) -> Tensor:
        position = call.group.index(self.rank)
        dim, pieces = call.dims[index], call.pieces[index]
        if call.kind in GATHERS:
            return pack.join(tensors, dim, pieces)
        if call.kind == "resize":
            whole = pack.join(tensors, dim, call.join_pieces[index])
            return pack.cut(whole, dim, pieces)[position].contiguous()
        if call.kind == "all_to_all":
            shards = [pack.cut(t, dim, pieces)[position] for t in tensors]
            return pack.join(shards, call.joins[index], call.join_pieces[index])
        total = tensors[0].clone()
        for other in tensors[1:]:
            total = torch.maximum(total, other) if call.reduce == "max" else total + other
        return total if call.kind == "all_reduce" else pack.cut(total, dim, pieces)[position].contiguous()
