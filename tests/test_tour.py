"""The tour is true: every line of docs/tour.md is executed and its output compared."""

from __future__ import annotations

import doctest
from pathlib import Path

TOUR = Path(__file__).parent.parent / "docs" / "tour.md"


def without_fences(text: str) -> str:
    """Markdown with its fences as empty lines, which end what doctest expects as output."""
    return "\n".join("" if line.startswith("```") else line for line in text.splitlines()) + "\n"


def test_every_line_of_the_tour_happens() -> None:
    test = doctest.DocTestParser().get_doctest(
        without_fences(TOUR.read_text(encoding="utf-8")), {"__name__": "tour"}, "tour", str(TOUR), 0
    )
    told: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    results = runner.run(test, out=told.append)
    assert results.attempted > 50
    assert results.failed == 0, "".join(told)


def test_a_wrong_line_is_noticed() -> None:
    text = "```python\n>>> 1 + 1\n3\n```\n"
    test = doctest.DocTestParser().get_doctest(without_fences(text), {}, "wrong", None, 0)
    told: list[str] = []
    assert doctest.DocTestRunner().run(test, out=told.append).failed == 1
