"""Each query of the bundle's dashboard and of its alerts, asked as a warehouse would ask it: over a few rows, in long over a lake."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from structured_streaming.sql import tables_in
from structured_streaming.tables import TABLES
from structured_streaming.views import VIEWS
from tests.suite.evidence import LONG
from tests.support.documents.bundle import ROOT, Bundle, mappings, sources
from tests.support.lakes.viewed import viewed
from tests.support.waiting import LIMIT_S

SINCE_2023 = (datetime.now(UTC) - datetime(2023, 1, 1, tzinfo=UTC)).days
"""The days that are asked for: the logs are of that year."""


@pytest.fixture(scope="module")
def few(spark: SparkSession) -> SparkSession:
    """A session in which every table and view is there, without rows."""
    session = spark.newSession()
    schemas = {name: table.schema for name, table in TABLES.items()} | {
        view.name: view.schema for view in VIEWS
    }
    for name, schema in schemas.items():
        session.createDataFrame(schema.empty_table()).createOrReplaceTempView(name)
    return session


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> SparkSession:
    folder, _ = viewed(tmp_path_factory.mktemp("lake"))
    tables_in(spark, str(folder)).bind_all()
    return spark


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return Bundle.read(sources(), "prod")


@pytest.fixture(scope="module")
def dashboard(bundle: Bundle) -> dict[str, Any]:
    path = ROOT / "resources" / bundle.resources["dashboards"]["lakebroker"]["file_path"]
    read: dict[str, Any] = json.loads(Path(path).read_text())
    return read


def text_of(dataset: dict[str, Any]) -> str:
    query = "".join(dataset["queryLines"])
    given = {each["keyword"] for each in dataset.get("parameters", ())}
    assert given == set(re.findall(r":(\w+)", query))
    # as text: Delta's parser leaves the arguments of session.sql out
    for each in given:
        query = query.replace(f":{each}", str(SINCE_2023))
    return query


def asked(session: SparkSession, dashboard: dict[str, Any], name: str) -> list[dict[str, Any]]:
    (dataset,) = [each for each in dashboard["datasets"] if each["name"] == name]
    return [row.asDict() for row in session.sql(text_of(dataset)).collect()]


def shown(dashboard: dict[str, Any]) -> dict[str, set[str]]:
    """By dataset the columns that widgets show."""
    wanted: dict[str, set[str]] = defaultdict(set)
    for _, mapping in mappings(dashboard["pages"]):
        if "datasetName" in mapping:
            for each in mapping.get("fields", ()):
                wanted[mapping["datasetName"]] |= set(re.findall(r"`(\w+)`", each["expression"]))
    assert len(wanted) == len(dashboard["datasets"])
    return wanted


def value(session: SparkSession, alert: dict[str, Any], table: str, instead: str = "") -> int:
    """What the alert compares, with another table in the place of that one."""
    query = alert["query_text"].replace(f"main.lakebroker.{table}", instead or table)
    (row,) = session.sql(query).collect()
    found: int = row[alert["evaluation"]["source"]["name"]]
    return found


def test_every_dataset_has_the_columns_that_its_widgets_show(
    few: SparkSession, dashboard: dict[str, Any]
) -> None:
    wanted = shown(dashboard)
    for each in dashboard["datasets"]:
        assert wanted[each["name"]] <= set(few.sql(text_of(each)).columns), each["name"]


@LONG
def test_every_dataset_has_rows_and_what_its_widgets_show(
    lake: SparkSession, dashboard: dict[str, Any]
) -> None:
    for name, columns in shown(dashboard).items():
        rows = asked(lake, dashboard, name)
        assert rows, name
        assert columns <= set(rows[0]), name
        for column in columns:
            assert any(row[column] is not None for row in rows), (name, column)


def test_lag_of_a_minute_counts_queues_that_did_not_move_in_it(
    few: SparkSession, dashboard: dict[str, Any]
) -> None:
    session = few.newSession()
    session.sql(
        """SELECT *, 'orders' AS topic, 'a' AS broker, timestamp_seconds(1700000000 + 60 * at) AS minute FROM VALUES
        ('g', 0, 0, 5L), ('g', 1, 0, 70L), ('g', 0, 1, 3L), ('g', 1, 2, NULL), ('g', 0, 3, 4L), ('h', 0, 1, 900L)
        AS moves (consumer_group, queue_id, at, lag)"""
    ).createOrReplaceTempView("consumer_lag_by_minute")
    found = [(row["consumer_group"], row["lag"]) for row in asked(session, dashboard, "lag")]
    assert [lag for group, lag in found if group == "g"] == [75, 73, 3, 4], "what is not known counts nothing"
    assert [lag for group, lag in found if group == "h"] == [900]


@LONG
def test_lag_of_a_minute_is_that_of_the_lake(lake: SparkSession, dashboard: dict[str, Any]) -> None:
    moved = lake.sql("SELECT * FROM consumer_lag_by_minute ORDER BY minute").collect()
    minutes: dict[str, set[datetime]] = defaultdict(set)
    for row in moved:
        minutes[row.consumer_group].add(row.minute)
    expected = {}
    for group, each in minutes.items():
        for minute in each:
            last = {
                (row.topic, row.broker, row.queue_id): row.lag
                for row in moved
                if row.consumer_group == group and row.minute <= minute
            }
            expected[group, minute] = sum(lag for lag in last.values() if lag is not None)
    found = {(row["consumer_group"], row["minute"]): row["lag"] for row in asked(lake, dashboard, "lag")}
    assert found == expected
    of_those_that_moved: Counter[tuple[str, datetime]] = Counter()
    for row in moved:
        of_those_that_moved[row.consumer_group, row.minute] += row.lag or 0
    assert dict(of_those_that_moved) != expected


def test_an_alert_sees_that_no_batch_comes_though_the_last_one_had_caught_up(
    few: SparkSession, bundle: Bundle
) -> None:
    alert = bundle.resources["alerts"]["stale"]
    few.sql(
        """SELECT *, current_timestamp() - make_dt_interval(0, hours) AS commit_timestamp
        FROM VALUES ('a', 2), ('a', 3), ('b', 26) AS batches (broker, hours)"""
    ).createOrReplaceTempView("two_hours_ago")
    assert 7200 <= value(few, alert, "reput_progress", "two_hours_ago") < 7200 + LIMIT_S
    assert value(few, alert, "reput_progress") == 0, "a lake that never had a batch"
    assert float(alert["evaluation"]["threshold"]["value"]["double_value"]) == 3600


def test_the_alert_is_of_the_log_that_is_furthest_behind(few: SparkSession, bundle: Bundle) -> None:
    alert = bundle.resources["alerts"]["behind"]
    few.sql(
        """SELECT *, current_timestamp() - make_dt_interval(0, hours) AS commit_timestamp
        FROM VALUES ('a', 0, 5L), ('a', 2, 9000L), ('b', 0, 70L), ('b', 0, 60L)
        AS batches (broker, hours, behind_seconds)"""
    ).createOrReplaceTempView("of_the_last_hour")
    assert value(few, alert, "dispatch_lag", "of_the_last_hour") == 70
    few.sql(
        """TABLE of_the_last_hour UNION ALL
        SELECT 'c', 2, NULL, current_timestamp() - INTERVAL 2 HOURS"""
    ).createOrReplaceTempView("with_one_behind")
    assert 7200 <= value(few, alert, "dispatch_lag", "with_one_behind") < 7200 + LIMIT_S
    assert value(few, alert, "dispatch_lag") == 0, "a lake that never had a batch"


@LONG
def test_alerts_have_what_they_ask_for_in_a_lake(lake: SparkSession, bundle: Bundle) -> None:
    assert value(lake, bundle.resources["alerts"]["stale"], "reput_progress") >= 0
    assert value(lake, bundle.resources["alerts"]["behind"], "dispatch_lag") == 0
