"""Starting ranks and scripts, and how it ends when one of them fails."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest
import ranks

from hocket.errors import RuntimeFault
from hocket.runtime import launch
from hocket.runtime.launch import run_script, spawn

SCRIPT = """
import os, sys, time
rank = os.environ["RANK"]
print("hello from", rank, "of", os.environ["WORLD_SIZE"], os.environ["HOCKET_PLAN"].endswith("plan.json"), *sys.argv[1:])
if "fail" in sys.argv and rank == "1":
    sys.exit("rank 1 gives up")
if "fail" in sys.argv:
    time.sleep(60)
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("RANK", raising=False)
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def test_a_script_runs_once_per_rank(script: Path) -> None:
    output, errors = io.StringIO(), io.StringIO()
    assert run_script(Path("plan.json"), script, ["a", "b"], 3, output, errors) == 0
    assert output.getvalue() == "hello from 0 of 3 True a b\n"
    assert sorted(errors.getvalue().splitlines()) == [
        "[rank 1] hello from 1 of 3 True a b",
        "[rank 2] hello from 2 of 3 True a b",
    ]


def test_one_failing_rank_ends_all(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "PATIENCE", 0.5)
    output, errors = io.StringIO(), io.StringIO()
    start = time.monotonic()
    assert run_script(Path("plan.json"), script, ["fail"], 2, output, errors) == 1
    assert time.monotonic() - start < 20
    assert "[rank 1] rank 1 gives up" in errors.getvalue()


def test_under_torchrun_the_script_runs_in_this_process(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("HOCKET_PLAN", "")
    assert run_script(Path("plan.json"), script, ["x"], 2) == 0
    assert capsys.readouterr().out == "hello from 1 of 2 True x\n"
    with pytest.raises(RuntimeFault, match="is a file"):
        run_script(Path("plan.json"), script.with_name("none.py"), [], 2)


def test_without_an_environment_joining_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RuntimeFault, match="RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT"):
        launch.init()


def test_a_spawned_rank_that_fails_is_named_with_its_traceback() -> None:
    with pytest.raises(RuntimeFault, match="fails on purpose") as caught:
        spawn(ranks.fail, 2, (1,))
    assert caught.value.culprit == "rank 1"
