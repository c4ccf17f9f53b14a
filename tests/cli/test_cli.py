"""The command line: outputs of every command on a tiny model, exit codes, what bad input is told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from hocket.cli.main import run
from hocket.cli.planning import with_better
from hocket.plan.file import load_plan


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    assert run(["plan", "tiny:gpt2", "--cluster", "local:2", "-o", str(path), "--budget", "20s"]) == 0
    return path


def output(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    found = run(list(arguments))
    told = capsys.readouterr()
    assert found == code, told.err
    return told.out


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert output(capsys, "--version").startswith("hocket 0.")
    text = output(capsys, "--help")
    assert all(word in text for word in ("plan", "explain", "simulate", "verify", "run", "probe"))


def test_plan_shows_and_compares(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    text = output(
        capsys, "plan", "tiny:gpt2", "-c", "local:2", "--like", "dp=2", "--like", "tp=2,dp=1", "-m", "3",
        "--pin", "wte.weight=replicate", "-o", str(path),
    )  # fmt: skip
    assert "written to" in text
    for word in ("GPT2LMHeadModel on 2 x CPU", "proven", "h.*.mlp.c_fc.weight", "Communication", "3 microbatches"):
        assert word in text
    assert "dp=2 is" in text
    assert "tp=2,dp=1 is" in text
    assert "faster than the best" not in text
    assert max(map(len, text.splitlines())) <= 100 + len(str(path)) * 2
    plan = load_plan(path)
    assert plan.schedule.microbatches == 3
    assert plan.stage.stored["p_transformer_wte_weight"].is_replicated


def test_a_better_plan_picked_by_hand_is_taken(plan_file: Path) -> None:
    found = load_plan(plan_file)
    slow = replace(found, seconds=found.seconds * 2)
    assert with_better(found, [("dp=2", slow), ("tp=2", "needs 1 GB more")]) is found
    taken = with_better(slow, [("dp=2", found)])
    assert (taken.stage, taken.seconds) == (found.stage, found.seconds)
    assert taken.lower_bound <= taken.seconds
    assert "dp=2" in taken.search.searcher
    assert taken.search.alternatives[0].seconds == slow.seconds


def test_explain_tells_alternatives_time_and_space(capsys: pytest.CaptureFixture[str], plan_file: Path) -> None:
    text = output(capsys, "explain", str(plan_file))
    for word in ("Where the time goes", "What else was judged", "data parallel", "The space searched", "mm "):
        assert word in text
    assert "every operation of the model has a rule" in text


def test_explain_prices_the_layouts_of_a_parameter(capsys: pytest.CaptureFixture[str], plan_file: Path) -> None:
    text = output(capsys, "explain", str(plan_file), "--parameter", "c_fc.weight")
    assert "as planned" in text
    assert "S(0)" in text
    assert "S(1)" in text


def test_simulate_writes_a_trace(capsys: pytest.CaptureFixture[str], plan_file: Path, tmp_path: Path) -> None:
    text = output(capsys, "simulate", str(plan_file), "--all", "--trace", str(tmp_path / "t.json"))
    assert "communication" in text
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {e["pid"] for e in events} == {0, 1}
    longest = max(e["ts"] + e["dur"] for e in events if e["ph"] == "X")
    assert longest * 1e-6 == pytest.approx(load_plan(plan_file).seconds)


def test_verify_passes_fails_and_refuses_another_model(capsys: pytest.CaptureFixture[str], plan_file: Path) -> None:
    assert "are equal" in output(capsys, "verify", str(plan_file), "tiny:gpt2")
    assert "are different" in output(capsys, "verify", str(plan_file), "tiny:gpt2", "--tolerance", "1e-12", code=1)
    assert run(["verify", str(plan_file), "tiny:llama"]) == 2
    assert "fingerprint" in capsys.readouterr().err


def test_models_by_name_are_verified_with_random_weights(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    sizes = ["hf:gpt2", "--layers", "1", "--batch", "2", "--sequence", "16"]
    sizes += [word for item in ("n_embd=32", "n_head=2", "vocab=64") for word in ("--set", item)]
    path = str(tmp_path / "p.json")
    output(capsys, "plan", *sizes, "-c", "local:2", "-o", path)
    assert "are equal" in output(capsys, "verify", path, *sizes)
    assert run(["verify", path, *sizes, "--set", "n_inner=40"]) == 2
    assert "fingerprint" in capsys.readouterr().err


TINY = ["plan", "tiny:gpt2", "-c", "local:2"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "tiny:gpt2", "-c", "H1000x8"], "did you mean H100"),
        (["plan", "tiny:gpt2", "-c", "none.yaml"], "none.yaml"),
        (["plan", "tiny:gpt2", "-c", "local:none"], "local:N"),
        (["plan", "tiny:gpt2", "-c", "H100x0"], "1 to 100000 devices"),
        (["plan", "tiny:gpt2", "-c", "H100x8", "--calibration", "c.json"], "goes with a local cluster"),
        (["plan", "tiny:gpt2", "-c", "H100x2x8", "--network", "fast"], "network"),
        (["plan", "tiny:gpt2"], "--cluster"),
        (["plan", "tiny:nope", "-c", "local:2"], "tiny model"),
        (["plan", "hf:nope", "-c", "local:2"], "names known"),
        (["plan", "nope.py:make", "-c", "local:2"], "nope.py"),
        (["plan", "tiny:gpt2", "-c", "local:2", "--set", "hidden"], "key=value"),
        (["plan", "tiny:gpt2", "-c", "local:2", "--layers", "3"], "use these with hf: models"),
        (["plan", "hf:gpt2", "-c", "local:2", "--set", "frob=3"], "frob"),
        ([*TINY, "--budget", "soon"], "write it as 10s"),
        ([*TINY, "--gap", "much"], "2%"),
        ([*TINY, "--gap", "-1"], "at least 0"),
        ([*TINY, "--pin", "mesh=3x2"], "as many positions"),
        ([*TINY, "--pin", "wpe.weight=S(7)"], "S(7)"),
        ([*TINY, "--pin", "nowhere=R"], "names a parameter"),
        ([*TINY, "--like", "tp=3"], "multiplies to"),
        ([*TINY, "--search", "magic"], "is one of auto"),
        ([*TINY, "--optimizer", "lion"], "is one of sgd"),
        (["explain", "none.json"], "readable plan file"),
        (["simulate", "none.json"], "readable plan file"),
        (["frobnicate"], "No such command"),
    ],
)  # fmt: skip
def test_bad_input_is_told_in_one_message(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert run(arguments) == 2
    told = capsys.readouterr().err
    assert message in told
    assert "Traceback" not in told


def test_plan_files_that_are_not_whole(capsys: pytest.CaptureFixture[str], plan_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    path.write_bytes(plan_file.read_bytes()[:-100])
    assert run(["explain", str(path)]) == 2
    assert "cut short" in capsys.readouterr().err
    values = json.loads(plan_file.read_text())
    path.write_text(json.dumps({**values, "secnds": 1}))
    assert run(["simulate", str(path)]) == 2
    assert "did you mean seconds" in capsys.readouterr().err
    assert run(["explain", str(plan_file), "-p", "nowhere"]) == 2
    assert "names a parameter" in capsys.readouterr().err
    assert run(["run", str(plan_file), str(tmp_path / "none.py")]) == 2
    assert "none.py" in capsys.readouterr().err


def test_too_little_memory_is_told_by_how_much(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(
        "format: hocket-cluster/1\nmachines:\n- {name: m, count: 2, device: {like: L4, memory: 60 kB}}\n"
    )
    assert run(["plan", "tiny:gpt2", "-c", str(path)]) == 2
    told = capsys.readouterr().err
    assert "fits in 54 kB per device" in told
    assert "B more" in told


def test_ctrl_c_ends_with_130_and_no_traceback(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "hocket.cli.main",
        "plan",
        "hf:gpt2-xl",
        "-c",
        "H100x8",
        "-o",
        str(tmp_path / "p"),
    ]
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        time.sleep(6.0)
        assert process.poll() is None, "the search ended before it could be stopped"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "stopped" in errors
    assert "Traceback" not in errors
    assert not (tmp_path / "p").exists()


MIXED = """format: hocket-cluster/1
machines:
  - {name: fast, device: V100-16GB, count: 2}
  - {name: slow, device: P100-16GB, count: 2}
