"""A union read has the same rows whether the logs are asked for what a statement's filters say or for everything."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lakebroker_testing.logs import LogWriter
from structured_streaming.embedded.engine import EmbeddedEngine
from structured_streaming.embedded.filters import filtered
from structured_streaming.rows.conditions import Condition
from tests.suite.evidence import rounds
from tests.support.lakes.empty import empty_lake

TEXTS = (
    "a",
    "a AND queue_id=1 AND b",
    "a\nqueue_id=1\nb",
    "a' AND queue_id=1 AND topic='t",
    "' AND queue_id=1",
    "' AND queue_id=1 AND tag='",
    "(a) OR (queue_id=1)",
    "it''s, 'so'",
    "', 'b') AND queue_id IN (1, 2",
    "optional: queue_id=1",
    "\n",
    "'",
)
COLUMNS = ("tag", "topic", "message_group", "broker")
NUMBERS = ("queue_id", "queue_offset", "physical_offset")


class Engines(NamedTuple):
    """`union` over a lake without rows and a log; `plain` has a table of all its rows."""

    union: EmbeddedEngine
    plain: duckdb.DuckDBPyConnection


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    """The log has each of `TEXTS` as a tag and as a group, in three queues of two topics."""
    folder: Path = tmp_path_factory.mktemp("filters")
    with LogWriter(folder / "store") as writer:
        for n, text in enumerate(TEXTS):
            for queue_id in range(3):
                group = TEXTS[(n + queue_id) % len(TEXTS)]
                writer.record(f"topic-{n % 2}", b"", queue_id, TAGS=text, __SHARDINGKEY=group)
    lake = empty_lake(str(folder / "lake")).path
    with (
        EmbeddedEngine.open(str(lake), source={"store": str(folder / "store")}) as union,
        contextlib.closing(duckdb.connect()) as plain,
    ):
        rows = union.query("FROM messages").read_all()
        assert rows.num_rows == 3 * len(TEXTS)
        plain.register("given", rows)
        plain.execute("CREATE TABLE messages AS FROM given")
        yield Engines(union, plain)


texts = st.sampled_from([*TEXTS, *(f"{text}\0{text}" for text in TEXTS), "topic-0", "broker-a"])
comparison = st.one_of(
    st.tuples(st.sampled_from(COLUMNS), st.sampled_from(["=", "<>", "<", ">=", "IN"]), st.lists(texts, min_size=1, max_size=3)),
    st.tuples(st.sampled_from(NUMBERS), st.sampled_from(["=", "<>", "<", ">=", "IN"]), st.lists(st.integers(-1, 40), min_size=1, max_size=3)),
)  # fmt: skip
Tree = Any
condition: st.SearchStrategy[Tree] = st.recursive(
    comparison, lambda some: st.tuples(st.sampled_from(["AND", "AND", "OR"]), st.lists(some, min_size=2, max_size=4)), max_leaves=6
)  # fmt: skip


def in_sql(tree: Tree, values: list[object]) -> str:
    """`tree` as SQL; its values go to `values`."""
    if tree[0] in ("AND", "OR"):
        return "(" + f" {tree[0]} ".join(in_sql(each, values) for each in tree[1]) + ")"
    column, relation, given_values = tree
    if relation == "IN":
        values += given_values
        return f"{column} IN ({', '.join('?' * len(given_values))})"
    values.append(given_values[0])
    return f"{column} {relation} ?"


def all_of(*each: tuple[str, str, list[Any]]) -> Tree:
    return ("AND", list(each))


@settings(max_examples=rounds(20, 40), deadline=None)
@example(("tag", "=", ["a AND queue_id=1 AND b"]))
@example(("tag", "=", ["a\nqueue_id=1\nb"]))
@example(all_of(("tag", "<", ["b\0"]), ("message_group", ">=", [" AND queue_id=1\0"])))
@example(
    all_of(("tag", "IN", ["', 'b') AND queue_id IN (1, 2", "a\nqueue_id=1\nb"]), ("queue_id", "<>", [1]))
)
@given(condition)
def test_what_logs_are_asked_for_changes_no_answer(engines: Engines, tree: Tree) -> None:
    values: list[object] = []
    where = in_sql(tree, values)
    statement = f"SELECT physical_offset, tag FROM messages WHERE {where} ORDER BY ALL"
    assert (
        engines.union.query(statement, values).read_all().to_pylist()
        == engines.plain.execute(statement, values).to_arrow_table().to_pylist()
    )


MESSAGES = ("broker", "topic", "queue_id", "tag", "store_timestamp", "user-id")
UNDERSTOOD: dict[tuple[str, ...], set[Condition]] = {
    ("topic='it''s' AND topic>='a AND topic=''b'",): {
        Condition("topic", "=", "it's"),
        Condition("topic", ">=", "a AND topic='b"),
    },
    ("queue_id!=3 AND queue_id>=-1 AND queue_id<=9",): {
        Condition("queue_id", ">=", -1),
        Condition("queue_id", "<=", 9),
    },
    ("topic='y' AND optional: topic='y' OR topic='z'",): set(),
    ("optional: topic IN ('a', 'it''s')", "user-id=5"): {Condition("topic", "in", ("a", "it's"))},
    ("(queue_id IS NULL)", "topic='a'"): {Condition("topic", "=", "a")},
    ("((topic = 'b') OR ((topic > 'c') AND topic='d' AND (topic < 'e')))",): set(),
    ("queue_id=1e+300",): set(),
    ("queue_id=1 AND ",): set(),
    ("store_timestamp<'infinity'::TIMESTAMP WITH TIME ZONE", "queue_id=1"): {Condition("queue_id", "=", 1)},
}


@pytest.mark.parametrize("lines", UNDERSTOOD)
def test_conditions_are_of_what_is_understood_whole(lines: tuple[str, ...]) -> None:
    assert filtered(lines, MESSAGES).conditions == UNDERSTOOD[lines]


CUT = [("tag='a", "queue_id=5", "b'"), ("tag='a", "queue_id=5")]
"""At the ends of lines, and at a NUL."""


@pytest.mark.parametrize("lines", CUT)
def test_of_texts_that_are_cut_nothing_is_taken(lines: tuple[str, ...]) -> None:
    assert filtered(lines, MESSAGES) == (frozenset(MESSAGES), frozenset())


def test_columns_of_any_name_are_seen() -> None:
    assert filtered(["(-user-id = 3)"], MESSAGES).columns == {"user-id"}
    named = (*MESSAGES, "queue_id<5")
    assert filtered(["queue_id<5"], named) == (frozenset(named), frozenset())
