"""What the user insists on: layouts of parameters by path pattern, strategies of operations, the mesh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from hocket.errors import LayoutError, PinError
from hocket.graph.types import Graph, Input, Operation
from hocket.sharding.layout import Layout, Split
from hocket.sharding.mesh import Mesh
from hocket.sharding.strategy import Strategy


@dataclass(frozen=True, slots=True)
class Pins:
    """Pinned layouts: `layouts` maps path patterns (`h.*.attn.c_attn.weight`) to a layout's text, or to
    `replicate` or `split(dim)` on every axis; a pattern that starts with % names a value, and its text is a
    strategy. `mesh` is the pinned mesh.
    """

    layouts: tuple[tuple[str, str], ...] = ()
    mesh: Mesh | None = None

    @staticmethod
    def parse(texts: Sequence[str]) -> Pins:
        """Read `pattern=layout` and `mesh=4x2`; raises PinError."""
        layouts, mesh = [], None
        for text in texts:
            key, equals, value = text.partition("=")
            if not equals or not key or not value:
                raise PinError(f"pin {text!r}", "is written pattern=layout or mesh=4x2", text)
            if key == "mesh":
                try:
                    mesh = Mesh.parse(value)
                except LayoutError as error:
                    raise PinError(f"pin {text!r}", error.rule, error.values) from error
            else:
                layouts.append((key, value))
        return Pins(tuple(layouts), mesh)

    def marks(self, graph: Graph) -> dict[str, tuple[str, ...]]:
        """The pins that name each value, where any does."""
        paths = {i.name: i.paths for i in graph.inputs}
        paths |= {op.outputs[0]: (f"%{op.outputs[0]}",) for op in graph.operations if op.outputs}
        found = {
            name: tuple(p for p, _ in self.layouts if any(_matches(path, p) for path in known))
            for name, known in paths.items()
        }
        return {name: pins for name, pins in found.items() if pins}

    def stored(self, inputs: Sequence[Input], options: tuple[Layout, ...], mesh: Mesh) -> tuple[Layout, ...]:
        """The options that the pins leave of how inputs are stored; raises PinError when none is left."""
        for entry in inputs:
            for pattern, text in self.layouts:
                if any(_matches(path, pattern) for path in entry.paths):
                    kept = tuple(o for o in options if _agrees(o, text, mesh))
                    if not kept:
                        raise PinError(
                            f"pin {pattern}={text}",
                            f"is a layout that {entry.paths[0]} can have on mesh {mesh}",
                            f"it can have {', '.join(map(str, options[:8]))}",
                            "pin another layout or mesh",
                        )
                    options = kept
        return options

    def operations(self, operation: Operation, options: tuple[Strategy, ...]) -> tuple[Strategy, ...]:
        """The strategies that the pins leave of an operation (named by its first output or its module)."""
        for pattern, text in self.layouts:
            name = operation.outputs[0] if operation.outputs else ""
            if pattern.startswith("%") and fnmatchcase(name, pattern[1:]):
                kept = tuple(o for o in options if str(o) == text)
                if not kept:
                    raise PinError(
                        f"pin {pattern}={text}",
                        f"is a strategy that {operation.op} -> {name} can have",
                        ", ".join(map(str, options[:8])),
                        "pin another strategy",
                    )
                options = kept
        return options


def check_pins(pins: Pins, graph: Graph, devices: int) -> None:
    """Raise PinError where a pin names nothing in the graph, or a mesh of another size."""
    paths = [path for entry in graph.inputs for path in entry.paths]
    names = ["%" + name for operation in graph.operations for name in operation.outputs]
    for pattern, text in pins.layouts:
        if not any(_matches(n, pattern) for n in (names if pattern.startswith("%") else paths)):
            raise PinError(
                f"pin {pattern}={text}",
                "names a parameter of the model",
                f"parameters are {', '.join(paths[:4])} ...",
                "use a path with * as in h.*.attn.c_attn.weight",
            )
    if pins.mesh is not None and pins.mesh.devices != devices:
        raise PinError(
            f"pin mesh={pins.mesh}",
            f"has as many positions as the cluster has devices, {devices}",
            str(pins.mesh.devices),
            "pin a mesh whose sizes multiply to that",
        )


def _matches(path: str, pattern: str) -> bool:
    return fnmatchcase(path, pattern) or fnmatchcase(path, f"*.{pattern}")


def _sizes(placement: object) -> tuple[int, ...]:
    return placement.sizes if isinstance(placement, Split) else ()


def _without(layout: Layout) -> Layout:
    """The layout with even splits in place of uneven ones: a pin without sizes means either."""
    return Layout(tuple(replace(p, sizes=()) if isinstance(p, Split) else p for p in layout.placements))


def _agrees(layout: Layout, text: str, mesh: Mesh) -> bool:
    if text in ("replicate", "R"):
        return layout.is_replicated
    if text.startswith("split(") and text.endswith(")"):
        dim = text[6:-1]
        dims = {str(p.dim) for p in layout.placements if isinstance(p, Split)}
        return dims == {dim} and all(
            isinstance(p, Split) or n == 1 for p, n in zip(layout.placements, mesh.sizes, strict=True)
        )
    if text == "any":
        return True
    try:
        wanted = Layout.parse(text)
        return wanted == layout or (not any(_sizes(p) for p in wanted.placements) and wanted == _without(layout))
    except LayoutError:
        return False
