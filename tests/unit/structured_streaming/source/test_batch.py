"""Batch queries of logs, called as Spark calls them: ranges, times, tables, columns, filters that are offered."""

from __future__ import annotations

import datetime
import functools
import gc
import json
import pickle
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import datasource as spark_filters

from lakebroker_testing.logs import LogWriter
from store.log_reader import LogReader
from store.scan import scan
from structured_streaming.errors import SourceError
from structured_streaming.rows import bodies
from structured_streaming.rows.all_tables import rows_of
from structured_streaming.rows.quarantine import quarantine
from structured_streaming.rows.records import Records
from structured_streaming.source import reading
from structured_streaming.source.data_source import LakebrokerDataSource
from structured_streaming.source.log_range import LogRange
from structured_streaming.tables import DATA_TABLES, TABLES

SMALL = str(16 << 10)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two segments of everything, with damage."""
    with LogWriter(tmp_path_factory.mktemp("batch") / "store") as writer:
        writer.everything()
        writer.raw(b"no record at all".ljust(500, b"?"))
        writer.everything()
        return writer.folder


def reader(store: Path, *filters: Any, **options: str) -> Any:
    source = LakebrokerDataSource({"store": str(store), "partitionBytes": SMALL, **options})
    made = source.reader(source.schema())
    if filters:
        assert list(made.pushFilters(list(filters))) == list(filters), "Spark applies every filter again"
    return made


def read(made: Any) -> pa.Table:
    """The rows, read by what executors get of the reader."""
    parts = made.partitions()
    there = pickle.loads(pickle.dumps(made))
    batches = [batch for part in parts for batch in there.read(part)]
    assert all(batch.schema == made.selection.schema for batch in batches)
    return pa.Table.from_batches(batches, made.selection.schema)


def test_collections_behind_tasks_pass_over_loaded_modules(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_left_out", False)
    gc.unfreeze()
    try:
        read(reader(store))
        assert gc.get_freeze_count() > 100_000, "each task's collection goes through numba and pyarrow"
    finally:
        gc.freeze()  # as the tests were collected


def size(parts: list[LogRange]) -> int:
    return sum(part.end - part.start for part in parts)


@functools.cache
def expected(store: Path, table: str) -> list[dict[str, Any]]:
    """All rows of a table, from the whole log at once."""
    log = LogReader(store)
    found: list[dict[str, Any]] = []
    for offset, data, _ in log.read_chunks(log.min_offset, log.readable_offset, 1 << 30):
        each = scan(data, offset)
        records = Records(log.broker, log.log_id, each)
        if table == "quarantine":
            found += quarantine(log.broker, log.log_id, each, records.rejected).to_pylist()
        for of, parts in rows_of(records):
            found += [row for rows in parts for row in rows.to_pylist() if of.name == table]
    log.close()
    return found


def in_order(rows: list[dict[str, Any]], *without: str) -> list[str]:
    return sorted(str({name: row[name] for name in sorted(row) if name not in without}) for row in rows)


@pytest.mark.parametrize("table", [table.name for table in DATA_TABLES])
def test_rows_are_those_of_the_table(store: Path, table: str) -> None:
    rows = read(reader(store, table=table)).to_pylist()
    assert rows
    assert in_order(rows, "found_timestamp") == in_order(expected(store, table), "found_timestamp")


@pytest.mark.parametrize("table", [table.name for table in DATA_TABLES])
def test_each_column_alone_is_what_it_is_beside_others(store: Path, table: str) -> None:
    large = str(1 << 20)
    every = read(reader(store, table=table, partitionBytes=large))
    for column in TABLES[table].schema.names:
        if column == "found_timestamp":
            continue
        alone = read(reader(store, table=table, columns=column, partitionBytes=large))
        assert in_order(alone.to_pylist()) == in_order(every.select([column]).to_pylist()), column


def test_no_body_is_decompressed_for_other_columns(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(records: Any, wanted: Any) -> Any:
        raise OSError(5, "a body was asked for")

    monkeypatch.setattr(bodies, "slices", refuse)
    assert read(reader(store, columns="topic,tag")).num_rows == 606
    with pytest.raises(OSError, match="a body was asked for"):
        read(reader(store, columns="topic,body"))


def test_ranges_join_and_read_only_what_is_theirs(store: Path) -> None:
    every = sorted(read(reader(store)).column("physical_offset").to_pylist())
    cuts = [every[0], every[100], every[333]]
    ends = [*cuts[1:], LogReader(store).readable_offset]
    found, covered = [], 0
    for start, end in zip(cuts, ends, strict=True):
        made = reader(
            store,
            startingOffsets=json.dumps({"broker-a": start}),
            endingOffsets=json.dumps({"broker-a": end}),
        )
        assert size(made.partitions()) == end - start
        covered += end - start
        found += read(made).column("physical_offset").to_pylist()
    assert sorted(found) == every
    assert covered == ends[-1] - cuts[0]


def test_times_choose_among_records(tmp_path: Path) -> None:
    with LogWriter(tmp_path / "store") as writer:
        for _ in range(4):
            writer.messages(50)
            time.sleep(0.002)
        writer.journal_record(1)
    whole = read(reader(writer.folder)).sort_by("physical_offset").to_pylist()
    times = sorted({row["store_timestamp"] for row in whole})
    assert len(times) > 2, "the log was written in one millisecond"
    first, last = times[1], times[-1]
    wanted = [row for row in whole if first <= row["store_timestamp"] < last]
    ms = str(round(last.timestamp() * 1000))
    for start in (first.isoformat(), first.replace(tzinfo=None).isoformat()):
        made = reader(writer.folder, startingTimestamp=start, endingTimestamp=ms)
        assert in_order(read(made).to_pylist()) == in_order(wanted)
    past = read(reader(writer.folder, endingTimestamp="1000", table="consumer_offsets"))
    assert past.num_rows == 0
    assert read(reader(writer.folder, startingTimestamp="1000", table="consumer_offsets")).num_rows == 1


def utc(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC)


FILTERS: list[tuple[Any, Any]] = [
    (spark_filters.EqualTo(("topic",), "topic-1"), lambda row: row["topic"] == "topic-1"),
    (spark_filters.In(("topic",), ("topic-1", "%DLQ%g")), lambda row: row["topic"] in ("topic-1", "%DLQ%g")),
    (spark_filters.EqualTo(("queue_id",), 2), lambda row: row["queue_id"] == 2),
    (spark_filters.GreaterThan(("queue_offset",), 7), lambda row: row["queue_offset"] > 7),
    (spark_filters.LessThanOrEqual(("physical_offset",), 5000), lambda row: row["physical_offset"] <= 5000),
    (spark_filters.GreaterThanOrEqual(("physical_offset",), 5000), lambda row: row["physical_offset"] >= 5000),
    (spark_filters.LessThan(("store_timestamp",), utc("2001-01-01")), lambda row: False),
    (spark_filters.GreaterThan(("store_timestamp",), utc("2001-01-01")), lambda row: True),
    (spark_filters.EqualTo(("broker",), "another"), lambda row: False),
    (spark_filters.EqualNullSafe(("log_id",), "another"), lambda row: False),
]  # fmt: skip


@pytest.mark.parametrize("table", ["messages", "consume_queue", "message_index"])
@pytest.mark.parametrize(("offered", "holds"), FILTERS)
def test_filters_drop_exactly_what_they_rule_out(store: Path, table: str, offered: Any, holds: Any) -> None:
    few = str(64 << 10)
    found = read(reader(store, offered, table=table, pushFilters="true", partitionBytes=few)).to_pylist()
    assert in_order(found) == in_order([row for row in expected(store, table) if holds(row)])


def test_what_is_no_property_of_records_drops_nothing_of_the_journals_tables(store: Path) -> None:
    """`topic` there is of the group's queue, and all its records are of one topic."""
    offered = spark_filters.EqualTo(("topic",), "topic-1"), spark_filters.EqualTo(("queue_id",), 1)
    for table in ("consumer_offsets", "delivery_events", "broker_stats"):
        found = read(reader(store, *offered, table=table, pushFilters="true")).to_pylist()
        assert in_order(found) == in_order(expected(store, table))


