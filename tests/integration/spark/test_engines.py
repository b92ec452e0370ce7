"""Both engines of `lakebroker sql` print the same rows, wherever the machine is."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from broker_gateway.cli.main import app
from lakebroker_testing.logs import LogWriter
from structured_streaming.tables import TABLES
from structured_streaming.views import VIEWS
from tests.suite.evidence import EVIDENCE, LONG
from tests.support.lakes.checks import of_every_type
from tests.support.lakes.empty import empty_lake
from tests.support.lakes.union import commit, cuts, manifest
from tests.support.machines.zones import local_time

MARK = "no row of a table"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("engines")
    lake = empty_lake(str(folder / "lake")).path
    with LogWriter(folder / "store") as writer:
        writer.everything()
        writer.raw(b"no record at all".ljust(500, b"?"))
    commit(lake, manifest(lake, writer.folder, *cuts(writer.folder, 1)))
    return lake


@pytest.fixture
def zone(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[None]:
    """The time zone of the process and the JVM."""
    jvm: Any = spark._jvm
    zones = jvm.java.util.TimeZone
    default = zones.getDefault()
    with local_time(request.param):
        zones.setDefault(zones.getTimeZone(request.param))
        yield
    zones.setDefault(default)


def printed(engine: str, form: str, lake: Path, statements: list[str]) -> str:
    arguments = ("--engine", engine, "--lake", str(lake), "--format", form, ";".join(statements))
    done = CliRunner().invoke(app, ["sql", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def of_json(text: str) -> list[list[str]]:
    return [sorted(json.dumps(row) for row in json.loads(line)) for line in text.splitlines()]


def of_csv(text: str) -> list[list[list[str]]]:
    tables: list[list[list[str]]] = [[]]
    for row in csv.reader(io.StringIO(text, newline="")):
        if row == [MARK]:
            tables.append([])
        else:
            tables[-1].append(row)
    return [[rows[0], *sorted(rows[1:])] for rows in tables if rows]


@pytest.mark.parametrize(
    ("zone", "form"),
    [("Asia/Tokyo", "json"), pytest.param("America/New_York", "csv", marks=LONG)],
    indirect=["zone"],
)
def test_both_print_the_same(lake: Path, zone: None, form: str) -> None:
    """Of tables of every type, on which alone it depends how a value is printed, and in evidence of all and of views; that both have the same rows of views: `test_views.py`, here and in the unit
    tests."""
    tables = list(TABLES.values()) if EVIDENCE else of_every_type()
    names = [*(table.name for table in tables), *(view.name for view in VIEWS if EVIDENCE)]
    statements = [f"SELECT * FROM {name}" for name in names]
    statements += [
        "SELECT topic, count(*) AS n, sum(size) AS bytes, avg(size) AS mean, max(store_timestamp) AS last FROM messages GROUP BY topic",
        "SELECT date_trunc('HOUR', store_timestamp) AS hour, CAST(store_timestamp AS DATE) AS day FROM messages",
        "SELECT count(*) AS n FROM messages WHERE store_timestamp >= TIMESTAMP '2023-11-14 22:13:20'",
    ]
    answers = []
    for engine_name, quote in (("duckdb", '"'), ("spark", "`")):
        mark = f"SELECT '{MARK}' AS {quote}{MARK}{quote}"
        asked = statements if form == "json" else [text for each in statements for text in (each, mark)]
        text = printed(engine_name, form, lake, asked)
        answers.append(of_json(text) if form == "json" else of_csv(text))
    assert len(answers[0]) == len(statements)
    for statement, embedded, spark in zip(statements, *answers, strict=True):
        assert embedded == spark, statement
    held = {name for name, rows in zip(names, answers[0], strict=False) if len(rows) > (form == "csv")}
    assert held >= {"messages", "topics", "consumer_groups", "broker_stats"}
