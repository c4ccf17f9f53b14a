"""The walk: model -> graph -> plan -> programs -> predicted, verified, or run. Read this file first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hocket.capture import capture, model_fingerprint
from hocket.cluster.types import Cluster
from hocket.cost.prices import MeshPrices
from hocket.errors import HocketError, PlanError
from hocket.graph.fingerprint import fingerprint
from hocket.graph.scale import Family
from hocket.graph.types import Graph
from hocket.pipeline.schedule import Schedule
from hocket.plan.types import Plan, SearchRecord
from hocket.program.blueprint import blueprint
from hocket.program.types import Program
from hocket.runtime.verify import Report, Sample, compare
from hocket.runtime.verify_staged import compare_staged
from hocket.search.auto import Watcher, search
from hocket.search.case import Found, Settings, runner_ups
from hocket.search.judge import finish
from hocket.search.known import Known
from hocket.search.pins import Pins, check_pins
from hocket.search.searchers import NAMES
from hocket.search.stages.plans import Terms, plan_best, plan_pipeline
from hocket.search.stages.programs import staged_programs
from hocket.search.stages.shape import Shape
from hocket.sharding.shares import check_shares
from hocket.simulate.engine import simulate as run_clock
from hocket.simulate.timeline import Timeline

__all__ = ["capture", "parallelize", "plan", "plan_step", "programs", "simulate", "verify"]

AUTO = "auto"
"""In place of a pipeline's shape: the best there is."""
OPTIMIZER_BYTES = {"sgd": 0.0, "momentum": 4.0, "adam": 8.0, "adam-mixed": 12.0}
"""State per trained element: none; momentum; two moments; two moments and a float32 copy of the weight."""


def plan(
    graph: Graph,
    cluster: Cluster,
    *,
    search: str = "auto",
    pins: Sequence[str] = (),
    budget: float = inf,
    microbatches: int = 1,
    optimizer: str = "adam",
    like: str = "",
    gap: float = 0.02,
    axes: int = 0,
    shares: Sequence[float] = (),
    watcher: Watcher | None = None,
    stop: threading.Event | None = None,
    seed: int = 0,
    pipeline: str = "",
) -> Plan:
    """The best plan found for a training step on a cluster, with a proven bound.

    `graph` is one microbatch. `search` is auto, ilp, greedy, exhaustive or astar; `budget` in seconds; `gap` the
    relative distance from the bound at which to stop; `axes` the most axes of a mesh (0: it depends); `optimizer`
    one of OPTIMIZER_BYTES; `like` a layout picked by hand, as `tp=2,dp=2,zero=3` (see search.known). `shares` are
    the fractions of work that the devices get, in order (or the machines, where there are as many); without them
    they are part of the search where devices are unlike. `stop` ends the search early with the best so far.
    `pipeline` cuts the model into stages: as `stages=4,chunks=2,kind=vpp` (see search.stages.shape), or `auto`.
    Raises PlanError, PinError, LayoutError, MemoryLimitError, ScheduleError.
    """
    if pipeline:
        given = {"search": search != "auto", "pins": pins, "like": like, "axes": axes, "shares": shares}
        _check_alone(pipeline, [name for name, value in given.items() if value])
        terms = _terms(optimizer, budget, gap, watcher, stop, seed)
        if pipeline == AUTO:
            return plan_best({microbatches: graph}, cluster, terms)
        return plan_pipeline(graph, cluster, Shape.parse(pipeline, microbatches), terms)
    if shares:
        counts = (cluster.size, len(cluster.machines))
        check_shares(shares, len(shares) if len(shares) in counts else cluster.size, "shares")
    settings = replace(
        _settings(graph, cluster, search, pins, budget, optimizer, like, gap, axes), shares=tuple(shares)
    )
    found = _search(graph, cluster, settings, watcher, stop)
    return _made_plan(graph, cluster, settings, found, microbatches, tuple(pins), seed)


