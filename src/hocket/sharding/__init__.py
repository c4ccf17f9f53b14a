"""Rules, layouts and resharding: how an operation may be split and what that asks of its tensors."""
