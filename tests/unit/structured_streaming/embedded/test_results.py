"""Rows of statements as they are taken from DuckDB."""

from __future__ import annotations

import contextlib
from functools import partial

import duckdb
import pyarrow as pa
import pytest

from structured_streaming.embedded.failures import CancelledError, UnexplainedError
from structured_streaming.embedded.results import taken
from structured_streaming.embedded.running import Running
from structured_streaming.errors import LakeError


def interrupted(cursor: duckdb.DuckDBPyConnection, statement: str) -> tuple[Running, pa.RecordBatchReader]:
    """Some rows of it are taken, and no others are made: DuckDB ends it, as it does where another of its threads failed."""
    running = Running(cursor, 0.0)
    rows = taken(running, partial(cursor.execute, statement), contextlib.ExitStack())
    assert next(rows).num_rows
    cursor.interrupt()
    return running, rows


def test_a_statement_that_was_ended_for_an_error_tells_that_error() -> None:
    with duckdb.connect() as cursor:
        _, rows = interrupted(
            cursor, "SELECT CASE WHEN i < 1e6 THEN i ELSE error('too far') END FROM range(2e6::INT) t(i)"
        )
        with pytest.raises(LakeError, match="too far"):
            rows.read_all()


def test_one_that_was_ended_for_nothing_that_comes_again_says_so() -> None:
    with duckdb.connect() as cursor:
        _, rows = interrupted(cursor, "SELECT i FROM range(2e6::INT) t(i)")
        with pytest.raises(UnexplainedError, match="ask again"):
            rows.read_all()


def test_one_that_was_cancelled_is_not_run_again() -> None:
    with duckdb.connect() as cursor:
        running, rows = interrupted(cursor, "SELECT i FROM range(2e6::INT) t(i)")
        running.cancel()
        with pytest.raises(CancelledError):
            rows.read_all()
