"""On executors: a range of log is scanned once and written as sorted Parquet files, one for each table and kind of
key as long as its rows fit in memory together.

What goes back to the driver is a manifest row for each file, and one (with an empty table name) for the
range itself. Files are fsynced before they are named. Those of a range that cannot be read to its end are removed;
one that a crash leaves uncommitted is in no table, and Delta's VACUUM removes it. Memory is bounded whatever the log holds: bytes are taken `GROUP_BYTES` at a time,
records as `rows/pieces.py` says, bodies as `rows/bodies.py` does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from functools import partial

import numpy as np
import pyarrow as pa

from store.scan import scan
from structured_streaming.rows.all_tables import rows_of
from structured_streaming.rows.pieces import Piece, taken
from structured_streaming.rows.quarantine import missing, quarantine
from structured_streaming.rows.records import Records, Rejected
from structured_streaming.source.log_range import LogRange
from structured_streaming.staging.manifest import Files, manifest, unknown_schema
from structured_streaming.staging.table_file import TableFile
from structured_streaming.staging.wanted import EVERYTHING, Wanted
from structured_streaming.storage.folder import Folder
from structured_streaming.storage.local import temporary_folder
from structured_streaming.storage.location import lake_folder
from structured_streaming.tables import QUARANTINE, TABLES, Table
from structured_streaming.typed.declaration import UnknownSchemaError
from structured_streaming.typed.topic import typed_topic

GROUP_BYTES = 32 << 20
"""Of the log that are in memory at a time; a chunk that is larger is taken alone."""


def stage(
    lake: str,
    part: LogRange,
    chunks: Iterable[tuple[int, bytes | memoryview]],
    wanted: Wanted = EVERYTHING,
) -> Iterator[pa.RecordBatch]:
    """Writes the files of a range and yields its manifest; of a failure, also one of `chunks`, nothing is left."""
    folder = lake_folder(lake)
    files: Files = []
    records = newest_ms = 0
    with _removed_on_failure(folder, files):
        for offset, data in _joined(chunks):
            found = scan(data, offset, segment_size=part.segment_size)
            records += len(found)
            newest_ms = int(found.store_timestamp.max(initial=newest_ms))
            erased = np.array(part.erased, np.int64)
            _stage(folder, Piece(part.broker, part.log_id, part.delay_levels, found, erased), wanted, files)
    yield manifest(part, records, files, newest_ms)


def stage_missing(lake: str, part: LogRange) -> Iterator[pa.RecordBatch]:
    """Writes the quarantine row of a range that is gone, and yields its manifest."""
    gone = missing(part.broker, part.log_id, part.start, part.end)
    yield manifest(part, 0, _written_as(lake_folder(lake), QUARANTINE, iter((gone,))))


def _stage(lake: Folder, piece: Piece, wanted: Wanted, files: Files) -> None:
    """Adds the files of one scan, each group of them as soon as it is written."""

    def write(records: Records) -> tuple[Files, list[Rejected]]:
        return _written(lake, records, wanted), records.rejected

    rejected: list[Rejected] = []
    for result in taken(piece, write, partial(_try, wanted)):
        if isinstance(result, Rejected):
            rejected.append(result)
        else:
            files += result[0]
            rejected += result[1]
    bad = quarantine(piece.broker, piece.log_id, piece.found, rejected)
    files += _written_as(lake, QUARANTINE, iter((bad,)))


def _written(lake: Folder, records: Records, wanted: Wanted) -> Files:
    """Files of some records; of a failure nothing is left."""
    files: Files = []
    with _removed_on_failure(lake, files):
        for table, parts in rows_of(records, wanted, wanted.bodies):
            files += _written_as(lake, table, parts)
        for topic in map(typed_topic, wanted.typed):
            try:
                files += _written_as(lake, topic.table, topic.of_records(records))
            except UnknownSchemaError as error:
                files.append((topic.table.name, unknown_schema(error.ids)))
    return files


@contextlib.contextmanager
def _removed_on_failure(lake: Folder, files: Files) -> Iterator[None]:
    """Removes what `files` holds by then when the block raises."""
    try:
        yield
    except BaseException:
        for name, file in files:
            if file.path:
                lake.child(name).remove(file.path)
        raise


def _written_as(lake: Folder, table: Table, parts: Iterator[pa.Table]) -> Files:
    """The rows as one file; none without rows."""
    with TableFile(lake, table) as file:
        for rows in parts:
            if rows.num_rows:
                file.write(rows)
        staged = file.finish()
    return [(table.name, staged)] if staged is not None else []


def _try(wanted: Wanted, records: Records) -> None:
    with temporary_folder() as scratch:
        for name in (*TABLES, *(declared.table for declared in wanted.typed)):
            scratch.child(name).make()
        _written(scratch, records, wanted)


def _joined(
    chunks: Iterable[tuple[int, bytes | memoryview]],
) -> Iterator[tuple[int, bytes | memoryview]]:
    """Chunks put together while they follow one another and are no more than `GROUP_BYTES`."""
    parts: list[bytes | memoryview] = []
    first = length = 0
    for offset, data in chunks:
        if parts and (offset != first + length or length + len(data) > GROUP_BYTES):
            yield first, _whole(parts)
            parts, length = [], 0
        if not parts:
            first = offset
        parts.append(data)
        length += len(data)
    if parts:
        yield first, _whole(parts)


def _whole(parts: list[bytes | memoryview]) -> bytes | memoryview:
    return parts[0] if len(parts) == 1 else b"".join(parts)
