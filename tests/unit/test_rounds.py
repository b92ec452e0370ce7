"""The bookkeeping of rounds: which commit, what is counted, what counts as failed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.suite import patience, rounds
from tests.suite.failures import Failures
from tests.suite.outcomes import Outcomes


def report(name: str, when: str, outcome: str, seconds: float = 0.0, **figures: object) -> pytest.TestReport:
    return pytest.TestReport(
        name,
        (name, 0, name),
        {},
        outcome,  # type: ignore[arg-type]
        None,
        when,  # type: ignore[arg-type]
        duration=seconds,
        user_properties=list(figures.items()),
    )


def recorded(file: Path, *reports: pytest.TestReport) -> dict[str, dict[str, object]]:
    outcomes = Outcomes(file, file.parent, "c0ffee")
    for each in reports:
        outcomes.pytest_runtest_logreport(each)
    outcomes.pytest_sessionfinish()
    found: dict[str, dict[str, object]] = json.loads(file.read_text())
    return found


def test_each_test_has_one_outcome_and_its_figures(tmp_path: Path) -> None:
    found = recorded(
        tmp_path / "outcomes.json",
        report("a.py::passes", "setup", "passed"),
        report("a.py::passes", "call", "passed", 2.4, rounds=7),
        report("a.py::passes", "teardown", "passed"),
        report("a.py::skipped", "setup", "skipped"),
        report("a.py::no_fixture", "setup", "failed"),
        report("a.py::left_open", "call", "passed"),
        report("a.py::left_open", "teardown", "failed"),
    )
    assert found["a.py::passes"] == {
        "outcome": "passed",
        "seconds": 2,
        "commit": "c0ffee",
        "rounds": 7,
    }
    assert {name: each["outcome"] for name, each in found.items()} == {
        "a.py::passes": "passed",
        "a.py::skipped": "skipped",
        "a.py::no_fixture": "failed",
        "a.py::left_open": "failed",
    }
    assert rounds.counted(found) == {
        "passed": 1,
        "failed": 2,
        "skipped": 1,
        "failures": ["a.py::left_open", "a.py::no_fixture"],
    }


def test_outcomes_are_merged_and_those_of_files_that_are_gone_leave(tmp_path: Path) -> None:
    file = tmp_path / "outcomes.json"
    for name in ("a.py", "b.py"):
        (tmp_path / name).touch()
    recorded(file, report("a.py::x", "call", "passed"), report("b.py::x", "call", "passed"))
    (tmp_path / "b.py").unlink()
    found = recorded(file, report("a.py::y", "call", "failed"))
    assert {name: each["outcome"] for name, each in found.items()} == {
        "a.py::x": "passed",
        "a.py::y": "failed",
    }


def test_failures_are_told_when_they_come(tmp_path: Path) -> None:
    file = tmp_path / "failures.txt"
    failures = Failures(file)
    failures.pytest_runtest_logreport(report("a.py::passes", "call", "passed"))
    assert not file.exists()
    for name in ("a.py::x", "a.py::y"):
        failures.pytest_runtest_logreport(report(name, "setup", "failed"))
        assert f"=== {name} (setup)\n" in file.read_text()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with one commit and a record of rounds that is not committed."""
    (tmp_path / "code.py").write_text("1\n")
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false")
    for command in (("init", "-q"), ("add", "."), (*identity, "commit", "-q", "-m", "first")):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True, capture_output=True)
    (tmp_path / "docs" / "evidence").mkdir(parents=True)
    (tmp_path / "docs" / "evidence" / "rounds.jsonl").touch()
    return tmp_path


def test_a_round_has_the_commit_of_a_clean_tree(tree: Path) -> None:
    commit = rounds.commit_of(tree, allow_dirty=False)
    assert len(commit) == 40
    assert rounds.commit_of(tree, allow_dirty=True) == commit


@pytest.mark.parametrize("name", ["code.py", "new.py"])
def test_a_changed_tree_is_refused_unless_told(tree: Path, name: str) -> None:
    commit = rounds.commit_of(tree, allow_dirty=False)
    (tree / name).write_text("2\n")
    with pytest.raises(rounds.RoundsError, match=f"such as {name}: .*--allow-dirty"):
        rounds.commit_of(tree, allow_dirty=False)
    assert rounds.commit_of(tree, allow_dirty=True) == f"{commit}-dirty"


def test_no_repository_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(rounds.RoundsError, match=f"{tmp_path} has no commit to record"):
        rounds.commit_of(tmp_path, allow_dirty=True)


@pytest.mark.parametrize(
    ("status", "failed", "expected"), [(0, 0, False), (1, 1, True), (5, 0, True), (3, 0, True), (-9, 0, True)]
)
def test_a_run_that_ended_early_has_failed(status: int, failed: int, expected: bool) -> None:
    assert rounds.is_failed({"status": status, "failed": failed}) is expected


def test_every_round_is_a_line_and_a_row(tmp_path: Path) -> None:
    record = tmp_path / "new" / "rounds.jsonl"
    found = {"seconds": 12, "passed": 3, "failed": 1, "skipped": 0, "status": 1, "failures": ["a.py::x"]}
    for _ in range(2):
        rounds.append(record, found)
    assert [json.loads(line) for line in record.read_text().splitlines()] == [found, found]
    table = [rounds.heading(), *rounds.row(1, found).splitlines()]
    assert [line.split() for line in table] == [
        ["round", "seconds", "passed", "failed", "skipped"],
        ["1", "12", "3", "1", "0"],
        ["a.py::x"],
    ]
    assert "status 3" in rounds.row(1, {**found, "status": 3})


def test_no_rounds_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        rounds.main(["--rounds", "0"])
    assert "'0' is no whole number of 1 or more" in capsys.readouterr().err


@pytest.mark.parametrize("factor", ["x", "0", "nan", "inf"])
def test_a_patience_that_is_no_factor_is_named(factor: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import tests.suite.patience"],
        env={**os.environ, patience.VARIABLE: factor},
        cwd=rounds.ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr == f"LAKEBROKER_PATIENCE={factor}: a number of 1 or more is wanted, such as 4\n"
