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
    collected: dict[tuple[str, str], list[pa.Table]] = {}
    records = 0
    for offset, data in chunks:
        found = Records(part.broker, part.log_id, scan(data, offset))
        records += len(found.scan)
        unique, named = message_index(found)
        offsets, events, stats = journal_tables(found)
        for table, kind, rows in (
            ("consume_queue", "", consume_queue(found)),
            ("message_index", "uniq", unique),
            ("message_index", "keys", named),
            ("messages", "", messages(found)),
            ("consumer_offsets", "", offsets),
            ("delivery_events", "", events),
            ("broker_stats", "", stats),
            ("quarantine", "", quarantine(found)),
        ):
            if rows.num_rows:
                collected.setdefault((table, kind), []).append(rows)
    place = {
        "target": part.target,
        "broker": part.broker,
        "log_id": part.log_id,
        "start": part.start,
        "end": part.end,
        "log_end": part.log_end,
    }
    manifest: list[dict[str, Any]] = [
        {"table": "", "path": "", "size": part.end - part.start, "rows": records, "stats": "", **place}
    ]
    for (name, _), tables in collected.items():
        path, size, rows, text = write_file(
            folder, TABLES[name], pa.concat_tables(tables, promote_options="permissive")
        )
        manifest.append({"table": name, "path": path, "size": size, "rows": rows, "stats": text, **place})
    yield pa.RecordBatch.from_pylist(manifest, MANIFEST)


def write_file(folder: Path, table: Table, rows: pa.Table) -> tuple[str, int, int, str]:
    """Writes rows in the table's order; returns path (relative to the table), bytes, rows, statistics as JSON."""
    rows = rows.cast(table.schema).combine_chunks()
    if table.order:
        rows = rows.take(pc.sort_indices(rows, [(name, "ascending") for name in table.order]))
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
