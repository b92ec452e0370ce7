"""Rows of records: what they say, and that they say it whatever else is in the log."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from store.delay_levels import parse_delay_levels
from structured_streaming.errors import ObjectError, StoreAwayError
from structured_streaming.rows import bodies, messages, origins, pieces
from structured_streaming.tables import DATA_TABLES
from tests.support.lakes.staged import StagedLake, assert_accounted
from tests.support.logs.raw import NOW_MS, Raw, log_of, message, poison, properties

LEVELS = parse_delay_levels("2s 1m 3h")
SCHEDULED = b"SCHEDULE_TOPIC_XXXX"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> StagedLake:
    return StagedLake(tmp_path_factory.mktemp("rows") / "lake")


def of_log(rows: pa.Table) -> list[dict[str, Any]]:
    return sorted(rows.to_pylist(), key=lambda row: row["physical_offset"])


def due_ms(lake: StagedLake, *records: Raw, levels: tuple[int, ...] | None = LEVELS) -> list[int | None]:
    """When each message is due, since its store time."""
    rows = of_log(lake.take(log_of(*records), delay_levels=levels)["messages"])
    times = [row["deliver_timestamp"] for row in rows]
    return [None if time is None else round(time.timestamp() * 1000) - NOW_MS for time in times]


def test_rows_are_the_same_whatever_stands_beside_a_record(lake: StagedLake) -> None:
    records = [record for several in poison().values() for record in several]
    together = lake.take(log_of(*records), delay_levels=LEVELS)
    at, rows = 0, {table.name: [] for table in DATA_TABLES}  # type: dict[str, list[Any]]
    for record in records:
        alone = lake.take(record.encoded(at), at, LEVELS)
        at += len(record.encoded(at))
        for name, table in alone.items():
            rows[name] += table.to_pylist()
    for name, table in together.items():
        assert plain(table.to_pylist()) == plain(rows[name])


def plain(rows: list[dict[str, Any]]) -> list[str]:
    """Rows without what says when and in which log they were found, in one order."""
    return sorted(
        str({name: value for name, value in row.items() if name not in ("log_id", "found_timestamp")})
        for row in rows
    )


def timer(**since: int) -> Raw:
    """A message with these properties, ms since its store time."""
    return Raw(properties=properties(**{name: str(NOW_MS + ms) for name, ms in since.items()}))


@pytest.mark.parametrize(
    ("since", "due"),
    [
        ({"TIMER_DELIVER_MS": 2}, 2),
        ({"TIMER_DELIVER_MS": 9, "TIMER_OUT_MS": 1}, 9),
        ({"TIMER_DELIVER_MS": 1001, "TIMER_OUT_MS": 1}, 1001),
        ({"TIMER_OUT_MS": 1}, 1),
        ({"TIMER_DELIVER_MS": 1002, "TIMER_OUT_MS": 1}, 1),
        ({"TIMER_DELIVER_MS": 1, "TIMER_OUT_MS": 1}, 1),
        ({"TIMER_DELIVER_MS": -9, "TIMER_OUT_MS": 1}, 1),
    ],
)
def test_a_timer_is_due_when_it_was_asked_for_as_far_as_its_record_says(
    lake: StagedLake, since: dict[str, int], due: int
) -> None:
    """The last three were sent with a delay, which counts before a TIMER_DELIVER_MS beside it."""
    assert due_ms(lake, timer(**since), Raw()) == [due, None]


@pytest.mark.parametrize(
    ("asked_for", "taken_out", "due"), [("soon", str(NOW_MS + 1), 1), (str(NOW_MS + 2), "soon", 2)]
)
def test_a_timer_whose_one_time_is_no_number_is_due_by_the_other(
    lake: StagedLake, asked_for: str, taken_out: str, due: int
) -> None:
    record = Raw(properties=properties(TIMER_DELIVER_MS=asked_for, TIMER_OUT_MS=taken_out))
    assert due_ms(lake, record) == [due]


@pytest.mark.parametrize(
    ("level", "due"), [("1", 2000), ("2", 60_000), ("3", 10_800_000), ("99", 10_800_000), ("0", None), ("-1", None),
                       ("x", None), ("9" * 30, None)]
)  # fmt: skip
def test_delay_levels_are_the_brokers(lake: StagedLake, level: str, due: int | None) -> None:
    record = Raw(topic=SCHEDULED, properties=properties(DELAY=level, TAGS="t", REAL_TOPIC="orders"))
    tables = lake.take(log_of(record), delay_levels=LEVELS)
    (entry,) = tables["consume_queue"].to_pylist()
    (row,) = tables["messages"].to_pylist()
    if due is None:
        assert row["deliver_timestamp"] is None
    else:
        assert entry["tags_code"] == NOW_MS + due
        assert round(row["deliver_timestamp"].timestamp() * 1000) == NOW_MS + due


def test_without_the_brokers_delay_levels_what_they_say_is_null(lake: StagedLake) -> None:
    record = Raw(topic=SCHEDULED, properties=properties(DELAY="1", TIMER_DELIVER_MS="5"))
    tables = lake.take(log_of(record, Raw(properties=properties(TAGS="a"))))
    assert [row["tags_code"] for row in of_log(tables["consume_queue"])] == [None, 97]
    assert due_ms(lake, record, levels=None) == [None]


@pytest.mark.parametrize(
    ("topic", "reconsumed", "given", "expected"),
    [
        ("%DLQ%g", 16, {"RETRY_TOPIC": "orders", "ORIGIN_MESSAGE_ID": "x"}, ("orders", "g", 16)),
        ("%DLQ%g_1", 3, {"RETRY_TOPIC": "%RETRY%g_1_orders"}, ("orders", "g_1", 3)),
        ("%DLQ%g", 3, {"RETRY_TOPIC": "%RETRY%g+orders"}, ("orders", "g", 3)),
        ("%DLQ%g", 1, {"DLQ_ORIGIN_TOPIC": "orders"}, ("orders", "g", 1)),
        ("%DLQ%g", 2, {}, (None, "g", 2)),
        ("%DLQ%g", 0, {}, None),
        ("%RETRY%g", 1, {"RETRY_TOPIC": "orders"}, ("orders", "g", 1)),
        ("%RETRY%g_1_orders", 1, {"ORIGIN_GROUP": "g_1"}, ("orders", "g_1", 1)),
        ("%RETRY%g+orders", 1, {}, ("orders", "g", 1)),
        ("%RETRY%g_orders", 1, {}, None),
        ("SCHEDULE_TOPIC_XXXX", 1, {"REAL_TOPIC": "%RETRY%g", "RETRY_TOPIC": "orders"}, ("orders", "g", 1)),
        ("SCHEDULE_TOPIC_XXXX", 0, {"REAL_TOPIC": "orders"}, None),
        ("orders", 0, {"RETRY_TOPIC": "others"}, None),
    ],
)  # fmt: skip
def test_copies_of_a_real_broker_say_where_they_came_from_as_far_as_they_do(
    topic: str, reconsumed: int, given: dict[str, str], expected: tuple[object, ...] | None
) -> None:
    held = {name: given.get(name.decode()) for name in origins.FOUND}
    found = origins.origin(topic, held, reconsumed)
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert (found["topic"], found["consumer_group"], found["attempt"]) == expected
        assert (found["queue_id"], found["queue_offset"]) == (None, None)


def test_a_dead_letter_has_its_origin_in_the_table(lake: StagedLake) -> None:
    record = Raw(topic=b"%DLQ%g", reconsume_times=16, properties=properties(RETRY_TOPIC="orders"))
    (row,) = lake.take(log_of(record))["messages"].to_pylist()
    assert row["origin"] == {
        "topic": "orders", "queue_id": None, "queue_offset": None, "consumer_group": "g", "attempt": 16,
    }  # fmt: skip


def test_the_last_value_that_is_not_empty_counts_of_a_repeated_key(lake: StagedLake) -> None:
    encoded = properties(
        ("TAGS", "a"), ("TAGS", "b"), ("TAGS", ""), ("k", ""), ("k", "v"), ("e", ""), ("e", "")
    )
    tables = lake.take(log_of(Raw(properties=encoded)))
    (row,) = tables["messages"].to_pylist()
    assert row["properties"] == [("TAGS", "b"), ("k", "v"), ("e", "")]
    assert (row["tag"], tables["consume_queue"]["tags_code"].to_pylist()) == ("b", [98])


@pytest.mark.parametrize(
    ("encoded", "value"),
    [
        (b"\xff\x01x\x02\x80\x01y\x02", "y"),
        (b"\xff\x01x\x02\x80\x01y\x02\xff\x01z\x02", "z"),
        (b"\xff\x01x\x02\x80\x01y\x02\xff\x01\x02", "y"),
        (b"\xff\x01\x02\x80\x01\x02\xff\x01\x02", ""),
    ],
)
def test_keys_that_are_the_same_once_they_are_replaced(lake: StagedLake, encoded: bytes, value: str) -> None:
    """The last value counts, wherever the first of its key stood."""
    records = [Raw(properties=encoded), Raw(properties=properties(k="v"))]
    tables = lake.take(log_of(*records))
    assert_accounted(log_of(*records), 0, tables)
    rows = sorted(tables["messages"].to_pylist(), key=lambda row: row["physical_offset"])
    assert [row["properties"] for row in rows] == [[("\ufffd", value)], [("k", "v")]]


def test_repeated_keys_among_many(lake: StagedLake) -> None:
    pairs = [(str(n % 500), str(n)) for n in range(3000)]
    (row,) = lake.take(log_of(Raw(properties=properties(*pairs))))["messages"].to_pylist()
    assert dict(row["properties"]) == dict(pairs)
    assert len(row["properties"]) == 500


@pytest.mark.parametrize("size", [bodies.LARGEST, bodies.LARGEST + 1])
def test_a_body_grows_so_far_and_else_stays_as_stored(lake: StagedLake, size: int) -> None:
    stored = gzip.compress(bytes(size), 9)
    (row,) = lake.take(log_of(Raw(body=stored, sys_flag=1)))["messages"].to_pylist()
    grown = size <= min(bodies.LARGEST, bodies.MOST_GROWTH * len(stored))
    assert row["body_encoding"] == ("identity" if grown else "zlib")
    assert row["body"] == (bytes(size) if grown else stored)


def test_a_body_is_not_stored_as_it_came_because_memory_was_short(
    lake: StagedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(*_: object) -> bytes:
        raise pa.ArrowMemoryError("malloc of size 400 failed")

    monkeypatch.setitem(bodies._CODECS, 0, ("zlib", short))
    with pytest.raises(MemoryError, match="malloc"):
        lake.take(log_of(Raw(body=gzip.compress(b"x" * 400), sys_flag=1)))


def test_bodies_that_do_not_fit_in_memory_together_are_row_groups(
    lake: StagedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "SLICE_BYTES", 1000)
    large = gzip.compress(b"x" * 400)
    records = [Raw(body=large, sys_flag=1) if n % 3 else message(n) for n in range(60)]
    tables = lake.take(log_of(*records))
    assert_accounted(log_of(*records), 0, tables)
    assert tables["messages"].num_rows == 60
    assert [len(row["body"]) for row in of_log(tables["messages"])[1:3]] == [400, 400]


def test_records_that_are_too_much_together_are_taken_in_parts(
    lake: StagedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "MOST_WEIGHT", 3000)
    data = log_of(*(message(n) for n in range(50)))
    before = len(lake.files["messages"])
    assert_accounted(data, 0, lake.take(data))
    assert len(lake.files["messages"]) > before + 1


def test_a_record_that_fails_is_in_quarantine_and_all_others_have_rows(
    lake: StagedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that nobody thought of: made in the rows of messages, for one value."""
    original = messages.origins.origin

    def failing(topic: str, held: dict[bytes, str | None], times: int) -> object:
        if times == 77:
            raise KeyError("nobody thought of 77")
        return original(topic, held, times)

    monkeypatch.setattr(messages.origins, "origin", failing)
    bad = Raw(topic=b"%DLQ%g", reconsume_times=77, properties=properties(RETRY_TOPIC="t"))
    data = log_of(*(message(n) for n in range(9)), bad, *(message(n) for n in range(9, 20)))
    before = {path for paths in lake.files.values() for path in paths}
    tables = lake.take(data)
    assert_accounted(data, 0, tables)
    (row,) = tables["quarantine"].to_pylist()
    assert row["reason"] == "no rows could be made: KeyError: 'nobody thought of 77'"
    assert tables["messages"].num_rows == tables["consume_queue"].num_rows == 20
    staged = {path for paths in lake.files.values() for path in paths} - before
    there = {path for table in DATA_TABLES for path in Path(lake.folder, table.name).glob("*.parquet")}
    assert there - before == staged


def test_an_error_that_is_no_records_fault_stops_the_reput(
    lake: StagedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a mistake in the code would put the whole log into quarantine."""

    def failing(*_: object) -> object:
        raise AttributeError("a mistake")

    monkeypatch.setattr(messages, "_message_columns", failing)
    with pytest.raises(AttributeError, match="a mistake"):
        lake.take(log_of(message(1), message(2)))


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        StoreAwayError("it does not answer"),
        ObjectError("status code: 403"),
        FileNotFoundError("NoSuchBucket"),
    ],
)
def test_an_error_of_the_disk_or_the_store_stops_the_reput(
    lake: StagedLake, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    """Also one that is over at once: it says nothing of the record."""

    with monkeypatch.context() as patched:

        def failing(*_: object) -> object:
            patched.undo()
            raise error

        patched.setattr(messages, "_message_columns", failing)
        with pytest.raises(type(error), match=str(error)[-10:]):
            lake.take(log_of(message(1)))
