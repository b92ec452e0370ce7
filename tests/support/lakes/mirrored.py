"""Lakes with an Iceberg mirror: what maintains them, and where their files are."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from structured_streaming.commit.snapshot import Snapshot
from structured_streaming.commit.table_log import TableLog
from structured_streaming.iceberg import mirror
from structured_streaming.iceberg.mirror import LakeMirror
from structured_streaming.maintenance.maintain import maintain, maintain_table
from structured_streaming.maintenance.reports import TableReport
from structured_streaming.staging.table_file import write_file
from structured_streaming.storage.local import LocalFolder
from structured_streaming.tables import CONSUME_QUEUE, MESSAGES, TABLES
from tests.support.lakes.iceberg_readers import place
from tests.support.lakes.maintained import ReputLake

TARGET = 64 << 20


def run(lake: ReputLake, mirrored: bool | None = True, retain_s: float = 86_400) -> dict[str, TableReport]:
    reports = maintain(str(lake.lake), TARGET, retain_s, mirrored=mirrored)
    assert [report.problems for report in reports if report.problems] == []
    return {report.table: report for report in reports}


def run_one(lake: ReputLake, name: str = MESSAGES.name, retain_s: float = 86_400) -> TableReport:
    """A table's turn of `run`."""
    folder = LocalFolder(lake.lake)
    report = maintain_table(folder, TABLES[name], TARGET, retain_s, LakeMirror(folder))
    assert report.problems == []
    return report


def update(lake: ReputLake, name: str = MESSAGES.name) -> mirror.MirrorReport:
    """A mirror of the table as it is, nothing put together before."""
    folder = LocalFolder(lake.lake)
    return LakeMirror(folder).update(name, Snapshot(folder.child(name)), time.time())


def metadata_of(lake: ReputLake, name: str = MESSAGES.name) -> Path:
    return Path(place(lake.lake, name), "metadata")


def later(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Moves the clock of this process, and makes files of the mirror and the tables look as old as they then are."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + seconds)


def batches(lake: ReputLake, count: int) -> Iterator[None]:
    """Commits that add a file of a row each to consume_queue."""
    folder = LocalFolder(lake.lake)
    log = TableLog(folder.child(CONSUME_QUEUE.name))
    for number in range(count):
        row = {"broker": "b", "log_id": "l", "physical_offset": number, "topic": "t"}
        file = write_file(folder, CONSUME_QUEUE, pa.Table.from_pylist([row], CONSUME_QUEUE.schema))
        log.append([file._asdict()], {})
        yield
