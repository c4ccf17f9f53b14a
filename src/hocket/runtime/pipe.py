"""Runs one rank's part of a step of several microbatches or stages on real tensors."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hocket.pipeline.order import Action
from hocket.program.staged import StagedProgram
from hocket.program.types import Program
from hocket.runtime.exchange import Exchange
from hocket.runtime.executor import Executor, Run
from hocket.runtime.mail import Mail
from hocket.runtime.routes import find_routes
from hocket.runtime.shards import is_whole, take_shard
from hocket.runtime.transport import Transport
from hocket.simulate.timeline import COMPUTE, Span, Timeline

Values = Mapping[str, Tensor]
ByStage = dict[int, dict[str, Tensor]]


@dataclass
class Worker:
    """What a rank has of a stage: its executors, and of a step under way the parameters and buffers it works with
    and the gradients added up so far."""

    run: Executor
    gather: Executor | None
    sync: Executor | None
    working: dict[str, Tensor] = field(default_factory=dict)
    sums: dict[str, Tensor] = field(default_factory=dict)

    def begin(self, stored: Values) -> None:
        """Bring parameters to where they are worked with."""
        self.sums, self.working = {}, dict(stored)
        if self.gather is not None:
            self.working.update(_converted(self.gather, stored))

    def add(self, gradients: Values) -> None:
        """Add a microbatch's gradients."""
        for name, gradient in gradients.items():
            known = self.sums.get(name)
            self.sums[name] = gradient.clone() if known is None else known.add_(gradient)

    def end(self) -> dict[str, Tensor]:
        """The gradients, brought to where parameters are stored."""
        found, self.sums, self.working = self.sums, {}, {}
        return found if self.sync is None else {**found, **_converted(self.sync, found)}


@dataclass
class Result:
    """What a rank has of a step: the sum of its losses (None where another stage makes them), and by stage the
    gradients summed over microbatches and the new buffers."""

    loss: Tensor | None
    gradients: ByStage
    updates: ByStage


class Pipe:
    """One rank's stages and messages; `step` runs all microbatches once.

    With `record` every step leaves a measured `timeline` of this rank's passes, begun when what they need is there.
    """

    def __init__(
        self,
        program: StagedProgram,
        transport: Transport,
        mail: Mail,
        device: torch.device,
        seed: int = 0,
        compile: bool = False,
        record: bool = False,
    ) -> None:
        self.program, self.mail, self.device, self.record = program, mail, device, record
        self.timeline = Timeline((), "measured")

        def executor(one: Program) -> Executor:
            return Executor(one, transport, device, seed, compile=compile)

        self.workers = {
            stage: Worker(
                executor(p.run), executor(p.gather) if p.gather else None, executor(p.sync) if p.sync else None
            )
            for stage, p in program.stages.items()
        }
        self.routes = find_routes(program.rank, program.order, program.transfers, program.arriving)

    def step(self, stored: Mapping[int, Values], batch: Callable[[int], Values], first: int = 0) -> Result:
        """Run a step. `stored[stage]` are this rank's shards of parameters and buffers by name; `batch(microbatch)`
        gives whole tensors; `first` is the number of the first microbatch, which enters dropout's seed."""
        return _Step(self, stored, batch, first).run()


class _Step:
    """A step under way."""

    def __init__(
        self, pipe: Pipe, stored: Mapping[int, Values], batch: Callable[[int], Values], first: int
    ) -> None:
        self.pipe, self.batch, self.first = pipe, batch, first
        self.stored = {stage: dict(values) for stage, values in stored.items()}
        self.exchange = Exchange(pipe.program, pipe.routes, pipe.mail, pipe.device)
        self.runs: dict[tuple[int, int], Run] = {}
        self.result = Result(None, {}, {stage: {} for stage in pipe.workers})
        self.spans: list[Span] = []
        self.begun = self._now()

    def run(self) -> Result:
        """All of it: what every action needs is asked for one action ahead."""
        for (stage, name), tensor in self.exchange.share("parameter", self.stored).items():
            self.stored[stage][name] = tensor
        for stage, worker in self.pipe.workers.items():
            worker.begin(self.stored[stage])
        actions = self.pipe.program.actions
        for action, following in zip(actions, (*actions[1:], None), strict=True):
            self.exchange.post(action)
            if following is not None:
                self.exchange.post(following)
            self._act(action)
        gradients = {stage: worker.end() for stage, worker in self.pipe.workers.items()}
        for (stage, name), tensor in self.exchange.share("gradient", gradients).items():
            known = gradients[stage].get(name)
            gradients[stage][name] = tensor if known is None else known + tensor
        self.exchange.finish()
        if self.pipe.record:
            self.pipe.timeline = Timeline(tuple(self.spans), "measured")
        home = self.pipe.program.home
        self.result.gradients = {
            s: {n: g for n, g in found.items() if home(s, n)} for s, found in gradients.items()
        }
        return self.result

    def _act(self, action: Action) -> None:
        """One pass of a stage on a microbatch, from when what it needs is there."""
        key, worker = (action.stage, action.microbatch), self.pipe.workers[action.stage]
        program = worker.run.program
        shards = {"F": program.received, "W": ()}.get(action.kind, program.arriving)
        given = {shard.name: self.exchange.received(shard, action) for shard in shards}
        start = self._now()
        if action.kind == "F":
            self.runs[key] = self._forward(action, worker, given)
        elif action.kind in ("B", "I"):
            worker.run.inputs(self.runs[key], given)
        run = self.runs[key]
        if action.kind != "W":
            self.exchange.send(action, run.sent)
            run.sent = {}
        if action.kind in ("B", "W"):
            worker.add(worker.run.weights(self.runs.pop(key)))
        if self.pipe.record:
            rank, end = self.pipe.program.rank, self._now()
            self.spans.append(Span(rank, COMPUTE, str(action), start - self.begun, end - self.begun))

    def _forward(self, action: Action, worker: Worker, given: Values) -> Run:
        whole = self.batch(action.microbatch)
        values = {**worker.working, **given}
        for shard in worker.run.program.inputs:
            if shard.name in whole:
                tensor = whole[shard.name]
                everything = is_whole(shard.intervals, tuple(tensor.shape))
                values[shard.name] = tensor if everything else take_shard(tensor, shard.intervals)
        run = worker.run.forward(values, self.first + action.microbatch)
        if run.loss is not None:
            self.result.loss = run.loss.clone() if self.result.loss is None else self.result.loss + run.loss
        worker.working.update(run.updates)
        self.result.updates[action.stage].update(run.updates)
        return run

    def _now(self) -> float:
        """Seconds on this rank's clock; what a CUDA device does is waited for where it is recorded."""
        if self.pipe.record and self.pipe.device.type == "cuda":
            torch.cuda.synchronize(self.pipe.device)
        return time.perf_counter()


def _converted(executor: Executor, values: Values) -> dict[str, Tensor]:
    """Bring values to other layouts, once in a step."""
    return executor.backward(executor.forward({name: values[name] for name in executor.order}))
