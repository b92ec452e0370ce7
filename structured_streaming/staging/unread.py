"""Ranges of a batch that could not be read: the batch is committed without them, and they are read again later.

An executor whose broker falls silent says so in the manifest instead of failing the batch of all brokers. Of
that log the batch then ends where the first such range begins.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from structured_streaming.errors import UnreachableError
from structured_streaming.source.log_range import LogRange
from structured_streaming.staging.manifest import MANIFEST, range_row

UNREAD = "(unread)"
"""In the place of a table's name; the reason stands in `stats`."""


def unread(part: LogRange, error: UnreachableError) -> pa.RecordBatch:
    """The manifest of a range that could not be read."""
    return pa.RecordBatch.from_pylist([range_row(part, UNREAD, stats=str(error))], MANIFEST)


def without_unread(manifest: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The manifest up to the first unread range of each log, and the reasons by target."""
    first: dict[tuple[str, str], int] = {}
    reasons: dict[str, str] = {}
    for row in manifest:
        if row["table"] == UNREAD:
            log = (row["broker"], row["log_id"])
            first[log] = min(first.get(log, row["start"]), row["start"])
            reasons.setdefault(row["target"], row["stats"])
    if not first:
        return manifest, reasons
    kept = [row for row in manifest if row["start"] < first.get((row["broker"], row["log_id"]), row["end"])]
    return kept, reasons
