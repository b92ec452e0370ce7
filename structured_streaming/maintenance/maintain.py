"""One round of maintenance: small files put together, a checkpoint, files and log that nobody needs any more removed.

Any number of others may commit meanwhile. A rewritten file is on disk before the commit that puts it in the place of others;
a commit takes the next free version, and none where one of the others is not the table's any more. Files are removed long
after their removal was committed (`vacuum.py`). So a round that is killed, wherever, leaves at most files that no version
has, which a later round removes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pyarrow as pa

from structured_streaming.commit.snapshot import DataFile, Snapshot
from structured_streaming.commit.table_log import TableLog, VersionTakenError
from structured_streaming.errors import LakeError
from structured_streaming.lake import open_lake
from structured_streaming.maintenance.altered import untouchable
from structured_streaming.maintenance.merge import merged
from structured_streaming.maintenance.plan import plan
from structured_streaming.maintenance.reading import FileError
from structured_streaming.maintenance.reports import Removed, TableReport
from structured_streaming.maintenance.vacuum import vacuum
from structured_streaming.staging.table_file import StagedFile, TableFile
from structured_streaming.storage.folder import Folder
from structured_streaming.tables import TABLES, Table

TARGET_FILE_SIZE = 64 << 20
_CHECKPOINT_COMMITS = 10
"""After which readers are given a checkpoint: they otherwise read every commit since the last."""


def maintain(
    location: str,
    target: int = TARGET_FILE_SIZE,
    retain_s: float = 7 * 86_400,
    on_table: Callable[[TableReport], None] = lambda report: None,
) -> list[TableReport]:
    """Every table of a lake; what cannot be done with one keeps no other from its turn. Raises LocationError.

    `target`: bytes of a file. `retain_s`: how long files stay that no version has any more.
    """
    lake = open_lake(location)
    reports = []
    for table in TABLES.values():
        report = maintain_table(lake, table, target, retain_s)
        on_table(report)
        reports.append(report)
    return reports


def maintain_table(lake: Folder, table: Table, target: int, retain_s: float) -> TableReport:
    """One table of a lake."""
    report = TableReport(table.name, 0, 0, 0, 0, Removed(), [])
    try:
        _Round(lake, table, target, report).run(retain_s)
    except LakeError as error:
        report.problems.append(str(error))
    except (OSError, pa.ArrowException) as error:
        report.problems.append(f"table {lake.child(table.name)}: {error}")
    return report


class _Round:
    """A table's turn."""

    def __init__(self, lake: Folder, table: Table, target: int, report: TableReport) -> None:
        self._lake = lake
        self._table = table
        self._target = target
        self._report = report
        self._folder = lake.child(table.name)
        self._snapshot = Snapshot(self._folder)
        report.files_before = report.files_after = len(self._snapshot.files)
        self._check()
        self._log = TableLog(self._folder)
        self._unreadable: set[str] = set()

    def run(self, retain_s: float) -> None:
        while groups := plan(self._candidates(), self._target):
            for group in groups:
                self._rewrite(group)
            self._follow()
        self._report.files_after = len(self._snapshot.files)
        self._log.checkpoint_if_due(_CHECKPOINT_COMMITS)
        self._report.removed = vacuum(self._folder, self._snapshot, retain_s, time.time())

    def _candidates(self) -> list[DataFile]:
        files = self._snapshot.files.values()
        return [file for file in files if not file.is_elsewhere and file.path not in self._unreadable]

    def _rewrite(self, files: Sequence[DataFile]) -> None:
        """Puts files together; leaves them alone when one is unreadable, or not the table's any more."""
        schema = self._snapshot.schema_json
        try:
            written = self._written(files)
        except FileError as error:
            if error.file not in files:  # one of our own
                raise
            self._follow()
            if self._is_there(error.file):
                self._unreadable.add(error.file.path)
                self._report.problems.append(f"table {self._folder}: {error}; it is left as it is")
            return
        while self._may_replace(files, schema, written):
            try:
                self._log.rewrite(
                    [(file.path, file.size) for file in files], [each._asdict() for each in written]
                )
            except VersionTakenError:
                continue
            self._report.rewritten_files += len(files)
            self._report.rewritten_bytes += sum(file.size for file in files)
            return

    def _written(self, files: Sequence[DataFile]) -> list[StagedFile]:
        """A file of the rows of all, durable; none without rows."""
        with TableFile(self._lake, self._table) as file:
            order = self._table.order or self._table.key
            for rows in merged(self._folder, files, self._snapshot.schema, order):
                file.write(rows)
            written = file.finish()
        return [] if written is None else [written]

    def _may_replace(self, files: Sequence[DataFile], schema: str, written: Sequence[StagedFile]) -> bool:
        """Whether the table, as it is by now, has the files and their schema; removes what was written when not."""
        may = False
        try:
            self._follow()
            may = self._snapshot.schema_json == schema and all(map(self._is_there, files))
        finally:
            if not may:
                for each in written:
                    self._folder.remove(each.path)
        return may

    def _follow(self) -> None:
        """Both see the same version, on disk; raises LakeError when the table was altered so that it has to be left."""
        while True:
            self._log.follow()
            self._snapshot.follow()
            if self._snapshot.version == self._log.version:
                break
        self._check()

    def _is_there(self, file: DataFile) -> bool:
        return self._snapshot.files.get(file.path) == file

    def _check(self) -> None:
        if reason := untouchable(self._snapshot):
            raise LakeError(f"table {self._folder} is left as it is: {reason}")
