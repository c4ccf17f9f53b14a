"""hocket: a training step written for one device, run as well as possible on whatever cluster there is.

    cluster = hocket.Cluster.load("cluster.yaml")
    graph = hocket.capture(model, sample)
    plan = hocket.plan(graph, cluster)
    report = hocket.verify(model, sample, plan)
    module = hocket.parallelize(model, plan)

These names are doors: each loads its room on first use, so that planning starts without torch. Some doors are
called like the package behind them (`hocket.plan` is the function; `from hocket.plan.types import Plan` still
finds the package), so they are properties of this module that importing a package cannot overwrite.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

DOORS = {
    "Cluster": "hocket.cluster.types",
    "Graph": "hocket.graph.types",
    "HocketError": "hocket.errors",
    "Plan": "hocket.plan.types",
    "capture": "hocket.api",
    "parallelize": "hocket.api",
    "plan": "hocket.api",
    "programs": "hocket.api",
    "simulate": "hocket.api",
    "verify": "hocket.api",
}
__version__ = "0.1.0"


class _Door:
    """A name of this module that is looked up in its room and never replaced."""

    def __init__(self, name: str, home: str) -> None:
        self.name, self.home = name, home

    def __get__(self, module: object, owner: type) -> Any:
        return getattr(import_module(self.home), self.name)

    def __set__(self, module: object, value: object) -> None:
        """Importing a package of the same name sets it here; the door stays."""


class _House(ModuleType):
    """The type of this module: a module with doors."""

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *DOORS})


for _name, _home in DOORS.items():
    setattr(_House, _name, _Door(_name, _home))
sys.modules[__name__].__class__ = _House
