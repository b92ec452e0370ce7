"""A lake in a catalog: tables that are missing, retention by Spark's own MERGE (the rows that stay are those of a lake in a folder),
retired brokers, which tables `maintain` keeps up. What it does to their files is in tests/interop/test_catalogs.py."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from structured_streaming.catalog import lake_tables, lake_views
from structured_streaming.catalog.lake_tables import check_tables, created, make_tables
from structured_streaming.catalog.names import CatalogSchema
from structured_streaming.commit.typed_fill import fill
from structured_streaming.commit.typed_tables import declare
from structured_streaming.errors import LakeError, LocationError
from structured_streaming.maintenance import in_catalog
from structured_streaming.maintenance.decisions import Decisions
from structured_streaming.maintenance.in_catalog import expire_schema, maintain_schema
from structured_streaming.storage.local import LocalFolder
from structured_streaming.tables import CONSUME_QUEUE, QUARANTINE, REPUT_PROGRESS, TABLES
from structured_streaming.typed.declaration import JSON, Declaration, Schema
from structured_streaming.union.instants import Instant
from structured_streaming.union.lakes import CatalogLake
from tests.suite.evidence import EVIDENCE, LONG
from tests.support.lakes.aged import WITH_MESSAGES, AgedLake, left_of, places
from tests.support.lakes.few_tables import IN_SCHEMA
from tests.support.lakes.viewed import VIEW
from tests.support.waiting import LIMIT_S

SCHEMA, DAMAGED = CatalogSchema("spark_catalog", "aged"), CatalogSchema("spark_catalog", "damaged")
APPENDS = 3 if EVIDENCE else 1
ORDERS = Declaration(
    "orders", "typed_orders", JSON, (Schema(1, '{"properties": {"id": {"type": "integer"}}}'),)
)
pytestmark = pytest.mark.timeout(900)


@contextmanager
def aged(spark: SparkSession, folder: Path, schema: CatalogSchema) -> Iterator[AgedLake]:
    """A lake whose tables are in a folder, where they cost Spark no commit, and in the schema."""
    made = AgedLake(folder)
    made.write(8, batches=False)
    declare(LocalFolder(made.lake), ORDERS)
    assert fill(LocalFolder(made.lake), ORDERS) == 8 * 4
    spark.sql(f"CREATE SCHEMA {schema.quoted}")
    for name in (*IN_SCHEMA, ORDERS.table):
        spark.sql(f"CREATE TABLE {schema.table(name)} USING delta LOCATION 'file://{made.lake / name}'")
    yield made
    spark.sql(f"DROP SCHEMA {schema.quoted} CASCADE")


@contextmanager
def without_files(table: Path) -> Iterator[None]:
    """Damages a table for a while."""
    there = list(table.glob("*.parquet"))
    away = [file.rename(table.parent / f"away-{file.name}") for file in there]
    try:
        yield
    finally:
        for file, name in zip(away, there, strict=True):
            file.rename(name)


@pytest.fixture(scope="module", autouse=True)
def _in_memory() -> Iterator[None]:
    """The catalog keeps nothing, and nobody minds; some tables and views are a lake's."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(lake_tables, "_check_kept", lambda session, schema: None)
        patched.setattr(lake_tables, "TABLES", IN_SCHEMA)
        patched.setattr(lake_views, "VIEWS", (VIEW["messages_live"],))
        yield


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgedLake]:
    with aged(spark, tmp_path_factory.mktemp("aged"), SCHEMA) as made:
        yield made


@pytest.fixture
def damaged(spark: SparkSession, tmp_path: Path) -> Iterator[AgedLake]:
    """One that a test damages."""
    with aged(spark, tmp_path, DAMAGED) as made:
        yield made


