"""Pipelines: where a model is cut, which devices get which stage, how many microbatches, in which order."""
