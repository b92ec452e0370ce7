"""Functions over latency sketches in DuckDB, and in the embedded engine over a lake."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pytest

from structured_streaming.embedded.engine import EmbeddedEngine
from structured_streaming.errors import LakeError
from structured_streaming.latency_functions import in_duckdb
from tests.support.lakes.latency_questions import (
    Ask,
    check_answers,
    check_merging,
    check_windows,
    check_wrong_parts,
    sketch_lake,
    stats,
)


@contextmanager
def plain(_: Path) -> Iterator[Ask]:
    """DuckDB alone, as any program has it."""
    with duckdb.connect() as connection:
        for statement in in_duckdb():
            connection.execute(statement)
        connection.register("stats", stats())

        def rows(statement: str) -> list[dict[str, Any]]:
            return list(connection.execute(statement).to_arrow_table().to_pylist())

        yield rows


@contextmanager
def embedded(folder: Path) -> Iterator[Ask]:
    """The engine of `lakebroker sql`, over a lake whose broker_stats are the sketches."""
    sketch_lake(folder)
    with EmbeddedEngine.open(str(folder)) as engine:

        def answer(statement: str) -> list[dict[str, Any]]:
            return list(
                engine.query(statement.replace("FROM stats", "FROM broker_stats")).read_all().to_pylist()
            )

        yield answer


@pytest.fixture(scope="module", params=[plain, embedded], ids=["DuckDB", "engine"])
def ask(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    with request.param(tmp_path_factory.mktemp("sketches") / "lake") as asked:
        yield asked


def test_answers_are_those_of_the_latencies_themselves(ask: Ask) -> None:
    check_answers(ask)


def test_merged_sketches_are_sums_and_nothing_is_known_of_nothing(ask: Ask) -> None:
    check_merging(ask)


def test_a_window_of_sketches_has_quantiles_too(ask: Ask) -> None:
    check_windows(ask)


def test_a_part_beyond_all_calls_is_refused(ask: Ask) -> None:
    check_wrong_parts(ask, duckdb.Error, LakeError)