def test_filters_on_offsets_and_brokers_leave_ranges_out(store: Path) -> None:
    whole = reader(store, pushFilters="true").partitions()
    assert len(whole) > 10
    middle = whole[5]
    for offered, ranges in (
        ((spark_filters.EqualTo(("physical_offset",), middle.start),), 1),
        ((spark_filters.In(("physical_offset",), (whole[0].start, middle.end - 1)),), 2),
        ((spark_filters.LessThan(("physical_offset",), middle.start),), 5),
        ((spark_filters.LessThanOrEqual(("physical_offset",), middle.start),), 6),
        ((spark_filters.GreaterThanOrEqual(("physical_offset",), whole[-1].start),), 1),
        ((spark_filters.EqualTo(("broker",), "broker-a"),), len(whole)),
        ((spark_filters.EqualTo(("broker",), "another"),), 0),
        ((spark_filters.Not(spark_filters.EqualTo(("broker",), "broker-a")),), len(whole)),
        ((spark_filters.EqualTo(("topic",), 7), spark_filters.IsNotNull(("body",))), len(whole)),
    ):
        assert len(reader(store, *offered, pushFilters="true").partitions()) == ranges, offered


def test_a_reader_takes_filters_only_where_that_is_asked_for(store: Path) -> None:
    """Spark refuses one that would while `spark.sql.python.filterPushdown.enabled` is not set."""
    plain = spark_filters.DataSourceReader.pushFilters
    assert type(reader(store)).pushFilters is plain
    assert type(reader(store, pushFilters="true")).pushFilters is not plain


