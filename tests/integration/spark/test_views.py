"""Every view in Spark over a lake, as a session and a catalog have them. DuckDB and the embedded engine: the unit tests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from structured_streaming.catalog import lake_views
from structured_streaming.catalog.lake_views import make_views
from structured_streaming.catalog.names import CatalogSchema
from structured_streaming.embedded.engine import EmbeddedEngine
from structured_streaming.read_only import Statement, kind_of, tree_of
from structured_streaming.sql import query, tables_in
from structured_streaming.views import VIEWS, View
from tests.suite.evidence import EVIDENCE, LONG
from tests.support.lakes.view_answers import Row
from tests.support.lakes.viewed import (
    ASK_LAG,
    ASK_OLD_DEAD_LETTERS,
    FOUND_OLD_DEAD_LETTERS,
    LAG_OF_BATCHES,
    LAGS,
    ONE_FILE,
    VIEW,
    assert_answers,
    counted,
    hourly,
    plain,
    strange,
    viewed,
)
from tests.support.machines.zones import local_time

Viewed = tuple[Path, dict[str, list[Row]]]


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Viewed:
    return viewed(tmp_path_factory.mktemp("viewed"))


@pytest.fixture(scope="module")
def registered(there: Viewed, spark: SparkSession) -> SparkSession:
    return of_lake(spark, there[0])


def of_lake(spark: SparkSession, lake: Path, *views: str) -> SparkSession:
    """A session of its own, with these views of the lake; with all without any."""
    session = spark.newSession()
    names = tables_in(session, str(lake))
    for view in views:
        names.bind(Statement(session, f"TABLE {view}"))
    if not views:
        names.bind_all()
    return session


@pytest.fixture(params=["America/New_York", pytest.param("Asia/Tokyo", marks=LONG)])
def zone(request: pytest.FixtureRequest, registered: SparkSession) -> Iterator[str]:
    """The time zone of the process, the JVM and the session."""
    jvm: Any = registered._jvm
    zones = jvm.java.util.TimeZone
    default, session = zones.getDefault(), registered.conf.get("spark.sql.session.timeZone")
    with local_time(request.param):
        zones.setDefault(zones.getTimeZone(request.param))
        registered.conf.set("spark.sql.session.timeZone", request.param)
        yield request.param
    registered.conf.set("spark.sql.session.timeZone", session or "UTC")
    zones.setDefault(default)


def test_every_view_says_what_the_logs_say_wherever_the_machine_is(
    zone: str, registered: SparkSession, there: Viewed
) -> None:
    """Those of system topics have the text of the others but for one condition, and are asked in evidence."""
    for view in VIEWS if EVIDENCE else [each for each in VIEWS if not each.name.endswith("_system")]:
        assert_answers(
            lambda asked: query(registered, asked), view, there[1][view.name], f"{view.name} in {zone}"
        )


def test_views_and_their_columns_are_explained(registered: SparkSession) -> None:
    for view in VIEWS:
        said = {row.col_name: row.comment for row in registered.sql(f"DESCRIBE {view.name}").collect()}
        assert said == {column.name: column.comment for column in view.columns}
        assert all(said.values())


def test_the_questions_of_the_page_about_views_are_sparks_too(
    registered: SparkSession, there: Viewed
) -> None:
    page = (Path(__file__).parents[3] / "docs" / "views.md").read_text()
    questions = re.findall(r"```sql\n(.+?)```", page, re.DOTALL)
    assert len(questions) == len(VIEWS)
    with EmbeddedEngine.open(str(there[0])) as embedded:
        for each in questions:
            assert registered.sql(each).columns == embedded.describe(each).names, each
            if EVIDENCE:
                found, expected = query(registered, each), embedded.query(each).read_all()
                assert found.num_rows, each
                assert rows_of(found) == rows_of(expected), each


def rows_of(table: Any) -> list[str]:
    """Sorted: several may come in any order."""
    rows = table.to_pylist(maps_as_pydicts="strict")
    return sorted(repr([plain(value) for value in row.values()]) for row in rows)


def test_what_logs_seldom_have(spark: SparkSession, tmp_path: Path) -> None:
    """Batches that fall behind, ends of queues that are not known, dead letters from before there were origins."""
    session = of_lake(spark, strange(tmp_path), "dispatch_lag", "consumer_lag", "dead_letters")
    random = "broker IN ('a', 'b')"
    assert_answers(lambda asked: query(session, asked), VIEW["dispatch_lag"], LAG_OF_BATCHES, "Spark", random)
    expected = sorted((row for _, rows in LAGS.values() for row in rows), key=lambda row: row[1])
    assert [tuple(row) for row in session.sql(ASK_LAG).collect()] == expected
    assert [tuple(row) for row in session.sql(ASK_OLD_DEAD_LETTERS).collect()] == FOUND_OLD_DEAD_LETTERS
    plan = session.sql("EXPLAIN FORMATTED SELECT * FROM consumer_lag").first()
    assert plan is not None
    assert "body" not in plan[0]


def test_what_is_asked_for_reaches_the_statistics_of_files(spark: SparkSession, tmp_path: Path) -> None:
    """Of every question in long; in short the last one of each view."""
    last = {question.partition(" ")[0]: question for question in ONE_FILE}
    session = of_lake(spark, hourly(tmp_path), *last)
    assert files_read(session, "SELECT * FROM messages_live") == [("messages", 12)]
    for question in ONE_FILE if EVIDENCE else last.values():
        tables = ONE_FILE[question]
        read = files_read(session, f"SELECT * FROM {question}")
        assert {name for name, _ in read} & tables == tables
        assert all(files <= 1 for name, files in read if name in tables), (question, read)


def files_read(session: SparkSession, statement: str) -> list[tuple[str, int]]:
    """Table and files of each scan, as Spark plans it."""
    plan = session.sql(statement)._jdf.queryExecution().optimizedPlan()
    scanned = [
        node.relation().location() for node in tree_of(plan) if kind_of(node).startswith("LogicalRelation")
    ]
    return [(str(each.path().getName()), int(each.preparedScan().files().size())) for each in scanned]


def test_a_catalog_has_the_views(spark: SparkSession, there: Viewed, monkeypatch: pytest.MonkeyPatch) -> None:
    lake, answered = there
    schema = CatalogSchema("spark_catalog", "viewed")
    told: list[str] = []
    spark.sql(f"CREATE SCHEMA {schema.quoted}")
    for name in dict.fromkeys(name for view in VIEWS for name in view.reads):
        spark.sql(f"CREATE TABLE {schema.table(name)} USING delta LOCATION '{lake / name}'")
    spark.sql(f"CREATE VIEW {schema.table('retries')} AS SELECT 1 AS mine")
    spark.sql(f"CREATE TABLE {schema.table('transactions')} (mine INT) USING delta")
    make_views(spark, schema, (), told.append)
    assert [line.split(" is not lakebroker's")[0] for line in told] == [
        "spark_catalog.viewed.retries", "spark_catalog.viewed.transactions"
    ]  # fmt: skip
    for name in ("retries", "transactions"):
        assert spark.table(schema.table(name)).columns == ["mine"]
    ours = [view for view in VIEWS if view.name not in ("retries", "transactions")]
    other = spark.newSession()  # its own schema is another one, and it has no temporary views
    for view in ours:
        said = other.sql(f"DESCRIBE {schema.table(view.name)}").collect()
        assert [row.comment for row in said] == [column.comment for column in view.columns]
    for view in [each for each in ours if EVIDENCE or each.name == "message_trace"]:
        rows = query(other, f"SELECT * FROM {schema.table(view.name)}").to_pylist(maps_as_pydicts="strict")
        assert counted(view, rows) == counted(view, answered[view.name]), view.name

    changed = View(
        "topic_stats", "new", VIEWS[0].columns[:1], "SELECT broker FROM {messages} WHERE is_system"
    )
    same = [view for view in ours if view.name != changed.name][: None if EVIDENCE else 2]
    made = [created(spark, schema, view) for view in same]
    monkeypatch.setattr(lake_views, "VIEWS", (*same, changed))
    told.clear()
    make_views(spark, schema, (), told.append)
    assert told == []
    assert spark.table(schema.table("topic_stats")).columns == ["broker"]
    assert [created(spark, schema, view) for view in same] == made
    spark.sql(f"DROP SCHEMA {schema.quoted} CASCADE")


def created(spark: SparkSession, schema: CatalogSchema, view: View) -> str:
    rows = spark.sql(f"DESCRIBE EXTENDED {schema.table(view.name)}").collect()
    return str(next(row.data_type for row in rows if row.col_name == "Created Time"))
