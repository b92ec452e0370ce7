"""Each query of the bundle's dashboard and of its alert, asked over a lake as a warehouse would ask it."""

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
from tests.suite.evidence import LONG
from tests.support.documents.bundle import ROOT, Bundle, mappings, sources
from tests.support.lakes.viewed import viewed

SINCE_2023 = (datetime.now(UTC) - datetime(2023, 1, 1, tzinfo=UTC)).days
"""The days that are asked for: the logs are of that year."""

pytestmark = LONG


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


def asked(lake: SparkSession, dashboard: dict[str, Any], name: str) -> list[dict[str, Any]]:
    (dataset,) = [each for each in dashboard["datasets"] if each["name"] == name]
    query = "".join(dataset["queryLines"])
    given = {each["keyword"] for each in dataset.get("parameters", ())}
    assert given == set(re.findall(r":(\w+)", query))
    # as text: Delta's parser leaves the arguments of session.sql out
    for each in given:
        query = query.replace(f":{each}", str(SINCE_2023))
    return [row.asDict() for row in lake.sql(query).collect()]


def test_every_dataset_has_rows_and_what_its_widgets_show(
    lake: SparkSession, dashboard: dict[str, Any]
) -> None:
    wanted: dict[str, set[str]] = defaultdict(set)
    for _, mapping in mappings(dashboard["pages"]):
        if "datasetName" in mapping:
            for each in mapping.get("fields", ()):
                wanted[mapping["datasetName"]] |= set(re.findall(r"`(\w+)`", each["expression"]))
    assert len(wanted) == len(dashboard["datasets"])
    for name, columns in wanted.items():
        rows = asked(lake, dashboard, name)
        assert rows, name
        assert columns <= set(rows[0]), name
        for column in columns:
            assert any(row[column] is not None for row in rows), (name, column)


def test_lag_of_a_minute_counts_queues_that_did_not_move_in_it(
    lake: SparkSession, dashboard: dict[str, Any]
) -> None:
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
    lake: SparkSession, bundle: Bundle
) -> None:
    alert = bundle.resources["alerts"]["stale"]
    column = alert["evaluation"]["source"]["name"]

    def value(table: str) -> int:
        (row,) = lake.sql(alert["query_text"].replace("main.lakebroker.reput_progress", table)).collect()
        found: int = row[column]
        return found

    lake.sql(
        """SELECT broker, commit_timestamp - INTERVAL 2 HOURS AS commit_timestamp FROM (
        SELECT 'a' AS broker, current_timestamp() AS commit_timestamp UNION ALL
        SELECT 'b', current_timestamp() - INTERVAL 1 DAY)"""
    ).createOrReplaceTempView("two_hours_ago")
    assert 7200 <= value("two_hours_ago") < 7500
    lake.sql("SELECT * FROM reput_progress WHERE false").createOrReplaceTempView("never_begun")
    assert value("never_begun") == 0
    assert value("reput_progress") >= 0, "the lake's own table has what is asked for"
    assert float(alert["evaluation"]["threshold"]["value"]["double_value"]) == 3600


def test_the_alert_is_of_the_log_that_is_furthest_behind(lake: SparkSession, bundle: Bundle) -> None:
    alert = bundle.resources["alerts"]["behind"]
    query = alert["query_text"].replace("main.lakebroker.", "")
    column = alert["evaluation"]["source"]["name"]

    def value(table: str) -> int:
        (row,) = lake.sql(query.replace("dispatch_lag", table)).collect()
        found: int = row[column]
        return found

    assert value("dispatch_lag") == 0
    lake.sql(
        """SELECT * FROM dispatch_lag UNION ALL
        SELECT 'c', 'log', 9, current_timestamp() - INTERVAL 2 HOURS, 1, 2, 1, NULL, NULL"""
    ).createOrReplaceTempView("with_one_behind")
    assert 7200 <= value("with_one_behind") < 7500
