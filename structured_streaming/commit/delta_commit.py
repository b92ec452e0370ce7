"""On the driver: staged files become one Delta commit for each table, the progress row last.

Every commit carries, for each log of the batch, an application transaction `broker/log_id` whose version is
the end offset. A table's version v therefore always means: it holds exactly the rows below v (from where
the lake's knowledge of the log begins), and a table without rows in a batch may stay behind.

| a table's version for a log | then its rows of the batch [start, end) are |
|---|---|
| none, or <= start | committed |
| >= end | there already: passed over |
| between | another writer's: refused |

Every commit is on disk before the next one is made (`table_log.py`), so whoever sees a progress row that is on disk
can rely on what it names.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
from deltalake import DeltaTable

from structured_streaming.commit.report import BatchReport
from structured_streaming.commit.table_log import TableLog, VersionTakenError
from structured_streaming.errors import ForeignWriterError, LakeError
from structured_streaming.staging.table_file import write_file
from structured_streaming.staging.wanted import EVERYTHING, Wanted
from structured_streaming.storage.folder import Folder
from structured_streaming.storage.location import lake_folder
from structured_streaming.tables import DATA_TABLES, QUARANTINE, REPUT_PROGRESS, Table

BATCH_APPLICATION = "lakebroker-batch"
"""Application transaction of `reput_progress` whose version is the lake's batch counter."""


class LogSpan(NamedTuple):
    """What a batch holds of a log."""

    target: str
    broker: str
    log_id: str
    start: int
    end: int
    log_end: int
    records: int

    @property
    def application(self) -> str:
        return f"{self.broker}/{self.log_id}"


class LakeProgress:
    """What the lake in `location` holds, as it was when this was made. Raises LakeError."""

    def __init__(self, location: str) -> None:
        folder = lake_folder(location)
        self._progress: TableLog | None = None
        self._tables: list[TableLog] = []
        self.offsets: dict[tuple[str, str], int] = {}
        if not folder.child(REPUT_PROGRESS.name).exists():
            return
        self._progress = _table_log(folder, REPUT_PROGRESS)
        self.offsets = ends_of(self._progress)
        self._tables = [_table_log(folder, table) for table in DATA_TABLES]

    def position(self, broker: str, log_id: str) -> int | None:
        """Up to where the lake holds a log, at the last `refresh`; None when it knows nothing of it."""
        return self._progress.transaction_version(f"{broker}/{log_id}") if self._progress else None

    def refresh(self) -> None:
        """Makes `position` tell what was committed until now."""
        if self._progress is not None:
            self._progress.follow()

    def stops(self, broker: str, log_id: str) -> list[int]:
        """Where tables stand beyond the progress of a log, ascending: a crash between commits left them ahead."""
        progress = self.offsets.get((broker, log_id), -1)
        versions = {table.transaction_version(f"{broker}/{log_id}") for table in self._tables}
        return sorted(version for version in versions if version is not None and version > progress)


