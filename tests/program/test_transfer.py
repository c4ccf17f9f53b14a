"""Transfers between stages: every receiver gets exactly its part, each element once, from someone who has it."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.cluster.types import Cluster
from hocket.cost.transfer import transfer_seconds
from hocket.errors import LayoutError
from hocket.graph.types import TensorType
from hocket.program.transfer import find_pieces, positions
from hocket.runtime.shards import put_part, take_part, take_shard
from hocket.sharding.layout import Layout, intervals
from hocket.sharding.mesh import Mesh

LAYOUTS = ("RR", "S(0)R", "RS(1)", "S(0)S(1)", "S(1)S(0)", "S(0)S(0)", "S(1)R")
MESHES = ((2, 2), (1, 3), (4, 1), (2, 3))


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(LAYOUTS), st.sampled_from(LAYOUTS), st.sampled_from(MESHES), st.sampled_from(MESHES),
    st.booleans(), st.integers(1, 9), st.integers(1, 9),
)  # fmt: skip
def test_every_receiver_gets_its_part_once(
    one: str, other: str, first: tuple[int, int], second: tuple[int, int], same: bool, rows: int, columns: int
) -> None:
    source, target = Mesh(first), Mesh(second, 0 if same else 6)
    layouts = Layout.parse(one), Layout.parse(other)
    tensor = TensorType((rows, columns), "float32")
    whole = torch.arange(rows * columns, dtype=torch.float32).reshape(rows, columns)
    held = {rank: intervals(layouts[0], tensor.shape, source, rank) for rank in source.ranks}
    wanted = {rank: intervals(layouts[1], tensor.shape, target, rank) for rank in target.ranks}
    found = {rank: torch.full_like(take_shard(whole, box), -1.0) for rank, box in wanted.items()}
    times: Counter[int] = Counter()
    for piece in find_pieces(tensor, (layouts[0], source), (layouts[1], target)):
        part = take_part(take_shard(whole, held[piece.source]), positions(held[piece.source], piece.box))
        put_part(found[piece.target], part, positions(wanted[piece.target], piece.box))
        times[piece.target] += part.numel()
    for rank, box in wanted.items():
        torch.testing.assert_close(found[rank], take_shard(whole, box))
        assert times[rank] == found[rank].numel()


def test_what_a_rank_has_it_does_not_ask_for() -> None:
    tensor, mesh, layout = TensorType((8,), "float32"), Mesh((4,)), Layout.parse("R")
    pieces = find_pieces(tensor, (layout, mesh), (layout, mesh))
    assert all(piece.source == piece.target for piece in pieces)
    assert transfer_seconds(Cluster.local(4), [(p.source, p.target, p.bytes("float32")) for p in pieces]) == 0.0


def test_ranks_that_hold_the_same_take_turns() -> None:
    tensor, layout = TensorType((8,), "float32"), Layout.parse("R")
    pieces = find_pieces(tensor, (layout, Mesh((4,))), (layout, Mesh((4,), 4)))
    assert sorted(piece.source for piece in pieces) == [0, 1, 2, 3]


def test_sums_do_not_travel() -> None:
    with pytest.raises(LayoutError, match="without sums"):
        find_pieces(
            TensorType((8,), "float32"), (Layout.parse("P"), Mesh((2,))), (Layout.parse("R"), Mesh((2,), 2))
        )


def test_the_busiest_port_sets_the_pace() -> None:
    cluster = Cluster.local(4)
    one = transfer_seconds(cluster, [(0, 1, 1_000_000)])
    assert transfer_seconds(cluster, [(0, 1, 1_000_000), (0, 2, 1_000_000)]) > one
