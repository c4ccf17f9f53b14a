"""Runs one operation split over a mesh, rank by rank in one process, and puts the results together again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import torch

from hocket.graph.types import Argument, Operation, Ref, TensorType
from hocket.runtime.kernels import kernel, torch_argument
from hocket.sharding.layout import Layout, Partial, Split, intervals
from hocket.sharding.local import local_operation
from hocket.sharding.mesh import Mesh
from hocket.sharding.recipes import Reduce, expand
from hocket.sharding.rule import Rule
from hocket.sharding.strategy import Strategy

Values = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Case:
    """An operation with values for its inputs."""

    operation: Operation
    values: Values

    def __str__(self) -> str:
        shapes = ", ".join(str(list(self.values[n].shape)) for n in self.operation.inputs)
        constants = [repr(a) for a in self.operation.args if not _has_ref(a)]
        return f"{self.operation.op}({shapes}; {', '.join(constants)})"


def _has_ref(argument: Argument) -> bool:
    return isinstance(argument, Ref) or (isinstance(argument, tuple) and any(map(_has_ref, argument)))


def type_of(value: torch.Tensor) -> TensorType:
    return TensorType(tuple(value.shape), str(value.dtype).removeprefix("torch."))


def run(operation: Operation, values: Mapping[str, torch.Tensor]) -> list[torch.Tensor | None]:
    def bind(argument: Argument) -> object:
        if isinstance(argument, Ref):
            return values[argument.name]
        if isinstance(argument, tuple):
            return [bind(a) for a in argument]
        return torch_argument(argument)

    out = kernel(operation.op)(*(bind(a) for a in operation.args), **{k: bind(a) for k, a in operation.kwargs})
    return list(out) if isinstance(out, list | tuple) else [out]


def whole(case: Case) -> tuple[list[torch.Tensor | None], dict[str, TensorType]]:
    """The unsplit results, and the types of all values."""
    results = run(case.operation, case.values)
    types = {n: type_of(v) for n, v in case.values.items()}
    types |= {n: type_of(r) for n, r in zip(case.operation.outputs, results, strict=True) if r is not None}
    return results, types


def _take(value: torch.Tensor, held: Sequence[Sequence[tuple[int, int]]]) -> torch.Tensor:
    for dim, pieces in enumerate(held):
        value = torch.cat([value.narrow(dim, start, length) for start, length in pieces], dim)
    return value.contiguous().clone()


def _addends(value: torch.Tensor, count: int, generator: torch.Generator) -> list[torch.Tensor]:
    if value.is_floating_point():
        parts = [torch.randn(value.shape, dtype=value.dtype, generator=generator) for _ in range(count - 1)]
    else:
        parts = [
            torch.randint(-5, 6, value.shape, dtype=value.dtype, generator=generator) for _ in range(count - 1)
        ]
    return [*parts, value - sum(parts, torch.zeros_like(value))]


def scatter(value: torch.Tensor, layout: Layout, mesh: Mesh, generator: torch.Generator) -> dict[int, torch.Tensor]:
    """What every rank holds of a value in a layout; partial sums are random."""
    axes = [a for a, p in enumerate(layout.placements) if isinstance(p, Partial)]
    positions = list(product(*(range(mesh.sizes[a]) for a in axes)))
    addends = dict(zip(positions, _addends(value, len(positions), generator), strict=True)) if axes else {(): value}
    local = {}
    for rank in mesh.ranks:
        coordinates = mesh.coordinates(rank)
        addend = addends[tuple(coordinates[a] for a in axes)]
        local[rank] = _take(addend, intervals(layout, value.shape, mesh, rank))
    return local


def gather(
    local: Mapping[int, torch.Tensor], layout: Layout, shape: Sequence[int], mesh: Mesh
) -> list[torch.Tensor]:
    """The whole value as each group of replicas sees it."""
    copies = [a for a, p in enumerate(layout.placements) if not isinstance(p, Split | Partial)]
    found = []
    for chosen in product(*(range(mesh.sizes[a]) for a in copies)):
        ranks = [r for r in mesh.ranks if tuple(mesh.coordinates(r)[a] for a in copies) == chosen]
        dtype = torch.int64 if local[ranks[0]].dtype == torch.bool else local[ranks[0]].dtype
        total = torch.zeros(tuple(shape), dtype=dtype)
        count = torch.zeros(tuple(shape), dtype=torch.int64)
        for rank in ranks:
            held = intervals(layout, shape, mesh, rank)
            where = [torch.cat([torch.arange(s, s + n) for s, n in pieces]) for pieces in held]
            assert tuple(local[rank].shape) == tuple(len(w) for w in where)
            grid = torch.meshgrid(*where, indexing="ij") if where else ()
            if where:
                total[grid] += local[rank].to(dtype)
                count[grid] += 1
            else:
                total += local[rank].to(dtype)
                count += 1
        addends = prod(mesh.sizes[a] for a, p in enumerate(layout.placements) if isinstance(p, Partial))
        assert bool((count == addends).all())
        found.append(total)
    return found


def run_split(case: Case, rule: Rule, strategy: Strategy, mesh: Mesh, seed: int = 0) -> None:
    """Run the operation by a strategy on every rank and compare with the unsplit operation."""
    generator = torch.Generator().manual_seed(seed)
    operation = case.operation
    expected, types = whole(case)
    names = operation.inputs
    # An operand that stands twice may be needed in two layouts, so each place has its own local value.
    places = [f"in{i}" for i in range(len(names))]
    held = [
        scatter(case.values[n], layout, mesh, generator) for n, layout in zip(names, strategy.inputs, strict=True)
    ]
    ranks: dict[int, Values] = {r: {p: h[r] for p, h in zip(places, held, strict=True)} for r in mesh.ranks}
    bound = _bind(operation, iter(places))
    plans = {r: _steps(bound, rule, strategy, types, operation, ranks[r], mesh, r) for r in mesh.ranks}
    for steps in zip(*plans.values(), strict=True):
        _step(steps, list(plans), ranks, strategy, mesh)
    for name, result, layout in zip(operation.outputs, expected, strategy.outputs, strict=True):
        if result is None:
            continue
        local = {r: ranks[r][name] for r in mesh.ranks}
        assert all(v.dtype == result.dtype for v in local.values())
        for found in gather(local, layout, result.shape, mesh):
            near = 1e-5 if found.dtype == torch.float32 else 1e-9
            torch.testing.assert_close(found, result.to(found.dtype), rtol=near, atol=near, equal_nan=True)


def _bind(operation: Operation, names: object) -> Operation:
    def rename(argument: Argument) -> Argument:
        if isinstance(argument, Ref):
            return Ref(next(names))  # type: ignore[call-overload]
        if isinstance(argument, tuple):
            return tuple(rename(a) for a in argument)
        return argument

    args = tuple(rename(a) for a in operation.args)
    return Operation(operation.op, args, tuple((k, rename(a)) for k, a in operation.kwargs), operation.outputs)


def _steps(bound, rule, strategy, types, operation, values, mesh, rank):
    inputs = [type_of(values[n]) for n in bound.inputs]
    outputs = []
    for name, layout in zip(operation.outputs, strategy.outputs, strict=True):
        known = types.get(name, TensorType((0,), "float64"))
        held = intervals(layout, known.shape, mesh, rank)
        outputs.append(TensorType(tuple(sum(n for _, n in dim) for dim in held), known.dtype))
    local = local_operation(bound, inputs, outputs)
    if not strategy.recipes:
        return (local,)
    factor = next(f for f in rule.factors if f.name == strategy.recipes[0][1])
    carriers = [*zip(operation.inputs, factor.inputs, strategy.inputs, strict=True)]
    carriers += zip(operation.outputs, factor.outputs, strategy.outputs, strict=True)
    name, split, layout = next(c for c in carriers if c[1] is not None)
    start, length = intervals(layout, types[name].shape, mesh, rank)[split.dim][0]
    known = dict(zip((*bound.inputs, *operation.outputs), (*inputs, *outputs), strict=True))
    return expand(factor.recipe, local, start, length, known)


def _step(steps, order, ranks, strategy, mesh) -> None:
    if not isinstance(steps[0], Reduce):
        for rank, step in zip(order, steps, strict=True):
            for name, value in zip(step.outputs, run(step, ranks[rank]), strict=True):
                if value is not None:
                    ranks[rank][name] = value
        return
    now = {rank: ranks[rank][step.value] for rank, step in zip(order, steps, strict=True)}
    for axis, _ in strategy.recipes:
        stacks = {r: torch.stack([now[other] for other in mesh.group(axis, r)]) for r in order}
        now = {r: s.sum(0) if steps[0].reduce == "sum" else s.amax(0) for r, s in stacks.items()}
    for rank, step in zip(order, steps, strict=True):
        ranks[rank][step.output] = now[rank]
