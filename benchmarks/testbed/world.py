"""A mixed cluster on one Linux machine: a network namespace per machine, link rates by tc, cores by cgroup."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PREFIX = "hk"
"""Names of namespaces, links and groups start so, with this process's number."""
PERIOD_US = 5_000
"""Microseconds in which a machine may use its share of a core: short, so that a step sees a slow device and not
one that stops now and then."""
LEAST_QUOTA_US = 1_000
"""Linux refuses a smaller quota; a small share gets a longer period."""
BURST = "256kb"
QUEUE = "100ms"
GROUPS = Path("/sys/fs/cgroup")


class CannotRun(Exception):
    """This machine cannot carry a testbed; the text says why and what would help."""


@dataclass(frozen=True)
class Host:
    """A machine of the testbed: its share of a core, and the rate of its link as tc writes it (`200mbit`)."""

    cores: float
    rate: str


def check() -> None:
    """Raise CannotRun unless namespaces, link rates and processor shares can be set here."""
    if os.geteuid() != 0:
        raise CannotRun(
            "the testbed makes network namespaces and needs root: run it with sudo, or in a container as root"
        )
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            raise CannotRun(f"the testbed needs `{tool}` (Debian: apt-get install iproute2)")
    if _group_root() is None:
        raise CannotRun(
            f"the testbed sets processor shares, and found no cgroup with the cpu controller in {GROUPS}"
        )


def _group_root() -> tuple[Path, int] | None:
    """Where groups with a processor quota are made, and the version of cgroups."""
    if (GROUPS / "cpu" / "cpu.cfs_quota_us").exists() or (GROUPS / "cpu" / "cgroup.procs").exists():
        return GROUPS / "cpu", 1
    for root in (GROUPS, GROUPS / "unified"):
        controllers = root / "cgroup.controllers"
        if controllers.exists() and "cpu" in controllers.read_text().split():
            return root, 2
    return None


class World:
    """The testbed, from `with` to the end of it; everything made is removed, also after a failure."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        check()
        self.hosts = tuple(hosts)
        self.name = f"{PREFIX}{os.getpid()}"
        self.undo: list[list[str]] = []
        self.groups: list[Path] = []
        self.processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> World:
        try:
            self._switch()
            for index, host in enumerate(self.hosts):
                self._host(index, host)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def address(self, index: int) -> str:
        """The address of a machine."""
        return f"10.77.0.{index + 1}"

    def start(
        self, index: int, command: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> subprocess.Popen[str]:
        """Start a command on a machine; its output goes to a file."""
        group = self.groups[index] / "cgroup.procs"
        script = f'echo $$ > {group} && exec ip netns exec {self.name}m{index} "$@"'
        with log.open("w") as output:
            process = subprocess.Popen(
                ["sh", "-c", script, "sh", *command],
                env={**os.environ, **environment},
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def wait(self, seconds: float) -> list[int | None]:
        """Exit codes of what was started, None for what still ran; everything is ended."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and any(p.poll() is None for p in self.processes):
            if any(p.poll() for p in self.processes):
                end = min(end, time.monotonic() + 15.0)  # the others may have something to say about it
            time.sleep(0.1)
        codes = [p.poll() for p in self.processes]
        self._end()
        return codes

    def close(self) -> None:
        """End what runs and remove what was made, latest first."""
        self._end()
        for command in reversed(self.undo):
            subprocess.run(command, capture_output=True)
        self.undo.clear()
        for group in self.groups:
            for _ in range(50):
                try:
                    group.rmdir()
                    break
                except OSError:
                    time.sleep(0.1)
        self.groups.clear()

    def _end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self.processes.clear()

    def _run(self, text: str, undo: str = "") -> None:
        done = subprocess.run(text.split(), capture_output=True, text=True)
        if done.returncode:
            raise CannotRun(f"`{text}` failed: {done.stderr.strip()}")
        if undo:
            self.undo.append(undo.split())

    def _switch(self) -> None:
        """A bridge in a namespace of its own, so that nothing of the host's network is touched."""
        space = f"{self.name}s"
        self._run(f"ip netns add {space}", f"ip netns del {space}")
        self._run(f"ip -n {space} link add br0 type bridge")
        self._run(f"ip -n {space} link set br0 up")

    def _host(self, index: int, host: Host) -> None:
        space, switch = f"{self.name}m{index}", f"{self.name}s"
        self._run(f"ip netns add {space}", f"ip netns del {space}")
        self._run(f"ip -n {space} link add eth0 type veth peer name p{index} netns {switch}")
        self._run(f"ip -n {space} addr add {self.address(index)}/24 dev eth0")
        self._run(f"ip -n {space} link set lo up")
        self._run(f"ip -n {space} link set eth0 up")
        self._run(f"ip -n {switch} link set p{index} master br0")
        self._run(f"ip -n {switch} link set p{index} up")
        for where, device in ((space, "eth0"), (switch, f"p{index}")):
            shape = f"rate {host.rate} burst {BURST} latency {QUEUE}"
            self._run(f"ip netns exec {where} tc qdisc add dev {device} root tbf {shape}")
        self._group(index, host.cores)

    def _group(self, index: int, cores: float) -> None:
        root = _group_root()
        assert root is not None
        folder, version = root
        group = folder / f"{self.name}m{index}"
        group.mkdir()
        self.groups.append(group)
        period = max(PERIOD_US, math.ceil(LEAST_QUOTA_US / cores))
        quota = int(cores * period)
        if version == 1:
            (group / "cpu.cfs_period_us").write_text(str(period))
            (group / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            (folder / "cgroup.subtree_control").write_text("+cpu")
            (group / "cpu.max").write_text(f"{quota} {period}")
