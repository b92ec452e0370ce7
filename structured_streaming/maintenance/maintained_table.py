"""A table whose files are put in the place of others while any number of others commit to it.

A written file is on disk before the commit that puts it in the place of others; a commit takes the next free version, and none
where one of the others is not the table's any more, or its schema is another one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa

from structured_streaming.commit.snapshot import DataFile, Snapshot
from structured_streaming.commit.table_log import TableLog, VersionTakenError
from structured_streaming.maintenance.altered import AlteredError, untouchable
from structured_streaming.maintenance.merge import merged
from structured_streaming.maintenance.ranges import ranged
from structured_streaming.staging.table_file import PART, SORTED, StagedFile, TableFile
from structured_streaming.storage.folder import Folder
from structured_streaming.tables import Table


class MaintainedTable:
    """A table of a lake, as it was followed last. Calls raise LakeError, OSError; the table may be one that has to be left."""

    def __init__(self, lake: Folder, table: Table) -> None:
        self._lake = lake
        self.table = table
        self.folder = lake.child(table.name)
        self.read_at = time.time()
        """When the newest version was looked for last, seconds since the epoch."""
        self.snapshot = Snapshot(self.folder)
        self._check()
        self.log = TableLog(self.folder)

    @property
    def files(self) -> list[DataFile]:
        """Those that can be replaced."""
        return [file for file in self.snapshot.files.values() if not file.is_elsewhere]

    def written(
        self,
        files: Sequence[DataFile],
        label: str = PART,
        some_of: Callable[[pa.Table], pa.Table] = lambda rows: rows,
    ) -> list[StagedFile]:
        """A file of the rows of all, or `some_of` them, sorted, durable; none without rows. Raises FileError."""
        return self._written(merged(self.folder, files, self.snapshot.schema, self.order, some_of), label)

    def written_in_ranges(self, files: Sequence[DataFile], target: int) -> list[StagedFile]:
        """Files of the rows of all, each with a range of the order and about `target` bytes; durable. Raises FileError."""
        count = -(-sum(file.size for file in files) // target)
        written: list[StagedFile] = []
        try:
            for rows in ranged(self.folder, files, self.snapshot.schema, self.order, count):
                written += self._written(rows, SORTED)
        except BaseException:
            self.discard(written)
            raise
        return written

    @property
    def order(self) -> tuple[str, ...]:
        """Of rows in a file."""
        return self.table.order or self.table.key

    def _written(self, groups: Iterable[pa.Table], label: str) -> list[StagedFile]:
        with TableFile(self._lake, self.table, label) as file:
            for rows in groups:
                file.write(rows)
            written = file.finish()
        return [] if written is None else [written]

    def replace(
        self, files: Sequence[DataFile], schema: str, written: Sequence[StagedFile], *, deletes: bool = False
    ) -> bool:
        """Commits what was written of files that had the `schema`; False, and what was written is removed, when the table has
        changed so that it cannot be."""
        while self._may_replace(files, schema, written):
            try:
                self.log.rewrite(
                    [(file.path, file.size) for file in files],
                    [each._asdict() for each in written],
                    deletes=deletes,
                )
            except VersionTakenError:
                continue
            return True
        return False

    def follow(self) -> None:
        """Both see the same version, on disk; raises LakeError when the table was altered so that it has to be left."""
        while True:
            self.read_at = time.time()
            self.log.follow()
            self.snapshot.follow()
            if self.snapshot.version == self.log.version:
                break
        self._check()

    def has(self, file: DataFile) -> bool:
        """Whether a file is still the table's."""
        return self.snapshot.files.get(file.path) == file

    def discard(self, written: Sequence[StagedFile]) -> None:
        """Removes files that no version got."""
        for each in written:
            self.folder.remove(each.path)

    def _may_replace(self, files: Sequence[DataFile], schema: str, written: Sequence[StagedFile]) -> bool:
        may = False
        try:
            self.follow()
            same = self.snapshot.schema_json == schema and all(map(self.has, files))
            # who slept for long may find that another one took what it wrote for a leftover
            may = same and all(self.folder.has(each.path) for each in written)
        finally:
            if not may:
                self.discard(written)
        return may

    def _check(self) -> None:
        if reason := untouchable(self.snapshot, self.table):
            raise AlteredError(f"table {self.folder} is left as it is: {reason}")
