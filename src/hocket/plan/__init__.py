"""The decision: everything a plan fixes, and its file."""
