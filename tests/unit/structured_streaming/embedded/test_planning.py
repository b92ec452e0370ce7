"""What a statement reads is told by the engine's planner: columns, and what its rows have in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Self, cast

import duckdb
import pytest

from structured_streaming.embedded.database import connected, lock
from structured_streaming.embedded.limits import Limits
from structured_streaming.embedded.planning import Plan, Planner
from structured_streaming.embedded.running import Running
from structured_streaming.errors import LakeError
from structured_streaming.rows.conditions import Condition


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    folder: Path = tmp_path_factory.mktemp("temp")
    connection = connected()
    lock(connection, Limits(), str(folder), 1 << 20, for_plans=True)
    yield connection
    connection.close()


@pytest.fixture(scope="module")
def planner(database: duckdb.DuckDBPyConnection) -> Planner:
    return Planner(database)


def planned(planner: Planner, statement: str) -> Plan:
    with closing(planner.cursor()) as cursor:
        return planner.plan(Running(cursor, 60), statement)


COLUMNS: dict[str, dict[str, set[str]]] = {
    "SELECT 1": {},
    "SELECT count(*) FROM messages": {"messages": {"physical_offset"}},
    "SELECT topic, count(*) FROM messages_live GROUP BY topic": {"messages": {"topic", "is_system"}},
    "SELECT * FROM (SELECT topic, body FROM messages) WHERE topic = 'a'": {"messages": {"topic", "body"}},
    "SELECT a.tag FROM messages a JOIN consume_queue q USING (physical_offset) WHERE q.size > 9": {
        "messages": {"tag", "physical_offset"},
        "consume_queue": {"physical_offset", "size"},
    },
    "SELECT (SELECT max(size) FROM messages) FROM consume_queue": {
        "messages": {"size"},
        "consume_queue": {"physical_offset"},
    },
    "SELECT topic FROM messages UNION SELECT tag FROM messages": {"messages": {"topic", "tag"}},
    "SELECT row_number() OVER (PARTITION BY topic ORDER BY queue_offset) FROM messages": {
        "messages": {"topic", "queue_offset"}
    },
    "WITH a AS (SELECT * FROM messages) SELECT x.flag FROM a x, a y WHERE x.size = y.queue_id": {
        "messages": {"flag", "size", "queue_id"}
    },
    "SELECT unnest(keys) FROM messages": {"messages": {"keys"}},
    "EXPLAIN SELECT origin.topic FROM messages": {"messages": {"origin"}},
    "EXPLAIN ANALYZE SELECT tag FROM messages": {"messages": {"tag"}},
    "SHOW TABLES": {},
    "DESCRIBE messages": {},
    "SELECT tag FROM messages WHERE topic = 'x' OR octet_length(body) > 3": {
        "messages": {"tag", "topic", "body"}
    },
    "SELECT tag FROM messages WHERE origin.attempt = 3": {"messages": {"tag", "origin"}},
    "SELECT tag FROM messages WHERE properties['a'] = 'x'": {"messages": {"tag", "properties"}},
    "SELECT tag FROM messages ORDER BY store_timestamp DESC LIMIT 3": {
        "messages": {"tag", "store_timestamp"}
    },
    "SELECT tag FROM messages WHERE topic IN ('a','b','c','d','e','f','g','h','i','j','k','l','m','n')": {
        "messages": {"tag", "topic"}
    },
    "SELECT t.tag FROM messages t JOIN topics c ON t.topic = c.topic WHERE c.deleted": {
        "messages": {"tag", "topic"},
        "topics": {"topic", "deleted"},
    },
    "SELECT tag FROM messages m WHERE EXISTS (SELECT 1 FROM message_index i WHERE i.key = m.tag)": {
        "messages": {"tag"},
        "message_index": {"key"},
    },
    "SELECT max(size) FROM messages HAVING max(size) > (SELECT avg(size) FROM consume_queue)": {
        "messages": {"size"},
        "consume_queue": {"size"},
    },
    "FROM messages SELECT DISTINCT ON (topic) topic, tag ORDER BY topic, queue_offset": {
        "messages": {"topic", "tag", "queue_offset"}
    },
    "SELECT tag FROM messages WHERE false": {},
}


@pytest.mark.parametrize("statement", COLUMNS)
def test_no_more_columns_are_read_than_a_statement_needs(planner: Planner, statement: str) -> None:
    plan = planned(planner, statement)
    assert {name: set(read.columns) for name, read in plan.reads.items()} == COLUMNS[statement]
    assert plan.reads.keys() <= plan.tables


def test_no_message_is_read_for_a_trace(planner: Planner) -> None:
    reads = planned(planner, "SELECT * FROM message_trace").reads
    assert reads.keys() == {"message_index", "delivery_events"}


CONDITIONS: dict[str, set[Condition]] = {
    "topic = 'a' AND queue_id = 3": {Condition("topic", "=", "a"), Condition("queue_id", "=", 3)},
    "queue_offset BETWEEN 5 AND 9": {Condition("queue_offset", ">=", 5), Condition("queue_offset", "<=", 9)},
    "store_timestamp >= '2023-11-14T22:13:20.5Z'": {
        Condition("store_timestamp", ">=", 1_700_000_000_500_000)
    },
    "topic = 'a' OR queue_id = 3": set(),
    "topic = 'it''s'": {Condition("topic", "=", "it's")},
    "topic = 'a AND queue_id=3'": {Condition("topic", "=", "a AND queue_id=3")},
    "tag = 'a AND queue_id=3 AND b'": set(),
    "lower(topic) = 'a'": set(),
    "NOT (queue_id = 3)": set(),
    "queue_offset IN (5, 7, 9)": {Condition("queue_offset", "in", (5, 7, 9))},
    "physical_offset IN (5) AND queue_id IN (1, 9)": {
        Condition("physical_offset", "=", 5),
        Condition("queue_id", "in", (1, 9)),
    },
    "topic IN ('a', 'b') AND broker IN ('x', 'it''s', '''', ', ')": {
        Condition("topic", "in", ("a", "b")),
        Condition("broker", "in", ("x", "it's", "'", ", ")),
    },
    "topic IN ('a) AND b', 'c')": {Condition("topic", "in", ("a) AND b", "c"))},
    "store_timestamp < 'infinity' AND queue_id = 3": {Condition("queue_id", "=", 3)},
    "topic NOT IN ('a', 'b')": set(),
    "topic IN ('a', 'b') OR queue_id = 3": set(),
    "topic IN ('a', 'b', NULL)": set(),
    "tag IN ('a', 'b')": set(),
    "tag = 'x'": set(),
    "queue_id = 3.5": set(),
}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_conditions_are_those_that_all_rows_meet(planner: Planner, condition: str) -> None:
    read = planned(planner, f"SELECT tag FROM messages WHERE {condition}").reads.get("messages")
    assert set(read.conditions if read else ()) == CONDITIONS[condition]


def test_a_table_that_stands_twice_has_the_conditions_of_both(planner: Planner) -> None:
    twice = "SELECT tag FROM messages WHERE topic = 'a' AND queue_id = 1 UNION ALL SELECT tag FROM messages WHERE topic = 'b' AND queue_id = 1"
    assert planned(planner, twice).reads["messages"].conditions == (Condition("queue_id", "=", 1),)
    joined = "SELECT a.tag FROM messages a LEFT JOIN messages b ON a.tag = b.tag AND b.topic = 'x'"
    assert planned(planner, joined).reads["messages"].conditions == ()


@pytest.mark.parametrize("word", ["function_name", "TABLE_FUNCTION", "table_name"])
def test_an_engine_whose_trees_tell_otherwise_what_is_called_is_not_used(tmp_path: Path, word: str) -> None:
    class Otherwise:
        """A connection to an engine that has another word."""

        def execute(self, statement: str) -> Self:
            connection.execute(statement)
            return self

        def fetchone(self) -> tuple[str]:
            ((tree,),) = connection.fetchall()
            return (tree.replace(f'"{word}"', '"other"'),)

    with closing(connected()) as connection:
        lock(connection, Limits(), str(tmp_path), 1 << 20, for_plans=True)
        with pytest.raises(LakeError, match="tells otherwise what a statement calls"):
            Planner(cast(duckdb.DuckDBPyConnection, Otherwise()))
