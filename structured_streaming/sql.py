"""SQL over the lake: a Spark session with the tables and views registered."""

from __future__ import annotations

import csv
import json
import os
import re
import sys
import tempfile
from typing import TYPE_CHECKING, Any, TextIO

from structured_streaming.errors import LakeError
from structured_streaming.jvm_output import jvm_output_to_file
from structured_streaming.tables import TABLES, VIEWS, create_tables, lake_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def lake_session(location: str, master: str = "local[2]") -> SparkSession:
    """A Spark session with every table and view of the lake as a temporary view; missing tables are made.

    Raises LocationError.
    """
    create_tables(location)
    session = delta_session(master)
    register(session, location)
    return session


def delta_session(master: str = "local[2]") -> SparkSession:
    """A Spark session that reads Delta. Its jars come from Maven Central once, then from Ivy's cache."""
    from delta import configure_spark_with_delta_pip
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = (
        SparkSession.builder.appName("lakebroker-sql")
        .master(master)
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.databricks.delta.snapshotPartitions", "1")
        .config("spark.sql.warehouse.dir", tempfile.mkdtemp(prefix="lakebroker-warehouse-"))
    )
    with jvm_output_to_file():
        session: SparkSession = configure_spark_with_delta_pip(builder).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def register(session: SparkSession, location: str) -> None:
    """Registers tables and views in the session, under their own names."""
    folder = lake_folder(location)
    for name in TABLES:
        session.read.format("delta").load(str(folder / name)).createOrReplaceTempView(name)
    for view in VIEWS:
        session.sql(f"CREATE OR REPLACE TEMP VIEW {view.name} AS {view.sql}")


def run_statement(session: SparkSession, statement: str, form: str, out: TextIO) -> None:
    """Runs one statement and prints its rows as `table`, `csv` or `json`. Raises LakeError for bad SQL."""
    from pyspark.errors import PySparkException

    try:
        frame = session.sql(statement)
        rows = [row.asDict(recursive=True) for row in frame.collect()]
    except PySparkException as error:
        raise LakeError(re.split(r"\n\s*JVM stacktrace", str(error))[0].strip()) from error
    _print(frame, rows, form, out)


def _print(frame: DataFrame, rows: list[dict[str, Any]], form: str, out: TextIO) -> None:
    if form == "json":
        out.write(json.dumps(rows, default=_shown) + "\n")
        return
    if form == "csv":
        writer = csv.writer(out)
        writer.writerow(frame.columns)
        writer.writerows([["" if row[c] is None else _shown(row[c]) for c in frame.columns] for row in rows])
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(*frame.columns)
    for row in rows:
        table.add_row(*("" if row[c] is None else str(_shown(row[c])) for c in frame.columns))
    Console(file=out).print(table)


def _shown(value: Any) -> Any:
    """A value as text where JSON has no form for it."""
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("utf-8", "backslashreplace")
    if hasattr(value, "isoformat"):
        return value.isoformat(sep=" ", timespec="milliseconds")
    return value
