"""What a lake must hold of a log: compared row key by row key with a scan of the store."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from store.log_reader import LogReader
from store.scan import scan
from structured_streaming.rows.journal import journal_tables
from structured_streaming.rows.records import Records, consume_queue, message_index, messages, quarantine
from structured_streaming.tables import DATA_TABLES

Keys = Counter[tuple[Any, ...]]


def expected_keys(*stores: Path) -> dict[str, Keys]:
    """Row keys of every table, straight from the logs."""
    expected: dict[str, Keys] = {table.name: Counter() for table in DATA_TABLES}
    for store in stores:
        reader = LogReader(store)
        for offset, data, _ in reader.read_chunks(reader.min_offset, reader.flushed_offset, 1 << 30):
            found = Records(reader.broker, reader.log_id, scan(data, offset))
            unique, named = message_index(found)
            offsets, events, stats = journal_tables(found)
            for name, table in (
                ("consume_queue", consume_queue(found)),
                ("message_index", unique),
                ("message_index", named),
                ("messages", messages(found)),
                ("consumer_offsets", offsets),
                ("delivery_events", events),
                ("broker_stats", stats),
                ("quarantine", quarantine(found)),
            ):
                expected[name] += _keys(table, name)
        reader.close()
    return expected


def assert_exact(lake: Path, *stores: Path) -> dict[str, int]:
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
