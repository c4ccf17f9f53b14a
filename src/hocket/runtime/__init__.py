"""Executing programs on torch.distributed, or all ranks in one process."""
