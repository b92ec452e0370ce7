"""A retired broker is in no view and no union, of either engine; its rows stay in the tables, and come back with it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakebroker_testing.logs import LogWriter
from structured_streaming.embedded.engine import EmbeddedEngine
from structured_streaming.errors import LakeError
from structured_streaming.maintenance.decisions import Decisions
from structured_streaming.sql import query, tables_in
from structured_streaming.tables import TABLES
from tests.suite.evidence import EVIDENCE
from tests.support.lakes.maintained import reput

NAMES = ("messages", "consume_queue", "consumer_offsets", "messages_live", "consumer_lag", "message_trace")
TO_SPARK = NAMES if EVIDENCE else ("messages", "messages_live")
"""What Spark is asked for: in the short form a table and its view stand for the others, of which each costs seconds to plan."""


def asking(names: Iterable[str]) -> str:
    """For brokers and their rows in tables, for brokers in views."""
    return " UNION ALL ".join(
        f"SELECT DISTINCT '{name}' AS name, broker, NULL AS n FROM {name}"
        if name not in TABLES
        else f"SELECT '{name}' AS name, broker, count(*) AS n FROM {name} GROUP BY broker"
        for name in names
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

    def asked(*, of_spark_too: bool = False) -> list[set[tuple[object, ...]]]:
        """Of the embedded engine, alone and with a log; Spark says the same."""
        found = []
        for logs in ({}, source):
            with EmbeddedEngine.open(str(lake), source=logs, tell=told.append) as engine:
                found.append(
                    {tuple(row.values()) for row in engine.query(asking(NAMES)).read_all().to_pylist()}
                )
            if not of_spark_too:
                continue
            session = spark.newSession()
            tables = tables_in(session, str(lake), logs, told.append)
            rows = query(session, asking(TO_SPARK), tables=tables)
            tables.close()
            assert {row for row in found[-1] if row[0] in TO_SPARK} == {
                tuple(row.values()) for row in rows.to_pylist()
            }
        return found

    alone, joint = asked()
    assert {broker for _, broker, count in alone if count is None} == set(stores)
    decisions = Decisions(str(lake), lambda: spark)
    with pytest.raises(LakeError, match="has nothing of a broker 'broker-x'; it has broker-a, broker-b"):
        decisions.retire("broker-x")
    assert decisions.retire("broker-a")
    told.clear()
    alone_without, joint_without = asked(of_spark_too=True)
    in_tables = {row for row in alone if row[2] is not None}
    assert alone_without == in_tables | {row for row in alone if row[1] == "broker-b"}, (
        "tables alone have its rows"
    )
    assert joint_without == {row for row in joint if row[1] == "broker-b"}
    assert not [line for line in told if "broker-a" in line], "that its log is not read is no news"
    assert decisions.unretire("broker-a")
    assert asked() == [alone, joint]


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
