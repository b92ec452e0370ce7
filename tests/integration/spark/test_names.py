"""A session knows the tables, views and functions of a lake that statements have named, whichever way they name them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from structured_streaming.errors import LakeError
from structured_streaming.read_only import Statement
from structured_streaming.sql import query, tables_in
from structured_streaming.union.names import LakeNames, names_in
from tests.support.lakes.empty import empty_lake

NAMED: dict[str, set[str] | None] = {
    "SELECT 1": set(),
    "TABLE messages": {"messages"},
    "SELECT 'topics' AS groups FROM Messages": {"messages"},
    "SELECT * FROM `messages` JOIN topic_stats USING (topic)": {"messages", "topic_stats"},
    "SELECT * FROM session.messages": {"messages"},
    "SELECT * FROM range(3) WHERE id IN (SELECT size FROM messages)": {"messages"},
    "SELECT (SELECT max(size) FROM messages)": {"messages", "max"},
    "WITH a AS (SELECT * FROM topics) SELECT * FROM a": {"topics", "a"},
    "SELECT * FROM topics t, LATERAL (SELECT size FROM messages m WHERE m.topic = t.topic)": {
        "topics",
        "messages",
    },
    "FROM messages |> JOIN topics USING (topic)": {"messages", "topics"},
    "SELECT LATENCY_COUNT(latency) FROM broker_stats": {"broker_stats", "latency_count"},
    "SELECT sum(size) OVER w FROM messages WINDOW w AS (ORDER BY latency_count(properties))": {
        "messages",
        "sum",
        "latency_count",
    },
    "SELECT IDENTIFIER('latency_' || 'count')(latency) FROM broker_stats": None,
    "SELECT * FROM messages VERSION AS OF 1": None,
    "SELECT * FROM IDENTIFIER('mess' || 'ages')": None,
    "EXECUTE IMMEDIATE 'SELECT * FROM messages'": None,
    "CREATE TEMP VIEW mine AS SELECT * FROM messages": {"messages"},
    "DELETE FROM messages": None,
    "DESCRIBE messages": None,
    "EXPLAIN SELECT * FROM messages": {"messages"},
    "SHOW TABLES": None,
}


@pytest.mark.parametrize("statement", NAMED)
def test_a_query_shows_what_it_names_and_anything_else_may_use_all(
    spark: SparkSession, statement: str
) -> None:
    assert names_in(Statement(spark, statement)) == NAMED[statement]


def test_a_session_knows_what_was_named(spark: SparkSession, tmp_path: Path) -> None:
    session = spark.newSession()
    names = tables_in(session, str(empty_lake(tmp_path / "lake")))

    def known() -> set[str]:
        return {row.tableName for row in session.sql("SHOW TABLES").collect() if row.isTemporary}

    assert query(session, "SELECT * FROM topics", tables=names).num_rows == 0
    assert known() == {"topics"}
    names.bind(Statement(session, "SELECT * FROM messages_live"))
    assert known() == {"topics", "messages", "messages_live"}, "a view comes with what it is over"
    names.bind(Statement(session, "SELECT latency_count(array(map(1, 2L)))"))
    assert session.sql("SELECT latency_count(array(map(1, 2L))) AS n").first() == (2,)


def test_a_view_of_the_user_s_own_stays_under_a_name_of_the_lake(spark: SparkSession, tmp_path: Path) -> None:
    session = spark.newSession()
    names = tables_in(session, str(empty_lake(tmp_path / "lake")))
    query(session, "CREATE OR REPLACE TEMP VIEW Messages AS SELECT 7 AS mine", tables=names)
    for statement in ("SELECT * FROM messages", "SHOW TABLES", "SELECT * FROM messages"):
        query(session, statement, tables=names)
    assert query(session, "TABLE messages", tables=names).to_pylist() == [{"mine": 7}]
    with pytest.raises(LakeError, match="already exists"):
        query(session, "CREATE TEMP VIEW consumer_lag AS SELECT 1", tables=names)


def test_a_table_that_could_not_be_read_is_tried_again(spark: SparkSession) -> None:
    session, tries = spark.newSession(), list[str]()

    def frame() -> DataFrame:
        tries.append("one")
        if len(tries) == 1:
            raise LakeError("it is away")
        return session.range(3)

    names = LakeNames(session, {"messages": frame}, ())
    with pytest.raises(LakeError, match="it is away"):
        names.bind(Statement(session, "TABLE messages"))
    names.bind(Statement(session, "TABLE messages"))
    assert session.table("messages").count() == 3
    assert len(tries) == 2


def test_a_table_that_cannot_be_read_fails_who_reads_it_alone(spark: SparkSession, tmp_path: Path) -> None:
    session, lake = spark.newSession(), empty_lake(tmp_path / "lake").path
    damaged = lake / "message_index" / "_delta_log" / f"{0:020d}.json"
    whole = damaged.read_bytes()
    damaged.write_text("no commit\n")
    names = tables_in(session, str(lake))
    for statement in (
        "SHOW TABLES",
        "SET spark.sql.ansi.enabled",
        "DESCRIBE message_index",
        "SELECT * FROM messages_live",
    ):
        query(session, statement, tables=names, write=True)
    failing = (
        "TABLE message_index",
        "SELECT * FROM IDENTIFIER('message_' || 'index')",
        "SELECT count(*) FROM message_trace",
    )
    for statement in failing:
        with pytest.raises(
            LakeError, match=r"table message_index of the lake cannot be read: .*JsonParseException"
        ):
            query(session, statement, tables=names, write=True)
    with pytest.raises(PySparkException, match="table message_index of the lake cannot be read"):
        session.table("message_index").count()
    damaged.write_bytes(whole)
    assert query(session, failing[-1], tables=names).to_pylist() == [{"count(1)": 0}]
