"""From a PyTorch module to a graph."""

from hocket.capture.export import capture

__all__ = ["capture"]
