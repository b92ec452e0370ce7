"""Rows of quarantine: what could not be read, or has no rows in other tables."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from store.scan import Longs, Scan
from structured_streaming import tables
from structured_streaming.rows.arrays import binary, constant, table_of, timestamps
from structured_streaming.rows.records import Rejected

RAW_BYTES = 1 << 20
"""Bytes that are kept of each."""
MISSING = "missing"
"""The reason of what was gone before it was read."""


def quarantine(broker: str, log_id: str, scan: Scan, rejected: Sequence[Rejected]) -> pa.Table:
    """What the scan could not read, and the records that were rejected."""
    found = sorted(
        [*zip(scan.bad_offset.tolist(), scan.bad_length.tolist(), scan.bad_reason, strict=True), *rejected]
    )
    offset = np.array([each[0] for each in found], dtype=np.int64)
    length = np.array([each[1] for each in found], dtype=np.int64)
    raw = binary(scan.buffer, offset - scan.base_offset, np.minimum(length, RAW_BYTES))
    return _rows(broker, log_id, offset, length, [each[2] for each in found], raw)


def missing(broker: str, log_id: str, start: int, end: int) -> pa.Table:
    """The row of bytes [start, end) that are gone."""
    offset, length = np.array([start], dtype=np.int64), np.array([end - start], dtype=np.int64)
    return _rows(broker, log_id, offset, length, [MISSING], pa.array([b""], pa.binary()))


def _rows(
    broker: str, log_id: str, offset: Longs, length: Longs, reasons: list[str], raw: pa.Array
) -> pa.Table:
    count = len(offset)
    now = np.full(count, time.time_ns() // 1_000_000, dtype=np.int64)
    return table_of(
        tables.QUARANTINE,
        {
            "broker": constant(broker, count),
            "log_id": constant(log_id, count),
            "physical_offset": pa.array(offset),
            "reason": pa.array(reasons, pa.string()),
            "raw": raw,
            "length": pa.array(length),
            "found_timestamp": timestamps(now),
        },
    )
