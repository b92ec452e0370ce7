"""What a lake holds and how old it is, as readers ask; where logs end, and whether lake and log meet."""

from __future__ import annotations

import datetime
import errno
import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from broker_gateway.cli.main import app
from lakebroker_testing.logs import LogWriter
from store.log.erased import Offsets
from store.log_source import LogState
from structured_streaming import sql
from structured_streaming.commit.table_log import TableLog
from structured_streaming.embedded.instants import hidden_records
from structured_streaming.erased import Erased
from structured_streaming.errors import LakeError, SameBrokerError, SourceError, UnreachableError
from structured_streaming.source import log_ends
from structured_streaming.source.access import Access
from structured_streaming.source.log_ends import LogEnds
from structured_streaming.storage.local import LocalFolder
from structured_streaming.union.followed import committed
from structured_streaming.union.instants import Instant, Rows, age_of, batch_or_time
from structured_streaming.union.lakes import FolderLake
from structured_streaming.union.past import is_there
from structured_streaming.union.tails import tails_of
from tests.support.lakes.empty import empty_lake
from tests.support.lakes.union import commit, cuts, manifest
from tests.support.machines.processes import without_descriptors
from tests.support.waiting import LIMIT_S

NO_SESSION: Any = None
"""Versions and times are told without Spark."""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with LogWriter(tmp_path / "store") as writer:
        writer.everything()
        return writer.folder


@pytest.fixture
def lake(tmp_path: Path) -> LocalFolder:
    empty_lake(str(tmp_path / "lake"))
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


def test_a_version_of_a_table_that_is_away_is_not_gone(lake: LocalFolder) -> None:
    table = lake.child("messages")
    away = lake.path / "away"
    assert is_there(table, 0)
    assert not is_there(table, 1)
    table.path.rename(away)
    with pytest.raises(LakeError, match=f"table {table}: "):
        is_there(table, 0)
    away.rename(table.path)
    with without_descriptors(), pytest.raises(LakeError, match="Too many open files"):
        is_there(table, 0)
    assert is_there(table, 0)


def test_a_progress_that_may_not_be_read_has_no_fault_in_its_log(
    store: Path, lake: LocalFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, end = cuts(store, 1)
    commit(lake.path, manifest(lake.path, store, start, end))

    def refuse(folder: LocalFolder, name: str) -> str:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(LocalFolder, "readable", refuse)
    with pytest.raises(LakeError, match=r"reput_progress: .*Permission denied$"):
        committed(lake)


def test_a_batch_that_is_committed_while_tables_are_looked_at_counts_as_not_there(
    store: Path, lake: LocalFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows would be missing where a table's version is from before and the progress from behind it."""
    first, second, end = cuts(store, 2)
    commit(lake.path, manifest(lake.path, store, first, second))
    versions = FolderLake(NO_SESSION, lake)
    versions.newest(["messages"])
    follow, late = TableLog.follow, [manifest(lake.path, store, second, end)]

    def followed(table: TableLog) -> None:
        follow(table)
        while late:
            commit(lake.path, late.pop())

    monkeypatch.setattr(TableLog, "follow", followed)
    found = versions.newest(["messages"])
    assert (list(found.ends.values()), found.versions) == ([second], {"messages": 2, "reput_progress": 1})


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


class _Changing:
    """A log of which more is erased while one statement reads what is; the other one asks then."""

    address = "b:1"

    def __init__(self) -> None:
        self.version = 1
        self.read, self.go_on = threading.Event(), threading.Event()

    def describe(self, *_: object) -> LogState:
        return LogState("b", "l", 0, 100, None, None, 100, self.version)

    def erased(self, log_id: str) -> Offsets:
        found = np.arange(1, self.version + 1)
        if self.version == 1:
            self.read.set()
            assert self.go_on.wait(LIMIT_S)
        return found

    def close(self) -> None: ...


def test_what_a_statement_leaves_out_is_of_its_own_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    log, opened = _Changing(), list[str]()

    def open_log(target: str, access: Access) -> Any:
        opened.append(target)
        return log

    monkeypatch.setattr(log_ends, "open_log", open_log)
    ends = LogEnds(["broker:b:1"], Access())
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(ends.asked)
        assert log.read.wait(LIMIT_S)
        log.version = 2  # an erasure is answered
        asked = ends.asked()
        log.go_on.set()
        slow.result()
    assert asked.erased.of(("b", "l")).tolist() == [1, 2]
    assert ends.asked().erased.of(("b", "l")).tolist() == [1, 2]
    assert opened == ["broker:b:1"]


def test_logs_that_do_not_answer_are_named(store: Path, tmp_path: Path) -> None:
    ends = LogEnds([f"store:{store}"], Access())
    ((target, state),) = ends.now().logs.values()
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
    found = tails_of([("store:x", LogState("b", "l", 100, 200))], ends)
    assert [tail.start for tail in found] == ([start] if start < 200 else [])


@pytest.mark.parametrize(
    ("reached", "said"),
    [(99, "begins at 100, the lake holds it up to 99: 1 bytes are in neither"), (201, "its log l ends at 200: data")],
)  # fmt: skip
def test_lake_and_log_that_do_not_meet_are_an_error(reached: int, said: str) -> None:
    with pytest.raises(SourceError, match=said):
        tails_of([("store:x", LogState("b", "l", 100, 200))], {("b", "l"): reached})


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


def test_of_erased_records_only_those_that_the_tables_may_have_are_left_out() -> None:
    """Brokers also name some that the lake never comes to: of logs that it does not read, of a lost end of one."""
    hidden = Erased({("b", "l"): np.array([50, 100]), ("another", "m"): np.array([1])})
    instant = Instant({("b", "l"): 100}, {}, hidden=hidden)
    assert instant.left_out.table().to_pylist() == [{"broker": "b", "log_id": "l", "physical_offset": 50}]
    nothing = Instant({("b", "l"): 50}, {}, hidden=hidden)
    with duckdb.connect() as cursor:
        assert hidden_records(cursor, nothing) is None
        assert hidden_records(cursor, instant) is not None


def test_an_instant_has_rows_below_its_ends_or_of_its_batches() -> None:
    ends = {("b", "l"): 100}
    past = Instant(ends, {}, batch=7)
    assert past.rows_of("messages") == past.rows_of("typed_orders") == Rows(below=ends)
    assert past.rows_of("erasures") == Rows(below=ends, by_hand=True)
    assert past.rows_of("reput_progress") == Rows(to_batch=7)
    assert past.rows_of("upkeep") == Rows() == Instant(ends, {}).rows_of("reput_progress")
