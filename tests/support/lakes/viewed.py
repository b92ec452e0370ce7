"""Lakes that ask of views all that they tell, and what each view must answer; no engine is imported here.

| lake | what it has |
|---|---|
| `viewed` | three logs, of which every view has rows; the answers are read from the bytes of the logs (`view_answers.py`) |
| `strange` | what logs seldom have: batches that fall behind and catch up, dead letters of earlier versions, ends of queues that are not known |
| `hourly` | twelve batches, each with an hour, a topic and message ids of its own |
"""

from __future__ import annotations

import datetime
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb
from structured_streaming.tables import TABLES
from structured_streaming.views import VIEWS, View
from tests.support.lakes.empty import empty_lake
from tests.support.lakes.staged import StagedLake
from tests.support.lakes.view_answers import Row, answers, dispatch_lag
from tests.support.logs.views import (
    BEGIN_MS,
    MINUTE,
    ViewLog,
    first_log,
    happened,
    other_log,
    second_log,
    settled,
)

Ask = Callable[[str], pa.Table]
VIEW = {view.name: view for view in VIEWS}
_HOUR = 60 * MINUTE
_AT_US = 1_700_000_000_123_456


def viewed(folder: Path) -> tuple[Path, dict[str, list[Row]]]:
    """The lake, and the rows of each view."""
    logs = [("a", "log-1", first_log()), ("a", "log-2", second_log()), ("b", "log-3", other_log())]
    staged = StagedLake(folder)
    for broker, _, log in logs:
        staged.take(log, delay_levels=(1000, 5000, 10_000), broker=broker)
    progress = DeltaTable(str(folder / "reput_progress")).to_pyarrow_table().to_pylist()
    return folder, answers(logs) | {"dispatch_lag": dispatch_lag(progress)}


def assert_answers(ask: Ask, view: View, rows: list[Row], where: str, condition: str = "true") -> None:
    """An engine answers these rows, in any order, with the view's types."""
    names = ", ".join(view.schema.names)  # none of them needs to be quoted
    answer = ask(f"SELECT {names} FROM {view.name} WHERE {condition}")
    found, expected = counted(view, answer.to_pylist(maps_as_pydicts="strict")), counted(view, rows)
    assert found == expected, (where, list((found - expected) + (expected - found))[:5])
    kinds = [_in_utc(field.type) for field in answer.schema]
    assert kinds == [field.type for field in view.schema], where


def counted(view: View, rows: list[Row]) -> Counter[str]:
    return Counter(repr([plain(row[name]) for name in view.schema.names]) for row in rows)


def plain(value: Any) -> Any:
    """The same for the same value, whatever zone an engine gives times in."""
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.UTC).isoformat()
    return sorted(value.items()) if isinstance(value, dict) else value


def _in_utc(kind: pa.DataType) -> pa.DataType:
    zoned = pa.types.is_timestamp(kind) and kind.tz is not None
    return pa.timestamp(kind.unit, tz="UTC") if zoned else kind


Rows = dict[str, list[dict[str, Any]]]
"""Of tables, by their names. Columns that are not given are NULL."""


def add(lake: Path, rows: Rows) -> None:
    """Those of progress as a batch commits them."""
    for table, given in rows.items():
        ends = [row for row in given if table == "reput_progress"]
        batches = [Transaction(f"{row['broker']}/{row['log_id']}", row["end_offset"]) for row in ends]
        write_deltalake(
            str(lake / table),
            pa.Table.from_pylist(given, TABLES[table].schema),
            mode="append",
            commit_properties=CommitProperties(app_transactions=batches),
        )


def together(parts: Iterable[Rows]) -> Rows:
    found: Rows = {}
    for part in parts:
        for table, rows in part.items():
            found.setdefault(table, []).extend(rows)
    return found


def _batches() -> list[Row]:
    """Of two brokers that fall behind and catch up, a day away among them; of the last ones it is not known when."""
    chance = random.Random(16)
    progress: list[Row] = []
    for broker, log_id in (("a", "log-1"), ("a", "log-2"), ("b", "log-3")):
        end, at = 0, datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
        for batch in range(100):
            start, end = end, end + chance.randint(1, 50) * 100
            at += datetime.timedelta(days=batch == 50, seconds=chance.uniform(0, 3))
            behind = chance.choice([0, 0, 500, 5000, 100_000])
            progress.append(
                {
                    "broker": broker,
                    "log_id": log_id,
                    "batch": batch + 1,
                    "start_offset": start,
                    "end_offset": end,
                    "log_end_offset": end + behind,
                    "records": chance.randint(0, 9),
                    "commit_timestamp": at,
                }
            )
    chance.shuffle(progress)
    return progress


BATCHES = _batches()
LAG_OF_BATCHES = dispatch_lag(BATCHES)
assert {row["behind_records"] is None for row in LAG_OF_BATCHES} == {True, False}
assert max(row["behind_seconds"] or 0 for row in LAG_OF_BATCHES) > 86_400

