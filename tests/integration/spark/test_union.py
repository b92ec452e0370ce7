"""Tables and logs read as one: no row twice, none missing, one instant for all tables, whatever is under way."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from broker_gateway.cli.main import app
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.client import OPTIONS, Client
from lakebroker_testing.gateway import Gateway
from lakebroker_testing.logs import LogWriter
from structured_streaming.errors import LakeError, ReadOnlyError
from structured_streaming.maintenance.maintain import maintain
from structured_streaming.read_only import Statement
from structured_streaming.reput_options import ReputOptions
from structured_streaming.sql import names_of, query
from structured_streaming.storage.local import LocalFolder
from structured_streaming.tables import CONSUME_QUEUE, DATA_TABLES, ERASURES, MESSAGES, QUARANTINE, Table
from structured_streaming.union.columns import columns_read
from structured_streaming.union.instants import Instant
from structured_streaming.union.lakes import FolderLake
from structured_streaming.union.names import LakeNames
from structured_streaming.union.tables import UnionTables
from tests.suite.evidence import EVIDENCE, LONG
from tests.support.lakes.checks import expected_keys
from tests.support.lakes.empty import empty_lake
from tests.support.lakes.union import commit, cuts, every_key, manifest
from tests.support.spark.reput_runs import RunningReput

pytestmark = pytest.mark.timeout(1200)
SOME = (MESSAGES, CONSUME_QUEUE, QUARANTINE)
"""Tables that stand for the others where each costs a query."""


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return empty_lake(str(tmp_path / "lake")).path


def written(folder: Path, broker: str = "broker-a") -> Path:
    with LogWriter(folder, broker) as writer:
        writer.messages(40)
        for n in range(8):
            writer.journal_record(n)
        writer.raw(b"no record at all".ljust(500, b"?"))
        writer.messages(40)
        for n in range(8, 16):
            writer.journal_record(n)
        writer.erasure()
        writer.raw(b"nor is this one".ljust(500, b"?"))
        return writer.folder


def union(spark: SparkSession, lake: Path, *stores: Path) -> UnionTables:
    return UnionTables(spark, FolderLake(spark, LocalFolder(lake)), {"store": ",".join(map(str, stores))})


def keys(rows: Any) -> Counter[tuple[str, str]]:
    return Counter(zip(rows["name"].to_pylist(), rows["key"].to_pylist(), strict=True))


def keys_of(*stores: Path) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for name, held in expected_keys(*stores).items():
        for key, count in held.items():
            found[name, "|".join(map(str, key))] += count
    return found


def test_every_table_is_exact_whatever_a_crash_left(spark: SparkSession, lake: Path, tmp_path: Path) -> None:
    """What else a crash may leave: the same test of the embedded engine. All in the logs, all in the lake: the test below."""
    stores = [written(tmp_path / name, name) for name in ("broker-a", "broker-b")]
    tables = union(spark, lake, *stores)
    assert tables.addresses() == {store.name: str(store) for store in stores}
    expected = keys_of(*stores)
    assert {name for name, _ in expected} == {table.name for table in DATA_TABLES}

    def check(state: str, *read: Table) -> None:
        wanted = {table.name for table in read}
        found = keys(query(spark, every_key(read), tables=tables))
        there = Counter({each: count for each, count in expected.items() if each[0] in wanted})
        assert found == there, (state, list((found - there) + (there - found))[:5])

    middles = [cuts(store, 2) for store in stores]
    firsts = [manifest(lake, store, at[0], at[1]) for store, at in zip(stores, middles, strict=True)]
    commit(lake, [row for rows in firsts for row in rows])
    rest = [manifest(lake, store, at[1], at[-1]) for store, at in zip(stores, middles, strict=True)]
    commit(lake, [row for rows in rest for row in rows], crash_after=MESSAGES.name)
    # rows of each table by the data source: tests/unit/structured_streaming/source/test_batch.py
    check("half of both logs, and a crash behind messages", *(DATA_TABLES if EVIDENCE else (*SOME, ERASURES)))
    commit(lake, rest[0])
    check("one log has caught up: versions that its progress names hold more of the other", MESSAGES)
    tables.close()


STATEMENTS = {
    "SELECT 1": {},
    "SELECT count(*) FROM messages": {"messages": {"physical_offset"}},
    "SELECT topic, count(*) FROM messages_live GROUP BY topic": {"messages": {"topic", "is_system"}},
    "SELECT * FROM (SELECT topic, body FROM messages) WHERE topic = 'a'": {"messages": {"topic", "body"}},
    "SELECT a.tag FROM messages a JOIN consume_queue q USING (physical_offset) WHERE q.size > 9": {
        "messages": {"tag", "physical_offset"},
        "consume_queue": {"physical_offset", "size"},
    },
    "SELECT (SELECT max(size) FROM messages) FROM consume_queue": {
        "messages": {"size"},
        "consume_queue": {"physical_offset"},
    },
    "SELECT topic FROM messages UNION SELECT tag FROM messages": {"messages": {"topic", "tag"}},
    "SELECT row_number() OVER (PARTITION BY topic ORDER BY queue_offset) FROM messages": {
        "messages": {"topic", "queue_offset"}
    },
    "WITH a AS (SELECT * FROM messages) SELECT x.flag FROM a x, a y WHERE x.size = y.queue_id": {
        "messages": {"flag", "size", "queue_id"}
    },
    "SELECT k FROM messages LATERAL VIEW explode(keys) AS k": {"messages": {"keys"}},
    "EXPLAIN SELECT origin.topic FROM messages": {"messages": {"origin"}},
    "SHOW TABLES": {},
}


def test_no_more_columns_are_read_than_a_statement_needs(
    spark: SparkSession, lake: Path, tmp_path: Path
) -> None:
    store = written(tmp_path / "store")
    tables = union(spark, lake, store)
    tables.bind_all()
    for statement, wanted in STATEMENTS.items():
        tables.bind(Statement(spark, "SELECT 1"))  # the stand-ins again
        found = {name: set(columns) for name, columns in columns_read(Statement(spark, statement)).items()}
        assert found == wanted, statement
    lag = columns_read(Statement(spark, "SELECT * FROM consumer_lag"))
    assert "messages" not in lag
    assert "messages" not in columns_read(Statement(spark, "SELECT * FROM message_trace"))
    assert "messages" not in columns_read(Statement(spark, "SELECT * FROM topic_stats"))
    statement = (
        "SELECT topic, tag, keys, properties['colour'] AS c, body FROM messages WHERE topic = 'topic-1'"
    )
    live = query(spark, statement, tables=tables).to_pylist()
    commit(lake, manifest(lake, store, cuts(store, 1)[0], cuts(store, 1)[-1]))
    assert sorted(map(str, live)) == sorted(map(str, query(spark, statement, tables=tables).to_pylist()))
    assert len(live) == 27
    query(
        spark,
        "CREATE OR REPLACE TEMP VIEW mine AS SELECT max(queue_offset) AS m FROM messages",
        tables=tables,
    )
    with LogWriter(store) as writer:
        writer.messages(30)
    after = query(spark, "SELECT m FROM mine", tables=tables).to_pylist()
    assert after == query(spark, "SELECT max(queue_offset) AS m FROM messages", tables=tables).to_pylist()
    with pytest.raises(ReadOnlyError):
        query(spark, "DELETE FROM messages", tables=tables, write=True)
    with pytest.raises(LakeError, match="nowhere"):
        query(spark, "SELECT * FROM nowhere", tables=tables)
    tables.close()


def test_tables_as_a_batch_left_them(spark: SparkSession, lake: Path, tmp_path: Path) -> None:
    """What else is no moment of a lake: the same test of the embedded engine."""
    store, folder = written(tmp_path / "store"), LocalFolder(lake)
    with pytest.raises(LakeError, match="holds no batch yet"):
        names_of(spark, FolderLake(spark, folder), "1")
    states = []
    for start, end in itertools.pairwise(cuts(store, 3)):
        commit(lake, manifest(lake, store, start, end))
        states.append(
            Counter(
                (table.name, "|".join(str(row[name]) for name in table.key))
                for table in SOME
                for row in DeltaTable(str(lake / table.name))
                .to_pyarrow_table(columns=list(table.key))
                .to_pylist()
            )
        )
    messages = DeltaTable(str(lake / MESSAGES.name))
    messages.delete("queue_id = 0")  # the versions before it are there yet
    told: list[str] = []

    def as_of(moment: str) -> LakeNames:
        told.clear()
        return names_of(spark, FolderLake(spark, folder), moment, told.append)

    def keys_as_of(moment: str) -> Counter[tuple[str, str]]:
        return keys(query(spark, every_key(SOME), tables=as_of(moment)))

    progress = DeltaTable(str(lake / "reput_progress")).to_pyarrow_table().sort_by("batch").to_pylist()
    assert keys_as_of(progress[1]["commit_timestamp"].isoformat()) == states[1] != states[2]
    (said,) = told
    assert said.startswith("tables as of batch 2, committed at ")
    batch = query(spark, "SELECT max(batch) AS b FROM reput_progress", tables=as_of("2"))
    assert batch.to_pylist() == [{"b": 2}]
    messages.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    left = keys_as_of("1")
    assert left < states[0]
    assert len(told) == 2
    assert told[1].startswith("version 1 of messages is gone; its newest is read up to batch 1")
    with pytest.raises(LakeError, match="its first batch is 1, committed at"):
        names_of(spark, FolderLake(spark, folder), "2001-01-01")


AT_ONCE = """
WITH held AS (
  SELECT topic, queue_id, count(*) AS n, count(DISTINCT queue_offset) AS d, max(queue_offset) AS last,
         max(queue_offset) - min(queue_offset) + 1 AS span
  FROM messages WHERE topic = 'orders' GROUP BY ALL
)
SELECT h.*, l.max_offset FROM held h LEFT JOIN ({ends}) l ON l.topic = h.topic AND l.queue_id = h.queue_id
"""
OF_LAG = AT_ONCE.format(
    ends="SELECT topic, queue_id, max_offset FROM consumer_lag WHERE consumer_group = 'g'"
)
OF_QUEUES = AT_ONCE.format(
    ends="SELECT topic, queue_id, max(queue_offset) + 1 AS max_offset FROM consume_queue GROUP BY ALL"
)


class Meanwhile(FolderLake):
    """Others do something each time that a statement has its instant of the lake, and has not asked the logs yet."""

    def __init__(self, session: SparkSession, folder: Path, others: Callable[[], None]) -> None:
        super().__init__(session, LocalFolder(folder))
        self._others = others

    def newest(self, tables: Iterable[str]) -> Instant:
        found = super().newest(tables)
        self._others()
        return found


def assert_whole(rows: list[dict[str, Any]]) -> int:
    """Queues have no gap and no repeat, and end where the other table, or the lag, says; the messages in them."""
    assert all(row["n"] == row["d"] == row["span"] for row in rows), rows
    known = [row for row in rows if row["max_offset"] is not None]
    assert all(row["last"] + 1 == row["max_offset"] for row in known), rows
    return sum(row["n"] for row in rows)


def test_what_is_committed_sent_and_rewritten_meanwhile_makes_no_gap_and_no_repeat(
    spark: SparkSession, lake: Path, tmp_path: Path
) -> None:
    with Gateway(tmp_path / "gateway", **OPTIONS) as gateway:
        client, sent, reached = Client(gateway.address), 0, [0]

        def send() -> None:
            nonlocal sent
            assert client.send("orders", *[b"x" * 100] * 5).status.code == pb.OK
            sent += 5

        def read() -> None:
            end = cuts(gateway.store, 1)[-1]
            commit(lake, manifest(lake, gateway.store, reached[-1], end))
            reached.append(end)

        def others() -> None:
            send()
            read()
            DeltaTable(str(lake / MESSAGES.name)).optimize.compact()
            send()

        send()
        read()
        send()
        tables = UnionTables(spark, Meanwhile(spark, lake, others), {"brokers": gateway.address})
        assert tables.addresses() == {"broker-a": gateway.address}
        rows = query(spark, OF_QUEUES, tables=tables).to_pylist()
        assert assert_whole(rows) == sent
        assert all(row["max_offset"] is not None for row in rows)
        assert len(reached) == 3
        tables.close()
        client.close()


@LONG
@pytest.mark.parametrize("by", ["broker", "store"])
def test_at_every_instant_queues_have_no_gap_and_no_repeat(
    spark: SparkSession, lake: Path, tmp_path: Path, by: str
) -> None:
    with Gateway(tmp_path / "gateway", **OPTIONS) as gateway:
        client, acknowledged, stop = Client(gateway.address), [0], threading.Event()
        rewritten, problems = [0], list[str]()

        def send() -> None:
            while not stop.wait(0.02):
                assert client.send("orders", *[b"x" * 100] * 5).status.code == pb.OK
                acknowledged[0] += 5

        def maintaining() -> None:
            while not stop.wait(1):
                for report in maintain(str(lake)):
                    rewritten[0] += report.rewritten_files
                    problems.extend(report.problems)

        assert client.send("orders", b"first").status.code == pb.OK
        client.receive("orders", "g")
        source = {"brokers": gateway.address} if by == "broker" else {"store": str(gateway.store)}
        tables = UnionTables(spark, FolderLake(spark, LocalFolder(lake)), source)
        pool = ThreadPoolExecutor(2)
        running = [pool.submit(each) for each in (send, maintaining)]
        try:
            with RunningReput(spark, ReputOptions(str(lake), brokers=gateway.address)) as reput:
                last, instants = 0, 0
                while instants < 3 or reput.batches() < 4 or not rewritten[0]:
                    assert not any(each.done() for each in running), [each.exception() for each in running]
                    before = acknowledged[0]
                    rows = query(spark, OF_LAG, tables=tables).to_pylist()
                    found = assert_whole(rows)
                    assert found >= last
                    if by == "broker":  # what was answered before the query began is in it
                        assert found > before
                        assert any(row["max_offset"] is not None for row in rows)
                    last, instants = found, instants + 1
            assert last > 1
            assert problems == []
        finally:
            stop.set()
            pool.shutdown()
            tables.close()
            client.close()


def test_the_command_reads_logs_and_tables_of_the_past_when_asked(
    spark: SparkSession, lake: Path, tmp_path: Path
) -> None:
    """That it says how old tables are, and what is refused: the unit tests, and `test_sql.py`."""
    store = written(tmp_path / "store")
    first, middle, *_ = cuts(store, 2)
    commit(lake, manifest(lake, store, first, middle))

    def count(*options: str) -> Any:
        statement = "SELECT count(*) AS n FROM messages"
        chosen = ["--engine", "spark", "--lake", str(lake), "--format", "json", *options]
        return CliRunner().invoke(app, ["sql", *chosen, statement])

    live, before = count("--store", str(store)), count("--as-of", "1")
    assert (live.exit_code, before.exit_code) == (0, 0), live.output
    assert (live.stdout, live.stderr) == ('[{"n": 80}]\n', "lakebroker: starting Spark ...\n")
    assert before.stdout < live.stdout
    assert "tables as of batch 1, committed at" in before.stderr
    away = count("--brokers", "127.0.0.1:9")
    assert (away.exit_code, away.stdout) == (1, "")
    assert "no broker at 127.0.0.1:9" in away.stderr
