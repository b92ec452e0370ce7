"""On executors: a range of log is scanned once and written as one sorted Parquet file for each table.

What goes back to the driver is a manifest row for each file, and one (with an empty table name) for the
range itself. Files are fsynced before they are named; one that is never committed is an orphan that
`maintain` will remove.
"""

from __future__ import annotations

import datetime
import json
import os
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from store.scan import scan
from store.segment import sync_folder
from structured_streaming.rows.journal import journal_tables
from structured_streaming.rows.records import Records, consume_queue, message_index, messages, quarantine
from structured_streaming.tables import TABLES, Table, lake_folder

if TYPE_CHECKING:
    from structured_streaming.source.data_source import LogRange

MANIFEST = pa.schema(
    [
        ("table", pa.string()),
        ("path", pa.string()),
        ("size", pa.int64()),
        ("rows", pa.int64()),
        ("stats", pa.string()),
        ("target", pa.string()),
        ("broker", pa.string()),
        ("log_id", pa.string()),
        ("start", pa.int64()),
        ("end", pa.int64()),
        ("log_end", pa.int64()),
    ]
)
STATS_TEXT = 32
"""Characters of a text in the statistics."""
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


def stage(
    lake: str, part: LogRange, chunks: Iterable[tuple[int, bytes | memoryview]]
) -> Iterator[pa.RecordBatch]:
    """Writes the files of a range and yields its manifest."""
    folder = lake_folder(lake)
    found = Records(part.broker, part.log_id, scan(_joined(chunks), part.start))
    unique, named = message_index(found)
    offsets, events, stats = journal_tables(found)
    staged = (
        ("consume_queue", consume_queue(found)),
        ("message_index", unique),
        ("message_index", named),
        ("messages", messages(found)),
        ("consumer_offsets", _ordered("consumer_offsets", offsets)),
        ("delivery_events", _ordered("delivery_events", events)),
        ("broker_stats", _ordered("broker_stats", stats)),
        ("quarantine", quarantine(found)),
    )
    place = {
        "target": part.target,
        "broker": part.broker,
        "log_id": part.log_id,
        "start": part.start,
        "end": part.end,
        "log_end": part.log_end,
    }
    span = part.end - part.start
    manifest: list[dict[str, Any]] = [
        {"table": "", "path": "", "size": span, "rows": len(found.scan), "stats": "", **place}
    ]
    for name, rows in staged:
        if rows.num_rows:
            path, size, count, text = write_file(folder, TABLES[name], rows)
            manifest.append(
                {"table": name, "path": path, "size": size, "rows": count, "stats": text, **place}
            )
    yield pa.RecordBatch.from_pylist(manifest, MANIFEST)


def _joined(chunks: Iterable[tuple[int, bytes | memoryview]]) -> bytes | memoryview:
    """The bytes of a range: a partition, which the source keeps small."""
    parts = [data for _, data in chunks]
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _ordered(name: str, rows: pa.Table) -> pa.Table:
    keys = [(column, "ascending") for column in TABLES[name].order]
    return rows.take(pc.sort_indices(rows, keys)) if rows.num_rows else rows


def write_file(folder: Path, table: Table, rows: pa.Table) -> tuple[str, int, int, str]:
    """Writes rows as they are; returns path (relative to the table), bytes, rows, statistics as JSON."""
    name = f"part-{uuid.uuid4().hex}.zstd.parquet"
    path = folder / table.name / name
    names = set(rows.column_names)
    pq.write_table(
        rows,
        path,
        compression="zstd",
        compression_level=1,
        use_dictionary=[column for column in _DICTIONARY if column in names],
        column_encoding={column: "DELTA_BINARY_PACKED" for column in _DELTA_PACKED if column in names},
        coerce_timestamps="us",
        store_schema=False,  # Arrow's dictionaries are ours alone; readers see plain text
    )
    with path.open("rb") as file:
        os.fsync(file.fileno())
    sync_folder(path.parent)
    return name, path.stat().st_size, rows.num_rows, json.dumps(statistics(rows))


def statistics(rows: pa.Table) -> dict[str, Any]:
    """Delta's statistics of a file: rows, and least, greatest and null count of each scalar column.

    A text is cut at `STATS_TEXT` characters; a greatest one that was cut is rounded up.
    """
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name in rows.column_names:
        column = rows[name]
        if pa.types.is_nested(column.type) or pa.types.is_binary(column.type):
            continue
        nulls[name] = column.null_count
        if column.null_count == len(column) or pa.types.is_boolean(column.type):
            continue
        if pa.types.is_dictionary(column.type):
            column = column.unique().dictionary_decode()
        ends = pc.min_max(column)
        least[name] = _stated(ends["min"].as_py(), up=False)
        greatest[name] = _stated(ends["max"].as_py(), up=True)
    return {"numRecords": rows.num_rows, "minValues": least, "maxValues": greatest, "nullCount": nulls}


def _stated(value: Any, *, up: bool) -> Any:
    if isinstance(value, str) and len(value) > STATS_TEXT:
        return value[:STATS_TEXT] + ("\U0010ffff" if up else "")
    if isinstance(value, datetime.datetime):
        # milliseconds are what every reader takes; what is below them is rounded the safe way
        ms = value.astimezone(datetime.UTC)
        cut = ms.replace(microsecond=ms.microsecond // 1000 * 1000)
        if up and cut != ms:
            cut += datetime.timedelta(milliseconds=1)
        return cut.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value