def test_missing_tables_are_made_whatever_views_a_session_has(spark: SparkSession) -> None:
    schema = CatalogSchema("spark_catalog", "made")
    spark.sql(f"CREATE SCHEMA {schema.quoted}")
    spark.sql(created(schema, REPUT_PROGRESS))  # as long as it has no row no table is lost
    made = (CONSUME_QUEUE, REPUT_PROGRESS)
    # as a session has that was asked in SQL before
    spark.range(1).createOrReplaceTempView(CONSUME_QUEUE.name)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(lake_tables, "TABLES", {table.name: table for table in made})
        make_tables(spark, schema)
        with pytest.raises(LakeError, match="holds no batch yet"):
            CatalogLake(spark, schema).then("1")
    spark.catalog.dropTempView(CONSUME_QUEUE.name)
    for table in made:
        assert spark.table(schema.table(table.name)).columns == table.schema.names
    spark.sql(f"DROP SCHEMA {schema.quoted} CASCADE")


def test_what_stays_beside_appends_and_how_it_is_said(spark: SparkSession, lake: AgedLake) -> None:
    decisions = Decisions(str(SCHEMA), lambda: spark)
    assert decisions.set_retention("orders=2d,a_dit-*=1d,audit-*=forever,*=4d")
    assert not decisions.set_retention("orders=2d,a_dit-*=1d,audit-*=forever,*=4d")
    before = lake.all_rows()
    now = lake.now
    today = now.replace(hour=0)
    bounds = {
        "orders": today - timedelta(days=2),
        "audit-logins": today - timedelta(days=10_000),
        "*": today - timedelta(days=4),
    }
    with pytest.MonkeyPatch.context() as patched, without_files(lake.lake / ORDERS.table):
        patched.setattr(in_catalog, "in_order", lambda session, schema: [ORDERS.table, CONSUME_QUEUE.name])
        dry = expire_schema(spark, SCHEMA, now, dry=True)
    assert places(lake.all_rows()) == places(before)
    assert [report.table for report in dry if report.problems] == [ORDERS.table]
    assert "messages of topic orders stay" in dry[0].problems[1]
    problems: list[Exception] = []
    appended = WITH_MESSAGES if EVIDENCE else ["messages"]

    def append() -> None:
        session = spark.newSession()
        try:
            for number in range(APPENDS):
                row = f"named_struct('broker', 'b', 'log_id', 'l', 'physical_offset', {number}L, 'topic', 'orders')"
                for name in appended:
                    (
                        session.sql(f"SELECT r.* FROM (SELECT {row} AS r)")
                        .writeTo(SCHEMA.table(name))
                        .option("txnAppId", "stream")
                        .option("txnVersion", str(number))
                        .append()
                    )
        except Exception as error:
            problems.append(error)

    stream = threading.Thread(target=append)
    stream.start()
    done = expire_schema(spark, SCHEMA, now)
    stream.join(LIMIT_S)
    assert (problems, [report.problems for report in done]) == ([], [[], [], [], []])
    assert [report.table for report in done] == ["typed_orders", "consume_queue", "message_index", "messages"]
    after = lake.all_rows()
    added = {name: [each for each in its if each["broker"] == "b"] for name, its in after.items()}
    assert {name: len(its) for name, its in added.items()} == {
        name: APPENDS * (name in appended) for name in WITH_MESSAGES
    }
    old = {name: [each for each in its if each["broker"] != "b"] for name, its in after.items()}
    left = left_of(before, bounds)
    assert places(old) == left
    typed = [row["physical_offset"] for row in lake.rows(ORDERS.table)]
    assert sorted(typed) == sorted(
        row["physical_offset"] for row in old["messages"] if row["topic"] == "orders"
    )
    assert 0 < len(typed) < 8 * 4
    assert "orders" in done[1].retention.topics
    for said, told, held in ((dry, [CONSUME_QUEUE.name], "orders"), (done, WITH_MESSAGES, "")):
        gone = {report.table: report.retention for report in said}
        for name in told:
            lost = Counter(key[0] for key in (places(before)[name] - left[name]).elements() if key[0] != held)
            assert {topic: its.rows for topic, its in gone[name].topics.items()} == lost
    again = expire_schema(spark, SCHEMA, now)
    assert not any(report.retention.topics for report in again)


