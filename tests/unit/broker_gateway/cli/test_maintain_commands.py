"""`lakebroker maintain` and `lake check`: what they print, refuse and answer."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from broker_gateway.cli.main import app
from lakebroker_testing.gateway import ROOT, command
from tests.reput_lake import ReputLake


def run(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments)


@pytest.fixture
def lake(tmp_path: Path) -> ReputLake:
    made = ReputLake(tmp_path)
    made.fill()
    return made


def test_a_round_says_what_it_did_to_each_table(lake: ReputLake) -> None:
    first = run("maintain", "--lake", str(lake.lake))
    assert first.exit_code == 0, first.output
    assert any(line.startswith("messages: ") and "now 1;" in line for line in first.output.splitlines())
    done = run("maintain", "--lake", str(lake.lake), "--json")
    rows = {row["table"]: row for row in map(json.loads, done.output.splitlines())}
    assert rows["messages"] == {
        "table": "messages",
        "files_before": 1,
        "files_after": 1,
        "rewritten_files": 0,
        "rewritten_bytes": 0,
        "removed_files": 0,
        "removed_bytes": 0,
        "problems": [],
    }


def test_a_whole_lake_and_one_that_is_not(lake: ReputLake) -> None:
    check = ("lake", "check", "--lake", str(lake.lake), "--store", str(lake.store))
    whole = run(*check)
    assert (whole.exit_code, whole.output.splitlines()[-1]) == (0, "all of it checks out")
    file = sorted((lake.lake / "messages").glob("*.parquet"))[0]
    file.unlink()
    harmed = run(*check, "--json")
    assert harmed.exit_code == 1
    found = json.loads(harmed.output)
    by_name = {each["what"]: each["problems"] for each in found["checked"]}
    assert found["problems"] == sum(map(len, by_name.values())) == 2
    assert file.name in by_name["messages"][0]
    assert "messages: " in by_name[str(lake.store)][0]
    left = run("maintain", "--lake", str(lake.lake))
    assert left.exit_code == 1
    assert f"{file.name} cannot be read" in left.output


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--target-file-size", "64MB", "--target-file-size 64MB: write it as"),
        ("--target-file-size", "0KiB", "--target-file-size 0KiB: write it as"),
        ("--retain", "1w", "--retain 1w: write it as"),
        ("--retain", "59m", "--retain 59m: give 1h to 7d"),
        ("--retain", "8d", "--retain 8d: give 1h to 7d"),
        ("--every", "0s", "--every 0s: give at least 1s"),
    ],
)
def test_values_that_cannot_be_are_refused(tmp_path: Path, option: str, value: str, said: str) -> None:
    done = run("maintain", "--lake", str(tmp_path), option, value)
    assert done.exit_code == 2
    assert said in done.output


@pytest.mark.parametrize("arguments", [("maintain",), ("lake", "check")])
def test_what_is_no_lake_is_refused(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = run(*arguments, "--lake", str(tmp_path / "nowhere"))
    assert done.exit_code == 1
    assert "is no lake: it does not exist" in done.output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_rounds_with_status_0(lake: ReputLake, number: signal.Signals) -> None:
    process = subprocess.Popen(
        command("maintain", "--lake", str(lake.lake), "--every", "1s", "--json"),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        for _ in range(20):  # in the third round
            assert json.loads(process.stdout.readline())["problems"] == []
        process.send_signal(number)
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, errors) == (0, f"lakebroker: stopped by {number.name}\n")
