"""Any log leads to rows or quarantine, in files that every reader takes: fields of records at their extremes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb
from tests.suite.evidence import EVIDENCE
from tests.support.lakes.staged import StagedLake, assert_accounted
from tests.support.logs.raw import HOST, JOURNAL, NOW_MS, Raw, log_of, message, properties

LONG, INT = (1 << 63) - 1, (1 << 31) - 1
YEAR_10000_MS = 253_402_300_800_000
NAMES = [
    b"TAGS", b"KEYS", b"UNIQ_KEY", b"__SHARDINGKEY", b"__LITE_TOPIC", b"_SYS_MSG_PRIORITY_", b"TIMER_OUT_MS",
    b"TIMER_DELIVER_MS", b"DELAY",
    b"LB_ORIGIN", b"RETRY_TOPIC", b"DLQ_ORIGIN_TOPIC", b"ORIGIN_GROUP", b"REAL_TOPIC", b"k",
]  # fmt: skip
V6 = bytes(range(16)) + b"\xff\xff\xff\xff"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> StagedLake:
    return StagedLake(tmp_path_factory.mktemp("any-log") / "lake")


def taken(lake: StagedLake, *records: Raw, **options: Any) -> dict[str, pa.Table]:
    """The rows of these records, between two good ones that must be there."""
    data = log_of(message(1), *records, message(2))
    tables = lake.take(data, **options)
    assert_accounted(data, 0, tables)
    ids = tables["messages"]["message_id"].to_pylist()
    assert {f"GOOD{number:028d}" for number in (1, 2)} <= set(ids)
    return tables


def others(tables: dict[str, pa.Table], table: str = "messages") -> list[dict[str, Any]]:
    """Rows of the records between the good ones, in the order of the log."""
    rows = sorted(tables[table].to_pylist(), key=lambda row: row["physical_offset"])
    return rows[1:-1] if table in ("messages", "consume_queue") else rows


BORN_TIMES = (YEAR_10000_MS - 1, 0, -1, -62_135_596_800_000)
NO_BORN_TIMES = (YEAR_10000_MS, 1 << 62, LONG, -LONG - 1, -62_135_596_800_001)


def test_a_born_time_that_is_none_is_null_and_every_other_one_stays(lake: StagedLake) -> None:
    given = (*BORN_TIMES, *NO_BORN_TIMES)
    rows = others(taken(lake, *(Raw(born_timestamp=born_ms) for born_ms in given)))
    there = {ms: row["born_timestamp"] is not None for ms, row in zip(given, rows, strict=True)}
    assert there == dict.fromkeys(BORN_TIMES, True) | dict.fromkeys(NO_BORN_TIMES, False)


@pytest.mark.parametrize("stored_ms", [YEAR_10000_MS, 1 << 62, -LONG - 1])
def test_a_store_time_that_is_none_is_a_damaged_header(lake: StagedLake, stored_ms: int) -> None:
    record = Raw(store_timestamp=stored_ms)
    tables = taken(lake, record)
    assert not others(tables)
    (bad,) = tables["quarantine"].to_pylist()
    assert f"{stored_ms} ms is outside" in bad["reason"]
    assert bad["raw"] == record.encoded(bad["physical_offset"])


NO_DUE_TIMES = (
    "9" * 15, "9" * 400, "-1", "1e3", "", "²", "१२", "0x10", str(1 << 62), " 1", "1\n", "1.5",
)  # fmt: skip


def test_a_due_time_that_is_none_is_null_and_stays_readable(lake: StagedLake) -> None:
    given = [(name, value) for name in ("TIMER_OUT_MS", "TIMER_DELIVER_MS") for value in NO_DUE_TIMES]
    rows = others(taken(lake, *(Raw(properties=properties(each)) for each in given)))
    found = [(row["deliver_timestamp"], dict(row["properties"])) for row in rows]
    assert found == [(None, {name: value}) for name, value in given]


PRIORITIES = {"0": 0, "7": 7, str(INT): INT} | dict.fromkeys((str(INT + 1), "-1", "high", "9" * 400))


def test_a_priority_that_is_none_is_null_and_stays_readable(lake: StagedLake) -> None:
    named = [properties(("_SYS_MSG_PRIORITY_", value), ("__LITE_TOPIC", "lite")) for value in PRIORITIES]
    rows = others(taken(lake, *(Raw(properties=each) for each in named)))
    found = {dict(row["properties"])["_SYS_MSG_PRIORITY_"]: row["priority"] for row in rows}
    assert found == PRIORITIES
    assert {row["lite_topic"] for row in rows} == {"lite"}


NO_ORIGINS = (
    "²:1:1:1:gt",
    f"{1 << 33}:1:1:1:gt",
    f"1:{1 << 63}:1:1:gt",
    f"1:1:{1 << 31}:1:gt",
    "1:1:1:3:gt",
    "9" * 5000 + ":1:1:1:gt",
    "1:1:1:" + "9" * 5000 + ":gt",
    "-1:1:1:1:gt",
    "1:1:1:gt",
    "",
)


def test_an_origin_that_is_none_is_null_and_stays_readable(lake: StagedLake) -> None:
    rows = others(taken(lake, *(Raw(properties=properties(LB_ORIGIN=value)) for value in NO_ORIGINS)))
    found = [(row["origin"], dict(row["properties"])) for row in rows]
    assert found == [(None, {"LB_ORIGIN": value}) for value in NO_ORIGINS]


def test_the_largest_origin_fits(lake: StagedLake) -> None:
    (row,) = others(taken(lake, Raw(properties=properties(LB_ORIGIN=f"{INT}:{LONG}:{INT}:1:gt"))))
    assert row["origin"] == {
        "topic": "t", "queue_id": INT, "queue_offset": LONG, "consumer_group": "g", "attempt": INT,
    }  # fmt: skip


NUMBERS = {
    "queue_id": (-INT - 1, INT),
    "queue_offset": (-LONG - 1, LONG),
    "flag": (-INT - 1, INT),
    "reconsume_times": (-INT - 1, INT),
    "prepared_transaction_offset": (-LONG - 1, LONG),
    "sys_flag": (-INT - 1 & ~0xC, INT & ~0xC, 0xC, 4, 8, 0x101, 0x201, 0x301, 0x701),
}


def test_numbers_of_the_header_at_their_extremes(lake: StagedLake) -> None:
    given = [(name, value) for name, values in NUMBERS.items() for value in values]
    rows = others(taken(lake, *(Raw(**{name: value}) for name, value in given)))  # type: ignore[arg-type]
    for (name, value), row in zip(given, rows, strict=True):
        assert name == "sys_flag" or row[name] == value, name


TEXTS = {
    "empty": b"",
    "nul": b"a\0b",
    "one byte": b"\xff",
    "cut": "ä".encode()[:1],
    "surrogate": b"\xed\xa0\x80",
    "overlong": b"\xc0\x80",
    "beyond Unicode": b"\xf4\x90\x80\x80",
    "last of all": "\U0010ffff".encode() * 40,
    "long": b"x" * 200,
    "escape": b"\x1b[31m",
    "percent": b"%RETRY%",
    "dead letters": b"%DLQ%",
}


NO_UTF_8 = ("one byte", "cut", "surrogate", "overlong", "beyond Unicode")


def test_any_topic(lake: StagedLake) -> None:
    topics = {**TEXTS, "longest": b"x" * 65_000}
    records = [
        Raw(topic=topic, properties=properties(KEYS=f"k {what}", UNIQ_KEY=f"u {what}"))
        for what, topic in topics.items()
    ]
    tables = taken(lake, *records)
    assert tables["quarantine"]["reason"].to_pylist() == ["the topic is no UTF-8"] * len(NO_UTF_8)
    keys = {key for key in tables["message_index"]["key"].to_pylist() if key.startswith("u ")}
    assert keys == {f"u {what}" for what in topics if what not in NO_UTF_8}


def test_any_value_of_a_property(lake: StagedLake) -> None:
    topics = (b"topic", b"SCHEDULE_TOPIC_XXXX", b"%DLQ%g")
    records = [
        Raw(topic=topic, properties=name + b"\x01" + value + b"\x02")
        for value in (*TEXTS.values(), b"x" * 32_700)
        for name in NAMES
        for topic in topics
    ]
    taken(lake, *records, delay_levels=(1000,))


def test_any_name_of_a_property(lake: StagedLake) -> None:
    taken(lake, *(Raw(properties=(name + b"\x01v\x02") * 3 + b"\xfe\x01w\x02") for name in TEXTS.values()))


def test_any_properties(lake: StagedLake) -> None:
    encoded = (
        b"\x01", b"\x02", b"a", b"a\x01", b"\x01b\x02", b"a\x01b\x01c\x02", b"\x02" * 32_767, b"a\x01\x02" * 10_922,
    )  # fmt: skip
    taken(lake, *(Raw(properties=each) for each in encoded))


def test_any_host(lake: StagedLake) -> None:
    hosts = (b"\xff" * 8, b"\0" * 8, V6, b"\0" * 20)
    taken(lake, *(record for host in hosts for record in (Raw(born_host=host), Raw(store_host=host))))


def test_bodies_at_their_extremes(lake: StagedLake) -> None:
    taken(lake, Raw(body=b""), Raw(body=b"\0" * 5_000_000), Raw(body=b"", sys_flag=1), Raw(sys_flag=0x701))


def some_batch(**changes: Any) -> pb.Batch:
    batch = pb.Batch(version=1, timestamp_ms=NOW_MS)
    queue = batch.queues.add(consumer_group="g", topic="t", has_committed=True, committed=3)
    queue.events.add(kind=pb.ACKED, timestamp_ms=NOW_MS, queue_offset=[1], attempt=[1], message_id=["m"])
    batch.stats.add(topic="t", minute_ms=NOW_MS, latency=pb.LatencySketch(bucket=[1, 1], count=[2, 3]))
    for name, value in changes.items():
        setattr(batch, name, value)
    return batch


def bad_batches() -> dict[str, bytes]:
    """Bodies of journal records that the gateway would not write."""
    fewer, latencies, minute, event = some_batch(), some_batch(), some_batch(), some_batch()
    fewer.queues[0].events[0].message_id.append("n")
    latencies.stats[0].latency.bucket.append(7)
    minute.stats[0].minute_ms = LONG
    event.queues[0].events[0].timestamp_ms = YEAR_10000_MS
    repeated = some_batch()
    repeated.queues[0].consumer_group = "g" * 1_000_000
    repeated.queues[0].events[0].CopyFrom(
        pb.Events(queue_offset=[1] * 10_000, attempt=[1] * 10_000, message_id=[""] * 10_000)
    )
    rows = some_batch()
    rows.queues[0].events[0].CopyFrom(
        pb.Events(queue_offset=[1] * 600_000, attempt=[1] * 600_000, message_id=[""] * 600_000)
    )
    return {
        "not a message": b"\xff\xff\xff",
        "cut off": some_batch().SerializeToString()[:-1],
        "a text that is no UTF-8": b"\x2a\x03\x0a\x01\xff",
        "of another version": some_batch(version=4).SerializeToString(),
        "of no version": some_batch(version=0).SerializeToString(),
        "time": some_batch(timestamp_ms=LONG).SerializeToString(),
        "event's time": event.SerializeToString(),
        "minute": minute.SerializeToString(),
        "events of unequal number": fewer.SerializeToString(),
        "latencies of unequal number": latencies.SerializeToString(),
        "long names in many rows": repeated.SerializeToString(),
        "too many rows": rows.SerializeToString(),
        "too many queues": some_batch().SerializeToString() + b"\x2a\x00" * 250_000,
        "large": b"\x28\x01" * (5 << 20),
    }


def test_a_journal_record_that_is_none_is_in_quarantine(lake: StagedLake) -> None:
    bodies = bad_batches()
    records = [Raw(topic=JOURNAL.encode(), body=body) for body in bodies.values()]
    tables = taken(lake, *records)
    found = others(tables, "quarantine")
    for what, record, bad in zip(bodies, records, found, strict=True):
        assert "journal record" in bad["reason"], what
        assert bad["raw"] == record.encoded(bad["physical_offset"])[: 1 << 20], what
    assert not others(tables, "consume_queue")


def test_a_latency_bucket_that_is_repeated_stands_once(lake: StagedLake) -> None:
    tables = taken(lake, Raw(topic=JOURNAL.encode(), body=some_batch().SerializeToString()))
    (stats,) = tables["broker_stats"].to_pylist()
    assert stats["latency"] == [(1, 5)]
    assert tables["delivery_events"].num_rows == tables["consumer_offsets"].num_rows == 1


def test_the_lake_is_readable_after_all_of_them(lake: StagedLake) -> None:
    lake.assert_readable()


def texts() -> st.SearchStrategy[bytes]:
    return st.one_of(
        st.sampled_from([*TEXTS.values(), b"1", b"99999999999999999999", b"1:1:1:1:gt"]),
        st.binary(max_size=40).map(lambda value: value.replace(b"\x01", b"").replace(b"\x02", b"")),
        st.text(max_size=60).map(lambda value: value.encode("utf-8", "replace")),
    )


def integers(bits: int) -> st.SearchStrategy[int]:
    most = (1 << bits - 1) - 1
    return st.one_of(st.integers(-most - 1, most), st.sampled_from([0, -1, most, -most - 1, most // 2]))


TOPICS = [
    b"topic", b"SCHEDULE_TOPIC_XXXX", b"%DLQ%g", b"%RETRY%g", b"%RETRY%g_t", b"rmq_sys_wheel_timer",
    JOURNAL.encode(), b"", b"\xff",
]  # fmt: skip
TIMES = st.one_of(integers(64), st.integers(0, 2 * YEAR_10000_MS), st.just(NOW_MS))
RECORDS = st.builds(
    Raw,
    topic=st.one_of(st.sampled_from(TOPICS), texts()),
    body=st.one_of(st.binary(max_size=60), st.sampled_from(list(bad_batches().values())[:10])),
    properties=st.lists(
        st.tuples(st.one_of(st.sampled_from(NAMES), texts()), texts()).map(b"\x01".join), max_size=8
    ).map(lambda parts: b"".join(part + b"\x02" for part in parts)),
    queue_id=integers(32),
    queue_offset=integers(64),
    flag=integers(32),
    sys_flag=st.one_of(integers(32), st.just(0), st.just(1)),
    born_timestamp=TIMES,
    born_host=st.sampled_from([HOST, V6]),
    store_timestamp=st.one_of(TIMES, st.just(NOW_MS)),
    store_host=st.sampled_from([HOST, V6]),
    reconsume_times=integers(32),
    prepared_transaction_offset=integers(64),
)


@settings(max_examples=200 if EVIDENCE else 20, deadline=None, suppress_health_check=list(HealthCheck))
@given(records=st.lists(RECORDS, max_size=12), levels=st.sampled_from([None, (1000, 5000)]))
def test_records_of_any_fields(lake: StagedLake, records: list[Raw], levels: tuple[int, ...] | None) -> None:
    taken(lake, *records, delay_levels=levels)


def test_a_folder_for_the_lake_is_all_that_is_written(lake: StagedLake) -> None:
    """No file of a failed attempt is left behind."""
    for name, paths in lake.files.items():
        assert {path.name for path in Path(lake.folder, name).glob("*.parquet")} == {p.name for p in paths}
