"""What a lake must hold of a log: compared row key by row key with a scan of the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from deltalake import DeltaTable
from pyarrow.dataset import dataset

from store.log_reader import LogReader
from store.scan import scan
from structured_streaming.rows.all_tables import rows_of
from structured_streaming.rows.quarantine import quarantine
from structured_streaming.rows.records import Records
from structured_streaming.tables import DATA_TABLES, TABLES, Table

Keys = Counter[tuple[Any, ...]]


def rows(lake: Path | str, table: str, columns: list[str] | None = None) -> pa.Table:
    """A table of the lake, which is in a folder or an object store, as delta-rs reads its log."""
    opened = DeltaTable(f"{lake}/{table}")
    if "://" in str(lake):
        return opened.to_pyarrow_table(columns=columns)
    # of very many small files, half of the work is the statistics that a filter would be compared with
    files = dataset(opened.file_uris(), schema=pa.schema(opened.schema().to_arrow()), format="parquet")
    return files.to_table(columns=columns, use_threads=False)


def expected_keys(*stores: Path | LogReader) -> dict[str, Keys]:
    """Row keys of every table, straight from the logs: folders of our stores, or readers of a real broker's."""
    expected: dict[str, Keys] = {table.name: Counter() for table in DATA_TABLES}
    for store in stores:
        reader = store if isinstance(store, LogReader) else LogReader(store)
        begin = max(reader.min_offset, reader.own_from)
        for offset, data, _ in reader.read_chunks(begin, reader.readable_offset, 1 << 30):
            found = scan(data, offset, segment_size=reader.segment_size)
            records = Records(reader.broker, reader.log_id, found)
            for table, parts in rows_of(records):
                for rows in parts:
                    expected[table.name] += _keys(rows, table.name)
            bad = quarantine(reader.broker, reader.log_id, found, records.rejected)
            expected["quarantine"] += _keys(bad, "quarantine")
        reader.close()
    return expected


def assert_exact(lake: Path | str, *stores: Path | LogReader) -> dict[str, int]:
    """Every row key is there exactly once; returns rows by table."""
    return {
        name: _assert_same(name, _held(lake, name), expected)
        for name, expected in expected_keys(*stores).items()
    }


class Held(NamedTuple):
    """What the progress of a lake says that it holds of each log, and how many rows there are beyond, which a batch left that
    was not finished."""

    ends: dict[tuple[str, str], int]
    beyond: int


def assert_exact_below_progress(lake: Path, *stores: Path | LogReader) -> Held:
    """Every row key below the progress is there exactly once, while a batch may be under way."""
    return assert_keys_below_progress(lake, expected_keys(*stores))


def assert_keys_below_progress(lake: Path, keys: Mapping[str, Keys]) -> Held:
    """As `assert_exact_below_progress`, of logs with these row keys."""
    ends: dict[tuple[str, str], int] = {}
    for row in rows(lake, "reput_progress").to_pylist():
        log = row["broker"], row["log_id"]
        ends[log] = max(ends.get(log, 0), row["end_offset"])
    beyond = 0
    for name, expected in keys.items():
        held = _held(lake, name)
        below = _below(held, ends)
        _assert_same(name, below, _below(expected, ends))
        beyond += (held - below).total()
    return Held(ends, beyond)


def _below(keys: Keys, ends: Mapping[tuple[str, str], int]) -> Keys:
    return Counter({key: count for key, count in keys.items() if key[2] < ends.get((key[0], key[1]), 0)})


def _held(lake: Path | str, name: str) -> Keys:
    return _keys(rows(lake, name), name)


def _assert_same(name: str, actual: Keys, expected: Keys) -> int:
    doubled = [key for key, count in actual.items() if count > 1]
    assert not doubled, f"{name} has {len(doubled)} rows more than once, such as {doubled[:3]}"
    missing, extra = expected - actual, actual - expected
    assert not missing, f"{name} lacks {len(missing)} rows, such as {list(missing)[:3]}"
    assert not extra, f"{name} has {len(extra)} rows too many, such as {list(extra)[:3]}"
    return actual.total()


def _keys(table: Any, name: str) -> Keys:
    key = next(t.key for t in DATA_TABLES if t.name == name)
    return Counter(zip(*(table[column].to_pylist() for column in key), strict=True))


def of_every_type() -> list[Table]:
    """Few tables whose columns have all types between them."""
    found, known = list[Table](), set[str]()
    for table in sorted(TABLES.values(), key=lambda table: -len(_types(table))):
        if not _types(table) <= known:
            found.append(table)
            known |= _types(table)
    return found


def _types(table: Table) -> set[str]:
    return {str(column.type) for column in table.columns}
