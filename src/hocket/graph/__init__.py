"""The computation: one training step as immutable values, its text form, its checks."""
