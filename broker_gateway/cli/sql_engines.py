"""The engines of `lakebroker sql`: DuckDB in this process, or Spark."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from broker_gateway.cli.extras import need_spark
from broker_gateway.cli.output import fail
from broker_gateway.cli.sql_session import Engine
from broker_gateway.cli.units import seconds, size
from structured_streaming.extras import EMBEDDED, ON_SPARK, SPARK, lacking

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from structured_streaming.embedded.engine import EmbeddedEngine
    from structured_streaming.embedded.limits import Limits
    from structured_streaming.union.tables import SessionTables


class Form(NamedTuple):
    """How results are printed."""

    name: str
    escape: bool


def chosen(engine: str, lake: str, *, write: bool) -> str:
    """`duckdb` or `spark`: as it was asked for, else the first where it can answer. Ends the command where it cannot."""
    from structured_streaming.catalog.names import catalog_schema

    only_spark = "--write changes tables" if write else ""
    if not only_spark and catalog_schema(lake) is not None:
        only_spark = f"{lake} is a schema of a catalog"
    if engine == "duckdb" and only_spark:
        fail(f"{only_spark}, which is Spark's: leave out --engine duckdb", 2)
    if engine == "spark" or only_spark:
        need_spark(f"sql: {only_spark}, which" if only_spark else "sql --engine spark")
        return "spark"
    lacks = lacking("sql", EMBEDDED)
    if not lacks:
        return "duckdb"
    if engine == "duckdb" or lacking("sql", SPARK, ON_SPARK):
        fail(lacks)
    return "spark"


def limits(memory: str, temp_folder: Path | None, timeout: str) -> Limits:
    """As the options say; ends the command where they cannot be read."""
    from structured_streaming.embedded.limits import Limits

    return Limits(
        memory_bytes=size("--memory", memory),
        temp_folder=str(temp_folder) if temp_folder else "",
        seconds=seconds("--timeout", timeout),
    )


def embedded(engine: EmbeddedEngine, form: Form) -> Engine:
    """The embedded engine: rows are printed while they are made."""
    from structured_streaming.embedded.statements import divided
    from structured_streaming.interruptible import interruptible, pass_on

    def run(statement: str) -> None:
        _, number = interruptible(lambda: _print(engine.query(statement), form), lambda _: engine.cancel())
        if number:
            pass_on(number)

    return Engine(divided, run)


def of_spark(session: SparkSession, form: Form, tables: SessionTables, *, write: bool) -> Engine:
    """Spark: results come whole, on the driver."""
    from broker_gateway.cli.statements import divided
    from structured_streaming.interruptible import of_jobs, pass_on
    from structured_streaming.sql import query

    def run(statement: str) -> None:
        rows, number = of_jobs(session, lambda: query(session, statement, write=write, tables=tables))
        _print(rows.to_reader(), form)
        if number:
            pass_on(number)

    return Engine(divided, run)


def _print(rows: pa.RecordBatchReader, form: Form) -> None:
    """Raises LakeError, BrokenPipeError."""
    from broker_gateway.cli.sql_results import print_rows
    from structured_streaming.errors import LakeError

    try:
        print_rows(rows, form.name, sys.stdout, escape=form.escape)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except MemoryError as error:
        raise LakeError(
            "the result has a value too large to print; ask for a part of it, or give it more memory (--memory)"
        ) from error
    except OSError as error:
        raise LakeError(f"the result cannot be written: {error.strerror}") from error
