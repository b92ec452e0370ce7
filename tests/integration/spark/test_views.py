"""Every view in Spark, in DuckDB and in the embedded engine over one lake: what a plain reading of the logs says, whatever the machine's time zone."""

from __future__ import annotations

import datetime
import json
import os
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb
from structured_streaming.catalog import lake_tables, lake_views
from structured_streaming.catalog.lake_tables import make_tables
from structured_streaming.catalog.lake_views import make_views
from structured_streaming.catalog.names import CatalogSchema
from structured_streaming.embedded.engine import EmbeddedEngine
from structured_streaming.lake import create_tables
from structured_streaming.read_only import kind_of, tree_of
from structured_streaming.sql import query, register
from structured_streaming.tables import TABLES
from structured_streaming.views import VIEWS, View
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

LOGS = [("a", "log-1", first_log()), ("a", "log-2", second_log()), ("b", "log-3", other_log())]
LEVELS = (1000, 5000, 10_000)
"""Of the brokers' delay levels, ms."""
HOUR = 60 * MINUTE
Ask = Callable[[str], pa.Table]


def duck(folder: Path) -> duckdb.DuckDBPyConnection:
    """With tables and views of a lake; it reads the process's time zone once, so it is told."""
    connection = duckdb.connect()
    connection.execute(f"SET TimeZone = '{os.environ.get('TZ', 'UTC')}'")
    package = resources.files("duckdb_extension_delta")
    connection.load_extension(
        str(package / "extensions" / f"v{duckdb.__version__}" / "delta.duckdb_extension")
    )
    connection.execute(
        "SET delta_scan_explain_files_filtered = false"
    )  # it fails on a filter that comes twice
    for name in TABLES:
        connection.execute(f"CREATE VIEW {name} AS SELECT * FROM delta_scan('{folder / name}')")
    for view in VIEWS:
        connection.execute(f"CREATE VIEW {view.name} AS {view.sql}")
    return connection


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    staged = StagedLake(tmp_path_factory.mktemp("lake"))
    for broker, _, log in LOGS:
        staged.take(log, delay_levels=LEVELS, broker=broker)
    return staged.folder


@pytest.fixture(scope="module")
def answered(lake: Path) -> dict[str, list[Row]]:
    progress = DeltaTable(str(lake / "reput_progress")).to_pyarrow_table().to_pylist()
    return answers(LOGS) | {"dispatch_lag": dispatch_lag(progress)}


@pytest.fixture(scope="module")
def registered(lake: Path, spark: SparkSession) -> SparkSession:
    register(spark, str(lake))
    return spark


@pytest.fixture
def engines(lake: Path, registered: SparkSession) -> Iterator[dict[str, Ask]]:
    with duck(lake) as connection, EmbeddedEngine.open(str(lake)) as embedded:
        yield {
            "Spark": lambda statement: query(registered, statement),
            "DuckDB": lambda statement: connection.execute(statement).to_arrow_table(),
            "embedded": lambda statement: embedded.query(statement).read_all(),
        }


