"""A file of a Delta table as an entry of an Iceberg manifest.

Its statistics are Delta's, in the binary form of Iceberg's single values. Readers pass over a file whose bounds rule out what
they look for: a bound that is not sure to hold is left out.

| of Delta | of Iceberg |
|---|---|
| numRecords | record count; where it is not stated, of the file's footer |
| nullCount | null value counts, and as many values as there are rows |
| least and greatest of whole numbers | as they are |
| of texts | as they are: both compare by code points, a cut least text is below, and Delta's greatest is above |
| of times, in ms | the least as it is, the greatest up to the end of its ms, to which some writers cut it |
| of all else (fractions, decimals, days, what is nested) | left out |
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile as Entry
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import (
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestamptzType,
)

from structured_streaming.commit.snapshot import DataFile
from structured_streaming.errors import LakeError
from structured_streaming.storage.folder import Folder

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_US = datetime.timedelta(microseconds=1)
_BITS = {IntegerType: 32, LongType: 64}


class Entries:
    """Makes entries of files of the table in `folder`, whose columns are those of `schema`."""

    def __init__(self, folder: Folder, uri: str, schema: Schema) -> None:
        self._folder = folder
        self._uri = uri
        self._columns = {field.name: field for field in schema.fields if field.field_type.is_primitive}

    def entry(self, file: DataFile) -> Entry:
        """Raises LakeError, OSError."""
        stated = file.statistics
        rows = stated.get("numRecords")
        if type(rows) is not int or rows < 0:
            rows = self._rows(file)
        nulls = {
            field.field_id: count
            for field, count in self._of_columns(stated, "nullCount")
            if type(count) is int and 0 <= count <= rows
        }
        return Entry.from_args(
            content=DataFileContent.DATA,
            file_path=f"{self._uri}/{file.name}",
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=rows,
            file_size_in_bytes=file.size,
            value_counts=dict.fromkeys(nulls, rows),
            null_value_counts=nulls,
            lower_bounds=self._bounds(stated, "minValues"),
            upper_bounds=self._bounds(stated, "maxValues"),
            spec_id=0,
        )

    def _bounds(self, stated: Mapping[str, Any], kind: str) -> dict[int, bytes]:
        ends = self._of_columns(stated, kind)
        bounds = {field.field_id: _bound(field, end, kind == "maxValues") for field, end in ends}
        return {number: bound for number, bound in bounds.items() if bound is not None}

    def _of_columns(self, stated: Mapping[str, Any], kind: str) -> list[tuple[NestedField, Any]]:
        found = stated.get(kind)
        if not isinstance(found, dict):
            return []
        return [(self._columns[name], value) for name, value in found.items() if name in self._columns]

    def _rows(self, file: DataFile) -> int:
        try:
            return int(pq.ParquetFile(self._folder.readable(file.name)).metadata.num_rows)
        except (pa.ArrowException, FileNotFoundError) as error:
            raise LakeError(
                f"file {file.path}: the table's log states no rows, and its own footer cannot be read: {error}"
            ) from error


def _bound(field: NestedField, value: Any, greatest: bool) -> bytes | None:
    kind = field.field_type
    assert isinstance(kind, PrimitiveType)
    if isinstance(kind, StringType) and isinstance(value, str):
        return _text(value)
    if type(kind) in _BITS and type(value) is int:
        limit = 1 << (_BITS[type(kind)] - 1)
        return to_bytes(kind, value) if -limit <= value < limit else None
    if isinstance(kind, TimestamptzType) and isinstance(value, str):
        micros = _micros(value, greatest)
        return None if micros is None else to_bytes(kind, micros)
    return None


def _text(value: str) -> bytes | None:
    try:
        return value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which no text in a file has
        return None


def _micros(text: str, greatest: bool) -> int | None:
    """Since the epoch; None for a time that says no zone, or is none of Python's."""
    try:
        time = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    if time.tzinfo is None:
        return None
    micros = (time - _EPOCH) // _US
    return micros + 999 if greatest and micros % 1000 == 0 else micros
