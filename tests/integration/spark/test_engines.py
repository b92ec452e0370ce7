"""Both engines of `lakebroker sql` print the same rows of every table and view, wherever the machine is."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
from pathlib import Path

import pytest

from lakebroker_testing.gateway import ROOT, command
from lakebroker_testing.logs import LogWriter
from structured_streaming.embedded.engine import EmbeddedEngine
from structured_streaming.lake import create_tables
from structured_streaming.tables import TABLES
from structured_streaming.views import VIEWS
from tests.suite.evidence import LONG
from tests.support.lakes.union import commit, cuts, manifest

PATIENCE_S = 900.0
MARK = "no row of a table"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("engines")
    lake = create_tables(str(folder / "lake")).path
    with LogWriter(folder / "store") as writer:
        writer.everything()
        writer.raw(b"no record at all".ljust(500, b"?"))
    commit(lake, manifest(lake, writer.folder, *cuts(writer.folder, 1)))
    return lake


def printed(engine: str, form: str, zone: str, lake: Path, statements: list[str]) -> str:
    arguments = ("--engine", engine, "--lake", str(lake), "--format", form, ";".join(statements))
    done = subprocess.run(
        command("sql", *arguments),
        cwd=ROOT,
        env=os.environ | {"TZ": zone},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
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


@pytest.mark.timeout(2 * PATIENCE_S)
@pytest.mark.parametrize(
    ("zone", "form"), [("Asia/Tokyo", "json"), pytest.param("America/New_York", "csv", marks=LONG)]
)
def test_both_print_the_same(lake: Path, zone: str, form: str) -> None:
    with EmbeddedEngine.open(str(lake)) as engine:
        names = [each.name for each in engine.relations()]
    assert set(names) == {*TABLES, *(view.name for view in VIEWS)}
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
        text = printed(engine_name, form, zone, lake, asked)
        answers.append(of_json(text) if form == "json" else of_csv(text))
    assert len(answers[0]) == len(statements)
    for statement, embedded, spark in zip(statements, *answers, strict=True):
        assert embedded == spark, statement
    held = {name for name, rows in zip(names, answers[0], strict=False) if len(rows) > (form == "csv")}
    assert held > {"messages", "consumer_offsets", "quarantine", "consumer_lag", "message_trace"}
