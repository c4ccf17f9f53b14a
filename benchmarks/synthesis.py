"""Program synthesis (HAP, section 4): time for whole models, and what each speed-up does to search and optimum."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn

from paper import PER_DEVICE, cluster_of, made
from record import Results

DEVICES = 8
WHOLE_SECONDS = 5.0
"""Budget for a whole model."""
SMALL_SECONDS = 30.0
"""Budget for one setting of the speed-ups."""
GAP = 0.001


class Perceptron(nn.Module):
    """Linear layers with relu between them, and a sum."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        """x [rows, width] -> a number."""
        for layer in self.layers:
            x = layer(x).relu()
        return x.sum()


def problem_of(graph: Any) -> tuple[Any, tuple[int, ...]]:
    """The search problem on a flat mesh with shares by speed, and one rank of every kind."""
    from hocket.cost.prices import MeshPrices
    from hocket.search.builder import build_problem
    from hocket.search.synthesis.look import kinds_of
    from hocket.search.uneven import by, speeds
    from hocket.sharding.mesh import Mesh

    cluster, mesh = cluster_of(DEVICES), Mesh((DEVICES,))
    shares = ((by(speeds(graph, cluster, mesh)),),)
    problem = build_problem(graph, mesh, MeshPrices(cluster, mesh), shares=shares)
    return problem, kinds_of(cluster, mesh, shares)


def whole() -> Results:
    """Every model of the paper, whole, within a few seconds."""
    from hocket import api
    from hocket.search.judge import judge
    from hocket.search.synthesis.complete import stage_of
    from hocket.search.synthesis.run import synthesise
    from hocket.search.synthesis.theory import Speedups

    columns = ("model", "operations", "seconds", "expanded", "cost", "bound", "gap", "judged",
               "bound by computation alone")  # fmt: skip
    results = Results(
        "synthesis", f"Program synthesis of whole models, {DEVICES} GPUs of the paper's mixture", columns
    )
    slow = []
    for name in PER_DEVICE:
        graph = api.capture(*made(name, DEVICES))
        problem, ranks = problem_of(graph)
        begun = time.monotonic()
        found = synthesise(problem, ranks, WHOLE_SECONDS, GAP)
        taken = time.monotonic() - begun
        plain = synthesise(problem, ranks, WHOLE_SECONDS, GAP, speedups=Speedups(guided=False))
        judged = judge(graph, stage_of(problem, found.program), problem.prices.cluster, 8.0, problem.prices)
        slow += [name] if taken > 1.1 * WHOLE_SECONDS else []
        row = (name, f"{len(graph.operations):,}", f"{taken:.1f}", f"{found.expanded:,}", f"{found.seconds:.4f}",
               f"{found.bound:.4f}", f"{1 - found.bound / found.seconds:.1%}", f"{judged.seconds:.4f}",
               f"{plain.bound:.4f}")  # fmt: skip
        results.rows.append(row)
        print(" | ".join(row), flush=True)
    results.target(f"a program within {WHOLE_SECONDS:g} s", not slow, ", ".join(slow) or "every model")
    results.remarks += [
        "Cost, bound and gap are HAP's: stages between synchronisations, no overlap. Judged by hocket's clock.",
        "Bound by computation alone: the paper's estimate of what is left, in the same time.",
    ]
    return results


def speedups() -> Results:
    """What each speed-up does, on graphs that are searched to the end."""
    from hocket import api
    from hocket.search.synthesis.run import synthesise
    from hocket.search.synthesis.theory import Speedups

    columns = ("graph", "speed-ups", "expanded", "seconds", "cost / best", "to the end")
    results = Results(
        "speedups", "What HAP's speed-ups do to the search for a program, and to its optimum", columns
    )
    graphs = {f"{n} linear layers": api.capture(Perceptron(1024, n), (torch.randn(512, 1024),)) for n in (1, 2, 4)}
    graphs["VGG19"] = api.capture(*made("VGG19", DEVICES))
    every = Speedups()
    settings = {"all": every, "HAP's three": replace(every, guided=False)}
    settings |= {f"without {k}": replace(every, guided=False, **{k: False}) for k in ("fused", "once", "dropped")}
    settings["none"] = Speedups(**dict.fromkeys(asdict(every), False))
    for name, graph in graphs.items():
        problem, ranks = problem_of(graph)
        found: dict[str, tuple[Any, float]] = {}
        for title, chosen in settings.items():
            begun = time.monotonic()
            one = synthesise(problem, ranks, SMALL_SECONDS, speedups=chosen, means="search")
            found[title] = one, time.monotonic() - begun
        best = min(one.seconds for one, _ in found.values())
        for title, (one, taken) in found.items():
            ended = one.program is not None and one.bound >= one.seconds * (1 - 1e-9)
            ratio = f"{one.seconds / best:.4f}" if one.program is not None else "-"
            row = (name, title, f"{one.expanded:,}", f"{taken:.2f}", ratio, "yes" if ended else "no")
            results.rows.append(row)
            print(" | ".join(row), flush=True)
    results.remarks += [
        "fused: inputs are placed by their first reader. once: a tensor is communicated at most once, an input "
        "never. dropped: what nothing reads is forgotten. All: also guided by payments, not by computation alone.",
        f"Budget {SMALL_SECONDS:g} s each; shares by speed.",
    ]
    return results


def main() -> None:
    for results in (whole(), speedups()):
        results.show()
        results.save("python benchmarks/synthesis.py")


if __name__ == "__main__":
    main()
