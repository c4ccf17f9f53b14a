"""From a PyTorch module to a graph."""
