"""What a lake in a folder or an object store held at an earlier time, read without Spark."""

from __future__ import annotations

import datetime
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from structured_streaming.commit.ends import Ends
from structured_streaming.commit.versions import of_version
from structured_streaming.errors import LakeError
from structured_streaming.storage.folder import Folder
from structured_streaming.tables import REPUT_PROGRESS
from structured_streaming.union.instants import Instant, Span, instant_of

_ROWS = 1 << 14
"""Of `reput_progress`, in memory at a time."""


def instant_then(folder: Folder, moment: str) -> Instant:
    """The instant that a batch, or a time, had, as its progress says. Raises LakeError."""
    progress = folder.child(REPUT_PROGRESS.name)
    try:
        return instant_of(_ArrowProgress(progress), str(folder), moment)
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise LakeError(f"table {progress}: {error}") from error


def is_there(folder: Folder, version: int) -> bool:
    """Whether a version of a table and its files are there. Raises LakeError."""
    files = of_version(folder, version, DeltaTable.file_uris)
    if files is None:
        return False
    try:
        names = set(folder.names())
    except OSError as error:
        raise LakeError(f"table {folder}: {error}") from error
    return all(each.rpartition("/")[2] in names for each in files)


class _ArrowProgress:
    """See `Batches`. Calls raise DeltaError, OSError, Arrow's errors."""

    def __init__(self, progress: Folder) -> None:
        self._rows = DeltaTable(progress.uri).to_pyarrow_dataset(filesystem=progress.arrow_filesystem())

    def span(self) -> Span | None:
        spans = [
            Span(*pc.min_max(rows["batch"]).as_py().values(), *pc.min_max(rows["commit_timestamp"]).as_py().values())
            for rows in self._some(["batch", "commit_timestamp"])
        ]  # fmt: skip
        if not spans:
            return None
        first, last, oldest, newest = zip(*spans, strict=True)
        return Span(min(first), max(last), min(oldest), max(newest))

    def last(self, until: datetime.datetime) -> int | None:
        time = pa.scalar(until, pa.timestamp("us", "UTC"))
        some = self._some(["batch", "commit_timestamp"], pc.field("commit_timestamp") <= time)
        return max((pc.max(rows["batch"]).as_py() for rows in some), default=None)

    def at(self, batch: int) -> tuple[dict[str, int], datetime.datetime] | None:
        columns = ["batch", "table_versions", "commit_timestamp"]
        for rows in self._some(columns, pc.field("batch") == batch):
            row = rows.slice(0, 1).to_pylist()[0]
            return dict(row["table_versions"]), row["commit_timestamp"]
        return None

    def ends(self, batch: int) -> Ends:
        ends: Ends = {}
        columns = ["batch", "broker", "log_id", "end_offset"]
        for rows in self._some(columns, pc.field("batch") <= batch):
            last = rows.group_by(["broker", "log_id"], use_threads=False).aggregate([("end_offset", "max")])
            for row in last.to_pylist():
                log, end = (row["broker"], row["log_id"]), row["end_offset_max"]
                ends[log] = max(end, ends.get(log, end))
        return ends

    def _some(self, columns: list[str], condition: pc.Expression | None = None) -> Iterator[pa.Table]:
        """Some rows at a time, as the files have them; none without any. `columns` are also those of the condition."""
        for fragment in self._rows.get_fragments(condition):
            groups = fragment if condition is None else fragment.subset(condition)
            with fragment.open() as file:
                # a dataset's own scan takes a row group at once; Spark's times have nanoseconds, of which 64 bits end in 2262
                opened = pq.ParquetFile(file, coerce_int96_timestamp_unit="us", pre_buffer=False)
                for batch in opened.iter_batches(
                    _ROWS, [each.id for each in groups.row_groups], columns, use_threads=False
                ):
                    rows = pa.Table.from_batches([batch])
                    rows = rows if condition is None else rows.filter(condition)
                    if rows.num_rows:
                        yield rows