OLD_DEAD_LETTERS: list[dict[str, Any]] = [
    {"properties": [("RETRY_TOPIC", "orders"), ("ORIGIN_MESSAGE_ID", "7F")], "reconsume_times": 16},
    {"properties": [("DLQ_ORIGIN_TOPIC", "%RETRY%g_pops"), ("DLQ_ORIGIN_MESSAGE_ID", "8F")], "reconsume_times": 2},
    {"properties": [("RETRY_TOPIC", "%RETRY%g+more_pops")], "reconsume_times": 0},
    {"properties": [("RETRY_TOPIC", "%RETRY%other_pops")], "reconsume_times": 0},
    {"properties": [], "reconsume_times": 0},
]  # fmt: skip
"""As a lake has them from before there were origins; their message ids are their places here."""
ASK_OLD_DEAD_LETTERS = """SELECT message_id, consumer_group, topic, queue_id, attempts, origin_message_id
                          FROM dead_letters ORDER BY message_id"""
FOUND_OLD_DEAD_LETTERS = [
    ("0", "g", "orders", None, 16, "7F"),
    ("1", "g", "pops", None, 2, "8F"),
    ("2", "g", "more_pops", None, None, None),
    ("3", "g", None, None, None, None),
    ("4", "g", None, None, None, None),
]


def old_dead_letters() -> Rows:
    rows = [{"topic": "%DLQ%g", "message_id": str(n), **row} for n, row in enumerate(OLD_DEAD_LETTERS)]
    rows += [{"topic": topic, "properties": [], "message_id": "no"} for topic in ("%DLQ&", "%DLQ", "DLQ%g")]
    return {"messages": rows}


def _row(topic: str, log: str, offset: int, **columns: Any) -> dict[str, Any]:
    return {
        "broker": f"{topic}-b",
        "log_id": log,
        "physical_offset": offset,
        "topic": topic,
        "queue_id": 0,
        **columns,
    }


def _commit(
    topic: str, log: str, offset: int, committed: int, group: str = "g", **more: Any
) -> dict[str, Any]:
    columns = {"ordinal": 0, "commit_timestamp": _AT_US, "consumer_group": group, **more}
    return _row(topic, log, offset, committed_offset=committed, **columns)


def _progress(topic: str, log: str, batch: int, broker: str = "b") -> dict[str, Any]:
    return {"broker": f"{topic}-{broker}", "log_id": log, "batch": batch, "end_offset": batch * 1000}


LAGS: Mapping[str, tuple[Rows, list[tuple[Any, ...]]]] = {
    "one-of-two-logs": (
        {
            "consume_queue": [_row("t1", "z", 100 * n, queue_offset=n) for n in range(100)],
            "consumer_offsets": [
                _commit("t1", "z", 9000, 40),
                _commit("t1", "z", 9100, 60),
                _commit("t1", "z", 8000, 7, group="old"),
            ],
            "reput_progress": [_progress("t1", "z", 1), _progress("t1", "z", 2)],
        },
        [("g", "t1", "t1-b", 0, 60, 100, 40), ("old", "t1", "t1-b", 0, 7, 100, 93)],
    ),
    # the names of logs say nothing about their order: z is the first, a the second
    "two-logs": (
        {
            "consume_queue": [
                *(_row("t2", "z", 100 * n, queue_offset=n) for n in range(100)),
                *(_row("t2", "a", 100 * n, queue_offset=100 + n) for n in range(10)),
            ],
            "consumer_offsets": [
                _commit("t2", "z", 9000, 40),
                _commit("t2", "z", 9100, 60),
                _commit("t2", "z", 8000, 7, group="old"),
                _commit("t2", "a", 500, 103),
                _commit("t2", "a", 500, 104, ordinal=1),
            ],
            "reput_progress": [_progress("t2", "z", 1), _progress("t2", "z", 2), _progress("t2", "a", 3)],
        },
        [("g", "t2", "t2-b", 0, 104, 110, 6), ("old", "t2", "t2-b", 0, 7, 110, 103)],
    ),
    # rows of a table are there before the progress that names them
    "before-the-progress": (
        {
            "consume_queue": [
                *(_row("t3", "z", 100 * n, queue_offset=n) for n in range(100)),
                *(_row("t3", "a", 100 * n, queue_offset=100 + n) for n in range(10)),
            ],
            "consumer_offsets": [_commit("t3", "z", 9100, 60), _commit("t3", "a", 500, 104)],
            "reput_progress": [_progress("t3", "z", 1), _progress("t3", "z", 2)],
        },
        [("g", "t3", "t3-b", 0, 104, 110, 6)],
    ),
    "not-known": (
        {
            "consume_queue": [
                _row("t4", "l", 0, queue_offset=9),
                _row("t4", "l", 1, queue_offset=3, queue_id=2),
            ],
            "consumer_offsets": [
                _commit("t4", "l", 10, 10),
                _commit("t4", "l", 11, 5, queue_id=1),  # no row of this queue: its end is not known
                _commit("t4", "l", 12, 50, queue_id=2),  # the end that is known is an older one
                _commit("t4", "l", 13, 7, broker="t4-other"),
            ],
            "delivery_events": [
                _row("t4", "l", 20, ordinal=0, consumer_group="never", event="delivered"),
            ],
            "reput_progress": [_progress("t4", "l", 1)],
        },
        [
            ("g", "t4", "t4-b", 0, 10, 10, 0),
            ("g", "t4", "t4-b", 1, 5, None, None),
            ("g", "t4", "t4-b", 2, 50, 4, None),
            ("g", "t4", "t4-other", 0, 7, None, None),
            ("never", "t4", "t4-b", 0, None, 10, None),
            ("never", "t4", "t4-b", 2, None, 4, None),
        ],
    ),
    "each-queue-of-a-topic-that-a-group-reads": (
        {
            "consume_queue": [
                *(_row("t5", "l", queue, queue_offset=99, queue_id=queue) for queue in range(3)),
                _row("t5", "l2", 0, queue_offset=4, broker="t5-other"),
                _row("t5", "l", 9, queue_offset=7) | {"topic": "elsewhere"},
            ],
            "consumer_offsets": [
                _commit("t5", "l", 10, 60),
                _commit("t5", "l", 11, 100, group="h", queue_id=1),
            ],
            "reput_progress": [_progress("t5", "l", 1), _progress("t5", "l2", 2, "other")],
        },
        [
            ("g", "t5", "t5-b", 0, 60, 100, 40),
            ("g", "t5", "t5-b", 1, None, 100, None),
            ("g", "t5", "t5-b", 2, None, 100, None),
            ("g", "t5", "t5-other", 0, None, 5, None),
            ("h", "t5", "t5-b", 0, None, 100, None),
            ("h", "t5", "t5-b", 1, 100, 100, 0),
            ("h", "t5", "t5-b", 2, None, 100, None),
            ("h", "t5", "t5-other", 0, None, 5, None),
        ],
    ),
}
"""Rows of tables, and of the view `consumer_lag` over them (`ASK_LAG`). Each has a topic and brokers of its own."""
ASK_LAG = """SELECT consumer_group, topic, broker, queue_id, committed_offset, max_offset, lag FROM consumer_lag
             ORDER BY topic, consumer_group, broker, queue_id"""


