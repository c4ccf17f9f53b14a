"""The testbed leaves nothing behind, and says clearly where it cannot run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

from testbed import world
from testbed.world import CannotRun, Host, World


def allowed() -> bool:
    try:
        world.check()
    except CannotRun:
        return False
    return True


def left(name: str) -> list[str]:
    spaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    groups = [str(p) for p in Path("/sys/fs/cgroup").glob(f"**/{name}*")]
    return [line for line in spaces.splitlines() if line.startswith(name)] + groups


def test_it_says_why_it_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.os, "geteuid", lambda: 1000)
    with pytest.raises(CannotRun, match="root"):
        World([Host(0.5, "100mbit")])
    monkeypatch.setattr(world.os, "geteuid", lambda: 0)
    monkeypatch.setattr(world.shutil, "which", lambda tool: None)
    with pytest.raises(CannotRun, match="iproute2"):
        world.check()


def test_machines_reach_each_other_and_are_gone_afterwards(tmp_path: Path) -> None:
    if not allowed():  # what it says then is the other test
        with pytest.raises(CannotRun):
            World([Host(0.5, "100mbit")])
        return
    with World([Host(0.3, "100mbit"), Host(0.3, "100mbit")]) as made:
        name = made.name
        assert len(left(name)) >= 5
        script = "import socket; s = socket.create_server(('10.77.0.1', 4000)); print(s.accept()[1][0])"
        made.start(0, [sys.executable, "-c", script], {}, tmp_path / "0")
        call = (
            "import socket, time\n"
            "for _ in range(100):\n"
            "    try:\n"
            "        socket.create_connection(('10.77.0.1', 4000), 1); break\n"
            "    except OSError:\n"
            "        time.sleep(0.1)\n"
        )
        made.start(1, [sys.executable, "-c", call], {}, tmp_path / "1")
        assert made.wait(60.0) == [0, 0]
        assert (tmp_path / "0").read_text().strip() == "10.77.0.2"
    assert left(name) == []


def fail(made: World, log: Path) -> None:
    with made:
        made.start(0, ["sleep", "600"], {}, log)
        raise ZeroDivisionError


def test_it_cleans_up_after_a_failure(tmp_path: Path) -> None:
    rate = "not a rate" if allowed() else ""
    with pytest.raises(CannotRun), World([Host(0.3, "100mbit"), Host(0.3, rate)]):
        pass
    if allowed():
        made = World([Host(0.3, "100mbit")])
        with pytest.raises(ZeroDivisionError):
            fail(made, tmp_path / "log")
        assert left(made.name) == []
