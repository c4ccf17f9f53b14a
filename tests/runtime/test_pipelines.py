"""Pipelines: loss and every gradient of all ranks are those of one process, and training is the same training."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import staged
import torch

from hocket import api
from hocket.capture.models import tiny
from hocket.cluster.types import Cluster
from hocket.errors import FileError, MemoryLimitError, PlanError, RuntimeFault, ScheduleError
from hocket.plan.types import Plan
from hocket.program.types import Compute
from hocket.runtime.exchange import joined
from hocket.runtime.launch import spawn
from hocket.search.stages.programs import staged_programs

CASES = [
    ("gpt2", "stages=2", 3, 4),
    ("gpt2", "stages=2,kind=zb-h1", 5, 2),
    ("llama", "stages=2,kind=fthenb", 3, 4),
    ("bert", "stages=2", 4, 2),
    ("mixtral", "stages=2", 3, 4),
    ("gemma2", "stages=2,kind=zb-h1", 3, 4),
    ("resnet", "stages=2", 1, 4),
    ("resnet", "stages=2", 3, 4),
    ("bart", "stages=4", 5, 4),
    ("bart", "stages=3,layers=1+2+1", 4, 3),
    ("bart", "stages=2,chunks=2,kind=vpp", 3, 4),
    ("bart", "stages=2,chunks=2,kind=zb-v", 9, 2),
    ("bart", "stages=2,chunks=2,kind=zb", 6, 2),
]


def plan_of(name: str, pipeline: str, microbatches: int, ranks: int) -> Plan:
    model, sample = tiny(name)
    return api.plan(api.capture(model, sample), Cluster.local(ranks), pipeline=pipeline, microbatches=microbatches)


@pytest.mark.parametrize(("name", "pipeline", "microbatches", "ranks"), CASES)
def test_loss_and_gradients_are_those_of_one_process(
    name: str, pipeline: str, microbatches: int, ranks: int
) -> None:
    model, sample = tiny(name)
    plan = plan_of(name, pipeline, microbatches, ranks)
    report = api.verify(model, sample, plan)
    assert report.worst < 1e-5
    assert set(report.gradient_errors) == {n for n, p in model.named_parameters() if p.requires_grad}
    assert plan.lower_bound <= plan.seconds


@pytest.mark.parametrize(
    ("name", "pipeline", "microbatches", "ranks"),
    [
        ("gpt2", "stages=2", 3, 4),
        ("bart", "stages=4", 5, 4),
        ("bart", "stages=2,chunks=2,kind=vpp", 3, 2),
        ("bart", "stages=2,chunks=2,kind=zb-v", 4, 4),
    ],
)
def test_training_on_processes_is_training_on_one(name: str, pipeline: str, microbatches: int, ranks: int) -> None:
    plan = plan_of(name, pipeline, microbatches, ranks)
    wanted, model = staged.plain(name, microbatches)
    results = spawn(staged.train, ranks, (plan, name))
    for losses, _ in results:
        assert losses == pytest.approx(wanted, rel=1e-5)
    whole = results[0][1]
    for path, parameter in model.named_parameters():
        torch.testing.assert_close(whole[path], parameter.detach(), rtol=1e-3, atol=1e-4)


def test_weights_come_last_where_backward_passes_are_halved() -> None:
    plan = plan_of("bart", "stages=2,chunks=2,kind=zb-v", 4, 2)
    for program in staged_programs(plan):
        for stage, programs in program.stages.items():
            start, end = programs.run.edges[2:]
            products = [i for i in programs.run.instructions[start:end] if isinstance(i, Compute)]
            kinds = {i.operation.kind for i in products}
            assert "mm" in kinds, f"stage {stage} leaves products for the second half"


def test_a_plan_of_stages_is_saved_and_read(tmp_path) -> None:  # type: ignore[no-untyped-def]
    plan = plan_of("bart", "stages=2,chunks=2,kind=vpp", 3, 4)
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan


def test_a_checkpoint_loads_under_another_pipeline(tmp_path) -> None:  # type: ignore[no-untyped-def]
    spawn(staged.save_some, 4, (plan_of("bart", "stages=2", 3, 4), "bart", tmp_path))
    wanted, _ = staged.plain("bart", 3)
    for pipeline, ranks in (("stages=2,chunks=2,kind=vpp", 2), ("stages=4", 4)):
        for losses in spawn(staged.go_on, ranks, (plan_of("bart", pipeline, 3, ranks), "bart", tmp_path)):
            assert losses == pytest.approx(wanted[1:], rel=1e-5)


def test_a_lost_rank_is_named() -> None:
    plan = plan_of("bart", "stages=2", 3, 2)
    found = spawn(staged.lose_one, 2, (plan, "bart"))
    assert "RuntimeFault" in found[1]
    assert "rank 0" in found[1]


def test_a_pipeline_has_no_forward() -> None:
    model, _ = tiny("gpt2")
    plan = plan_of("gpt2", "stages=1,chunks=2,kind=vpp", 2, 1)
    module = api.parallelize(model, plan)
    with pytest.raises(RuntimeFault, match=r"module\.step"):
        module(**staged.batch_of("gpt2", 1, 0))
    wanted, _ = staged.plain("gpt2", 2)
    assert module.step(**staged.batch_of("gpt2", 2, 0)).item() == pytest.approx(wanted[0], rel=1e-5)


@pytest.mark.parametrize(
    ("pipeline", "error", "words"),
    [
        ("stages=3", ScheduleError, "at least one per stage"),
        ("stages=2,layers=1+2", ScheduleError, "add up"),
        ("stages=2,chunks=2,layers=1+1", ScheduleError, "chunk"),
        ("stages=2,kind=none", ScheduleError, "is one of"),
        ("stages=two", PlanError, "stages=N"),
        ("depth=2", PlanError, "stages=N"),
    ],
)
def test_bad_pipelines(pipeline: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        plan_of("gpt2", pipeline, 4, 6)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"pins": ("mesh=2",)}, "pins"),
        ({"like": "dp=2"}, "like"),
        ({"shares": (0.5, 0.5)}, "shares"),
        ({"search": "greedy"}, "search"),
        ({"axes": 1}, "axes"),
    ],
)
@pytest.mark.parametrize("pipeline", ["auto", "stages=2"])
def test_what_a_search_for_pipelines_does_not_take(pipeline: str, options: dict[str, Any], word: str) -> None:
    model, sample = tiny("gpt2")
    with pytest.raises(PlanError, match=f"without {word}"):
        api.plan(api.capture(model, sample), Cluster.local(2), pipeline=pipeline, **options)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (" 0B1", "", "forward once and backward once"),
        ("0F0 0F1 0B0 0B1", "0B0 0F0 0F1 0B1", "until all is done|goes on"),
        ("0F0", "0X0", "is stage, F, B, I or W"),
        ("1F0 1B0 1F1 1B1", "1F0 1B0", "forward once and backward once"),
        ("[\n   38\n  ]", "[]", "stages and microbatches"),
        ("38", "100000", "begin inside"),
    ],
)
def test_an_edited_schedule_is_refused(tmp_path, old: str, new: str, words: str) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "plan.json"
    plan_of("gpt2", "stages=2", 2, 2).save(path)
    head, mark, tail = path.read_text().partition('"schedule"')
    assert old in tail
    path.write_text(head + mark + tail.replace(old, new, 1))
    with pytest.raises(FileError, match=words):
        Plan.load(path)


def test_a_rank_that_holds_nothing_of_a_value_receives_nothing() -> None:
    found = joined([], ((), ((0, 3),)), torch.float32, torch.device("cpu"))
    assert tuple(found.shape) == (0, 3)


def test_a_recorded_step_has_every_pass() -> None:
    plan = plan_of("gpt2", "stages=1,chunks=2,kind=vpp", 3, 1)
    module = api.parallelize(tiny("gpt2")[0], plan, record=True)
    module.step(**staged.batch_of("gpt2", 3, 0))
    spans = module.timeline.spans
    assert [s.name for s in spans] == [str(a) for a in plan.schedule.actions().ranks[0]]
    assert all(a.end <= b.start for a, b in pairwise(spans))
    assert min(s.seconds for s in spans) > 0


def test_devices_that_do_not_go_round() -> None:
    with pytest.raises(PlanError, match="divide the cluster"):
        plan_of("gpt2", "stages=2", 4, 3)


def test_a_batch_that_does_not_go_round() -> None:
    model, _ = tiny("gpt2")
    module = api.parallelize(model, plan_of("gpt2", "stages=1,chunks=2,kind=vpp", 3, 1))
    with pytest.raises(RuntimeFault, match="3 times on dim 0"):
        module.step(**{k: v[:7] for k, v in staged.batch_of("gpt2", 2, 0).items()})


def test_what_does_not_fit() -> None:
    model, sample = tiny("gpt2")
    cluster = Cluster.local(2)
    machine = cluster.machines[0]
    small = replace(machine, device=replace(machine.device, memory=100_000))
    cluster = replace(cluster, machines=(small,))
    with pytest.raises(MemoryLimitError, match="stage"):
        api.plan(api.capture(model, sample), cluster, pipeline="stages=2", microbatches=2)