@LONG
def test_a_damaged_typed_table_holds_its_topic_and_no_other(spark: SparkSession, damaged: AgedLake) -> None:
    lake = damaged
    assert Decisions(str(DAMAGED), lambda: spark).set_retention("*=4d")
    bound = lake.now.replace(hour=0) - timedelta(days=4)
    before = lake.all_rows()
    files = sorted((lake.lake / ORDERS.table).glob("*.parquet"))
    contents = [file.read_bytes() for file in files]
    for file in files:
        file.write_bytes(b"damaged")
    done = expire_schema(spark, DAMAGED, lake.now)
    assert [report.table for report in done if report.problems] == [ORDERS.table]
    assert "messages of topic orders stay" in done[0].problems[1]
    after = lake.all_rows()
    for name in WITH_MESSAGES:
        its = [[each for each in found[name] if each["topic"] == "orders"] for found in (before, after)]
        assert places({name: its[0]}) == places({name: its[1]})
    others = [each["store_timestamp"] for each in after["messages"] if each["topic"] != "orders"]
    assert others
    assert min(others) >= bound
    for file, content in zip(files, contents, strict=True):
        file.write_bytes(content)
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    spark.catalog.clearCache()
    assert [report.problems for report in expire_schema(spark, DAMAGED, lake.now) if report.problems] == []
    left = lake.rows("messages")
    assert min(each["store_timestamp"] for each in left if each["topic"] == "orders") >= bound


def test_an_instant_of_the_past_is_that_of_a_batch_or_a_time(spark: SparkSession, lake: AgedLake) -> None:
    there = CatalogLake(spark, SCHEMA)
    (batch,) = DeltaTable(str(lake.lake / REPUT_PROGRESS.name)).to_pyarrow_table().to_pylist()
    then = Instant(
        {(batch["broker"], batch["log_id"]): batch["end_offset"]},
        dict(batch["table_versions"]),
        1,
        batch["commit_timestamp"],
    )
    assert there.then(batch["commit_timestamp"].isoformat()) == then
    assert there.committed() == batch["commit_timestamp"]
    with pytest.raises(LakeError, match="its first batch is 1, committed at"):
        there.then("2001-01-01")


def test_every_table_is_kept_up(spark: SparkSession, lake: AgedLake, monkeypatch: pytest.MonkeyPatch) -> None:
    kept_up: list[str] = []
    monkeypatch.setattr(in_catalog, "_maintain", lambda session, table, hours, report: kept_up.append(table))
    monkeypatch.setattr(in_catalog, "expire_schema", lambda session, schema, now: [])
    reports = maintain_schema(spark, SCHEMA, 1 << 20, 3600.0)
    assert kept_up == [SCHEMA.table(name) for name in (*TABLES, ORDERS.table)]
    assert [report.table for report in reports] == [*TABLES, ORDERS.table]


def test_brokers_are_retired(spark: SparkSession, lake: AgedLake) -> None:
    decisions = Decisions(str(SCHEMA), lambda: spark)
    assert decisions.retire("broker-a")
    (known,) = decisions.brokers()
    assert (known.name, known.logs) == ("broker-a", 1)
    assert known.retired is not None
    assert spark.table(SCHEMA.table("messages_live")).where("broker = 'broker-a'").isEmpty()
    assert decisions.unretire("broker-a")
    assert [each.retired for each in decisions.brokers()] == [None]
    assert not spark.table(SCHEMA.table("messages_live")).where("broker = 'broker-a'").isEmpty()


def test_a_table_that_batches_went_to_is_not_made_anew(spark: SparkSession, lake: AgedLake) -> None:
    quarantine = SCHEMA.table(QUARANTINE.name)
    spark.sql(f"DROP TABLE {quarantine}")
    for refused in (make_tables, check_tables):
        with pytest.raises(LocationError, match=r"the lake spark_catalog.aged lost its table quarantine"):
            refused(spark, SCHEMA)
    assert not spark.catalog.tableExists(quarantine)
    spark.sql(created(SCHEMA, QUARANTINE))
