"""A retired broker is in no view and no union, of either engine; its rows stay in the tables, and come back with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakebroker_testing.logs import LogWriter
from structured_streaming.catalog.lake_views import register_views
from structured_streaming.embedded.engine import EmbeddedEngine
from structured_streaming.errors import LakeError
from structured_streaming.maintenance.decisions import Decisions
from structured_streaming.sql import query, register, register_union
from structured_streaming.storage.location import lake_folder
from structured_streaming.union.lakes import FolderLake
from structured_streaming.views import VIEWS
from tests.support.lakes.maintained import reput

pytestmark = pytest.mark.timeout(900)
COUNTS = " UNION ALL ".join(
    f"SELECT '{name}' AS name, broker, count(*) AS n FROM {name} GROUP BY broker"
    for name in ("messages", "consume_queue", "consumer_offsets")
)
OF_VIEWS = " UNION ALL ".join(
    f"SELECT DISTINCT '{view.name}' AS name, broker FROM {view.name}"
    for view in VIEWS
    if view.name in ("messages_live", "consumer_lag", "message_trace")
)


def test_views_and_unions_leave_it_out_and_tables_keep_it(spark: SparkSession, tmp_path: Path) -> None:
    lake, stores = tmp_path / "lake", {name: tmp_path / name for name in ("broker-a", "broker-b")}
    for name, folder in stores.items():
        with LogWriter(folder, name) as writer:
            writer.everything()
        reput(folder, str(lake))
    with LogWriter(stores["broker-b"], "broker-b") as writer:
        writer.messages(5)
    source = {"store": str(stores["broker-b"])}
    told: list[str] = []
    joined = spark.newSession()
    of_spark = FolderLake(joined, lake_folder(str(lake)))
    tables = register_union(joined, of_spark, source, told.append)

    def asked(statement: str, *, of_spark_too: bool = False) -> list[set[tuple[object, ...]]]:
        """Of the embedded engine, alone and with a log; Spark says the same."""
        found = []
        for logs in ({}, source):
            with EmbeddedEngine.open(str(lake), source=logs, tell=told.append) as engine:
                found.append({tuple(row.values()) for row in engine.query(statement).read_all().to_pylist()})
            if not of_spark_too:
                continue
            if logs:
                register_views(joined, of_spark.retired())
                rows = query(joined, statement, tables=tables)
            else:
                session = spark.newSession()
                register(session, str(lake))
                rows = query(session, statement)
            assert found[-1] == {tuple(row.values()) for row in rows.to_pylist()}
        return found

    views, counts = asked(OF_VIEWS), asked(COUNTS)
    assert {broker for _, broker in views[0]} == set(stores)
    decisions = Decisions(str(lake), lambda: spark)
    with pytest.raises(LakeError, match="has nothing of a broker 'broker-x'; it has broker-a, broker-b"):
        decisions.retire("broker-x")
    assert decisions.retire("broker-a")
    told.clear()
    without = asked(OF_VIEWS, of_spark_too=True)
    for before, after in zip(views, without, strict=True):
        assert after == {(name, broker) for name, broker in before if broker == "broker-b"}
    alone, joint = asked(COUNTS, of_spark_too=True)
    assert alone == counts[0], "tables alone have its rows"
    assert joint == {row for row in counts[1] if row[1] == "broker-b"}
    assert not [line for line in told if "broker-a" in line], "that its log is not read is no news"
    assert decisions.unretire("broker-a")
    assert (asked(OF_VIEWS), asked(COUNTS)) == (views, counts)
    tables.close()


def test_a_session_that_is_open_takes_notice_at_the_next_statement(tmp_path: Path) -> None:
    with LogWriter(tmp_path / "store") as writer:
        writer.everything()
    lake = str(tmp_path / "lake")
    reput(tmp_path / "store", lake)
    decisions = Decisions(lake, lambda: pytest.fail("no Spark is needed"))
    with EmbeddedEngine.open(lake) as engine:

        def count() -> int:
            (row,) = engine.query("SELECT count(*) AS n FROM messages_live").read_all().to_pylist()
            return int(row["n"])

        before = count()
        assert before > 0
        decisions.retire("broker-a")
        assert count() == 0
        decisions.unretire("broker-a")
        assert count() == before