@pytest.fixture(params=["Asia/Tokyo", "America/New_York"])
def zone(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    """The time zone of the process, the JVM and the session."""
    jvm: Any = spark._jvm
    zones = jvm.java.util.TimeZone
    before, session = os.environ.get("TZ"), spark.conf.get("spark.sql.session.timeZone")
    default = zones.getDefault()
    os.environ["TZ"] = request.param
    time.tzset()
    zones.setDefault(zones.getTimeZone(request.param))
    spark.conf.set("spark.sql.session.timeZone", request.param)
    yield request.param
    spark.conf.set("spark.sql.session.timeZone", session or "UTC")
    zones.setDefault(default)
    os.environ.pop("TZ")
    if before is not None:
        os.environ["TZ"] = before
    time.tzset()


def plain(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.UTC).isoformat()
    return sorted(value.items()) if isinstance(value, dict) else value


def counted(view: View, rows: list[Row]) -> Counter[str]:
    return Counter(repr([plain(row[name]) for name in view.schema.names]) for row in rows)


def assert_answers(ask: Ask, view: View, rows: list[Row], where: str) -> None:
    names = ", ".join(view.schema.names)  # none of them needs to be quoted
    answer = ask(f"SELECT {names} FROM {view.name}")
    found, expected = counted(view, answer.to_pylist(maps_as_pydicts="strict")), counted(view, rows)
    assert found == expected, (where, list((found - expected) + (expected - found))[:5])
    kinds = [field.type for field in answer.schema]
    assert [_in_utc(kind) for kind in kinds] == [field.type for field in view.schema], where


def _in_utc(kind: pa.DataType) -> pa.DataType:
    zoned = pa.types.is_timestamp(kind) and kind.tz is not None
    return pa.timestamp(kind.unit, tz="UTC") if zoned else kind


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
def test_every_engine_says_what_the_logs_say(
    engines: dict[str, Ask], view: View, answered: dict[str, list[Row]]
) -> None:
    assert answered[view.name]
    for name, ask in engines.items():
        assert_answers(ask, view, answered[view.name], name)


def test_the_machines_time_zone_changes_nothing(
    zone: str, engines: dict[str, Ask], answered: dict[str, list[Row]]
) -> None:
    assert time.tzname[0] in ("JST", "EST")
    assert engines["DuckDB"]("SELECT current_setting('TimeZone') AS zone").to_pylist() == [{"zone": zone}]
    for view in VIEWS:
        for name, ask in engines.items():
            assert_answers(ask, view, answered[view.name], f"{view.name} in {name}")


def test_views_and_their_columns_are_explained(engines: dict[str, Ask], registered: SparkSession) -> None:
    for view in VIEWS:
        said = {row.col_name: row.comment for row in registered.sql(f"DESCRIBE {view.name}").collect()}
        assert said == {column.name: column.comment for column in view.columns}
        assert all(said.values())
        assert engines["DuckDB"](f"SELECT * FROM {view.name} LIMIT 0").schema.names == view.schema.names


def test_the_page_about_views_is_right(engines: dict[str, Ask]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "views.md").read_text()
    parts = re.split(r"^## `(\w+)`$", page, flags=re.MULTILINE)[1:]
    assert parts[::2] == [view.name for view in VIEWS]
    for view, part in zip(VIEWS, parts[1::2], strict=True):
        assert part.strip().startswith(view.comment)
        listed = re.findall(r"^\| `(\w+)` \| [A-Z<>]+ \| (.+) \|$", part, re.MULTILINE)
        inherited = re.findall(r"^It has the columns of `(\w+)`", part, re.MULTILINE)
        described = [(c.name, c.comment) for name in inherited for c in TABLES[name].columns] + listed
        assert described == [(column.name, column.comment) for column in view.columns]
        (example,) = re.findall(r"```sql\n(.+?)```", part, re.DOTALL)
        spark, embedded = (engines[name](example) for name in ("Spark", "embedded"))
        assert spark.num_rows, example
        assert list(map(repr, _plain_rows(spark))) == list(map(repr, _plain_rows(embedded))), example


def _plain_rows(table: pa.Table) -> list[list[Any]]:
    """Sorted where several may come in any order."""
    rows = [[plain(value) for value in row.values()] for row in table.to_pylist(maps_as_pydicts="strict")]
    return sorted(rows, key=repr)


def test_dispatch_lag_is_what_later_batches_brought(spark: SparkSession, tmp_path: Path) -> None:
    """Batches of two brokers that fall behind and catch up, a day away among them; of the last ones it is not known."""
    create_tables(str(tmp_path))
    random.seed(16)
    progress: list[Row] = []
    for broker, log_id in (("a", "log-1"), ("a", "log-2"), ("b", "log-3")):
        end, at = 0, datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
        for batch in range(100):
            start, end = end, end + random.randint(1, 50) * 100
            at += datetime.timedelta(days=batch == 50, seconds=random.uniform(0, 3))
            row = {
                "broker": broker,
                "log_id": log_id,
                "batch": batch + 1,
                "start_offset": start,
                "end_offset": end,
            }
            behind = random.choice([0, 0, 500, 5000, 100_000])
            row |= {"log_end_offset": end + behind, "records": random.randint(0, 9), "commit_timestamp": at}
            progress.append(row)
    random.shuffle(progress)
    rows = pa.Table.from_pylist(progress, TABLES["reput_progress"].schema)
    write_deltalake(str(tmp_path / "reput_progress"), rows, mode="append")
    register(spark, str(tmp_path))
    (view,) = [each for each in VIEWS if each.name == "dispatch_lag"]
    expected = dispatch_lag(progress)
    assert {row["behind_records"] is None for row in expected} == {True, False}
    assert max(row["behind_seconds"] or 0 for row in expected) > 86_400
    with duck(tmp_path) as connection:
        assert_answers(lambda asked: connection.execute(asked).to_arrow_table(), view, expected, "DuckDB")
    assert_answers(lambda asked: query(spark, asked), view, expected, "Spark")


def test_dead_letters_of_a_lake_from_before_there_were_origins(spark: SparkSession, tmp_path: Path) -> None:
    create_tables(str(tmp_path))
    given: list[dict[str, Any]] = [
        {"properties": [("RETRY_TOPIC", "orders"), ("ORIGIN_MESSAGE_ID", "7F")], "reconsume_times": 16},
        {"properties": [("DLQ_ORIGIN_TOPIC", "%RETRY%g_pops"), ("DLQ_ORIGIN_MESSAGE_ID", "8F")], "reconsume_times": 2},
        {"properties": [("RETRY_TOPIC", "%RETRY%g+more_pops")], "reconsume_times": 0},
        {"properties": [("RETRY_TOPIC", "%RETRY%other_pops")], "reconsume_times": 0},
        {"properties": [], "reconsume_times": 0},
    ]  # fmt: skip
    rows = [{"topic": "%DLQ%g", "message_id": str(n), **row} for n, row in enumerate(given)]
    rows += [{"topic": topic, "properties": [], "message_id": "no"} for topic in ("%DLQ&", "%DLQ", "DLQ%g")]
    messages = pa.Table.from_pylist(rows, TABLES["messages"].schema)
    write_deltalake(str(tmp_path / "messages"), messages, mode="append")
    register(spark, str(tmp_path))
    statement = """SELECT message_id, consumer_group, topic, queue_id, attempts, origin_message_id
                   FROM dead_letters ORDER BY message_id"""
    with duck(tmp_path) as connection:
        found = connection.execute(statement).fetchall()
    assert found == [
        ("0", "g", "orders", None, 16, "7F"),
        ("1", "g", "pops", None, 2, "8F"),
        ("2", "g", "more_pops", None, None, None),
        ("3", "g", None, None, None, None),
        ("4", "g", None, None, None, None),
    ]
    assert [tuple(row) for row in spark.sql(statement).collect()] == found


@pytest.fixture(scope="module")
def batches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake of twelve batches; each has an hour, a topic and message ids of its own."""
    staged = StagedLake(tmp_path_factory.mktemp("batches"))
    for n in range(12):
        log = ViewLog()
        topic = f"t{n:02}"
        for message in range(20):
            log.put(
                topic, n * HOUR + message, UNIQ_KEY=f"ID{n:02}{message:02}", KEYS=f"key{n:02}{message:02}"
            )
        log.journal(
            n * HOUR + 30,
            settled("g", topic, 0, 5, happened(pb.DELIVERED, n * HOUR + 9, 2, (0, f"ID{n:02}00"))),
        )
        staged.take(bytes(log.data))
    return staged.folder


def _instant(after: int) -> str:
    return f"{datetime.datetime.fromtimestamp((BEGIN_MS + after) / 1000, datetime.UTC):%Y-%m-%d %H:%M:%S}Z"


LAST = f"> TIMESTAMP '{_instant(11 * HOUR - MINUTE)}'"
ONE_FILE = {
    "messages_live WHERE topic = 't11'": {"messages"},
    "messages_live WHERE store_timestamp " + LAST: {"messages"},
    "transactions WHERE topic = 't11'": {"messages"},
    "transactions WHERE store_timestamp " + LAST: {"messages"},
    "delayed_messages WHERE topic = 't11'": {"messages"},
    "delayed_messages WHERE store_timestamp " + LAST: {"messages"},
    "messages_live WHERE topic = 't11' AND CAST(store_timestamp AS TIMESTAMP) " + LAST.replace("Z'", "'"): {
        "messages"
    },
    "consumer_lag WHERE topic = 't11'": {"consume_queue", "consumer_offsets", "delivery_events"},
    "consumer_lag_by_minute WHERE topic = 't11'": {"consume_queue", "consumer_offsets"},
    "retries WHERE topic = 't11'": {"delivery_events"},
    "retries WHERE event_timestamp " + LAST: {"delivery_events"},
    "message_trace WHERE topic = 't11'": {"message_index", "delivery_events"},
    "message_trace WHERE message_id = 'ID1100'": {"message_index", "delivery_events"},
    "message_trace WHERE event_timestamp " + LAST: {"message_index", "delivery_events"},
    "message_trace_by_key WHERE topic = 't11' AND key = 'key1103'": {"message_index", "delivery_events"},
    "topic_stats WHERE topic = 't11'": {"consume_queue"},
}
"""Tables of which each scan of a question may open one file of twelve."""


def test_what_is_asked_for_reaches_the_statistics_of_files(spark: SparkSession, batches: Path) -> None:
    register(spark, str(batches))
    with duck(batches) as connection:
        every = "SELECT * FROM messages_live"
        assert spark_files(spark, every) == [("messages", 12)]
        assert duck_scans(connection, every)[0][:2] == ("messages", 12)
        for question, tables in ONE_FILE.items():
            statement = f"SELECT * FROM {question}"
            assert query(spark, statement).num_rows or "transactions" in question or "delayed" in question
            in_spark = spark_files(spark, statement)
            assert {name for name, _ in in_spark} & tables == tables
            assert all(files <= 1 for name, files in in_spark if name in tables), (question, in_spark)
            scans = duck_scans(connection, statement)
            assert scans
            for name, opened, condition in scans:
                if (
                    "_timestamp >" in question
                ):  # every file is opened, and groups of rows in it are passed over
                    assert "_timestamp>" in condition, (question, name)
                elif name in tables:
                    assert opened <= 1, (question, scans)


def spark_files(spark: SparkSession, statement: str) -> list[tuple[str, int]]:
    """Table and files of each scan."""
    plan = spark.sql(statement)._jdf.queryExecution().optimizedPlan()
    scanned = [
        node.relation().location() for node in tree_of(plan) if kind_of(node).startswith("LogicalRelation")
    ]
    return [(str(each.path().getName()), int(each.preparedScan().files().size())) for each in scanned]


def duck_scans(connection: duckdb.DuckDBPyConnection, statement: str) -> list[tuple[str, int, str]]:
    """Table, files opened and condition of each scan that opened any."""
    rows = connection.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}").fetchall()
    waiting, found = [json.loads(rows[0][1])], []
    while waiting:
        node = waiting.pop()
        waiting += node["children"]
        info = node.get("extra_info", {})
        if names := info.get("Filename(s)"):
            table = Path(names.split(",")[0]).parent.name
            found.append((table, int(info["Total Files Read"]), str(info.get("Filters", ""))))
    return found


def test_a_catalog_has_the_views(
    spark: SparkSession, lake: Path, answered: dict[str, list[Row]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_tables, "_check_kept", lambda session, schema: None)  # this one is in memory
    schema = CatalogSchema("spark_catalog", "viewed")
    told: list[str] = []
    spark.sql(f"CREATE SCHEMA {schema.quoted}")
    for name in TABLES:
        spark.sql(f"CREATE TABLE {schema.table(name)} USING delta LOCATION '{lake / name}'")
    spark.sql(f"CREATE VIEW {schema.table('retries')} AS SELECT 1 AS mine")
    spark.sql(f"CREATE TABLE {schema.table('transactions')} (mine INT) USING delta")
    make_tables(spark, schema)
    make_views(spark, schema, (), told.append)
    assert [line.split(" is not lakebroker's")[0] for line in told] == [
        "spark_catalog.viewed.retries", "spark_catalog.viewed.transactions"
    ]  # fmt: skip
    for name in ("retries", "transactions"):
        assert spark.table(schema.table(name)).columns == ["mine"]
    spark.sql("USE spark_catalog.default")
    ours = [view for view in VIEWS if view.name not in ("retries", "transactions")]
    for view in ours:
        rows = query(spark, f"SELECT * FROM {schema.table(view.name)}").to_pylist(maps_as_pydicts="strict")
        assert counted(view, rows) == counted(view, answered[view.name]), view.name
        said = spark.sql(f"DESCRIBE {schema.table(view.name)}").collect()
        assert [row.comment for row in said] == [column.comment for column in view.columns]

    made = {view.name: _created(spark, schema, view) for view in ours}
    make_views(spark, schema, (), told.append)
    assert {view.name: _created(spark, schema, view) for view in ours} == made
    changed = View(
        "topic_stats", "new", VIEWS[0].columns[:1], "SELECT broker FROM {messages} WHERE is_system"
    )
    monkeypatch.setattr(lake_views, "VIEWS", (*ours[:2], changed))
    told.clear()
    make_views(spark, schema, (), told.append)
    assert told == []
    assert spark.table(schema.table("topic_stats")).columns == ["broker"]
    assert {view.name: _created(spark, schema, view) for view in ours[:2]} == {
        view.name: made[view.name] for view in ours[:2]
    }
    spark.sql(f"DROP SCHEMA {schema.quoted} CASCADE")


def test_a_catalog_that_keeps_no_views_is_said_once(spark: SparkSession, tmp_path: Path) -> None:
    settings = {
        "spark.sql.catalog.viewless": "org.apache.spark.sql.execution.datasources.v2.jdbc.JDBCTableCatalog",
        "spark.sql.catalog.viewless.url": f"jdbc:derby:{tmp_path / 'derby'};create=true",
        "spark.sql.catalog.viewless.driver": "org.apache.derby.jdbc.EmbeddedDriver",
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    told: list[str] = []
    make_views(spark, CatalogSchema("viewless", "APP"), (), told.append)
    (said,) = told
    assert said.startswith("viewless.APP has no views of the lake: ")
    assert "view" in said.partition(": ")[2].lower()
    for name in settings:
        spark.conf.unset(name)


def _created(spark: SparkSession, schema: CatalogSchema, view: View) -> str:
    rows = spark.sql(f"DESCRIBE EXTENDED {schema.table(view.name)}").collect()
    return str(next(row.data_type for row in rows if row.col_name == "Created Time"))
