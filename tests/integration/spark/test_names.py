"""A session knows the tables, views and functions of a lake that statements have named, whichever way they name them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from structured_streaming.sql import lake_in, names_of, query
from structured_streaming.union.names import names_in
from tests.support.lakes.empty import empty_lake

NAMED: dict[str, set[str] | None] = {
    "SELECT 1": set(),
    "TABLE messages": {"messages"},
    "SELECT 'topics' AS groups FROM Messages": {"messages"},
    "SELECT * FROM `messages` JOIN topic_stats USING (topic)": {"messages", "topic_stats"},
    "SELECT * FROM range(3) WHERE id IN (SELECT size FROM messages)": {"messages", "range"},
    "SELECT (SELECT max(size) FROM messages)": {"messages", "max"},
    "WITH a AS (SELECT * FROM topics) SELECT * FROM a": {"topics", "a"},
    "SELECT LATENCY_COUNT(array_agg(latency)) FROM broker_stats": {
        "broker_stats",
        "latency_count",
        "array_agg",
    },
    "SELECT * FROM messages VERSION AS OF 1": None,
    "SELECT * FROM IDENTIFIER('mess' || 'ages')": None,
    "EXECUTE IMMEDIATE 'SELECT * FROM messages'": None,
    "CREATE TEMP VIEW mine AS SELECT * FROM messages": None,
    "DELETE FROM messages": None,
    "DESCRIBE messages": None,
    "EXPLAIN SELECT * FROM messages": None,
    "SHOW TABLES": None,
}


@pytest.mark.parametrize("statement", NAMED)
def test_a_query_shows_what_it_names_and_anything_else_may_use_all(
    spark: SparkSession, statement: str
) -> None:
    found, expected = names_in(spark, statement), NAMED[statement]
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert found - {"range"} == expected - {"range"}


def test_a_session_knows_what_was_named(spark: SparkSession, tmp_path: Path) -> None:
    session = spark.newSession()
    names = names_of(session, lake_in(session, str(empty_lake(tmp_path / "lake"))))

    def known() -> set[str]:
        return {row.tableName for row in session.sql("SHOW TABLES").collect() if row.isTemporary}

    assert query(session, "SELECT * FROM topics", tables=names).num_rows == 0
    assert known() == {"topics"}
    names.bind("SELECT * FROM messages_live")
    assert known() == {"topics", "messages", "messages_live"}, "a view comes with what it is over"
    names.bind("SELECT latency_count(array(map(1, 2L)))")
    assert session.sql("SELECT latency_count(array(map(1, 2L))) AS n").first() == (2,)
