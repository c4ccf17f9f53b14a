"""A captured graph computes the loss, gradients and buffer updates of eager PyTorch."""

from __future__ import annotations

import pytest
import torch
from interpret import compare

from hocket.capture import capture
from hocket.capture.configs import TINY
from hocket.capture.models import tiny


@pytest.mark.parametrize("architecture", list(TINY))
def test_graph_equals_eager(architecture: str) -> None:
    torch.manual_seed(7)
    model, sample = tiny(architecture)
    graph = capture(model, sample)
    assert 0 < graph.forward < len(graph.operations)
    compare(graph, model, sample)
