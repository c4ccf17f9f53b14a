"""From a PyTorch module to a graph."""

from hocket.capture.export import capture
from hocket.capture.fingerprint import model_fingerprint

__all__ = ["capture", "model_fingerprint"]
