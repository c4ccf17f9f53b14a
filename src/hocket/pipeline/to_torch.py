"""A schedule as torch.distributed.pipelining reads it, for people who use nothing else of hocket."""

from __future__ import annotations

from hocket.pipeline.check import check_order
from hocket.pipeline.order import Order


def to_torch(order: Order) -> str:
    """The order as the compute-only CSV of torch.distributed.pipelining: a line per rank, an action per cell.

    Write it to a file and give that to `_PipelineScheduleRuntime._load_csv(path, format="compute_only")`; stage
    numbers are torch's `stage_index`. Raises ScheduleError where the order is not complete.
    """
    check_order(order)
    return "\n".join(",".join(map(str, todo)) for todo in order.ranks) + "\n"
