"""`python -m tests.suite.rounds` as a process: its rounds, its record, and nothing left behind however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.suite.rounds import ROOT, busy_processes
from tests.support.machines.processes import children, runs
from tests.support.waiting import LIMIT_S, wait_until

PASSES, FAILS, WAITS, LIMITED = (
    "def test_passes() -> None:\n    pass\n",
    "def test_fails() -> None:\n    raise AssertionError\n",
    "import time\n\ndef test_waits() -> None:\n    time.sleep(600)\n",
    "import pytest\n\n@pytest.mark.timeout(5)\ndef test_limited(request: pytest.FixtureRequest) -> None:\n"
    "    assert request.node.get_closest_marker('timeout').args == (10.0,)\n",
)


def rounds(folder: Path, tests: str, *options: str) -> subprocess.Popen[str]:
    file = folder / "test_given.py"
    file.write_text(tests)
    command = [
        sys.executable,
        "-m",
        "tests.suite.rounds",
        "--allow-dirty",
        "--record",
        str(folder / "rounds.jsonl"),
    ]
    return subprocess.Popen(
        [*command, *options, "--", str(file), "-p", "no:cacheprovider"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder), "PYTEST_ADDOPTS": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_in_the_background,
    )


def _in_the_background() -> None:
    """Starts a program as a shell does that does not wait for it: an interrupt is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def wait_until_gone(pids: list[int]) -> None:
    for pid in pids:
        wait_until(lambda pid=pid: not runs(pid), f"the end of process {pid}")


def test_rounds_that_pass(tmp_path: Path) -> None:
    process = rounds(
        tmp_path, PASSES + LIMITED, "--rounds", "2", "--at-once", "2", "--busy", "0", "--workers", "1"
    )
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err
    assert [line.split() for line in out.splitlines()][1:] == [
        ["1", *out.splitlines()[1].split()[1:2], "2", "0", "0"],
        ["2", *out.splitlines()[2].split()[1:2], "2", "0", "0"],
    ]
    lines = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert [(each["passed"], each["failures"], each["status"]) for each in lines] == [(2, [], 0)] * 2
    assert [(each["busy"], each["at_once"], each["workers"]) for each in lines] == [(0, 2, 1)] * 2
    assert all(each["seconds"] > 0 and each["runnable"] >= 0 for each in lines)
    assert {each["paths"][0] for each in lines} == {str(tmp_path / "test_given.py")}
    assert not list(tmp_path.glob("lakebroker-rounds-*"))


def test_a_round_that_fails_names_the_test_and_keeps_what_was_printed(tmp_path: Path) -> None:
    """Limits have grown with the busy processes."""
    given = ("--rounds", "1", "--busy", "1", "--workers", "0", "--json")
    process = rounds(tmp_path, PASSES + FAILS + LIMITED, *given)
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    (found,) = [json.loads(line) for line in out.splitlines()]
    assert (found["passed"], found["failed"], found["status"]) == (2, 1, 1)
    assert [each.rpartition("::")[2] for each in found["failures"]] == ["test_fails"]
    assert (found["busy"], found["workers"]) == (1, 0)
    (kept,) = tmp_path.glob("lakebroker-rounds-*")
    assert str(kept) in err
    for name in ("round-1.txt", "round-1.failures.txt"):
        assert "AssertionError" in (kept / name).read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_no_busy_process_is_left(tmp_path: Path, number: signal.Signals) -> None:
    process = rounds(tmp_path, WAITS, "--rounds", "1", "--busy", "1")
    wait_until(lambda: process.poll() is not None or len(children(process.pid)) == 2, "pytest beside it")
    assert process.poll() is None
    busy, tests = children(process.pid)
    process.send_signal(number)
    process.communicate(timeout=LIMIT_S)
    assert process.returncode != 0
    wait_until_gone([busy])
    if number == signal.SIGKILL:
        os.kill(tests, signal.SIGKILL)
    wait_until_gone([tests])


def test_each_busy_process_is_of_this_session() -> None:
    with busy_processes(2) as pids:
        assert len(set(pids)) == 2
        assert {os.getsid(pid) for pid in pids} == {os.getsid(0)}
    wait_until_gone(pids)
