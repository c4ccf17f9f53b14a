"""The house rules that a machine can check: floors, sizes of files and functions, docstrings, no asserts."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "hocket"
FILES = sorted(SOURCE.rglob("*.py"))
MOST_LINES, LONGEST_FUNCTION = 400, 60
VAGUE = {"utils", "util", "helpers", "helper", "common", "core", "base", "misc"}

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Check = Callable[[Path, ast.Module], list[str]]


def definitions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, Definition]]:
    """Functions, classes and what is in them, by qualified name; functions within functions too."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition):
            yield prefix + child.name, child
            yield from definitions(child, f"{prefix}{child.name}.")
        else:
            yield from definitions(child, prefix)


def long_file(path: Path, tree: ast.Module) -> list[str]:
    """A file of more lines than one topic needs."""
    count = len(path.read_text(encoding="utf-8").splitlines())
    return [f"{count} lines"] if count > MOST_LINES else []


def long_functions(path: Path, tree: ast.Module) -> list[str]:
    """Functions that do not fit on a screen."""
    return [
        f"{name} has {(node.end_lineno or 0) - node.lineno + 1} lines"
        for name, node in definitions(tree)
        if not isinstance(node, ast.ClassDef) and (node.end_lineno or 0) - node.lineno >= LONGEST_FUNCTION
    ]


def silent(path: Path, tree: ast.Module) -> list[str]:
    """Public modules, classes, functions and methods without a docstring."""
    found = [] if ast.get_docstring(tree) else ["the module has no docstring"]
    for name, node in definitions(tree):
        public = not any(part.startswith("_") for part in name.split("."))
        if public and not ast.get_docstring(node) and not _local(tree, name):
            found.append(f"{name} has no docstring")
    return found


def _local(tree: ast.Module, name: str) -> bool:
    """Whether a definition lies within a function, where nobody else can name it."""
    known = dict(definitions(tree))
    parts = name.split(".")
    return any(not isinstance(known[".".join(parts[:n])], ast.ClassDef) for n in range(1, len(parts)))


def asserts(path: Path, tree: ast.Module) -> list[str]:
    """Assertions: they vanish under -O and say nothing to a user."""
    return [f"line {node.lineno}: assert" for node in ast.walk(tree) if isinstance(node, ast.Assert)]


def vague_name(path: Path, tree: ast.Module) -> list[str]:
    """Names that any code would fit under."""
    return [f"{path.stem} says nothing"] if path.stem in VAGUE or path.parent.name in VAGUE else []


@pytest.mark.parametrize("check", [long_file, long_functions, silent, asserts, vague_name])
def test_no_file_breaks_a_house_rule(check: Check) -> None:
    found = {
        str(path.relative_to(ROOT)): broken
        for path in FILES
        if (broken := check(path, ast.parse(path.read_text(encoding="utf-8"))))
    }
    assert found == {}


def test_no_test_is_skipped() -> None:
    skips = {"skip", "skipif", "xfail", "importorskip", "skipTest"}
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in skips
    ]
    assert found == []


def test_the_checks_find_what_they_look_for(tmp_path: Path) -> None:
    lines = ["def public(x):", *["    x += 1"] * 60, "class Open:", "    def told(self):", "        assert self"]
    path = tmp_path / "utils.py"
    path.write_text("\n".join(lines) + "\n" * 400)
    tree = ast.parse(path.read_text())
    assert long_file(path, tree) == [f"{len(lines) + 399} lines"]
    assert long_functions(path, tree) == ["public has 61 lines"]
    assert silent(path, tree) == [
        "the module has no docstring",
        "public has no docstring",
        "Open has no docstring",
        "Open.told has no docstring",
    ]
    assert asserts(path, tree) == [f"line {len(lines)}: assert"]
    assert vague_name(path, tree) == ["utils says nothing"]


def test_every_room_stands_on_a_floor() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    floors = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    named = {room.strip().removeprefix("hocket.") for floor in floors for room in floor.split("|")}
    rooms = {p.parent.name for p in SOURCE.glob("*/__init__.py")} | {p.stem for p in SOURCE.glob("*.py")}
    assert rooms - {"__init__"} == named


def test_the_import_contracts_are_kept() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-1000:]
    assert "0 broken" in result.stdout


def test_the_torch_free_floors_run_without_torch() -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "import hocket.search.auto, hocket.simulate.engine, hocket.program.lower, hocket.plan.file\n"
        "import hocket.cluster.file, hocket.graph.text, hocket.pipeline.schedule\n"
        "print('done')"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.stdout.strip() == "done", result.stderr[-2000:]
