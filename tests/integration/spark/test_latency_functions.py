"""Functions over latency sketches in Spark: a session of the lake has them, and they answer as those of DuckDB."""

from __future__ import annotations

import functools
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from structured_streaming.errors import LakeError
from structured_streaming.latency_functions import in_duckdb
from structured_streaming.sql import query, tables_in
from tests.support.lakes.latency_questions import (
    ANSWERS,
    Ask,
    check_answers,
    check_merging,
    check_windows,
    check_wrong_parts,
    sketch_lake,
    stats,
)


@pytest.fixture(scope="module")
def ask(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Ask:
    """Of a session of a lake whose broker_stats are the sketches."""
    lake = tmp_path_factory.mktemp("sketches") / "lake"
    sketch_lake(lake)
    session = spark.newSession()
    names = tables_in(session, str(lake))

    @functools.cache  # nobody changes the rows
    def rows_of(statement: str) -> list[dict[str, Any]]:
        asked = statement.replace("FROM stats", "FROM broker_stats")
        return list(query(session, asked, tables=names).to_pylist())

    return rows_of


def test_answers_are_those_of_the_latencies_themselves(ask: Ask) -> None:
    check_answers(ask)


def test_merged_sketches_are_sums_and_nothing_is_known_of_nothing(ask: Ask) -> None:
    check_merging(ask)


def test_a_window_of_sketches_has_quantiles_too(ask: Ask) -> None:
    check_windows(ask)


def test_a_part_beyond_all_calls_is_refused(ask: Ask) -> None:
    check_wrong_parts(ask, LakeError)


def test_both_engines_answer_the_same_to_the_last_digit(ask: Ask) -> None:
    with duckdb.connect() as connection:
        for each in in_duckdb():
            connection.execute(each)
        connection.register("stats", stats())
        expected = connection.execute(ANSWERS).to_arrow_table().to_pylist()
    assert but_for_means(ask(ANSWERS)) == but_for_means(expected)


def but_for_means(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The engines add up in another order."""
    return [{name: value for name, value in row.items() if name != "mean"} for row in rows]