def _made_plan(
    graph: Graph,
    cluster: Cluster,
    settings: Settings,
    found: Found,
    microbatches: int,
    pins: tuple[str, ...],
    seed: int,
) -> Plan:
    judgement, stage = found.judgement, found.stage
    if judgement is None or stage is None or found.graph is None:
        raise PlanError("search", "finds a plan", "nothing", "give more time")
    record = SearchRecord(
        searcher=f"like {settings.known}" if settings.known else settings.searcher,
        space=found.space + (f"; restricted to {settings.known}" if settings.known else ""),
        seconds=found.elapsed,
        complete=found.complete,
        alternatives=runner_ups(found.alternatives),
        seed=seed,
        whole=found.whole,
        pins=pins,
    )
    return Plan(
        graph=found.graph,
        cluster=cluster,
        stages=(stage,),
        schedule=Schedule(microbatches=microbatches),
        seconds=judgement.seconds * microbatches,
        lower_bound=found.bound * microbatches,
        memory=judgement.memory,
        search=record,
        recompute=found.case.blocks if found.case else (),
        fingerprint=fingerprint(graph),
        optimizer_bytes=settings.optimizer_bytes,
    )


def _check_alone(pipeline: str, others: Sequence[str]) -> None:
    """Raise PlanError for what a search for pipelines does not take."""
    if others:
        rule = f"is searched without {', '.join(others)}"
        raise PlanError(f"pipeline {pipeline!r}", rule, "given", "leave one of them out")


def _terms(
    optimizer: str,
    budget: float,
    gap: float,
    watcher: Watcher | None,
    stop: threading.Event | None,
    seed: int,
) -> Terms:
    state = _optimizer_bytes(optimizer)
    return Terms(state, budget, gap, watcher or (lambda *_: None), stop or threading.Event(), seed)


