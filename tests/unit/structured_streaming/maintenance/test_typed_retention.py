"""Typed rows go with their messages or before them, and no file is written anew that holds nothing old."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner

from broker_gateway.cli.main import app
from structured_streaming.commit.typed_fill import fill
from structured_streaming.commit.typed_tables import alter, declare
from structured_streaming.commit.upkeep_log import add_to_upkeep, read_upkeep
from structured_streaming.maintenance.check import check_lake
from structured_streaming.maintenance.maintained_table import MaintainedTable
from structured_streaming.maintenance.reports import TableReport
from structured_streaming.maintenance.retention import expire
from structured_streaming.retention_rules import parsed
from structured_streaming.staging.wanted import EVERYTHING, Wanted
from structured_streaming.storage.local import LocalFolder
from structured_streaming.typed.declaration import JSON, STOPPED, Declaration, Schema
from structured_streaming.upkeep import EXPIRED, RETENTION, row
from tests.support.lakes.aged import AgedLake, Row

TEXTS = {"type": "string"}
SCHEMA = {"properties": {"id": {"type": "integer"}, "size": TEXTS, "deliver_timestamp": TEXTS}}
"""With fields that have the names of columns of `messages`."""
BODY = json.dumps({"id": 1, "size": "large", "deliver_timestamp": "tomorrow"}).encode()
ORDERS, OTHER = (
    Declaration(topic, f"typed_{topic}", JSON, (Schema(1, json.dumps(SCHEMA)),))
    for topic in ("orders", "other")
)
DAYS = 6
Places = Counter[tuple[Any, ...]]


class TypedLake(AgedLake):
    """Two typed topics, filled day by day."""

    def write(self, days: int, batches: bool = True, wanted: Wanted = EVERYTHING) -> None:
        for _ in range(days):
            self.more = [{"topic": topic, "body": BODY} for topic in ("orders", "other")]
            super().write(1, batches, wanted)
            if self.days == 1:
                for declared in (ORDERS, OTHER):
                    declare(LocalFolder(self.lake), declared)
            for declared in (ORDERS, OTHER):
                assert fill(LocalFolder(self.lake), declared) == 5

    def keep(self, text: str) -> None:
        add_to_upkeep(LocalFolder(self.lake), row(RETENTION, rules=parsed(text)))

    def expire(self, **asked: Any) -> dict[str, TableReport]:
        reports = expire(LocalFolder(self.lake), self.now, **asked)
        assert [report.problems for report in reports] == [[]] * len(reports)
        return {report.table: report for report in reports}

    def bound(self, days: int) -> datetime:
        return self.now.replace(hour=0) - timedelta(days=days)

    def typed(self, topic: str) -> list[Row]:
        return self.rows(f"typed_{topic}")

    def problems(self) -> list[str]:
        return [each for found in check_lake(str(self.lake), [str(self.store)]) for each in found.problems]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> TypedLake:
    lake = TypedLake(tmp_path_factory.mktemp("typed"))
    lake.write(DAYS)
    return lake


@pytest.fixture
def lake(made: TypedLake, tmp_path: Path) -> TypedLake:
    return made.copied(tmp_path / "typed")


def keys(rows: list[Row], topic: str = "") -> Places:
    return Counter(
        (each["broker"], each["log_id"], each["physical_offset"])
        for each in rows
        if not topic or each["topic"] == topic
    )


def test_typed_rows_go_with_their_messages(lake: TypedLake) -> None:
    before = {topic: lake.typed(topic) for topic in ("orders", "other")}
    assert {topic: len(rows) for topic, rows in before.items()} == dict.fromkeys(before, 5 * DAYS)
    lake.keep("orders=3d,other=forever")
    dry = lake.expire(dry=True)
    assert lake.typed("orders") == before["orders"]
    done = lake.expire()
    left = [each for each in before["orders"] if each["store_timestamp"] >= lake.bound(3)]
    assert 0 < len(left) < 5 * DAYS
    assert keys(lake.typed("orders")) == keys(left)
    assert {each["reason"] is None for each in left} == {True, False}
    assert keys(lake.rows("messages"), "orders") == keys(left)
    assert lake.typed("other") == before["other"]
    for reports in (dry, done):
        (its,) = reports["typed_orders"].retention.topics.items()
        assert (its[0], its[1].rows) == ("orders", 5 * DAYS - len(left))
        assert reports["typed_other"].retention.topics == {}
    assert lake.problems() == []


def test_only_files_with_old_rows_are_touched_and_a_second_round_commits_nothing(lake: TypedLake) -> None:
    before = {topic: lake.files(f"typed_{topic}") for topic in ("orders", "other")}
    lake.keep("orders=3d")
    report = lake.expire()["typed_orders"].retention
    assert lake.files("typed_orders") < before["orders"], "each day has a file of its own"
    assert (report.dropped.files, report.rewritten.files) == (DAYS - 3, 0)
    assert lake.files("typed_other") == before["other"]
    DeltaTable(str(lake.lake / "typed_orders")).optimize.compact()
    lake.days += 1
    first = lake.expire()["typed_orders"].retention
    assert (first.dropped.files, first.rewritten.files, first.rows) == (0, 1, 5)
    versions = {name: lake.version(name) for name in ("typed_orders", "typed_other", "upkeep")}
    lake.expire()
    assert {name: lake.version(name) for name in versions} == versions


def test_rows_of_a_fill_that_read_messages_before_they_went_go_with_the_next_round(lake: TypedLake) -> None:
    lake.keep("orders=3d")
    table = DeltaTable(str(lake.lake / "typed_orders"))
    old = table.to_pyarrow_table()
    lake.expire()
    left = keys(lake.typed("orders"))
    table = DeltaTable(str(lake.lake / "typed_orders"))
    write_deltalake(table, old.filter(pc.less(old["store_timestamp"], lake.bound(5))), mode="append")
    assert lake.expire()["typed_orders"].retention.rows == 5 * (DAYS - 5)
    assert keys(lake.typed("orders")) == left


def test_rounds_of_a_version_that_left_typed_tables_alone_are_made_up_for(lake: TypedLake) -> None:
    lake.keep("orders=3d")
    rules = read_upkeep(LocalFolder(lake.lake)).rules
    done = row(EXPIRED, bounds=rules.bounds(lake.now), at=datetime.now(UTC) + timedelta(days=3))
    add_to_upkeep(LocalFolder(lake.lake), done)
    lake.expire()
    assert min(each["store_timestamp"] for each in lake.typed("orders")) >= lake.bound(3)


def test_a_typed_table_that_is_stopped_goes_by_the_rules(lake: TypedLake) -> None:
    alter(
        LocalFolder(lake.lake), "typed_orders", lambda declared: dataclasses.replace(declared, state=STOPPED)
    )
    lake.keep("*=3d")
    lake.expire()
    assert min(each["store_timestamp"] for each in lake.typed("orders")) >= lake.bound(3)


def test_at_every_commit_each_typed_row_has_its_message(
    lake: TypedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.keep("*=3d")
    real, tables = MaintainedTable.replace, []

    def replace(table: MaintainedTable, *arguments: Any, **named: Any) -> bool:
        tables.append(table.table.name)
        assert real(table, *arguments, **named)
        there = keys(lake.rows("messages"))
        for topic in ("orders", "other"):
            assert not keys(lake.typed(topic)) - there
        return True

    monkeypatch.setattr(MaintainedTable, "replace", replace)
    lake.expire()
    assert list(dict.fromkeys(tables)) == [
        "typed_orders", "typed_other", "consume_queue", "message_index", "messages"
    ]  # fmt: skip


@contextlib.contextmanager
def torn_file(table: Path) -> Iterator[str]:
    torn = min(table.glob("*.parquet"), key=lambda path: path.stat().st_mtime)
    content, times = torn.read_bytes(), torn.stat()
    torn.write_bytes(content[:-100])
    yield torn.name
    torn.write_bytes(content)
    os.utime(torn, ns=(times.st_atime_ns, times.st_mtime_ns))


@contextlib.contextmanager
def torn_log(table: Path) -> Iterator[str]:
    commit = table / "_delta_log" / f"{0:020}.json"
    content = commit.read_bytes()
    commit.write_bytes(content[:50])
    yield str(table)
    commit.write_bytes(content)


@contextlib.contextmanager
def without_column(table: Path) -> Iterator[str]:
    commit = table / "_delta_log" / f"{0:020}.json"
    content = commit.read_bytes()
    commit.write_bytes(content.replace(b"store_timestamp", b"stored"))
    yield "has no column store_timestamp"
    commit.write_bytes(content)


@pytest.mark.parametrize("damage", [torn_file, torn_log, without_column])
def test_a_damaged_typed_table_holds_its_topic_and_no_other(
    lake: TypedLake, damage: Callable[[Path], AbstractContextManager[str]]
) -> None:
    lake.keep("*=3d")
    names = ("consume_queue", "message_index", "messages")
    before = {name: keys(lake.rows(name), "orders") for name in names}
    for _ in range(2 if damage is torn_file else 1):  # what is held is looked for again in each round
        with damage(lake.lake / "typed_orders") as named:
            dry = {each.table: each for each in expire(LocalFolder(lake.lake), lake.now, dry=True)}
            reports = {each.table: each for each in expire(LocalFolder(lake.lake), lake.now)}
        for found in (dry, reports):
            assert [name for name, report in found.items() if report.problems] == ["typed_orders"]
            assert named in found["typed_orders"].problems[0]
            held = found["typed_orders"].problems[1]
            assert "stay in all tables, those of other topics go" in held
            assert str(lake.lake / "typed_orders") in held
        assert {name: keys(lake.rows(name), "orders") for name in names} == before
        assert min(
            each["store_timestamp"] for each in lake.rows("messages") if each["topic"] != "orders"
        ) >= (lake.bound(3))
        assert min(each["store_timestamp"] for each in lake.typed("other")) >= lake.bound(3)
        assert read_upkeep(LocalFolder(lake.lake)).expired is None, "the round is not done"
        assert [each["kind"] for each in lake.rows("upkeep")].count("expiring") == 1, "stated once"
    lake.expire()
    assert min(each["store_timestamp"] for each in lake.rows("messages")) >= lake.bound(3)
    assert keys(lake.typed("orders")) == keys(lake.rows("messages"), "orders")
    assert read_upkeep(LocalFolder(lake.lake)).expired is not None
    assert lake.problems() == []


def test_a_damaged_typed_table_is_named_by_the_command(lake: TypedLake) -> None:
    lake.keep("*=3d")
    with torn_log(lake.lake / "typed_orders"):
        done = CliRunner().invoke(app, ["maintain", "--lake", str(lake.lake), "--dry-run", "--json"])
        assert done.exit_code == 1
    assert "messages of the topic of table typed_orders stay" in done.stderr
    assert "lakebroker typed add" in done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    rows = rows[0] if rows and isinstance(rows[0], list) else rows
    assert {"other"} <= {each["topic"] for each in rows if each["table"] == "messages"}
    assert "orders" not in {each["topic"] for each in rows}


def test_another_table_with_such_a_name_keeps_nothing_from_going(lake: TypedLake) -> None:
    write_deltalake(str(lake.lake / "typed_mine"), pa.table({"topic": ["orders"], "n": [1]}))
    lake.keep("*=3d")
    assert "typed_mine" not in lake.expire()
    assert DeltaTable(str(lake.lake / "typed_mine")).to_pyarrow_table().num_rows == 1
