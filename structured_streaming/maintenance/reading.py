"""Rows of a table's files, whoever wrote them, as the table's schema has them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from store.counting import counted
from structured_streaming.commit.snapshot import DataFile
from structured_streaming.errors import LakeError, of_the_system
from structured_streaming.storage.folder import Folder


class FileError(LakeError):
    """A file of a table that is lost or damaged, or holds what its table cannot."""

    def __init__(self, file: DataFile, reason: object) -> None:
        super().__init__(f"file {file.path} cannot be read as the table's: {reason}")
        self.file = file


class Part:
    """A row group of an open file: what is in memory at a time."""

    def __init__(
        self, folder: Folder, file: DataFile, opened: pq.ParquetFile, number: int, schema: pa.Schema
    ) -> None:
        self.file = file
        self._folder = folder
        self.rows: int = opened.metadata.row_group(number).num_rows
        self._opened = opened
        self._number = number
        self._schema = schema

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Some columns, or all, in the order and types of the table; one that the file lacks is null. Raises as `parts`."""
        try:
            wanted = [self._schema.field(name) for name in columns or self._schema.names]
            names = [field.name for field in wanted]
            found = self._opened.read_row_group(self._number, columns and names, use_threads=False)
            return pa.table([_column(found, field, self.rows) for field in wanted], pa.schema(wanted))
        except (pa.ArrowException, OSError, KeyError) as error:
            raise _cannot_read(self._folder, self.file, error) from error

    def statistics(self, columns: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Least and greatest values of columns of texts or whole numbers, as Delta states those of a file; without those that are not
        stated."""
        group, least, greatest = self._opened.metadata.row_group(self._number), {}, {}
        for number in range(group.num_columns):
            column = group.column(number)
            stated = column.statistics
            if column.path_in_schema in columns and stated is not None and stated.has_min_max:
                least[column.path_in_schema], greatest[column.path_in_schema] = stated.min, stated.max
        return {"minValues": least, "maxValues": greatest}

    def batches(self, columns: Sequence[str], rows: int) -> Iterator[pa.Table]:
        """`read`, so many rows at a time: of large bodies not all are in memory. Raises as `parts`."""
        wanted = [self._schema.field(name) for name in columns]
        there = [name for name in columns if name in self._opened.schema_arrow.names]
        try:
            for batch in self._opened.iter_batches(rows, [self._number], there, use_threads=False):
                some = pa.Table.from_batches([batch])
                yield pa.table([_column(some, field, len(some)) for field in wanted], pa.schema(wanted))
        except (pa.ArrowException, OSError, KeyError) as error:
            raise _cannot_read(self._folder, self.file, error) from error


def parts(folder: Folder, file: DataFile, schema: pa.Schema) -> Iterator[Part]:
    """A file's row groups, one by one, of the table in `folder`. Raises FileError; any other LakeError where it cannot be read now."""
    with contextlib.ExitStack() as stack:
        try:
            # Spark's times have nanoseconds, of which 64 bits end in 2262
            opened = stack.enter_context(
                pq.ParquetFile(folder.readable(file.name), coerce_int96_timestamp_unit="us", pre_buffer=False)
            )
        except (pa.ArrowException, OSError) as error:
            raise _cannot_read(folder, file, error) from error
        stated, there = file.statistics.get("numRecords"), opened.metadata.num_rows
        if stated is not None and stated != there:
            raise FileError(file, f"it holds {counted(there, 'row')}, the table's log says {stated:,}")
        for number in range(opened.num_row_groups):
            yield Part(folder, file, opened, number, schema)


def _cannot_read(folder: Folder, file: DataFile, error: Exception) -> LakeError:
    """A file is lost where its table is there: with a mount all of it is gone."""
    if isinstance(error, FileNotFoundError) and folder.exists():
        return FileError(file, "it is not there")
    if of_the_system(error):
        return LakeError(
            f"file {folder}/{file.path} cannot be read now: {error}; run it again when that is over"
        )
    return FileError(file, error)


def _column(rows: pa.Table, field: pa.Field, count: int) -> pa.ChunkedArray:
    if field.name not in rows.column_names:
        return pa.chunked_array([pa.nulls(count, field.type)])
    column = rows[field.name]
    return column if column.type == field.type else column.cast(field.type)