def strange(folder: Path) -> Path:
    """Everything strange in one lake."""
    empty_lake(folder)
    add(folder, together((*(rows for rows, _ in LAGS.values()), old_dead_letters())))
    write_deltalake(
        str(folder / "reput_progress"),
        pa.Table.from_pylist(BATCHES, TABLES["reput_progress"].schema),
        mode="append",
    )
    return folder


def hourly(folder: Path) -> Path:
    staged = StagedLake(folder)
    for n in range(12):
        log = ViewLog()
        topic = f"t{n:02}"
        for message in range(20):
            log.put(
                topic, n * _HOUR + message, UNIQ_KEY=f"ID{n:02}{message:02}", KEYS=f"key{n:02}{message:02}"
            )
        log.journal(
            n * _HOUR + 30,
            settled("g", topic, 0, 5, happened(pb.DELIVERED, n * _HOUR + 9, 2, (0, f"ID{n:02}00"))),
        )
        staged.take(bytes(log.data))
    return staged.folder


def _instant(after: int) -> str:
    return f"{datetime.datetime.fromtimestamp((BEGIN_MS + after) / 1000, datetime.UTC):%Y-%m-%d %H:%M:%S}Z"


_LAST = f"> TIMESTAMP '{_instant(11 * _HOUR - MINUTE)}'"
ONE_FILE = {
    "messages_live WHERE topic = 't11'": {"messages"},
    "messages_live WHERE store_timestamp " + _LAST: {"messages"},
    "transactions WHERE topic = 't11'": {"messages"},
    "transactions WHERE store_timestamp " + _LAST: {"messages"},
    "delayed_messages WHERE topic = 't11'": {"messages"},
    "delayed_messages WHERE store_timestamp " + _LAST: {"messages"},
    "messages_live WHERE topic = 't11' AND CAST(store_timestamp AS TIMESTAMP) " + _LAST.replace("Z'", "'"): {
        "messages"
    },
    "consumer_lag WHERE topic = 't11'": {"consume_queue", "consumer_offsets", "delivery_events"},
    "consumer_lag_by_minute WHERE topic = 't11'": {"consume_queue", "consumer_offsets"},
    "retries WHERE topic = 't11'": {"delivery_events"},
    "retries WHERE event_timestamp " + _LAST: {"delivery_events"},
    "message_trace WHERE topic = 't11'": {"message_index", "delivery_events"},
    "message_trace WHERE message_id = 'ID1100'": {"message_index", "delivery_events"},
    "message_trace WHERE event_timestamp " + _LAST: {"message_index", "delivery_events"},
    "message_trace_by_key WHERE topic = 't11' AND key = 'key1103'": {"message_index", "delivery_events"},
    "topic_stats WHERE topic = 't11'": {"consume_queue"},
}
"""Tables of which each scan of a question to `hourly` may open one file of twelve."""
