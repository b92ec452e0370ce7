"""The bundle's example pipeline as a stream of Spark alone: its rows, and what maintenance of the lake does to it. As a pipeline:
`tests/interop/test_pipeline.py`."""

from __future__ import annotations

import runpy
import sys
import types
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyspark
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from lakebroker_testing.gateway import ROOT
from tests.support.lakes.empty import empty_lake
from tests.support.lakes.viewed import add

BEGIN_S = 1_700_000_040
"""The start of a minute."""


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    empty_lake(tmp_path / "lake")
    return tmp_path / "lake"


@pytest.fixture
def session(spark: SparkSession, lake: Path) -> Iterator[SparkSession]:
    """With the pipeline's settings."""
    made = spark.newSession()
    made.sql("CREATE SCHEMA of_the_pipeline")
    try:
        made.sql(f"CREATE TABLE of_the_pipeline.messages USING delta LOCATION '{lake / 'messages'}'")
        made.conf.set("lakebroker.messages", "spark_catalog.of_the_pipeline.messages")
        made.conf.set("lakebroker.topic", "orders")
        yield made
    finally:
        made.sql("DROP SCHEMA of_the_pipeline CASCADE")


@pytest.fixture
def defined(session: SparkSession, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """By the pipeline's file. Its decorators work within a run of a pipeline alone, and Spark 4.0 has none."""
    decorators: Any = types.ModuleType("pyspark.pipelines")
    decorators.table = decorators.materialized_view = lambda comment: lambda made: made
    monkeypatch.setitem(sys.modules, "pyspark.pipelines", decorators)
    monkeypatch.setattr(pyspark, "pipelines", decorators, raising=False)
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: session)
    return runpy.run_path(str(ROOT / "resources" / "pipelines" / "orders.py"))


def message(message_id: str, body: bytes, after_s: int = 0, **other: Any) -> dict[str, Any]:
    return {
        "message_id": message_id,
        "topic": "orders",
        "is_system": False,
        "body": body,
        "store_timestamp": datetime.fromtimestamp(BEGIN_S + after_s, UTC),
        **other,
    }


def test_orders_are_rows_once_and_maintenance_of_the_lake_does_not_stop_them(
    session: SparkSession, defined: dict[str, Any], lake: Path, tmp_path: Path
) -> None:
    order = b'{"order_id": "o%d", "customer": "c", "amount": %d.25}'
    first = [
        message("A", order % (1, 1)),
        message("B", b"no order at all"),
        message("C", b'\xff{"order_id": 1'),
        message("D", order % (2, 2), topic="others"),
        message("E", order % (3, 3), is_system=True),
    ]
    add(lake, {"messages": first})
    # seen before the sink, which makes a text of any bytes; its rows are then what `orders` names
    orders = defined["orders"]().selectExpr("*", "is_valid_utf8(order.unreadable) AS is_text")
    stream = orders.writeStream.format("memory").queryName("orders")
    running = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        running.processAllAvailable()
        DeltaTable(str(lake / "messages")).delete("topic = 'others'")  # as retention does
        add(lake, {"messages": [message("F", order % (7, 7), 60)]})
        running.processAllAvailable()
        rows = session.table("orders").collect()
        minutes = defined["orders_by_minute"]().collect()
    finally:
        running.stop()
    found = {row.message_id: row.order.asDict() for row in rows}
    assert sorted(found) == sorted(row.message_id for row in rows) == ["A", "B", "C", "F"]
    nothing = {"order_id": None, "customer": None, "amount": None}
    assert found["B"] == nothing | {"unreadable": "no order at all"}
    assert found["C"] == nothing | {"unreadable": '\ufffd{"order_id": 1'}
    assert [row.is_text for row in rows if row.message_id in "BC"] == [True, True]
    assert found["F"] == {"order_id": "o7", "customer": "c", "amount": Decimal("7.25"), "unreadable": None}
    assert {
        (int(row.minute.timestamp()) - BEGIN_S) // 60: (row.orders, row.unreadable, row.amount)
        for row in minutes
    } == {0: (3, 2, Decimal("1.25")), 1: (1, 0, Decimal("7.25"))}
