"""`lakebroker typed …`: what it says and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from broker_gateway.cli.main import app
from tests.support.lakes.empty import empty_lake

V1: dict[str, Any] = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "topic": {"type": "string"}, "any": {}},
}


@pytest.fixture
def lake(tmp_path: Path) -> str:
    return str(empty_lake(str(tmp_path / "lake")))


def schema(folder: Path, value: Any, name: str = "order.json") -> str:
    file = folder / name
    file.write_text(value if isinstance(value, str) else json.dumps(value))
    return str(file)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["typed", *arguments])


def test_a_topic_is_declared_shown_and_left_alone(lake: str, tmp_path: Path) -> None:
    file = schema(tmp_path, V1)
    done = run("add", "orders-eu", "--schema", file, "--lake", lake)
    assert done.exit_code == 0, done.output
    assert "typed_orders_eu: schema 1 of topic orders-eu is declared, 2 fields" in done.stdout
    assert "no column for any: it has no type" in done.stderr
    again = run("add", "orders-eu", "--schema", file, "--lake", lake)
    assert "schema 1 of topic orders-eu was declared before" in again.stdout
    more = json.loads(json.dumps(V1))
    more["properties"]["note"] = {"type": "string"}
    added = run("add", "orders-eu", "--schema", schema(tmp_path, more), "--lake", lake, "--json")
    assert json.loads(added.stdout) == {
        "topic": "orders-eu",
        "table": "typed_orders_eu",
        "format": "json",
        "schemas": 2,
        "state": "active",
        "added": True,
        "rows": 0,
    }
    kept_up = run("fill", "orders-eu", "--lake", lake)
    assert kept_up.stdout == "typed_orders_eu: 0 rows of what the lake had\n"
    assert (
        run("remove", "orders-eu", "--lake", lake).stdout == "typed_orders_eu is left as it is from now on\n"
    )
    (row,) = json.loads(run("list", "--lake", lake, "--json").stdout)
    assert (row["state"], row["bytes_behind"]) == ("stopped", 0)
    assert run("add", "orders-eu", "--schema", schema(tmp_path, more), "--lake", lake).exit_code == 0
    assert json.loads(run("list", "--lake", lake, "--json").stdout)[0]["state"] == "active"


def test_check_changes_nothing(lake: str, tmp_path: Path) -> None:
    file = schema(tmp_path, V1)
    shown = json.loads(run("check", "--schema", file, "--json").stdout)
    assert shown == {
        "columns": [
            {"field": "id", "column": "id", "type": "int64"},
            {"field": "topic", "column": "value_topic", "type": "string"},
        ],
        "left_out": ["any: it has no type"],
    }
    run("add", "orders", "--schema", file, "--lake", lake)
    changed = json.loads(json.dumps(V1).replace('"integer"', '"string"'))
    refused = run("check", "--schema", schema(tmp_path, changed), "--topic", "orders", "--lake", lake)
    assert refused.exit_code == 1
    assert "field id is string in this schema and int64 in the table" in refused.stderr
    assert json.loads(run("list", "--lake", lake, "--json").stdout)[0]["schemas"] == 1


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--schema", "{folder}/nothing.json"], "No such file"),
        (["--schema", "{folder}/order.txt"], "does not tell what schema it is; give --format"),
        (["--schema", "{folder}/order.txt", "--format", "xml"], "--format xml: give json, avro or protobuf"),
        (["--schema", "{folder}/large.json"], "larger than 262,144 bytes"),
        (["--schema", "{folder}/binary.json"], "no UTF-8"),
        (["--schema", "{folder}/order.json", "--message", "a.B"], "is for Protobuf"),
        (["--schema", "{folder}/order.desc"], "--message, such as shop.Order"),
        (["--schema", "{folder}/order.desc", "--message", "a.B"], "no descriptor set"),
        (["--schema", "{folder}/order.json", "--table", "orders"], "begins with typed_"),
        (["--schema", "{folder}/order.json", "--table", "typed_A"], "begins with typed_"),
        (["--schema", "http://u:p@127.0.0.1/subjects/x"], "without credentials"),
        (["--schema", "http://127.0.0.1:1/subjects/x"], "does not answer"),
    ],
)
def test_what_is_refused_is_named(lake: str, tmp_path: Path, arguments: list[str], problem: str) -> None:
    schema(tmp_path, V1)
    schema(tmp_path, V1, "order.txt")
    schema(tmp_path, " " * (1 << 19), "large.json")
    schema(tmp_path, "?", "order.desc")
    (tmp_path / "binary.json").write_bytes(b"\xff")
    given = [each.replace("{folder}", str(tmp_path)) for each in arguments]
    done = run("add", "orders", "--lake", lake, *given)
    assert done.exit_code == 1, done.output
    assert problem in done.stderr
    assert json.loads(run("list", "--lake", lake, "--json").stdout) == []


def test_topics_and_lakes_that_are_none(lake: str, tmp_path: Path) -> None:
    file = schema(tmp_path, V1)
    assert "is no name of a topic" in run("add", "a b", "--schema", file, "--lake", lake).stderr
    journal = run("add", "rmq_sys_lakebroker_journal", "--schema", file, "--lake", lake)
    assert "is the broker's journal" in journal.stderr
    assert "is not typed in this lake" in run("remove", "orders", "--lake", lake).stderr
    assert "is not typed in this lake" in run("fill", "orders", "--lake", lake).stderr
    assert "is no lake" in run("list", "--lake", str(tmp_path / "nothing")).stderr
