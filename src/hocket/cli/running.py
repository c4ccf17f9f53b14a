"""`hocket verify`, `hocket run` and `hocket probe`: plans and machines put to the test."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hocket.cli.explaining import PlanFile
from hocket.cli.options import ModelOptions, read_model
from hocket.cli.planning import Batch, Dtype, Layers, Model, Sequence_, Settings
from hocket.cli.progress import screen, watched

if TYPE_CHECKING:
    from hocket.capture.models import Loaded

PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}


def verify(
    plan: PlanFile,
    model: Model,
    batch: Batch = 8,
    sequence: Sequence_ = None,
    layers: Layers = None,
    dtype: Dtype = "float32",
    settings: Settings = None,
    tolerance: Annotated[float, typer.Option(help="Largest relative error that passes.")] = 1e-4,
) -> None:
    """Run all ranks of a plan in this process and compare loss and gradients with the unsplit step."""
    from hocket.plan.file import load_plan
    from hocket.report.checks import report_parts

    loaded = load_plan(plan)
    module, sample = _real(read_model(model, ModelOptions(batch, sequence, layers, dtype, settings or [])))

    def work(*_: object) -> Any:
        from hocket import api

        return api.verify(module, sample, loaded)

    report = watched("running all ranks", work)
    console = screen()
    for part in report_parts(report, tolerance):
        console.print(part)
    if not report.worst <= tolerance:
        raise typer.Exit(1)


def _real(loaded: Loaded) -> Loaded:
    """A model of the meta device with random numbers in place of nothing; others as they are."""
    import torch

    module, sample = loaded
    if not any(tensor.is_meta for tensor in module.parameters()):
        return loaded
    torch.manual_seed(0)
    module = module.to_empty(device="cpu")
    tie = getattr(module, "tie_weights", None)
    if callable(tie):  # leaving the meta device gives tied parameters a storage each
        tie()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0.0, 0.05 if parameter.dim() > 1 else 0.5)
        for buffer in module.buffers():
            _ = buffer.uniform_(0.0, 1.0) if buffer.is_floating_point() else buffer.zero_()
    config = getattr(module, "config", None)
    labels = int(getattr(config, "vocab_size", 0) or getattr(config, "num_labels", 2))

    def filled(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_floating_point():
            return torch.randn(tensor.shape, dtype=tensor.dtype)
        return torch.randint(0, labels, tensor.shape, dtype=tensor.dtype)

    if isinstance(sample, dict):
        return module, {name: filled(tensor) for name, tensor in sample.items()}
    return module, tuple(filled(tensor) for tensor in sample)


def run(
    context: typer.Context,
    plan: PlanFile,
    script: Annotated[Path, typer.Argument(help="A training script; its own arguments follow.", metavar="SCRIPT")],
) -> None:
    """Run a training script once per rank of a plan; under torchrun, in this process."""
    from hocket.plan.file import load_plan
    from hocket.runtime.launch import run_script

    ranks = load_plan(plan).world_size
    raise typer.Exit(run_script(plan, script, context.args, ranks))


def _probe_together(output: Path, quick: bool) -> None:
    """On every rank of a running world: measure, and let rank 0 write the cluster that they form."""
    import torch.distributed as dist

    from hocket.measure.mixed import probe_ranks
    from hocket.runtime.launch import init

    device = init()
    cluster = probe_ranks(device=device.type, quick=quick)
    if dist.get_rank() == 0:
        cluster.save(output)
        screen().print(f"written to {output}; use it with --cluster {output}", soft_wrap=True)
    dist.barrier()
    dist.destroy_process_group()


def probe(
    output: Annotated[Path, typer.Option("--output", "-o", help="Write the calibration to this file.")],
    ranks: Annotated[int, typer.Option("--ranks", min=1, help="Processes that measure at once.")] = 4,
    quick: Annotated[bool, typer.Option("--quick", help="Measure less, in about 15 seconds.")] = False,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; cuda where there is one.")] = None,
) -> None:
    """Measure this machine for `hocket plan --calibration`; under torchrun all machines, as a cluster file."""
    from hocket.report.checks import calibration_parts

    if "RANK" in os.environ:
        _probe_together(output, quick)
        return

    def work(watcher: Any, _: object) -> Any:
        from hocket.measure.probe import probe as measure

        return measure(ranks, quick, lambda text: watcher("probe", 0, 0, text), device=device)

    calibration = watched("measuring", work)
    calibration.save(output)
    console = screen()
    for part in calibration_parts(calibration):
        console.print(part)
    console.print(
        f"written to {output}; use it with --cluster local:{ranks} --calibration {output}", soft_wrap=True
    )
