"""A lake that logs are staged and committed into without Spark, and what must hold of it whatever they hold."""

from __future__ import annotations

import datetime
import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from store.errors import RecordError
from store.log.record import SYS_COMPRESSED, decode_record
from store.scan import Scan, scan
from structured_streaming.commit.delta_commit import DeltaCommitSink
from structured_streaming.staging.stage import stage
from structured_streaming.staging.wanted import EVERYTHING, Wanted
from structured_streaming.storage.local import LocalFolder
from structured_streaming.tables import DATA_TABLES
from tests.support.lakes.empty import empty_lake
from tests.support.logs.raw import JOURNAL

YEAR_1_MS, YEAR_9999_MS = -62_135_596_800_000, 253_402_300_799_999


class StagedLake:
    """A lake in a folder. Each log that it takes counts as one of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        empty_lake(folder)
        self._sink = DeltaCommitSink(str(folder))
        self.logs = 0
        self.files: dict[str, list[Path]] = {table.name: [] for table in DATA_TABLES}
        self.rows: Counter[str] = Counter()

    def take(
        self,
        data: bytes,
        base: int = 0,
        delay_levels: tuple[int, ...] | None = None,
        *,
        broker: str = "b",
        erased: tuple[int, ...] = (),
        wanted: Wanted = EVERYTHING,
    ) -> dict[str, pa.Table]:
        """Stages and commits a log; returns the rows that it has in each table, read from its files."""
        self.logs += 1
        part = SimpleNamespace(
            target="store:-",
            broker=broker,
            log_id=f"log-{self.logs}",
            start=base,
            end=base + len(data),
            log_end=base + len(data),
            delay_levels=delay_levels,
            segment_size=None,
            erased=erased,
        )
        batches = stage(str(self.folder), part, iter([(base, data)]), wanted)  # type: ignore[arg-type]
        manifest = [row for batch in batches for row in batch.to_pylist()]
        sink = self._sink if wanted is EVERYTHING else DeltaCommitSink(str(self.folder), wanted=wanted)
        sink.commit(manifest)
        found = {}
        for table in DATA_TABLES:
            files = [row for row in manifest if row["table"] == table.name]
            parts = []
            for file in files:
                path = self.folder / table.name / file["path"]
                self.files[table.name].append(path)
                rows = pq.read_table(path)
                assert rows.num_rows == file["rows"]
                assert_statistics(rows, json.loads(file["stats"]))
                parts.append(rows)
            found[table.name] = pa.concat_tables(parts) if parts else table.schema.empty_table()
            self.rows[table.name] += found[table.name].num_rows
        return found

    def table(self, name: str) -> pa.Table:
        """A table as delta-rs reads it."""
        files = LocalFolder(self.folder / name).arrow_filesystem()
        return DeltaTable(str(self.folder / name)).to_pyarrow_table(filesystem=files)

    def assert_readable(self) -> None:
        """Every row is read by delta-rs and, where it is installed, by DuckDB."""
        try:
            import duckdb
        except ImportError:
            duckdb = None
        for name, paths in self.files.items():
            assert self.table(name).num_rows == self.rows[name]
            if duckdb is None or not paths:
                continue
            found = duckdb.read_parquet([str(path) for path in paths]).fetchall()
            assert len(found) == self.rows[name]


def assert_statistics(rows: pa.Table, stats: dict[str, Any]) -> None:
    """No least or greatest value rules out a value that is there."""
    assert stats["numRecords"] == rows.num_rows
    for name, nulls in stats["nullCount"].items():
        assert rows[name].null_count == nulls
    for kind, wrong in (("minValues", lambda v, end: v < end), ("maxValues", lambda v, end: v > end)):
        for name, end in stats[kind].items():
            json.dumps(end).encode()  # no lone surrogate
            values = [value for value in rows[name].unique().to_pylist() if value is not None]
            if pa.types.is_timestamp(rows[name].type):
                end = datetime.datetime.fromisoformat(end)
            outside = [value for value in values if wrong(value, end)]
            assert not outside, f"{kind} of {name} is {end!r}, {outside[:3]!r} is there"


def assert_accounted(data: bytes, base: int, tables: dict[str, pa.Table]) -> None:
    """Every record and every damage of the log has its rows, or one in quarantine; rows say what is in it."""
    found = scan(data, base)
    offsets = {name: Counter(rows["physical_offset"].to_pylist()) for name, rows in tables.items()}
    for name in ("consume_queue", "messages", "quarantine"):
        assert max(offsets[name].values(), default=1) == 1, f"{name} has a row twice"
    quarantined = set(offsets["quarantine"])
    in_tables = set().union(*(set(each) for name, each in offsets.items() if name != "quarantine"))
    assert not quarantined & in_tables
    expected = {*found.physical_offset.tolist(), *found.bad_offset.tolist()}
    assert quarantined | in_tables == expected
    assert set(found.bad_offset.tolist()) <= quarantined
    rows = {row["physical_offset"]: row for row in tables["messages"].to_pylist()}
    for index, offset in enumerate(found.physical_offset.tolist()):
        if offset not in quarantined:
            _assert_says(data, base, found, index, rows.get(offset))


def _assert_says(data: bytes, base: int, found: Scan, index: int, row: dict[str, Any] | None) -> None:
    """A row of messages says what plain Python reads in the record."""
    offset = int(found.physical_offset[index])
    try:
        record = decode_record(data, offset - base, offset, verify=False)
    except RecordError as error:
        raise AssertionError(f"the record at {offset} has rows, but {error}") from error
    if record.topic == JOURNAL:
        assert row is None
        return
    assert row is not None, f"the record at {offset} is in no table"
    properties = record.properties_map()
    assert len(row["properties"]) == len({key for key, _ in row["properties"]})
    assert dict(row["properties"]) == properties
    assert (row["topic"], row["queue_id"], row["queue_offset"], row["size"]) == (
        record.topic, record.queue_id, record.queue_offset, record.size,
    )  # fmt: skip
    assert (row["flag"], row["sys_flag"], row["reconsume_times"]) == (
        record.flag, record.sys_flag, record.reconsume_times,
    )  # fmt: skip
    assert row["prepared_transaction_offset"] == record.prepared_transaction_offset
    assert _ms(row["store_timestamp"]) == record.store_timestamp
    known = YEAR_1_MS <= record.born_timestamp <= YEAR_9999_MS
    assert _ms(row["born_timestamp"]) == (record.born_timestamp if known else None)
    assert row["tag"] == properties.get("TAGS")
    assert row["message_group"] == properties.get("__SHARDINGKEY")
    assert row["lite_topic"] == properties.get("__LITE_TOPIC")
    priority = properties.get("_SYS_MSG_PRIORITY_", "")
    usual = priority.isascii() and priority.isdigit() and len(priority) <= 15 and int(priority) < 1 << 31
    assert row["priority"] == (int(priority) if usual else None)
    assert row["keys"] == [key for key in properties.get("KEYS", "").split(" ") if key]
    if properties.get("UNIQ_KEY"):
        assert row["message_id"] == properties["UNIQ_KEY"]
    if row["body_encoding"] != "identity" or not record.sys_flag & SYS_COMPRESSED:
        assert row["body"] == bytes(record.body)


def _ms(time: datetime.datetime | None) -> int | None:
    if time is None:
        return None
    since = time - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return since // datetime.timedelta(milliseconds=1)
