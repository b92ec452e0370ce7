"""What a lake holds and how old it is, as readers ask; where logs end, and whether lake and log meet."""

from __future__ import annotations

import datetime
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from broker_gateway.cli.main import app
from lakebroker_testing.logs import LogWriter
from store.log_source import LogState
from structured_streaming import sql
from structured_streaming.errors import LakeError, SameBrokerError, SourceError, UnreachableError
from structured_streaming.lake import create_tables
from structured_streaming.source.access import Access
from structured_streaming.source.log_ends import LogEnds
from structured_streaming.storage.local import LocalFolder
from structured_streaming.union.instants import age_of, batch_or_time
from structured_streaming.union.lakes import FolderLake, committed
from structured_streaming.union.tables import _start
from tests.union_lake import commit, cuts, manifest

NO_SESSION: Any = None
"""Versions and times are told without Spark."""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with LogWriter(tmp_path / "store") as writer:
        writer.everything()
        return writer.folder


@pytest.fixture
def lake(tmp_path: Path) -> LocalFolder:
    create_tables(str(tmp_path / "lake"))
    return LocalFolder(tmp_path / "lake")


def test_the_newest_instant_is_that_of_the_progress_also_behind_a_crash(
    store: Path, lake: LocalFolder
) -> None:
    first, second, end = cuts(store, 2)
    versions = FolderLake(NO_SESSION, lake)
    assert versions.newest(["messages"]).ends == {}
    commit(lake.path, manifest(lake.path, store, first, second))
    before = versions.newest(["messages", "consume_queue", "reput_progress"])
    assert list(before.ends.values()) == [second]
    assert before.versions == {"messages": 1, "consume_queue": 1, "reput_progress": 1}
    commit(lake.path, manifest(lake.path, store, second, end), "consume_queue")
    crashed = versions.newest(["messages", "consume_queue"])
    assert crashed.ends == before.ends
    assert crashed.versions == {"messages": 1, "consume_queue": 2, "reput_progress": 1}
    assert FolderLake(NO_SESSION, lake).newest(["messages", "consume_queue"]) == crashed


def test_a_reader_changes_nothing(store: Path, lake: LocalFolder) -> None:
    first, second, _ = cuts(store, 2)
    commit(lake.path, manifest(lake.path, store, first, second))
    DeltaTable(str(lake.path / "messages")).create_checkpoint()
    scratch = lake.path / ".lakebroker-left"
    scratch.touch()
    os.utime(scratch, (0, 0))  # a writer would remove it
    files = {path: path.stat().st_mtime_ns for path in lake.path.rglob("*")}
    versions = FolderLake(NO_SESSION, lake)
    assert versions.newest(["messages"]).versions["messages"] == 1
    assert age_of(committed(lake))
    assert {path: path.stat().st_mtime_ns for path in lake.path.rglob("*")} == files
    assert stat.S_ISREG(scratch.stat().st_mode)


def test_how_old_tables_are(store: Path, lake: LocalFolder) -> None:
    assert committed(lake) is None
    assert age_of(committed(lake)) == ""
    *starts, end = cuts(store, 3)
    began = datetime.datetime.now(datetime.UTC)
    for start, stop in zip(starts, [*starts[1:], end], strict=True):
        commit(lake.path, manifest(lake.path, store, start, stop))
    newest = committed(lake)
    assert newest is not None
    assert began <= newest <= datetime.datetime.now(datetime.UTC)
    DeltaTable(str(lake.path / "reput_progress")).optimize.compact()
    assert committed(lake) == newest
    assert age_of(committed(lake)).startswith(f"as of {newest:%Y-%m-%d %H:%M:%S} UTC (")


def test_logs_that_do_not_answer_are_named(store: Path, tmp_path: Path) -> None:
    ends = LogEnds([f"store:{store}"], Access())
    ((target, state),) = ends.now().values()
    assert (target, state.end) == (f"store:{store}", cuts(store, 1)[-1])
    ends.close()
    nobody = LogEnds([f"store:{store}", "broker:127.0.0.1:9", f"store:{tmp_path}"], Access())
    with pytest.raises(
        UnreachableError, match=r"no broker at 127\.0\.0\.1:9: .*lakebroker\.json.*tables alone"
    ):
        nobody.now()
    nobody.close()
    with pytest.raises(SameBrokerError, match="given twice"):
        LogEnds([f"store:{store}", f"store:{store.parent}/./store"], Access()).now()


@pytest.mark.parametrize(
    ("reached", "start"), [(None, 100), (100, 100), (150, 150), (200, 200)]
)  # fmt: skip
def test_a_log_is_read_from_where_the_lake_ends(reached: int | None, start: int) -> None:
    ends = {("b", "other"): 7} | ({("b", "l"): reached} if reached is not None else {})
    assert _start(LogState("b", "l", 100, 200), ends) == start


@pytest.mark.parametrize(
    ("reached", "said"),
    [(99, "begins at 100, the lake holds it up to 99: 1 bytes are in neither"), (201, "its log l ends at 200: data")],
)  # fmt: skip
def test_lake_and_log_that_do_not_meet_are_an_error(reached: int, said: str) -> None:
    with pytest.raises(SourceError, match=said):
        _start(LogState("b", "l", 100, 200), {("b", "l"): reached})


def test_a_moment_is_a_batch_or_a_time() -> None:
    assert batch_or_time("12") == 12
    assert batch_or_time("2026-11-24T03:40:12Z") == datetime.datetime(
        2026, 11, 24, 3, 40, 12, tzinfo=datetime.UTC
    )
    assert batch_or_time("2026-11-24") == datetime.datetime(2026, 11, 24, tzinfo=datetime.UTC)
    for text in ("yesterday", "", "-1", "١٢"):
        with pytest.raises(LakeError, match="neither the number of a batch nor a time"):
            batch_or_time(text)


def test_a_wrong_moment_is_refused_before_spark_starts(
    lake: LocalFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "lake_session", lambda *_: pytest.fail("Spark was started"))
    done = CliRunner().invoke(app, ["sql", "--lake", str(lake.path), "--as-of", "yesterday", "select 1"])
    assert done.exit_code == 1
    assert "yesterday is neither the number of a batch nor a time" in done.stderr
