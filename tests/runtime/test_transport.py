"""Collectives on torch.distributed against the plain tensor operations they mean."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from hocket.errors import HocketError
from hocket.program.types import GATHERS, SCATTERS, Collective
from hocket.runtime.launch import spawn
from hocket.runtime.pack import Pieces, cut, join
from hocket.runtime.transport import DistributedTransport, Meeting, ThreadTransport
from hocket.sharding.mesh import Mesh

RANKS = 3
UNEVEN: Pieces = ((3,), (2,), (0,))
FUSED: Pieces = ((1, 2), (1, 2), (1, 2))
RAGGED: Pieces = ((2, 1), (1, 1), (0, 3))
EVEN: Pieces = ((2,), (2,), (2,))
UNEVEN1: Pieces = ((5,), (0,), (1,))
RAGGED2: Pieces = ((3, 1), (0, 3), (0, 2))


def collective(kind: str, dims: tuple[int, ...], pieces: tuple[Pieces, ...], reduce: str = "sum") -> Collective:
    names = tuple(f"v{i}" for i in range(len(dims)))
    return Collective(
        kind, 0, (0, 1, 2), names, tuple(f"{n}_out" for n in names), dims, pieces, 0, 0.0, True, reduce
    )


def whole_shape(dim: int, pieces: Pieces) -> tuple[int, ...]:
    return tuple(sum(map(sum, pieces)) if d == dim else 4 for d in range(3))


def cases() -> list[tuple[Collective, list[tuple[int, ...]], torch.dtype]]:
    """Collectives with the shapes of what goes in on each rank (of the whole where it is cut)."""
    found = []
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        for reduce in ("sum", "max"):
            found.append((collective("all_reduce", (0, 0), ((), ()), reduce), [(3, 4), (5,)], dtype))
        for pieces in ((EVEN, UNEVEN), (FUSED, RAGGED)):
            for dims in ((0, 1), (2, 0)):
                shapes = [whole_shape(d, p) for d, p in zip(dims, pieces, strict=True)]
                for kind in sorted(GATHERS | SCATTERS):
                    found.append((collective(kind, dims, pieces), shapes, dtype))
    for kind in sorted(GATHERS):
        found.append((collective(kind, (0,), (UNEVEN,)), [whole_shape(0, UNEVEN)], torch.bool))
    return found


def value(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(-9, 9, shape, generator=draw).to(dtype)


def inputs(call: Collective, shapes: list[tuple[int, ...]], dtype: torch.dtype, rank: int) -> list[Tensor]:
    if call.kind not in GATHERS:
        return [value(s, dtype, 10 * rank + i) for i, s in enumerate(shapes)]
    whole = [value(s, dtype, i) for i, s in enumerate(shapes)]
    return [cut(w, d, p)[rank] for w, d, p in zip(whole, call.dims, call.pieces, strict=True)]


def compare_all() -> int:
    rank = dist.get_rank()
    transport, plain = DistributedTransport((Mesh((RANKS,)),), rank), ThreadTransport(Meeting(), rank)
    for call, shapes, dtype in cases():
        held = [inputs(call, shapes, dtype, r) for r in range(RANKS)]
        found = transport.start(call, held[rank]).finish()
        for i, tensor in enumerate(found):
            wanted = plain._one(call, i, [h[i] for h in held])
            torch.testing.assert_close(tensor, wanted, rtol=0, atol=0, msg=f"{call} {dtype} {i}")
    count = 0
    for cut_pieces in (EVEN, UNEVEN, FUSED, RAGGED):
        for join_pieces in (EVEN, UNEVEN, FUSED, RAGGED):
            call = Collective("all_to_all", 0, (0, 1, 2), ("v",), ("w",), (0,), (cut_pieces,), 0, 0.0, True,
                              joins=(1,), join_pieces=(join_pieces,))  # fmt: skip
            rows, columns = sum(map(sum, cut_pieces)), sum(map(sum, join_pieces))
            whole = value((rows, columns, 2), torch.float32, 1)
            held_by = cut(whole, 1, join_pieces)
            (found_one,) = transport.start(call, [held_by[rank]]).finish()
            torch.testing.assert_close(found_one, cut(whole, 0, cut_pieces)[rank], rtol=0, atol=0)
            count += 1
    for before, after in ((EVEN, UNEVEN1), (UNEVEN1, EVEN), (FUSED, RAGGED2), (RAGGED2, FUSED), (EVEN, EVEN)):
        call = Collective("resize", 0, (0, 1, 2), ("v",), ("w",), (1,), (after,), 0, 0.0, True, joins=(1,),
                          join_pieces=(before,))  # fmt: skip
        whole = value((2, sum(map(sum, before)), 3), torch.float32, 5)
        (found_one,) = transport.start(call, [cut(whole, 1, before)[rank]]).finish()
        torch.testing.assert_close(found_one, cut(whole, 1, after)[rank], rtol=0, atol=0)
        count += 1
    return count


def test_collectives_on_three_processes() -> None:
    assert spawn(compare_all, RANKS) == [21] * RANKS


@pytest.mark.parametrize("pieces", [EVEN, UNEVEN, FUSED, RAGGED])
def test_cut_and_join_are_inverse(pieces: Pieces) -> None:
    whole = torch.randn(whole_shape(1, pieces))
    torch.testing.assert_close(join(cut(whole, 1, pieces), 1, pieces), whole, rtol=0, atol=0)


def lose_one(kind: str) -> str:
    """What a rank says of a collective that rank 1 is missing from, after one that all took part in."""
    rank = dist.get_rank()
    transport = DistributedTransport((Mesh((RANKS,)),), rank, timeout=3.0)
    dims, joins, join_pieces = (0,), (), ()
    if kind in ("resize", "all_to_all"):
        joins, join_pieces = ((0,) if kind == "resize" else (1,)), (EVEN,)
    call = Collective(kind, 0, (0, 1, 2), ("v",), ("w",), dims, (UNEVEN1,), 0, 0.0, True, joins=joins,
                      join_pieces=join_pieces)  # fmt: skip
    whole = value((6, 6), torch.float32, 1)
    if kind in GATHERS:
        held = cut(whole, 0, UNEVEN1)[rank]
    elif joins:
        held = cut(whole, joins[0], EVEN)[rank]
    else:
        held = whole
    transport.start(call, [held]).finish()
    if rank == 1:
        time.sleep(9.0)
        return "gone"
    try:
        transport.start(call, [held]).finish()
    except HocketError as error:
        return str(error)
    return "no error"


@pytest.mark.proof
@pytest.mark.parametrize("kind", sorted({*GATHERS, *SCATTERS, "all_to_all", "resize"}))
def test_a_rank_that_is_lost_is_named(kind: str) -> None:
    first, gone, last = spawn(lose_one, RANKS, (kind,))
    assert gone == "gone"
    for rank, said in ((0, first), (2, last)):
        assert said.startswith(f"rank {rank}, {kind} of v: every rank of group [0, 1, 2] answers within 3 s")
        assert "missing: rank 1;" in said
