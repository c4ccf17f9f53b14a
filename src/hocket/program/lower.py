"""From a plan to what one rank does: local operations and the collectives between layouts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from hocket.graph.types import Operation, Ref, TensorType
from hocket.program.blueprint import Blueprint
from hocket.program.types import GATHERS, Collective, Compute, Instruction, Program, Shard
from hocket.sharding.layout import Interval, Layout, Split
from hocket.sharding.local import local_operation
from hocket.sharding.recipes import Reduce, expand
from hocket.sharding.reshard import Step, moved_bytes
from hocket.sharding.strategy import Strategy

Copy = Literal["made", "used", "kept", "reused"]


def lower(plan: Blueprint, rank: int) -> Program:
    """The program of one rank, in the graph's order, before communication is bundled or moved."""
    return _Lowering(plan, rank).run()


def lower_moves(plan: Blueprint, rank: int, moves: Sequence[tuple[str, Layout, Layout]]) -> Program:
    """The program of one rank that brings values (name, from, to) to other layouts: its `gradients` are the
    results.

    It has no forward pass.
    """
    return _Lowering(plan, rank).moves(moves)


class _Lowering:
    """One rank's lowering under way.

    A value exists in up to four copies: as `made`, as `used` by several readers of the same pass, as `kept`
    for the backward pass, as `reused` by several readers there. `copies` maps them to layout and local name.
    """

    def __init__(self, plan: Blueprint, rank: int) -> None:
        self.plan, self.rank = plan, rank
        self.graph, self.stage, self.mesh = plan.graph, plan.stage, plan.stage.mesh
        self.types: dict[str, TensorType] = {}
        self.copies: dict[tuple[str, Copy], tuple[Layout, str]] = {}
        self.pieces: dict[tuple[str, Layout], str] = {}
        self.out: list[Instruction] = []
        self.taken: set[str] = set(plan.graph.types)
        self.gone: dict[str, str] = {}
        self.sent: dict[str, str] = {}
        self.goals: dict[str, list[str]] = {}
        for parameter, value in plan.graph.gradients:
            self.goals.setdefault(value, []).append(parameter)
        self.cuts: dict[tuple[Layout, tuple[int, ...], tuple[int, ...], int], tuple[tuple[int, ...], ...]] = {}

    def run(self) -> Program:
        graph, stored = self.graph, self.stage.stored
        whole = Layout.replicated(len(self.mesh.sizes))
        for entry in graph.inputs:
            self._define(entry.name, self.stage.held(entry.name))
        for index in range(graph.forward):
            self._operation(index)
        loss = self._value(graph.loss, whole, backward=False) if graph.loss else ""
        updates = tuple((b, self._value(v, stored[b], backward=False)) for b, v in graph.updates)
        self._send(range(graph.forward))
        forward = len(self.out)
        halfway = forward if len(self.sent) == len(graph.sent) > 0 else -1
        for index in range(graph.forward, len(graph.operations)):
            self._operation(index)
            for value in graph.operations[index].outputs:
                self._leave(value)
            self._send((index,))
            if len(self.sent) == len(graph.sent) > 0 and halfway < 0:
                halfway = len(self.out)
        made = {value for operation in graph.operations[graph.forward :] for value in operation.outputs}
        for value in dict.fromkeys(v for _, v in graph.gradients if v not in made):
            self._leave(value)
        gradients = tuple((p, self.gone[p]) for p, _ in graph.gradients)
        return Program(
            self.rank, self.mesh, self._shards("parameter", "buffer", "batch"), tuple(self.out), forward,
            self.types, loss, gradients, updates, self._shards("received"), self._shards("arriving"),
            tuple(self.sent.items()), halfway,
        )  # fmt: skip

    def moves(self, moves: Sequence[tuple[str, Layout, Layout]]) -> Program:
        shards = tuple(Shard(name, source, self._intervals(source, name)) for name, source, _ in moves)
        for name, source, _ in moves:
            self._define(name, source)
        results = tuple((name, self._convert(name, name, source, target)) for name, source, target in moves)
        return Program(self.rank, self.mesh, shards, tuple(self.out), 0, self.types, "", results, ())

    def _shards(self, *roles: str) -> tuple[Shard, ...]:
        held = ((i.name, self.stage.held(i.name)) for i in self.graph.inputs if i.role in roles)
        return tuple(Shard(name, layout, self._intervals(layout, name)) for name, layout in held)

    def _leave(self, value: str) -> None:
        """Bring a gradient to where its parameter is stored as soon as it is there, or leave it as it is made where
        it is added up."""
        for parameter in self.goals.get(value, ()):
            if self.stage.working:
                self.gone[parameter] = self.copies[value, "made"][1]
            else:
                self.gone[parameter] = self._value(value, self.stage.stored[parameter], backward=True)

    def _send(self, operations: Iterable[int]) -> None:
        """Bring what operations have made for other stages to the layout in which it is sent."""
        for index in operations:
            for value in self.graph.operations[index].outputs:
                if value in self.stage.sent:
                    self.sent[value] = self._value(value, self.stage.sent[value], index >= self.graph.forward)

    def _intervals(self, layout: Layout, value: str) -> tuple[tuple[Interval, ...], ...]:
        return self.plan.intervals(layout, self.graph.types[value].shape, self.rank)

    def _local(self, layout: Layout, value: str) -> TensorType:
        held = self._intervals(layout, value)
        return TensorType(tuple(sum(n for _, n in dim) for dim in held), self.graph.types[value].dtype)

    def _define(self, value: str, layout: Layout) -> None:
        self.types[value] = self._local(layout, value)
        self.copies[value, "made"] = (layout, value)

    def _operation(self, index: int) -> None:
        operation, strategy = self.graph.operations[index], self.plan.strategies[index]
        backward = index >= self.graph.forward
        names = [
            self._value(value, layout, backward)
            for value, layout in zip(operation.inputs, strategy.inputs, strict=True)
        ]
        for value, layout in zip(operation.outputs, strategy.outputs, strict=True):
            self._define(value, layout)
        bound = operation.with_inputs(names)
        here = local_operation(bound, [self.types[n] for n in names], [self.types[n] for n in operation.outputs])
        if strategy.recipes:
            self._recipe(index, here)
        else:
            self._compute(here, index, self._salt(strategy))
        if not backward:
            read = (v for v in operation.inputs if self._last_forward(v) == index and (v, "made") in self.copies)
            for value in dict.fromkeys((*read, *operation.outputs)):
                if value in self.plan.flow.crossing and value in self.stage.kept:
                    self._copy(value, "kept")

    def _last_forward(self, value: str) -> int:
        readers = self.plan.flow.forward_readers[value]
        return readers[-1] if readers else -1

    def _salt(self, strategy: Strategy) -> int:
        """A number that ranks share exactly when they do the same part of the work."""
        salt = 0
        for size, token, position in zip(
            self.mesh.sizes, strategy.tokens, self.mesh.coordinates(self.rank), strict=True
        ):
            salt = salt * size + (position if token != "R" else 0)
        return salt

    def _compute(self, operation: Operation, source: int, salt: int = 0) -> None:
        inputs = [self.types[n] for n in operation.inputs]
        outputs = [self.types[n] for n in operation.outputs]
        seconds = self.plan.prices.compute(operation, inputs, outputs, self.rank)
        self.out.append(Compute(operation, seconds, source, salt))

    def _recipe(self, index: int, here: Operation) -> None:
        """The special local code of a split: small steps, some all-reduces over the axes that split."""
        strategy, rule = self.plan.strategies[index], self.plan.rules[index]
        axes = [axis for axis, _ in strategy.recipes]
        factor = next(f for f in rule.factors if f.name == strategy.recipes[0][1])
        start, length = self._factor_interval(index, (*factor.inputs, *factor.outputs))
        for step in expand(factor.recipe, here, start, length, self.types):
            if isinstance(step, Reduce):
                self._reduce(step, axes)
            else:
                self._compute(step, index)

    def _factor_interval(self, index: int, splits: tuple[Split | None, ...]) -> Interval:
        """What this rank has of a factor: read off the first tensor that carries it."""
        operation, strategy = self.graph.operations[index], self.plan.strategies[index]
        names = (*operation.inputs, *operation.outputs)
        layouts = (*strategy.inputs, *strategy.outputs)
        for name, layout, split in zip(names, layouts, splits, strict=True):
            if split is not None:
                return self._intervals(layout, name)[split.dim][0]
        return (0, 0)

    def _reduce(self, step: Reduce, axes: list[int]) -> None:
        value = step.value
        for axis in axes:
            output = step.output if axis == axes[-1] else self._fresh(f"{step.output}_part")
            self.types[output] = self.types[value]
            size = self.types[value].bytes
            seconds = self.plan.prices.collective("all_reduce", axis, size)
            group = self.mesh.group(axis, self.rank)
            self.out.append(
                Collective(
                    "all_reduce",
                    axis,
                    group,
                    (value,),
                    (output,),
                    (0,),
                    ((),),
                    size,
                    seconds,
                    True,
                    step.reduce,
                )
            )
            value = output

    def _copy(self, value: str, copy: Copy) -> tuple[Layout, str]:
        """One of a value's copies, made on the way where it is not there yet."""
        known = self.copies.get((value, copy))
        if known is not None:
            return known
        source, wanted = {
            "used": ("made", self.stage.used.get(value)),
            "kept": ("used", self.stage.kept.get(value, self.copies[value, "made"][0])),
            "reused": ("kept", self.stage.reused.get(value)),
        }[copy]
        layout, name = self.copies[value, "made"]
        if copy != "kept" or wanted != layout:
            layout, name = self._copy(value, source)  # type: ignore[arg-type]
        own = copy == "kept"
        result = (wanted, self._convert(value, name, layout, wanted, own)) if wanted else (layout, name)
        self.copies[value, copy] = result
        return result

    def _value(self, value: str, layout: Layout, backward: bool) -> str:
        """The local name of a value in the layout that a reader needs."""
        source, name = self._copy(value, "reused" if backward and value in self.plan.flow.crossing else "used")
        return self._convert(value, name, source, layout)

    def _convert(self, value: str, name: str, source: Layout, target: Layout, own: bool = False) -> str:
        """Bring a value to a layout; `own`: into storage of its own, so that what it was made of can go."""
        if source == target:
            return name
        steps = self.plan.steps(value, source, target)
        free = not own and all(step.kind in ("slice", "addend") for step in steps)
        if free and (name, target) in self.pieces:
            return self.pieces[name, target]
        result = name
        for step in steps:
            result = self._step(value, result, step, own)
        if free:
            self.pieces[name, target] = result
        return result

    def _step(self, value: str, name: str, step: Step, own: bool) -> str:
        result = self._fresh(f"{value}__{_plain(step.target)}")
        self.types[result] = self._local(step.target, value)
        if step.kind in ("slice", "addend"):
            operation = self._free_step(value, name, result, step, own)
            if operation.kind == "take":
                self._compute(operation, -1)
            else:
                self.out.append(Compute(operation, 0.0))
        else:
            self.out.append(self._communicate(value, name, result, step))
        return result

    def _communicate(self, value: str, name: str, result: str, step: Step) -> Collective:
        flow, kind = self.plan.flow, step.kind
        source, target = step.source.placements[step.axis], step.target.placements[step.axis]
        size = moved_bytes(kind, self.graph.types[value], step.source, step.target, self.mesh)
        group = self.mesh.group(step.axis, self.rank)
        cut, cut_layout = (source, step.source) if kind in GATHERS else (target, step.target)
        dim = cut.dim if isinstance(cut, Split) else 0
        join = source.dim if isinstance(source, Split) else 0
        both = kind in ("all_to_all", "resize")
        return Collective(
            kind,
            step.axis,
            group,
            (name,),
            (result,),
            (dim,),
            (self._lengths(cut_layout, value, group, dim) if kind != "all_reduce" else (),),
            size,
            self.plan.prices.collective(kind, step.axis, size),
            blocking=not (value in flow.early or value in flow.late),
            joins=(join,) if both else (),
            join_pieces=(self._lengths(step.source, value, group, join),) if both else (),
        )

    def _lengths(self, layout: Layout, value: str, group: tuple[int, ...], dim: int) -> tuple[tuple[int, ...], ...]:
        """Lengths along `dim` per position of the group and segment."""
        shape = self.graph.types[value].shape
        key = (layout, shape, group, dim)
        if key not in self.cuts:
            held = (self.plan.intervals(layout, shape, rank)[dim] for rank in group)
            self.cuts[key] = tuple(tuple(n for _, n in pieces) for pieces in held)
        return self.cuts[key]

    def _free_step(self, value: str, name: str, result: str, step: Step, own: bool) -> Operation:
        if step.kind == "addend":
            first = self.mesh.coordinates(self.rank)[step.axis] == 0
            return Operation("hocket.addend.default", (Ref(name), first), (), (result,))
        placement = step.target.placements[step.axis]
        dim = placement.dim if isinstance(placement, Split) else 0
        before = self._intervals(step.source, value)[dim]
        after = self._intervals(step.target, value)[dim]
        picks = tuple((_position(start, before), length) for start, length in after)
        return Operation(f"hocket.{'take' if own else 'pick'}.default", (Ref(name), dim, picks), (), (result,))

    def _fresh(self, wanted: str) -> str:
        name, count = wanted, 1
        while name in self.taken:
            count += 1
            name = f"{wanted}_{count}"
        self.taken.add(name)
        return name


def _position(start: int, held: tuple[Interval, ...]) -> int:
    """Where a global index lies in what a rank stores of a dim."""
    offset = 0
    for first, length in held:
        if first <= start < first + length:
            return offset + start - first
        offset += length
    return offset


def _plain(layout: Layout) -> str:
    return "".join(c for c in str(layout).replace(":", "x") if c.isalnum())
