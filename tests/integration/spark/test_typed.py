"""A topic whose schema changes under traffic, with bad messages: a typed row or a reason for each message, exactly once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pyarrow.fs as fs
import pytest
from deltalake import DeltaTable

from lakebroker_testing.client import Client
from lakebroker_testing.gateway import ROOT, Gateway, Reput, command
from structured_streaming.lake import create_tables
from tests.suite.evidence import LONG

TOPIC, TABLE = "orders", "typed_orders"
_WAIT_S = 400.0
FIELDS: list[dict[str, Any]] = [
    {"id": {"type": "integer"}},
    {"name": {"type": ["string", "null"]}},
    {"lines": {"type": "array", "items": {"type": "object", "properties": {"sku": {"type": "string"}}}}},
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
    if version > 2:
        value["lines"] = [{"sku": "a"}, {"sku": f"b{number}"}]
    if version > 3:
        value["lines"][0]["count"] = number
        value["at"] = "2026-11-25T12:00:00+01:00"
    return json.dumps(value).encode()


def run(*arguments: str) -> str:
    done = subprocess.run(
        command(*arguments), cwd=ROOT, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def declare(folder: Path, lake: Path, version: int, *more: str) -> str:
    file = folder / f"order-{version}.json"
    file.write_text(json.dumps(schema(version)))
    said = run("typed", "add", TOPIC, "--schema", str(file), "--lake", str(lake), *more)
    assert f"{TABLE}: schema {version} of topic {TOPIC} is declared" in said
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


def wait_for_rows(lake: Path, table: str, count: int, reput: Reput) -> None:
    until = time.monotonic() + _WAIT_S
    while (there := len(held(lake, table))) < count:
        reput.batches()  # raises when it has ended
        assert time.monotonic() < until, (
            f"{there} rows of {table}, not {count}: {reput.log.read_text()[-3000:]}"
        )
        time.sleep(0.5)


def expected(sent: dict[bytes, int]) -> dict[bytes, dict[str, Any]]:
    """By body what its row says, of good ones."""
    found = {}
    for each, version in sent.items():
        value = json.loads(each)
        lines = value.get("lines")
        if lines is not None:
            lines = [{"sku": line["sku"], "count": line.get("count")} for line in lines]
        at = "2026-11-25T11:00:00+00:00" if version > 3 else None
        found[each] = {"id": value["id"], "name": value.get("name"), "lines": lines, "at": at}
    return found


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("sink", ["delta", pytest.param("spark", marks=LONG)])
def test_counts_of_typed_rows_and_reasons_are_those_of_the_messages(tmp_path: Path, sink: str) -> None:
    versions = len(FIELDS)
    lake = tmp_path / "lake"
    create_tables(str(lake))
    arguments = ["--sink", sink, "--target-freshness", "0s"]
    sent: dict[bytes, int] = {}
    bad = number = 0

    def send(client: Client, version: int, count: int) -> None:
        nonlocal bad, number
        for _ in range(count // 20):
            bodies = [body(version, each) for each in range(number, number + 20)]
            client.send(TOPIC, *bodies)
            client.send("others", b"{}")
            number += 20
            for each in bodies:
                if each.startswith(b'{"id": '):
                    sent[each] = version
                else:
                    bad += 1

    with Gateway(tmp_path / "gateway", patient=True) as gateway:
        client = Client(gateway.address)
        send(client, 1, 200)  # before anybody knows of a schema
        with Reput(lake, tmp_path / "reput.log", "--brokers", gateway.address, *arguments) as reput:
            wait_for_rows(lake, "messages", 200, reput)
            said = declare(tmp_path, lake, 1, "--from-beginning")
            assert "rows of what the lake had" in said
            for version in range(1, versions - 1):
                send(client, version, 200)
                wait_for_rows(lake, TABLE, number, reput)
                declare(tmp_path, lake, version + 1)
            send(client, versions - 1, 100)
            os.killpg(reput.process.pid, signal.SIGKILL)
        send(client, versions - 1, 100)
        with Reput(lake, tmp_path / "again.log", "--brokers", gateway.address, *arguments) as reput:
            wait_for_rows(lake, TABLE, number - 150, reput)
            declare(tmp_path, lake, versions)
            send(client, versions, 200)
            wait_for_rows(lake, TABLE, number, reput)
        client.close()

    messages = {row["physical_offset"]: row for row in held(lake, "messages") if row["topic"] == TOPIC}
    typed = held(lake, TABLE)
    assert len(typed) == len(messages) == number == 200 + 200 * versions
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
    assert {row["schema_version"] for row in typed} >= {1, versions}
    progress = rows(lake, "reput_progress")
    assert any(TABLE in dict(row["table_versions"]) for row in progress)
    listed = json.loads(run("typed", "list", "--lake", str(lake), "--json"))
    assert listed == [
        {
            "topic": TOPIC,
            "table": TABLE,
            "format": "json",
            "schemas": versions,
            "state": "active",
            "bytes_behind": 0,
        }
    ]