class DeltaCommitSink:
    """Commits manifests to the lake in `location`, which have files of the tables that are `wanted`. `after_table` is
    called after each commit, with its table."""

    def __init__(
        self,
        location: str,
        after_table: Callable[[str], None] = lambda table: None,
        wanted: Wanted = EVERYTHING,
    ) -> None:
        self._folder = lake_folder(location)
        self._wanted_tables = [table for table in DATA_TABLES if table.name in wanted]
        self._after_table = after_table
        self._tables = {
            table.name: _table_log(self._folder, table) for table in (*DATA_TABLES, REPUT_PROGRESS)
        }
        self._batch = self._last_batch()

    def commit(self, manifest: list[dict[str, Any]]) -> BatchReport | None:
        """See `Sink.commit`."""
        started = time.monotonic()
        spans = _spans(manifest)
        if not spans:
            return None
        files: dict[str, list[dict[str, Any]]] = {}
        for row in manifest:
            if row["table"]:
                files.setdefault(row["table"], []).append(row)
        self._check_progress(spans)
        versions = {}
        for table in self._wanted_tables:
            if table.name in files and self._wanted(table, spans):
                self._add(table, files[table.name], spans, {})
                self._after_table(table.name)
            versions[table.name] = self._tables[table.name].version
        self._batch += 1
        self._commit_progress(spans, versions)
        for log in self._tables.values():
            log.checkpoint_if_due()
        return BatchReport(
            self._batch,
            sum(span.records for span in spans),
            sum(span.end - span.start for span in spans),
            time.monotonic() - started,
            sum(max(span.log_end - span.end, 0) for span in spans),
            sum(row["rows"] for row in files.get(QUARANTINE.name, ())),
            {(span.target, span.broker, span.log_id): span.end for span in spans},
        )

    def _check_progress(self, spans: list[LogSpan]) -> None:
        table = self._tables[REPUT_PROGRESS.name]
        table.follow()
        for span in spans:
            version = table.transaction_version(span.application)
            if version is not None and version != span.start:
                raise ForeignWriterError(
                    f"the lake holds {span.application} up to {version}, this batch begins at {span.start}: "
                    "another reput writes the same lake; stop one of them and start the other again"
                )

    def _wanted(self, table: Table, spans: list[LogSpan]) -> bool:
        opened = self._tables[table.name]
        opened.follow()
        there = []
        for span in spans:
            version = opened.transaction_version(span.application)
            if version is not None and span.start < version < span.end:
                raise ForeignWriterError(
                    f"table {table.name} holds {span.application} up to {version}, within this batch "
                    f"({span.start} to {span.end}): another reput writes the same lake; start this one again"
                )
            there.append(version is not None and version >= span.end)
        if any(there) and not all(there):
            raise ForeignWriterError(
                f"table {table.name} holds part of this batch; start the reput again to catch up"
            )
        return not any(there)

    def _add(
        self,
        table: Table,
        files: list[dict[str, Any]],
        spans: list[LogSpan],
        further: Mapping[str, int],
    ) -> None:
        """Commits files with the ends of the spans, and `further` application transactions."""
        folder = self._folder.child(table.name)
        for file in files:
            if not folder.has(file["path"]):
                raise LakeError(
                    f"the staged file {folder}/{file['path']} is gone before its commit; start the reput again"
                )
        log = self._tables[table.name]
        transactions = {span.application: span.end for span in spans} | dict(further)
        known = {application: log.transaction_version(application) for application in transactions}
        while True:
            try:
                log.append(files, transactions)
            except VersionTakenError:
                log.follow()
            else:
                return
            for application, version in known.items():
                if log.transaction_version(application) != version:
                    raise ForeignWriterError(
                        f"table {table.name} got rows of {application} meanwhile: another reput writes the same "
                        "lake; stop one of them and start the other again"
                    )

    def _commit_progress(self, spans: list[LogSpan], versions: dict[str, int]) -> None:
        now = time.time_ns() // 1000
        rows = pa.Table.from_pylist(
            [
                {
                    "broker": span.broker,
                    "log_id": span.log_id,
                    "end_offset": span.end,
                    "batch": self._batch,
                    "start_offset": span.start,
                    "log_end_offset": span.log_end,
                    "records": span.records,
                    "bytes": span.end - span.start,
                    "table_versions": list(versions.items()),
                    "commit_timestamp": now,
                }
                for span in spans
            ],
            REPUT_PROGRESS.schema,
        )
        file = write_file(self._folder, REPUT_PROGRESS, rows)
        self._add(REPUT_PROGRESS, [file._asdict()], spans, {BATCH_APPLICATION: self._batch})

    def _last_batch(self) -> int:
        known = self._tables[REPUT_PROGRESS.name].transaction_version(BATCH_APPLICATION)
        if known is not None:
            return known
        # of before batches were counted there
        table = DeltaTable(self._folder.child(REPUT_PROGRESS.name).uri)
        return max(table.to_pyarrow_table(columns=["batch"])["batch"].to_pylist(), default=0)


def ends_of(progress: TableLog) -> dict[tuple[str, str], int]:
    """Up to where the lake holds each log."""
    found = {}
    for application, version in progress.transactions.items():
        broker, separator, log_id = application.rpartition("/")
        if separator:
            found[broker, log_id] = version
    return found


def _spans(manifest: list[dict[str, Any]]) -> list[LogSpan]:
    """The batch's extent of each log; raises LakeError when its ranges do not join."""
    ranges: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in manifest:
        if not row["table"]:
            ranges.setdefault((row["broker"], row["log_id"]), []).append(row)
    spans = []
    for (broker, log_id), parts in sorted(ranges.items()):
        parts.sort(key=lambda part: part["start"])
        for before, after in itertools.pairwise(parts):
            if before["end"] != after["start"]:
                raise LakeError(
                    f"the batch of {broker}/{log_id} has a gap from {before['end']} to {after['start']}"
                )
        spans.append(
            LogSpan(
                parts[0]["target"],
                broker,
                log_id,
                parts[0]["start"],
                parts[-1]["end"],
                max(part["log_end"] for part in parts),
                sum(part["rows"] for part in parts),
            )
        )
    return spans


def _table_log(lake: Folder, table: Table) -> TableLog:
    return TableLog(lake.child(table.name), table.schema)
