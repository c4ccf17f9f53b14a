"""Errors a user of hocket can meet: each names the culprit, the rule, the values and the repair."""

from __future__ import annotations


class HocketError(Exception):
    """Base of everything hocket raises on purpose.

    `culprit` is the thing at fault (a file and key, an operation, a rank), `rule` what must hold,
    `values` what was found instead, `repair` what the user can do.
    """

    def __init__(self, culprit: str, rule: str, values: str = "", repair: str = "") -> None:
        self.culprit = culprit
        self.rule = rule
        self.values = values
        self.repair = repair
        parts = [f"{culprit}: {rule}"]
        if values:
            parts.append(f"found: {values}")
        if repair:
            parts.append(f"repair: {repair}")
        super().__init__("\n  ".join(parts))

    def __reduce__(self) -> tuple[type[HocketError], tuple[str, str, str, str]]:
        """Errors travel between processes with their four texts."""
        return type(self), (self.culprit, self.rule, self.values, self.repair)


class FileError(HocketError):
    """A file cannot be read, is cut short, or holds a key or value that its format does not know."""


class UnitError(HocketError):
    """A quantity with a unit cannot be understood."""


class ClusterError(HocketError):
    """A cluster description names something unknown or contradicts itself."""


class CaptureError(HocketError):
    """A model or its sample batch cannot be turned into a graph."""


class GraphError(HocketError):
    """A graph breaks an invariant."""


class LayoutError(HocketError):
    """A layout does not fit a tensor or a mesh."""


class PlanError(HocketError):
    """A plan does not fit the model, the cluster or the world it is used with."""


class PinError(HocketError):
    """Something the user insists on contradicts an operation or another pin."""


class ScheduleError(HocketError):
    """A pipeline's schedule cannot be made, is not complete, or lets ranks wait for each other."""


class MemoryLimitError(HocketError):
    """No plan in the search space fits the devices' memory."""


class ProgramError(HocketError):
    """A program breaks an invariant."""


class RuntimeFault(HocketError):
    """A rank failed, is missing, or did not answer in time."""