def test_offsets_may_name_their_log(store: Path) -> None:
    log = LogReader(store)
    here = json.dumps({"broker-a": {"log_id": log.log_id, "offset": 0}})
    assert read(reader(store, startingOffsets=here)).num_rows == 606
    other = json.dumps({"broker-a": {"log_id": "other", "offset": 0}})
    with pytest.raises(SourceError, match=f"has log {log.log_id}, the offsets given are of log other"):
        reader(store, startingOffsets=other).partitions()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"table": "topic"}, "option table=topic: give one of consume_queue"),
        ({"columns": "topic,bodi"}, "messages has no column 'bodi', but broker"),
        ({"columns": "topic,topic"}, "each column once"),
        ({"columns": " , "}, "at least one"),
        ({"startingTimestamp": "yesterday"}, "option startingTimestamp=yesterday: give a time such as"),
        ({"endingTimestamp": "1" * 30, "table": "quarantine"}, "has no time"),
        ({"startingOffsets": "latest"}, "a batch query would read nothing"),
        ({"startingOffsets": '{"broker-a": -1}'}, "the offset of broker-a is negative"),
        ({"startingOffsets": '{"broker-a": {"offset": 1}}'}, "or JSON such as"),
        ({"startingOffsets": '{"broker-b": 1}'}, "given for broker 'broker-b', the logs are those of broker-a"),
        ({"startingOffsets": '{"broker-a": 999999999}'}, "offset 999999999 of broker broker-a is not in its log"),
        ({"pushFilters": "yes"}, "give true or false"),
        ({"lake": "x"}, "option lake is none of this source"),
    ],
)  # fmt: skip
def test_wrong_options_are_named(store: Path, options: dict[str, str], said: str) -> None:
    with pytest.raises(SourceError, match=said):
        reader(store, **options).partitions()


@pytest.mark.parametrize("name", ["table", "columns", "startingTimestamp", "pushFilters"])
def test_a_stream_refuses_what_is_for_batches(store: Path, name: str) -> None:
    source = LakebrokerDataSource({"store": str(store), name: "messages"})
    with pytest.raises(SourceError, match=f"option {name} is for batch queries"):
        source.streamReader(None)  # type: ignore[arg-type]
