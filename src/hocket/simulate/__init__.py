"""A program on a clock."""
