"""One Parquet file of a table, written a bounded number of rows at a time."""

from __future__ import annotations

import contextlib
import json
import uuid
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from store.log.segment import sync_folder
from structured_streaming.staging.statistics import Statistics
from structured_streaming.storage.local import sync_file
from structured_streaming.tables import Table

_DICTIONARY = [
    "broker",
    "log_id",
    "topic",
    "queue_id",
    "size",
    "tags_code",
    "key_type",
    "consumer_group",
    "event",
]
_DELTA_PACKED = ("physical_offset", "queue_offset", "store_timestamp", "born_timestamp", "event_timestamp")


class StagedFile(NamedTuple):
    """A file that is durable: name in the table's folder, bytes, rows, statistics as JSON."""

    path: str
    size: int
    rows: int
    stats: str


class TableFile:
    """Rows are written as they are. An exception inside of `with` removes the file, `finish` makes it durable."""

    def __init__(self, folder: Path, table: Table) -> None:
        self._path = folder / table.name / f"part-{uuid.uuid4().hex}.zstd.parquet"
        self._writer: pq.ParquetWriter | None = None
        self._statistics = Statistics()
        self._rows = 0

    def write(self, rows: pa.Table) -> None:
        """Adds rows, which are at once in the file as a row group (of at most 1,048,576 rows)."""
        if self._writer is None:
            self._writer = parquet_writer(self._path, rows.schema)
        self._writer.write_table(rows)
        self._statistics.add(rows)
        self._rows += rows.num_rows

    def finish(self) -> StagedFile | None:
        """None when nothing was written."""
        if self._writer is None:
            return None
        self._writer.close()
        sync_file(self._path)
        sync_folder(self._path.parent)
        stats = json.dumps(self._statistics.stated())
        return StagedFile(self._path.name, self._path.stat().st_size, self._rows, stats)

    def __enter__(self) -> TableFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            return
        if self._writer is not None:
            with contextlib.suppress(Exception):  # it failed already: only its descriptor is of interest
                self._writer.close()
        self._path.unlink(missing_ok=True)


def parquet_writer(target: Path | pa.NativeFile, schema: pa.Schema) -> pq.ParquetWriter:
    """A writer of rows with that schema, with the encodings that fit the columns."""
    return pq.ParquetWriter(
        target,
        schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=[column for column in _DICTIONARY if column in schema.names],
        column_encoding={column: "DELTA_BINARY_PACKED" for column in _DELTA_PACKED if column in schema.names},
        coerce_timestamps="us",
        store_schema=False,  # Arrow's dictionaries are ours alone; readers see plain text
    )


def write_file(folder: Path, table: Table, rows: pa.Table) -> StagedFile:
    """Writes rows, at least one, as one file."""
    with TableFile(folder, table) as file:
        file.write(rows)
        staged = file.finish()
    assert staged is not None
    return staged
