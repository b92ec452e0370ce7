"""The costs of tests: what a process used is found wherever it used it, and is added up by file and folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.suite import costs
from tests.suite.costs import Collect, Cost, by_file, by_folder, cpu_seconds, read

BURN = "import time\nwhile time.process_time() < 0.3: pass\n"
BELOW = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BURN!r}])"


@pytest.mark.parametrize("script", [BURN, BELOW], ids=["child", "grandchild"])
def test_ended_processes_below_are_counted(script: str) -> None:
    before = cpu_seconds(os.getpid())
    subprocess.run([sys.executable, "-c", script], check=True)
    assert cpu_seconds(os.getpid()) - before > 0.2


def test_live_processes_below_are_counted() -> None:
    before = cpu_seconds(os.getpid())
    script = f"{BURN}print('done', flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as live:
        assert live.stdout is not None
        assert live.stdout.readline() == b"done\n"
        assert cpu_seconds(os.getpid()) - before > 0.2
        live.communicate(b"\n")


def phase(name: str, when: str, seconds: float, cpu: float) -> pytest.TestReport:
    return pytest.TestReport(
        name,
        (name, 0, name),
        {},
        "passed",
        None,
        when,
        duration=seconds,
        cpu_seconds=cpu,  # type: ignore[arg-type]
    )


def test_phases_files_and_folders_are_added_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "build" / "costs.json"
    collect = Collect(file)
    for each in (
        phase("tests/unit/store/test_a.py::one", "setup", 1.0, 0.5),
        phase("tests/unit/store/test_a.py::one", "call", 2.0, 0.25),
        phase("tests/unit/store/log/test_b.py::two", "call", 3.0, 4.0),
    ):
        collect.pytest_runtest_logreport(each)
    collect.pytest_sessionfinish()
    assert json.loads(file.read_text())["tests/unit/store/test_a.py::one"] == {"cpu": 0.75, "seconds": 3.0}
    found = read(file)
    assert by_file(found)["tests/unit/store/log/test_b.py"] == Cost(1, 3.0, 4.0, 0.0), (
        "used on two cores: nothing waited"
    )
    assert by_folder(found) == {"tests/unit/store": Cost(2, 6.0, 4.75, 2.25)}
    assert costs.main([str(file), "--most", "1"]) == 0
    printed = capsys.readouterr().out
    assert "test_b.py::two" in printed
    assert "test_a.py::one" not in printed
    assert "2 tests: 0.1 CPU minutes" in printed


def test_a_file_without_costs_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        costs.main([str(tmp_path / "absent.json")])
    assert f"{tmp_path}/absent.json has no costs, which" in capsys.readouterr().err