def plan_step(
    family: Family,
    samples: int,
    cluster: Cluster,
    *,
    microbatches: Sequence[int] = (),
    optimizer: str = "adam",
    budget: float = inf,
    gap: float = 0.02,
    watcher: Watcher | None = None,
    stop: threading.Event | None = None,
    seed: int = 0,
) -> Plan:
    """The best pipeline found for a step of so many samples, cut into any of these numbers of microbatches (none:
    every power of two that divides the samples). `family` is the step for two batch sizes. Raises PlanError,
    MemoryLimitError."""
    counts = microbatches or [2**k for k in range(samples.bit_length()) if samples % 2**k == 0]
    wrong = [count for count in counts if count < 1 or samples % count]
    if wrong or samples < 1:
        raise PlanError(f"{samples} samples", "are divided evenly by the microbatches", ", ".join(map(str, wrong)))
    graphs = {count: family.at(samples // count) for count in counts}
    return plan_best(graphs, cluster, _terms(optimizer, budget, gap, watcher, stop, seed))


def _search(
    graph: Graph,
    cluster: Cluster,
    settings: Settings,
    watcher: Watcher | None,
    stop: threading.Event | None,
) -> Found:
    return search(graph, cluster, settings, watcher, stop)


def _settings(
    graph: Graph,
    cluster: Cluster,
    searcher: str,
    pins: Sequence[str],
    budget: float,
    optimizer: str,
    like: str,
    gap: float,
    axes: int,
) -> Settings:
    if searcher not in NAMES:
        raise PlanError(f"search {searcher!r}", f"is one of {', '.join(NAMES)}", searcher)
    pinned = Pins.parse(pins)
    check_pins(pinned, graph, cluster.size)
    known = Known.parse(like, cluster.size) if like else None
    return Settings(searcher, budget, gap, _optimizer_bytes(optimizer), pinned, known, axes)


def _optimizer_bytes(optimizer: str) -> float:
    if optimizer not in OPTIMIZER_BYTES:
        raise PlanError(f"optimizer {optimizer!r}", f"is one of {', '.join(OPTIMIZER_BYTES)}", optimizer)
    return OPTIMIZER_BYTES[optimizer]


def programs(plan: Plan, ranks: Sequence[int] | None = None) -> list[Program]:
    """What each rank of a plan of one stage does, as it runs; all ranks unless some are named."""
    stage = plan.stage
    prices = MeshPrices(plan.cluster, stage.mesh)
    prepared = blueprint(plan.graph, stage, prices)
    return [finish(prepared, rank, prices) for rank in (stage.mesh.ranks if ranks is None else ranks)]


def simulate(plan: Plan) -> Timeline:
    """The predicted timeline of one microbatch: one rank of every kind of device."""
    return run_clock(programs(plan, plan.stage.unlike_ranks(plan.cluster.devices)), plan.cluster.overlap)


def verify(model: nn.Module, sample: Sample, plan: Plan, loss: Callable[[Any], Tensor] | None = None) -> Report:
    """All ranks in this process against the unsplit step: loss, every gradient, every buffer.

    Raises PlanError where the plan was made for another model.
    """
    _check_model(model, plan)
    if plan.staged:
        return compare_staged(plan.graph, staged_programs(plan), model, sample, loss)
    return compare(plan.graph, programs(plan), model, sample, loss)


def _check_model(model: nn.Module, plan: Plan) -> None:
    own = model_fingerprint(model)
    if plan.graph.model and own != plan.graph.model:
        raise PlanError(
            "plan",
            "was made for this model: the same parameters, buffers, shapes, types and ties",
            f"fingerprint {plan.graph.model[:12]}, not {own[:12]}",
            "capture and plan this model",
        )


def _planned(model: nn.Module, cluster: Cluster | Mapping[str, Any], sample: Sample | None) -> Plan:
    """The plan that rank 0 makes for a model and a cluster, the same on every rank."""
    if sample is None:
        repair = "give it as the third argument, or give a plan in place of the cluster"
        raise PlanError("parallelize", "needs a sample batch to plan for a cluster", "no sample", repair)
    world = dist.is_initialized() and dist.get_world_size() > 1
    box: list[Plan | HocketError | None] = [None]
    if not world or dist.get_rank() == 0:
        try:
            machines = cluster if isinstance(cluster, Cluster) else Cluster.from_dict(cluster)
            box[0] = plan(capture(model, sample), machines)
        except HocketError as error:
            box[0] = error
        except Exception as error:  # the other ranks wait for a word
            box[0] = PlanError("parallelize", "makes a plan on rank 0", f"{type(error).__name__}: {error}")
            if not world:
                raise
    if world:
        dist.broadcast_object_list(box, 0)
    made = box[0]
    if not isinstance(made, Plan):
        raise made if made is not None else PlanError("parallelize", "gets a plan from rank 0", "nothing")
    return made


def parallelize(
    model: nn.Module,
    plan: Plan | Cluster | Mapping[str, Any],
    sample: Sample | None = None,
    *,
    device: torch.device | None = None,
    seed: int = 0,
    compile: bool = False,
    timeout: float = 600.0,
    record: bool = False,
) -> nn.Module:
    """This rank's part of the model: parameters are its shards, the forward gives the whole step's loss.

    In place of a plan a cluster, or its values as a dict, may be given, and a sample batch: rank 0 then makes the
    plan. torch.distributed must be initialised with the plan's world size. The model given is used up: its
    parameters move into the shards. Raises PlanError, RuntimeFault, and what planning raises.
    """
    from hocket.runtime.module import parallelize as place

    made = plan if isinstance(plan, Plan) else _planned(model, plan, sample)
    _check_model(model, made)
    return place(
        model,
        made,
        lambda rank: staged_programs(made, [rank])[0] if made.staged else programs(made, [rank])[0],
        device=device,
        seed=seed,
        compile=compile,
        timeout=timeout,
        record=record,
    )
