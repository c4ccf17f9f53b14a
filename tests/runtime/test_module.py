"""Training through the module, on processes: the same numbers as plain PyTorch."""

from __future__ import annotations

import pytest
import ranks
import torch
from small import Builder, batch, losses_of, plan_for, small

from hocket.errors import PlanError, RuntimeFault
from hocket.runtime.launch import spawn
from hocket.runtime.module import parallelize
from hocket.sharding.mesh import Mesh


@pytest.mark.parametrize("seed", [0, 1])
def test_training_on_four_ranks_is_training_on_one(seed: int) -> None:
    plan = plan_for(Mesh((2, 2)), seed)
    wanted, model = losses_of(small(), ranks.sgd, 4)
    state = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
    for losses, found, saved, consumed in spawn(ranks.train, 4, (plan, 4)):
        assert losses == pytest.approx(wanted, rel=1e-5)
        assert set(found) == set(state)
        for path, tensor in found.items():
            torch.testing.assert_close(tensor, state[path].detach(), rtol=1e-3, atol=2e-5)
        assert saved == sorted(model.state_dict())
        assert consumed


def test_gradients_add_up_and_scale() -> None:
    plan = plan_for(Mesh((2,)), 3)
    for found in spawn(ranks.gradients, 2, (plan,)):
        for one, two, doubled, late in zip(*(found[k] for k in ("one", "two", "doubled", "late")), strict=True):
            torch.testing.assert_close(doubled, 2 * one)
            torch.testing.assert_close(late, one)
            assert not torch.allclose(two, one)
        assert found["losses"][0] == found["losses"][1]
        assert found["again"] == [torch.tensor(1.0)]


def test_two_backward_passes_add_their_gradients() -> None:
    plan = plan_for(Mesh((1,)), 0)
    module, model = parallelize(small(), plan, Builder(plan)), small()
    for step in (0, 1):
        module(*batch(step)).backward()
        model(*batch(step)).backward()
    for path, parameter in model.named_parameters():
        torch.testing.assert_close(module.get_parameter(path).grad, parameter.grad)


def test_a_step_averages_its_microbatches() -> None:
    plan = plan_for(Mesh((1,)), 0, microbatches=2)
    module, model = parallelize(small(), plan, Builder(plan)), small()
    tokens, labels = batch(0, 16)
    found = module.step(tokens, labels)
    wanted = model(tokens, labels)
    wanted.backward()
    assert found.item() == pytest.approx(wanted.item(), rel=1e-6)
    for path, parameter in model.named_parameters():
        torch.testing.assert_close(module.get_parameter(path).grad, parameter.grad)


def test_a_step_of_microbatches_on_two_ranks_with_its_timeline() -> None:
    plan = plan_for(Mesh((2,)), 4, microbatches=2)
    model = small()
    wanted = model(*batch(0, 16))
    wanted.backward()
    for loss, gradients, spans, expected in spawn(ranks.recorded_step, 2, (plan,)):
        assert loss == pytest.approx(wanted.item(), rel=1e-6)
        assert spans == expected
        for path, parameter in model.named_parameters():
            torch.testing.assert_close(gradients[path], parameter.grad, rtol=1e-4, atol=1e-6)


def test_dropout_is_the_same_on_every_rank_and_new_in_every_step() -> None:
    plan = plan_for(Mesh((2, 2)), 5, dropout=0.5)
    found = spawn(ranks.dropped, 4, (plan,))
    assert all(f == found[0] for f in found)
    first, other = found[0]
    assert len({*first, *other}) == 6


def test_eval_mode_is_refused_where_it_means_something_else() -> None:
    plan = plan_for(Mesh((1,)), 0)
    module = parallelize(small(), plan, Builder(plan)).eval()
    with pytest.raises(RuntimeFault, match="eval"):
        module(*batch(0))


def test_the_world_must_be_the_plans() -> None:
    plan = plan_for(Mesh((2,)), 0)
    with pytest.raises(PlanError, match=r"plan for 2, 1 running"):
        parallelize(small(), plan, Builder(plan))


@pytest.mark.parametrize(
    ("bad", "match"),
    [
        ((batch(0)[0],), "nothing"),
        ((batch(0)[0][:4], batch(0)[1]), r"int64\[4,8\], not int64\[8,8\]"),
        ((batch(0)[0].int(), batch(0)[1]), "int32"),
        ((batch(0)[0].to("meta"), batch(0)[1]), "device"),
        ((*batch(0), batch(0)[0]), "2 beside 0, 1"),
    ],
)
def test_a_batch_that_was_not_captured_is_refused(bad: tuple[torch.Tensor, ...], match: str) -> None:
    plan = plan_for(Mesh((1,)), 0)
    module = parallelize(small(), plan, Builder(plan))
    with pytest.raises(RuntimeFault, match=match):
        module(*bad)


def test_a_model_on_meta_is_unfilled_until_it_is_filled() -> None:
    plan = plan_for(Mesh((1,)), 0)
    whole = small()
    module = parallelize(small().to("meta"), plan, Builder(plan))
    assert torch.isnan(module(*batch(0)))
    for path, tensor in (*whole.named_parameters(), *whole.named_buffers()):
        module.put(path, tensor.detach())
    assert module(*batch(0)).item() == pytest.approx(whole(*batch(0)).item())
    with pytest.raises(RuntimeFault, match="shape"):
        module.put("norm.bias", torch.randn(3))


def test_a_recorded_step_has_a_span_for_every_instruction() -> None:
    plan = plan_for(Mesh((1,)), 0)
    module = parallelize(small(), plan, Builder(plan), record=True)
    module(*batch(0)).backward()
    timeline = module.timeline
    names = [i.operation.kind for i in module.program.instructions if hasattr(i, "operation")]
    assert [s.name for s in timeline.spans] == names
    assert timeline.seconds > 0


def test_a_rank_that_does_not_answer_is_named() -> None:
    found = spawn(ranks.lose_a_rank, 2, (plan_for(Mesh((2,)), 1),))
    assert "missing: rank 1" in found[0]
    assert found[1] == "gone"


def test_a_rank_that_ended_is_named() -> None:
    with pytest.raises(RuntimeFault, match="missing: rank 1"):
        spawn(ranks.die, 2, (plan_for(Mesh((2,)), 1),))


def test_ranks_with_different_seeds_are_refused() -> None:
    plan = plan_for(Mesh((2,)), 0)
    assert all("rank 1" in text for text in spawn(ranks.different_seeds, 2, (plan,)))


@pytest.mark.proof
def test_compiled_runs_compute_the_same() -> None:
    plan = plan_for(Mesh((1,)), 0)
    module, model = parallelize(small(), plan, Builder(plan), compile=True), small()
    for step in (0, 1):
        loss, wanted = module(*batch(step)), model(*batch(step))
        assert loss.item() == pytest.approx(wanted.item(), rel=1e-5)
        loss.backward()
        wanted.backward()
    for path, parameter in model.named_parameters():
        torch.testing.assert_close(module.get_parameter(path).grad, parameter.grad, rtol=1e-4, atol=1e-6)
