"""On the driver: staged files become one Delta commit for each table, the progress row last.

Every commit carries, for each log of the batch, an application transaction `broker/log_id` whose version is
the end offset. A table's version v therefore always means: it holds exactly the rows below v (from where
the lake's knowledge of the log begins), and a table without rows in a batch may stay behind.

| a table's version for a log | then its rows of the batch [start, end) are |
|---|---|
| none, or <= start | committed |
| >= end | there already: passed over |
| between | another writer's: refused |

So is a table that Spark's writer has committed to: it counts otherwise.

A typed table is committed to on top of the declaration that its files were made by, or not at all: a message that is sent once
a schema is declared is read by that one. A table that is left out is not named in the progress row, and filled by the next query
(`typed_fill.py`).

Every commit is on disk before the next one is made (`table_log.py`), so whoever sees a progress row that is on disk
can rely on what it names.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from deltalake import DeltaTable

from structured_streaming.commit.batch import LogSpan, files_by_table, progress_rows, report, spans_of
from structured_streaming.commit.ends import ends_of
from structured_streaming.commit.report import BatchReport
from structured_streaming.commit.sink import STAGED, AfterStep, no_step
from structured_streaming.commit.table_log import TableLog, VersionTakenError
from structured_streaming.errors import ForeignWriterError, LakeError
from structured_streaming.staging.manifest import unknown_schemas
from structured_streaming.staging.table_file import write_file
from structured_streaming.staging.wanted import EVERYTHING, Wanted
from structured_streaming.storage.delta_names import BATCH_APPLICATION, SPARK_APPLICATION
from structured_streaming.storage.folder import Folder
from structured_streaming.storage.location import lake_folder
from structured_streaming.tables import DATA_TABLES, REPUT_PROGRESS, Table
from structured_streaming.typed.declaration import Declaration, declaration_of
from structured_streaming.typed.topic import typed_topic


class OtherDeclarationError(Exception):
    """A typed table is declared otherwise by now."""


class LakeProgress:
    """What the lake in `location` holds, as it was when this was made; `typed` tables are among its own. Raises LakeError."""

    def __init__(self, location: str, typed: Iterable[Declaration] = ()) -> None:
        folder = lake_folder(location)
        self._progress: TableLog | None = None
        self._tables: list[TableLog] = []
        self.offsets: dict[tuple[str, str], int] = {}
        if not folder.child(REPUT_PROGRESS.name).exists():
            return
        self._progress = _table_log(folder, REPUT_PROGRESS)
        _refuse_sparks(folder, self._progress)
        self.offsets = ends_of(self._progress)
        self._tables = [_table_log(folder, table) for table in DATA_TABLES]
        self._tables += [TableLog(folder.child(each.table)) for each in typed]

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
    """Commits manifests to the lake in `location`, which have files of the tables that are `wanted`. `after_step` is
    called after each step (`sink.py`)."""

    def __init__(
        self,
        location: str,
        after_step: AfterStep = no_step,
        wanted: Wanted = EVERYTHING,
    ) -> None:
        self._folder = lake_folder(location)
        typed = [typed_topic(declared).table for declared in wanted.typed]
        self._wanted_tables = [*(table for table in DATA_TABLES if table.name in wanted), *typed]
        self._after_step = after_step
        self._tables = {
            table.name: _table_log(self._folder, table) for table in (*DATA_TABLES, REPUT_PROGRESS)
        }
        self._typed = {declared.table: declared for declared in wanted.typed}
        # their columns may be more by now: another version of the schema was declared since
        self._tables |= {table.name: TableLog(self._folder.child(table.name)) for table in typed}
        _refuse_sparks(self._folder, self._tables[REPUT_PROGRESS.name])
        self.unknown: dict[str, set[int]] = {}
        """Ids of schemas that messages of typed tables have, which are left out for them."""
        self._batch = self._last_batch()

    def commit(self, manifest: list[dict[str, Any]]) -> BatchReport | None:
        """See `Sink.commit`."""
        started = time.monotonic()
        spans = spans_of(manifest)
        if not spans:
            return None
        files = files_by_table(manifest)
        self.unknown |= unknown_schemas(manifest)
        self._wanted_tables = [table for table in self._wanted_tables if table.name not in self.unknown]
        self._check_progress(spans)
        self._after_step(STAGED)
        versions, took = {}, {}
        for table in self._wanted_tables:
            begun = time.monotonic()
            try:
                if table.name in files and self._wanted(table, spans):
                    self._add(table, files[table.name], spans, {})
                    took[table.name] = time.monotonic() - begun
                    self._after_step(table.name)
            except OtherDeclarationError:
                continue
            versions[table.name] = self._tables[table.name].version
        self._wanted_tables = [table for table in self._wanted_tables if table.name in versions]
        for name in self._typed.keys() & files.keys() - versions.keys():
            self._leave_out(name, files[name])
        self._batch += 1
        begun = time.monotonic()
        self._commit_progress(spans, versions)
        took[REPUT_PROGRESS.name] = time.monotonic() - begun
        self._after_step(REPUT_PROGRESS.name)
        for log in self._tables.values():
            log.checkpoint_if_due()
        return report(self._batch, spans, manifest, time.monotonic() - started, took)

    def _check_progress(self, spans: list[LogSpan]) -> None:
        table = self._tables[REPUT_PROGRESS.name]
        table.follow()
        _refuse_sparks(self._folder, table)
        for span in spans:
            version = table.transaction_version(span.application)
            if version is not None and version != span.start:
                raise ForeignWriterError(
                    f"the lake holds {span.application} up to {version}, this batch begins at {span.start}: "
                    "another reput writes the same lake; stop one of them and start the other again"
                )

    def _leave_out(self, name: str, files: list[dict[str, Any]]) -> None:
        """Of a typed table that is declared otherwise than its files were made by: the next query fills it from `messages`."""
        for file in files:
            self._folder.child(name).remove(file["path"])

    def _check(self, table: Table) -> None:
        """Of a table as it was followed to. Raises ForeignWriterError, OtherDeclarationError."""
        _refuse_sparks(self._folder, self._tables[table.name])
        known = self._typed.get(table.name)
        metadata = self._tables[table.name].metadata
        if known is not None and declaration_of(table.name, metadata["configuration"]) != known:
            raise OtherDeclarationError

    def _wanted(self, table: Table, spans: list[LogSpan]) -> bool:
        opened = self._tables[table.name]
        opened.follow()
        self._check(table)
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
            self._check(table)
            for application, version in known.items():
                if log.transaction_version(application) != version:
                    raise ForeignWriterError(
                        f"table {table.name} got rows of {application} meanwhile: another reput writes the same "
                        "lake; stop one of them and start the other again"
                    )

    def _commit_progress(self, spans: list[LogSpan], versions: dict[str, int]) -> None:
        file = write_file(self._folder, REPUT_PROGRESS, progress_rows(spans, versions, self._batch))
        self._add(REPUT_PROGRESS, [file._asdict()], spans, {BATCH_APPLICATION: self._batch})

    def _last_batch(self) -> int:
        known = self._tables[REPUT_PROGRESS.name].transaction_version(BATCH_APPLICATION)
        if known is not None:
            return known
        # of before batches were counted there
        progress = self._folder.child(REPUT_PROGRESS.name)
        rows = DeltaTable(progress.uri).to_pyarrow_table(
            columns=["batch"], filesystem=progress.arrow_filesystem()
        )
        return max(rows["batch"].to_pylist(), default=0)


def _table_log(lake: Folder, table: Table) -> TableLog:
    return TableLog(lake.child(table.name), table.schema)


def _refuse_sparks(lake: Folder, table: TableLog) -> None:
    """A lake goes over to Spark's writer for good, which commits to every table at its start, also while a batch is made."""
    if table.transaction_version(SPARK_APPLICATION) is not None:
        raise ForeignWriterError(
            f"the tables of the lake {lake} are committed by Spark's writer, which does not say in them what they hold; give "
            "--sink spark"
        )
