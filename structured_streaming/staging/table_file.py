"""One Parquet file of a table, written a bounded number of rows at a time."""

from __future__ import annotations

import contextlib
import json
import uuid
from types import TracebackType
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from structured_streaming.staging.statistics import Statistics
from structured_streaming.storage.folder import Folder, NewFile
from structured_streaming.tables import Table

PART, SORTED, KEPT = "part", "sorted", "kept"
"""What the name of a file begins with. Files of a window of time that are `SORTED` together have ranges of their own of the table's
order; of rows that are `KEPT` the time has run out, and they stay (`maintenance/`)."""
LABELS = (PART, SORTED, KEPT)
GROUP_ROWS = 1 << 15
"""A look-up reads all of a row group that may have the row: of rows without bodies a quarter of a million would be in one else."""
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
    "tag",
    "body_encoding",
    "born_host",
    "store_host",
]
_DELTA_PACKED = ("physical_offset", "queue_offset", "store_timestamp", "born_timestamp", "event_timestamp")
_WITHOUT_ENDS = ("message_id", "born_host", "store_host", "body_encoding")
"""Texts whose least and greatest value in a row group rule nothing out; so it is with bodies and what is nested."""


class StagedFile(NamedTuple):
    """A file that is durable: name in the table's folder, bytes, rows, statistics as JSON."""

    path: str
    size: int
    rows: int
    stats: str


class TableFile:
    """Rows are written as they are. An exception inside of `with` removes the file, `finish` makes it durable."""

    def __init__(self, lake: Folder, table: Table, label: str = PART) -> None:
        self._folder = lake.child(table.name)
        self._name = f"{label}-{uuid.uuid4().hex}.zstd.parquet"
        self._file: NewFile | None = None
        self._writer: pq.ParquetWriter | None = None
        self._statistics = Statistics()
        self._rows = 0

    def write(self, rows: pa.Table) -> None:
        """Adds rows, which are at once in the file, as row groups of at most `GROUP_ROWS`."""
        if self._writer is None:
            self._file = self._folder.open_new(self._name)
            self._writer = parquet_writer(self._file.target, rows.schema)
        self._writer.write_table(rows, GROUP_ROWS)
        self._statistics.add(rows)
        self._rows += rows.num_rows

    def finish(self) -> StagedFile | None:
        """None when nothing was written."""
        if self._writer is None or self._file is None:
            return None
        self._writer.close()
        size = self._file.finish()
        return StagedFile(self._name, size, self._rows, json.dumps(self._statistics.stated()))

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
        if self._file is not None:
            self._file.discard()


def parquet_writer(target: Any, schema: pa.Schema) -> pq.ParquetWriter:
    """A writer to a path or a file object, of rows with that schema, with the encodings that fit the columns."""
    return pq.ParquetWriter(
        target,
        schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=[column for column in _DICTIONARY if column in schema.names],
        column_encoding={
            field.name: "DELTA_BINARY_PACKED"
            for field in schema
            if field.name in _DELTA_PACKED and _is_long(field.type)
        },
        coerce_timestamps="us",
        write_statistics=[field.name for field in schema if _has_ends(field)],
        store_schema=False,  # Arrow's dictionaries are ours alone; readers see plain text
    )


def _is_long(kind: pa.DataType) -> bool:
    """A column of a typed table may be of any type, whatever its name."""
    return bool(pa.types.is_int64(kind) or pa.types.is_timestamp(kind))


def _has_ends(field: pa.Field) -> bool:
    return not (
        field.name in _WITHOUT_ENDS or pa.types.is_nested(field.type) or pa.types.is_binary(field.type)
    )


def write_file(lake: Folder, table: Table, rows: pa.Table) -> StagedFile:
    """Writes rows, at least one, as one file."""
    with TableFile(lake, table) as file:
        file.write(rows)
        staged = file.finish()
    assert staged is not None
    return staged