network: 10.4 Gbit/s
"""


def test_shares_of_unequal_devices(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    cluster, path = tmp_path / "mixed.yaml", tmp_path / "p.json"
    cluster.write_text(MIXED)
    given = ("plan", "tiny:gpt2", "-c", str(cluster), "--shares", "30%,30%,20%,20%", "-o", str(path))
    assert "2 x 0.3 on V100-16GB, 2 x 0.2 on P100-16GB" in output(capsys, *given)
    assert load_plan(path).stage.shares == (((0.3, 0.3, 0.2, 0.2),),)
    assert "equal" in output(capsys, "verify", str(path), "tiny:gpt2")
    for shares, told in (
        ("0.5,0.6,0,0", "add up to 1.1"),
        ("0.5,x", "0.5,0.3,0.2"),
        ("0.5,0.3,0.2", "for 4 devices"),
    ):
        assert run(["plan", "tiny:gpt2", "-c", str(cluster), "--shares", shares]) == 2
        assert told in capsys.readouterr().err


def test_the_solver_greets_nobody(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hocket.cli.main", "plan", "tiny:gpt2", "-c", "local:2", "--budget", "1s"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert "HiGHS" not in done.stdout


def test_schedule_as_text_numbers_and_pages(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    few = ("schedule", "--kind", "vpp", "--stages", "4", "--chunks", "2", "--microbatches", "5")
    page, picture = tmp_path / "s.html", tmp_path / "s.svg"
    text = output(capsys, *few, "--out", str(page))
    assert "4 ranks, 8 stages, 5 microbatches; 26 (the bound), idle 6 (23%)" in text
    assert text.count("rank ") == 4
    html = page.read_text()
    assert html.count("<rect class") == 80 + sum(
        1 for line in html.splitlines() if "idle " in line and "<rect" in line
    )
    assert "http" not in html.replace("http://www.w3.org/2000/svg", "")
    values = json.loads(output(capsys, *few, "--format", "json", "--out", str(picture)))
    assert values["makespan"] == values["lower_bound"] == 26
    assert [r["bubble"] for r in values["ranks"]] == [6.0] * 4
    assert all(len(r["actions"]) == 20 and r["peak_activations"] <= 10 for r in values["ranks"])
    assert picture.read_text().startswith("<svg")
    order = output(capsys, *few, "--format", "order")
    path = tmp_path / "order.txt"
    path.write_text(order)
    assert output(capsys, "schedule", "--read", str(path), "--format", "order") == order
    assert output(capsys, *few, "--format", "torch").splitlines()[0].startswith("0F0,0F1,")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--kind", "other"), "is one of"),
        (("--kind", "1f1b", "--chunks", "2"), "has 1 chunks per rank"),
        (("--microbatches", "0"), "at least one"),
        (("--out", "picture.png"), "ends in .html or .svg"),
        (("--read", "nowhere.txt"), "is a readable file"),
        (("--kind", "zb", "--chunks", "3", "--limit", "2"), "may hold some activations"),
    ],
)
def test_schedules_that_cannot_be(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], told: str
) -> None:
    assert run(["schedule", *arguments]) == 2
    assert told in capsys.readouterr().err


def test_a_pipeline_is_planned_explained_simulated_and_verified(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path, trace = tmp_path / "plan.json", tmp_path / "trace.json"
    told = output(
        capsys, "plan", "tiny:bart", "-c", "local:2", "-m", "3", "--pipeline", "stages=2,chunks=2,kind=vpp",
        "-o", str(path),
    )  # fmt: skip
    assert "4 stages on 2 parts of the cluster, 3 microbatches" in told
    assert "begins at" in told
    assert max(len(line) for line in told.splitlines() if str(tmp_path) not in line) <= 100
    assert "pipeline" in output(capsys, "explain", str(path))
    assert str(trace) in output(capsys, "simulate", str(path), "-t", str(trace))
    assert len([e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]) == 2 * 4 * 3
    assert "are equal" in output(capsys, "verify", str(path), "tiny:bart")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--pipeline", "stages=3"), "at least one per stage"),
        (("--pipeline", "stages=2,layers=3+1"), "add up"),
        (("--pipeline", "width=2"), "stages=N"),
        (("--pipeline", "stages=2", "--pin", "mesh=2"), "without pins"),
        (("--samples", "8"), "--pipeline auto"),
        (("--samples", "8", "--pipeline", "stages=2"), "--pipeline auto"),
    ],
)
def test_pipelines_that_cannot_be(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], told: str
) -> None:
    assert run(["plan", "tiny:gpt2", "-c", "local:6", *arguments]) == 2
    assert told in capsys.readouterr().err
