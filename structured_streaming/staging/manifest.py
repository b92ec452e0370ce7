"""What a staged range tells the driver: a row for each file, and one, with an empty table name, for the range itself.

The range's row says how many files there are: where Spark's JVM dies while it hands the rows over, those that came are all that the
driver gets, without an error."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from structured_streaming.source.log_range import LogRange
from structured_streaming.staging.table_file import StagedFile

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
        ("files", pa.int64()),
    ]
)
Files = list[tuple[str, StagedFile]]
"""By the name of their table."""


def manifest(part: LogRange, records: int, files: Files, newest_ms: int = 0) -> pa.RecordBatch:
    """Of a range that was read whole; `newest_ms` is when its newest record was stored, 0 without one."""
    found = [range_row(part, "", rows=records, files=len(files), stats=str(newest_ms))]
    found += [{**place_of(part), "table": name, **file._asdict()} for name, file in files]
    return pa.RecordBatch.from_pylist(found, MANIFEST)


def unknown_schema(ids: Sequence[int]) -> StagedFile:
    """In the place of a typed table's file: it has none of a range with bodies of schemas that are not known."""
    return StagedFile("", 0, 0, json.dumps(list(ids)))


def unknown_schemas(manifest: list[dict[str, Any]]) -> dict[str, set[int]]:
    """The ids of such schemas, by table."""
    found: dict[str, set[int]] = {}
    for row in manifest:
        if row["table"] and not row["path"]:
            found.setdefault(row["table"], set()).update(json.loads(row["stats"]))
    return found


def range_row(part: LogRange, kind: str, *, rows: int = 0, files: int = 0, stats: str = "") -> dict[str, Any]:
    """The row of the range itself; `kind` stands in the place of a table's name."""
    size = part.end - part.start
    found = {"table": kind, "path": "", "size": size, "rows": rows, "stats": stats, "files": files}
    return {**place_of(part), **found}


def place_of(part: LogRange) -> dict[str, Any]:
    """Which bytes of which log."""
    return {
        "target": part.target,
        "broker": part.broker,
        "log_id": part.log_id,
        "start": part.start,
        "end": part.end,
        "log_end": part.log_end,
    }
