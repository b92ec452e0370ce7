"""What must hold of a table for itself: its files are there, their statistics hold, no row key is there twice.

Problems are told as texts; those of rows are counted, with the first few.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from store.counting import counted
from structured_streaming.commit.snapshot import DataFile, Snapshot
from structured_streaming.erasures import BY_HAND
from structured_streaming.maintenance.reading import FileError, parts
from structured_streaming.maintenance.windows import OffsetFiles, offset_column
from structured_streaming.staging.statistics import Statistics
from structured_streaming.storage.delta_names import SPARK_APPLICATION
from structured_streaming.storage.folder import Folder
from structured_streaming.tables import Table

_SHOWN = 3


class CheckedTable:
    """A version of a table in `folder`; `readable` are its files that are whole, once `files` was asked."""

    def __init__(self, folder: Folder, table: Table, snapshot: Snapshot) -> None:
        self.table = table
        self.snapshot = snapshot
        self.readable: list[DataFile] = []
        self.rows = 0
        self._folder = folder

    def files(self) -> Iterator[str]:
        """What is wrong with files."""
        for file in self.snapshot.files.values():
            try:
                problems = list(self._file(file))
            except FileError as error:
                problems = [str(error)]
            else:
                self.readable.append(file)
            yield from problems

    def keys(self) -> Iterator[str]:
        """What is wrong with row keys, of readable files."""
        key = list(self.table.key)
        offset = offset_column(self.table)
        greatest: dict[tuple[str, str], int] = {}
        repeated, shown = 0, list[str]()
        for rows in self.offset_files().windows(key):
            counts = rows.group_by(key, use_threads=False).aggregate([([], "count_all")])
            twice = counts.filter(pc.greater(counts["count_all"], 1))
            repeated += twice.num_rows
            shown += described(twice.select(key), _SHOWN - len(shown))
            last = rows.group_by(["broker", "log_id"], use_threads=False).aggregate([(offset, "max")])
            for row in last.to_pylist():
                log = row["broker"], row["log_id"]
                greatest[log] = max(greatest.get(log, -1), row[f"{offset}_max"])
        if repeated:
            yield f"{repeated:,} row keys are there more than once, such as {', '.join(shown)}"
        yield from self._beyond(greatest)

    def offset_files(self) -> OffsetFiles:
        """The readable files by their offsets."""
        return OffsetFiles(self._folder, self.readable, self.snapshot.schema, offset_column(self.table))

    def _file(self, file: DataFile) -> Iterator[str]:
        if file.is_elsewhere:
            raise FileError(file, "it is outside of the table's folder")
        status = self._folder.status(file.name)
        if status is not None and status.size != file.size:
            raise FileError(file, f"it has {status.size:,} bytes, the table's log says {file.size:,}")
        statistics = Statistics()
        for part in parts(self._folder, file, self.snapshot.schema):
            statistics.add(part.read())
            self.rows += part.rows
        try:
            for problem in statistics.refuted(file.statistics):
                yield f"file {file.path}: {problem}"
        except (TypeError, ValueError) as error:
            yield f"file {file.path}: its statistics are of other types than its columns: {error}"

    def _beyond(self, greatest: Mapping[tuple[str, str], int]) -> Iterator[str]:
        """Rows that no transaction of the table covers; Spark's writer gives none that tells."""
        if SPARK_APPLICATION in self.snapshot.transactions:
            return
        offset = offset_column(self.table)
        for (broker, log_id), last in sorted(greatest.items(), key=str):
            if broker == BY_HAND[0]:
                continue
            version = self.snapshot.transactions.get(f"{broker}/{log_id}")
            if version is None:
                yield f"there are rows of {broker}/{log_id}, of which no commit of the reput says that they are there"
            elif last >= version + (offset == "end_offset"):
                yield f"there is a row of {broker}/{log_id} at {last:,}, the table was committed up to {version:,}"


def described(keys: pa.Table, most: int = _SHOWN) -> list[str]:
    """The first rows, each as its values."""
    return [
        "(" + ", ".join(f"{value!s:.60}" for value in row.values()) + ")"
        for row in keys.slice(0, max(most, 0)).to_pylist()
    ]


def counted_problem(what: str, keys: Sequence[pa.Table]) -> Iterator[str]:
    """So many rows that are `what`, with the first few; nothing without rows."""
    count = sum(each.num_rows for each in keys)
    if count:
        first = [text for each in keys for text in described(each)][:_SHOWN]
        yield f"{counted(count, 'row')} {'is' if count == 1 else 'are'} {what}, such as {', '.join(first)}"
