"""`lakebroker maintain` and `lake check`: what they print, refuse and answer."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner, Result

from broker_gateway.cli import maintain_commands
from broker_gateway.cli.main import app
from lakebroker_testing.prestarted import start
from structured_streaming.commit.table_log import TableLog
from structured_streaming.staging.table_file import write_file
from structured_streaming.storage.local import LocalFolder
from structured_streaming.tables import MESSAGES, TABLES
from tests.support.lakes.maintained import ReputLake, assert_same
from tests.support.waiting import LIMIT_S


def run(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> ReputLake:
    made = ReputLake(tmp_path_factory.mktemp("filled"), batch_bytes=60_000)
    made.fill()
    return made


@pytest.fixture
def lake(filled: ReputLake, tmp_path: Path) -> ReputLake:
    return filled.copied(tmp_path)


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
        "filled_rows": 0,
        "erased_rows": 0,
        "expired_rows": 0,
        "expired": {},
        "waits": [],
        "problems": [],
    }


def test_the_mirror_is_made_said_kept_up_and_removed(lake: ReputLake) -> None:
    maintain = ("maintain", "--lake", str(lake.lake))
    first = run(*maintain, "--iceberg")
    assert first.exit_code == 0, first.output
    assert re.search(
        r"Iceberg snapshot \d+ shows version \d+: 1 file added, 0 removed; made as a whole, since it is the first",
        first.output,
    )
    row = {"broker": "b", "log_id": "l", "physical_offset": 1, "topic": "t"}
    folder = LocalFolder(lake.lake)
    file = write_file(folder, MESSAGES, pa.Table.from_pylist([row], MESSAGES.schema))
    TableLog(folder.child("messages")).append([file._asdict()], {})
    again = run(*maintain, "--json")
    rows = {row["table"]: row["iceberg"] for row in map(json.loads, again.output.splitlines())}
    assert rows.keys() == TABLES.keys()
    assert (rows["messages"]["metadata"], rows["messages"]["anew"]) == (2, "")
    assert rows["messages"]["added_files"] == 1
    assert rows["messages"]["delta_version"] == DeltaTable(str(lake.lake / "messages")).version()
    gone = run(*maintain, "--no-iceberg")
    assert gone.exit_code == 0, gone.output
    assert "Iceberg" not in gone.output
    assert not (lake.lake / "_iceberg").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ("--iceberg",),
            "the Iceberg mirror of {} needs pyiceberg, which is not installed: pip install 'lakebroker[iceberg]'",
        ),
        ((), "or remove the mirror with --no-iceberg: nobody would keep it up"),
    ],
)
def test_without_the_extra_a_mirror_is_neither_made_nor_left_behind(
    lake: ReputLake, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], said: str
) -> None:
    run("maintain", "--lake", str(lake.lake), "--iceberg")
    for name in [
        *filter(lambda name: name.startswith(("pyiceberg", "structured_streaming.iceberg.")), sys.modules)
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    there = sorted(lake.lake.rglob("*"))
    refused = run("maintain", "--lake", str(lake.lake), *options)
    assert refused.exit_code == 1
    assert said.format(lake.lake) in " ".join(refused.output.split())
    assert sorted(lake.lake.rglob("*")) == there
    assert run("maintain", "--lake", str(lake.lake), "--no-iceberg").exit_code == 0


@pytest.mark.parametrize("option", ["--iceberg", "--no-iceberg"])
def test_tables_in_a_catalog_have_no_mirror(option: str) -> None:
    refused = run("maintain", "--lake", "spark_catalog.lake", option)
    assert refused.exit_code == 2
    assert f"{option}: spark_catalog.lake is a schema of a catalog" in refused.output


def test_a_whole_lake_and_one_that_is_not(lake: ReputLake) -> None:
    check = ("lake", "check", "--lake", str(lake.lake), "--store", str(lake.store))
    whole = run(*check)
    assert (whole.exit_code, whole.output.splitlines()[-1]) == (0, "all of it checks out")
    said = whole.stdout.splitlines()
    assert "upkeep: 0 files, 0 rows" in said
    assert f"{lake.store}: the log was compared with the tables" in said
    file = sorted((lake.lake / "messages").glob("*.parquet"))[0]
    file.unlink()
    harmed_lines = run(*check).stdout.splitlines()
    assert any(re.fullmatch(r"messages: \d+ files?, \d+ rows?; 1 problem", line) for line in harmed_lines)
    harmed = run(*check, "--json")
    assert harmed.exit_code == 1
    found = json.loads(harmed.stdout)
    assert "`lakebroker reput --once` into another location" in harmed.stderr
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
        ("--retain", "59m", "--retain 59m: give 1h to 1d"),
        ("--every", "0s", "--every 0s: give at least 1s"),
    ],
)
def test_values_that_cannot_be_are_refused(tmp_path: Path, option: str, value: str, said: str) -> None:
    done = run("maintain", "--lake", str(tmp_path), option, value)
    assert done.exit_code == 2
    assert said in done.output


def test_files_stay_as_long_as_tables_tell_at_most(lake: ReputLake) -> None:
    for longest in ("1d", "24h"):
        assert "--retain" not in run("maintain", "--lake", str(lake.lake), "--retain", longest).output
    done = run("maintain", "--lake", str(lake.lake), "--retain", "7d")
    assert done.exit_code == 0
    assert "--retain 7d: they stay for 1d" in done.output


@pytest.mark.parametrize("arguments", [("maintain",), ("lake", "check")])
def test_what_is_no_lake_is_refused(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = run(*arguments, "--lake", str(tmp_path / "nowhere"))
    assert done.exit_code == 1
    assert "is no lake: it does not exist" in done.output


def test_ctrl_c_ends_rounds_with_status_0(lake: ReputLake, tmp_path: Path) -> None:
    """As SIGTERM does: `tests/fault/test_maintain_crash.py`."""
    reading, writing = os.pipe()
    with (
        os.fdopen(reading) as rounds,
        os.fdopen(writing, "wb") as output,
        (tmp_path / "errors").open("wb") as errors,
    ):
        process = start(
            *("maintain", "--lake", str(lake.lake), "--every", "1s", "--json"), stdout=output, stderr=errors
        )
        output.close()
        try:
            for _ in range(16):  # in the second round
                assert json.loads(rounds.readline())["problems"] == []
            process.send_signal(signal.SIGINT)
            status = process.wait(LIMIT_S)
        finally:
            process.kill()
            process.wait()
    said = (tmp_path / "errors").read_text()
    assert (status, said) == (0, "lakebroker: stopped by SIGINT\n")


def test_rules_of_retention_are_kept_in_the_lake(lake: ReputLake) -> None:
    command = ("lake", "retention", "--lake", str(lake.lake))
    assert run(*command).output == "all messages stay for ever\n"
    assert run(*command, "topic-1=30d,topic-*=10y,*=forever").exit_code == 0
    shown = json.loads(run(*command, "--json").output)
    assert [(each["topics"], each["keep"]) for each in shown] == [
        ("topic-1", "30d"), ("topic-*", "10y"), ("*", "forever"),
    ]  # fmt: skip
    assert shown[2]["removes_before"] is None
    again = run(*command, "topic-1=30d,topic-*=10y,*=forever")
    assert "in force already" in again.output
    assert run(*command, "--forever", "--json").output == "[]\n"


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ("topic-1", "'topic-1' is no rule; write PATTERN=TIME"),
        ("topic-1=1h", "topic-1=1h: write the time as 1d, 2w, 10y or forever"),
        ("topic-1=0d", "topic-1=0d: write the time"),
        ("topic 1=1d", "'topic 1' is no name of topics"),
        ("*=1y,orders=1d", "orders=1d never counts: * stands before it"),
        ("a=1d,a=2d", "a is there twice"),
        ("", "--forever for no rules"),
    ],
)
def test_rules_that_are_none_are_refused(lake: ReputLake, rules: str, said: str) -> None:
    done = run("lake", "retention", rules, "--lake", str(lake.lake))
    assert done.exit_code == 2
    assert said in done.output
    assert run("lake", "retention", "--lake", str(lake.lake), "--json").output == "[]\n"


def test_a_dry_run_names_topics_and_changes_nothing(lake: ReputLake, monkeypatch: pytest.MonkeyPatch) -> None:
    dry = ("maintain", "--lake", str(lake.lake), "--dry-run")
    assert run(*dry).output == "no message's time has run out\n"
    assert run("lake", "retention", "topic-1=1d", "--lake", str(lake.lake)).exit_code == 0
    before = lake.rows()
    later = datetime.now(UTC) + timedelta(days=3)

    class Later(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return later.astimezone(tz)

    monkeypatch.setattr(maintain_commands, "datetime", Later)
    found = {row["table"]: row for row in json.loads(run(*dry, "--json").output)}
    assert found["messages"]["topic"] == "topic-1"
    ours = [row for row in before["messages"].to_pylist() if row["topic"] == "topic-1"]
    assert (found["messages"]["rows"], found["messages"]["bytes"]) == (
        len(ours),
        sum(row["size"] for row in ours),
    )
    assert "would go as a whole" in run(*dry).output
    assert "leave one of them out" in run(*dry, "--every", "5m").output
    assert_same(before, lake.rows())


def test_a_copy_that_was_checked_says_so(lake: ReputLake, tmp_path: Path) -> None:
    copy = ("lake", "copy", "--lake", str(lake.lake), "--to", str(tmp_path / "copy"))
    said = "the copy was checked: all of it checks out"
    assert said not in run(*copy).stdout
    assert run(*copy, "--check").stdout.splitlines()[-1] == said
    next((tmp_path / "copy" / "messages").glob("*.parquet")).write_bytes(b"damaged")
    harmed = run(*copy, "--check")
    assert (harmed.exit_code, said in harmed.stdout) == (1, False)


def test_brokers_are_retired_and_listed(lake: ReputLake) -> None:
    where = ("--lake", str(lake.lake))
    unknown = run("lake", "retire", "broker-x", *where)
    assert unknown.exit_code == 1
    assert "has nothing of a broker 'broker-x'; it has broker-a" in unknown.output
    assert run("lake", "retire", "broker-a", *where).stdout.startswith("broker broker-a is retired: ")
    (listed,) = json.loads(run("lake", "brokers", *where, "--json").output)
    assert (listed["broker"], listed["logs"]) == ("broker-a", 1)
    assert listed["retired"] is not None
    assert "retired already" in run("lake", "retire", "broker-a", *where).output
    assert (
        run("lake", "unretire", "broker-a", *where).stdout == "broker broker-a is in views and unions again\n"
    )
    assert "is not retired" in run("lake", "unretire", "broker-a", *where).output
    unknown = run("lake", "unretire", "brocker-a", *where)
    assert (unknown.exit_code, "has nothing of a broker 'brocker-a'; it has broker-a" in unknown.output) == (
        1,
        True,
    )
    assert json.loads(run("lake", "brokers", *where, "--json").output)[0]["retired"] is None
