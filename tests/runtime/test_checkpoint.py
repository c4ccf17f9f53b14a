"""A checkpoint of one plan goes on under another."""

from __future__ import annotations

from pathlib import Path

import pytest
import ranks
import torch
from small import Builder, Small, plan_for, small

from hocket.errors import FileError, RuntimeFault
from hocket.runtime.checkpoint import Pieces, load, save
from hocket.runtime.launch import spawn
from hocket.runtime.module import parallelize
from hocket.sharding.mesh import Mesh


def test_four_ranks_save_and_two_go_on(tmp_path: Path) -> None:
    four, two = plan_for(Mesh((2, 2)), 0), plan_for(Mesh((2,)), 1)
    saved = spawn(ranks.save_after, 4, (four, 2, tmp_path / "at2"))
    loaded = spawn(ranks.load_and_go_on, 2, (two, 2, tmp_path / "at2"))
    wanted = saved[0]
    assert wanted[0] != wanted[1]
    for losses, extra in loaded:
        assert losses == pytest.approx(wanted, rel=1e-5)
        assert extra["epoch"] == 7
        assert extra["seen"][0] > 0


def test_pieces_of_a_fused_weight_know_their_places() -> None:
    part = torch.randn(4, 3)
    pieces = Pieces(part, (12, 3), (((0, 2), (6, 2)), ((0, 3),)))
    chunks = pieces.__create_chunk_list__()
    assert [tuple(c.offsets) for c in chunks] == [(0, 0), (6, 0)]
    items = pieces.__create_write_items__("w", pieces)
    found = [pieces.__get_tensor_shard__(item.index) for item in items]
    torch.testing.assert_close(torch.cat(found), part)


def test_a_folder_that_is_no_checkpoint_of_the_model_is_refused(tmp_path: Path) -> None:
    plan = plan_for(Mesh((1,)), 0)
    module = parallelize(small(), plan, Builder(plan))
    with pytest.raises(FileError, match="folder"):
        load(tmp_path / "nothing", module)
    save(tmp_path / "one", module)
    with pytest.raises(FileError, match="optimizer"):
        load(tmp_path / "one", module, torch.optim.AdamW(module.parameters()))
    assert load(tmp_path / "one", module) == {}


def test_an_optimizer_of_other_parameters_is_refused(tmp_path: Path) -> None:
    plan = plan_for(Mesh((1,)), 0)
    module = parallelize(small(), plan, Builder(plan))
    with pytest.raises(RuntimeFault, match="module's parameters"):
        save(tmp_path / "one", module, torch.optim.AdamW(Small().parameters()))
