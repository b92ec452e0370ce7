"""What a lake must hold of a log: compared row key by row key with a scan of the store."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from store.log_reader import LogReader
from store.scan import scan
from structured_streaming.rows.all_tables import rows_of
from structured_streaming.rows.quarantine import quarantine
from structured_streaming.rows.records import Records
from structured_streaming.tables import DATA_TABLES

Keys = Counter[tuple[Any, ...]]


def rows(lake: Path, table: str) -> pa.Table:
    """A table of the lake."""
    return DeltaTable(str(lake / table)).to_pyarrow_table()


def expected_keys(*stores: Path | LogReader) -> dict[str, Keys]:
    """Row keys of every table, straight from the logs: folders of our stores, or readers of a real broker's."""
    expected: dict[str, Keys] = {table.name: Counter() for table in DATA_TABLES}
    for store in stores:
        reader = store if isinstance(store, LogReader) else LogReader(store)
        for offset, data, _ in reader.read_chunks(reader.min_offset, reader.readable_offset, 1 << 30):
            found = scan(data, offset, segment_size=reader.segment_size)
            records = Records(reader.broker, reader.log_id, found)
            for table, parts in rows_of(records):
                for rows in parts:
                    expected[table.name] += _keys(rows, table.name)
            bad = quarantine(reader.broker, reader.log_id, found, records.rejected)
            expected["quarantine"] += _keys(bad, "quarantine")
        reader.close()
    return expected


def assert_exact(lake: Path, *stores: Path | LogReader) -> dict[str, int]:
    """Every row key is there exactly once; returns rows by table."""
    counts = {}
    for name, expected in expected_keys(*stores).items():
        actual = _keys(DeltaTable(str(lake / name)).to_pyarrow_table(), name)
        doubled = [key for key, count in actual.items() if count > 1]
        assert not doubled, f"{name} has {len(doubled)} rows more than once, such as {doubled[:3]}"
        missing, extra = expected - actual, actual - expected
        assert not missing, f"{name} lacks {len(missing)} rows, such as {list(missing)[:3]}"
        assert not extra, f"{name} has {len(extra)} rows too many, such as {list(extra)[:3]}"
        counts[name] = sum(actual.values())
    return counts


def _keys(table: Any, name: str) -> Keys:
    key = next(t.key for t in DATA_TABLES if t.name == name)
    return Counter(zip(*(table[column].to_pylist() for column in key), strict=True))
