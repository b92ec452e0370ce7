"""A topic whose schema changes under traffic, with bad messages: a typed row or a reason for each message, exactly once.

A reput that is killed meanwhile: `tests/fault/test_reput_crash.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.fs as fs
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from broker_gateway.cli.main import app
from lakebroker_testing.logs import LogWriter
from structured_streaming import reput_query
from structured_streaming.reput_options import ReputOptions
from tests.suite.evidence import EVIDENCE, LONG
from tests.support.lakes.empty import empty_lake
from tests.support.spark.reput_runs import RunningReput
from tests.support.waiting import wait_until

TOPIC, TABLE = "orders", "typed_orders"
FIELDS: list[dict[str, Any]] = [
    {"id": {"type": "integer"}},
    {
        "name": {"type": ["string", "null"]},
        "lines": {"type": "array", "items": {"type": "object", "properties": {"sku": {"type": "string"}}}},
    },
    {
        "lines": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"sku": {"type": "string"}, "count": {"type": "integer"}},
            },
        },
        "at": {"type": "string", "format": "date-time"},
    },
]
"""What each version of the schema adds."""
FIRST = 1 if EVIDENCE else 2
"""The version that is declared first: each has the query begin again."""


def schema(version: int) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for fields in FIELDS[:version]:
        properties |= fields
    return {"type": "object", "properties": properties, "required": ["id"]}


def body(version: int, number: int) -> bytes:
    """One in a hundred is bad, each in another way."""
    if number % 100 == 99:
        return [b"\xff\xfe", b"{", b'{"id":"seven"}', b'{"id":1}{"id":2}', b"[]"][number // 100 % 5]
    value: dict[str, Any] = {"id": number, "passed_over": [number]}
    if version > 1:
        value["name"] = f"n{number}" if number % 2 else None
        value["lines"] = [{"sku": "a"}, {"sku": f"b{number}"}]
    if version > 2:
        value["lines"][0]["count"] = number
        value["at"] = "2026-11-25T12:00:00+01:00"
    return json.dumps(value).encode()


def run(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 0, done.stderr
    return done.stdout


def declare(folder: Path, lake: Path, version: int, *more: str) -> str:
    file = folder / f"order-{version}.json"
    file.write_text(json.dumps(schema(version)))
    said = run("typed", "add", TOPIC, "--schema", str(file), "--lake", str(lake), *more)
    assert f"{TABLE}: schema {version - FIRST + 1} of topic {TOPIC} is declared" in said
    return said


def rows(lake: Path, table: str) -> list[dict[str, Any]]:
    return (
        DeltaTable(str(lake / table))
        .to_pyarrow_table(filesystem=fs.SubTreeFileSystem(str(lake / table), fs.LocalFileSystem()))
        .to_pylist()
    )


def held(lake: Path, table: str) -> list[dict[str, Any]]:
    """Rows below the progress of the one log: Spark's writer shows those of a batch before it is finished."""
    end = max((row["end_offset"] for row in rows(lake, "reput_progress")), default=0)
    return [row for row in rows(lake, table) if row["physical_offset"] < end]


def wait_for_rows(lake: Path, table: str, count: int, reput: RunningReput) -> None:
    commits = there = 0

    def are_there() -> bool:
        nonlocal commits, there
        reput.batches()  # raises what ended it
        logs = [lake / name / "_delta_log" for name in (table, "reput_progress")]
        newest = sum(len(list(log.glob("[0-9]*.json"))) for log in logs)  # others are on their way
        if newest != commits:
            commits, there = newest, len(held(lake, table))
        return there >= count

    # Spark gives a Python worker 10 s to come, which a busy machine exceeds: the query begins again then, each time later
    wait_until(are_there, lambda: f"{count} rows of {table} beside {there}", limit_s=900)


def expected(sent: dict[bytes, int]) -> dict[bytes, dict[str, Any]]:
    """By body what its row says, of good ones."""
    found = {}
    for each, version in sent.items():
        value = json.loads(each)
        lines = value.get("lines")
        if lines is not None:
            lines = [{"sku": line["sku"], "count": line.get("count")} for line in lines]
        at = "2026-11-25T11:00:00+00:00" if version > 2 else None
        found[each] = {"id": value["id"], "name": value.get("name"), "lines": lines, "at": at}
    return found


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reput looks for declarations without a pause."""
    monkeypatch.setattr(reput_query, "TYPED_LOOK_S", 0.0)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("sink", ["delta", pytest.param("spark", marks=LONG)])
def test_counts_of_typed_rows_and_reasons_are_those_of_the_messages(
    spark: SparkSession, tmp_path: Path, often: None, sink: str
) -> None:
    versions = len(FIELDS)
    declared = versions - FIRST + 1
    store, lake = tmp_path / "store", empty_lake(str(tmp_path / "lake")).path
    options = ReputOptions(str(lake), store=str(store), sink=sink, target_freshness_s=0.0)
    sent: dict[bytes, int] = {}
    bad = number = 0

    def send(version: int, count: int) -> None:
        nonlocal bad, number
        with LogWriter(store) as writer:
            for _ in range(count):
                each = body(version, number)
                writer.record(TOPIC, each, UNIQ_KEY=f"ID{number}")
                if number % 20 == 0:
                    writer.record("others", b"{}")
                number += 1
                if each.startswith(b'{"id": '):
                    sent[each] = version
                else:
                    bad += 1

    send(FIRST, 200)  # before anybody knows of a schema
    with RunningReput(spark, options) as reput:
        wait_for_rows(lake, "messages", 200, reput)
        said = declare(tmp_path, lake, FIRST, "--from-beginning")
        assert "rows of what the lake had" in said
        for version in range(FIRST, versions):
            send(version, 200)
            wait_for_rows(lake, TABLE, number, reput)
            declare(tmp_path, lake, version + 1)
        send(versions, 200)
        wait_for_rows(lake, TABLE, number, reput)

    messages = {row["physical_offset"]: row for row in held(lake, "messages") if row["topic"] == TOPIC}
    typed = held(lake, TABLE)
    assert len(typed) == len(messages) == number == 200 * (declared + 1)
    assert {row["physical_offset"] for row in typed} == messages.keys()
    assert sum(row["reason"] is not None for row in typed) == bad == number // 100
    wanted = expected(sent)
    for row in typed:
        message = messages[row["physical_offset"]]
        assert (row["message_id"], row["queue_offset"]) == (message["message_id"], message["queue_offset"])
        if row["reason"] is not None:
            assert message["body"] not in wanted
            assert row["schema_version"] is None
            continue
        at = row["at"].isoformat() if row.get("at") is not None else None
        found = {"id": row["id"], "name": row["name"], "lines": row.get("lines"), "at": at}
        assert found == wanted[message["body"]]
    # a batch that is read again may fit a newer one
    assert {row["schema_version"] for row in typed} >= {1, declared}
    progress = rows(lake, "reput_progress")
    assert any(TABLE in dict(row["table_versions"]) for row in progress)
    listed = json.loads(run("typed", "list", "--lake", str(lake), "--json"))
    assert listed == [
        {
            "topic": TOPIC,
            "table": TABLE,
            "format": "json",
            "schemas": declared,
            "state": "active",
            "bytes_behind": 0,
        }
    ]
