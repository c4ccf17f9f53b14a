"""What the documents say about the code holds: links, words, commands, the file tree, the example."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hocket.cli.main import app

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "hocket"
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_to_files(path: Path) -> None:
    links = [t for t in re.findall(r"\]\(([^)]+)\)", path.read_text(encoding="utf-8")) if "://" not in t]
    assert [t for t in links if not (path.parent / t.split("#")[0]).exists()] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_named_files_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    places = (ROOT, SOURCE, ROOT / "docs")
    if path.parent.name == "design":
        places += (SOURCE / path.stem,)
    named = set(re.findall(r"`([\w/]+\.(?:py|txt|yaml|md))`", text))
    assert sorted(n for n in named if not any((place / n).exists() for place in places)) == []


def test_every_design_note_is_linked_from_the_readme() -> None:
    notes = {f"docs/design/{p.name}" for p in (ROOT / "docs" / "design").glob("*.md")}
    assert sorted(note for note in notes if f"({note})" not in README) == []


def test_words_stand_once_and_in_order() -> None:
    text = (ROOT / "docs" / "words.md").read_text(encoding="utf-8")
    words = re.findall(r"^\| \*(.+?)\* \| (.+) \|$", text, re.MULTILINE)
    names = [name for name, _ in words]
    assert len(names) > 80
    assert names == sorted(set(names), key=str.lower)
    assert sum(line.startswith("|") for line in text.splitlines()) == len(names) + 2


def test_the_table_of_commands_is_complete() -> None:
    told = re.findall(r"^\| `hocket (\w+)", README, re.MULTILINE)
    assert sorted(told) == sorted(command.name or "" for command in app.registered_commands)


def test_the_readme_tells_the_purpose_of_every_file() -> None:
    (tree,) = blocks(README, "text")
    room, told = "", set()
    for line in tree.splitlines()[1:]:
        name, _, purpose = line.strip().partition(" ")
        assert purpose.strip(), f"{line!r} says no purpose"
        if name.endswith("/"):
            room = name
        told.add(room + name if line.startswith("    ") else name)
    files = {p.relative_to(SOURCE) for p in SOURCE.rglob("*") if p.suffix in (".py", ".txt")}
    found = {str(p) for p in files if p.name != "__init__.py" or len(p.parts) == 1}
    rooms = {f"{p.parent.relative_to(SOURCE)}/" for p in SOURCE.rglob("*/__init__.py")}
    assert told == found | rooms, "the file tree in README.md lists every file of src/hocket, one purpose a line"


def test_the_readme_example_runs() -> None:
    example = blocks(README, "python")[0]
    assert "parallelize" not in example
    result = subprocess.run(
        [sys.executable, "-c", example],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    assert "proven" in result.stdout
    assert "Report(loss=" in result.stdout
