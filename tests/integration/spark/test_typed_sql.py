"""Typed tables in SQL: as they are, as a batch left them, and together with the logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakebroker_testing.logs import LogWriter
from structured_streaming.commit.typed_fill import fill
from structured_streaming.commit.typed_tables import alter, declare
from structured_streaming.errors import LakeError
from structured_streaming.read_only import Statement
from structured_streaming.sql import names_of, query
from structured_streaming.staging.wanted import Wanted
from structured_streaming.storage.local import LocalFolder
from structured_streaming.typed.declaration import JSON, Declaration, Schema
from structured_streaming.union.lakes import FolderLake
from structured_streaming.union.names import LakeNames
from structured_streaming.union.tables import UnionTables
from tests.support.lakes.empty import empty_lake
from tests.support.lakes.union import commit, cuts, manifest

V1 = {
    "required": ["id"],
    "properties": {
        "id": {"type": "integer"},
        "items": {"type": "array", "items": {"properties": {"a": {"type": "string"}}}},
    },
}
V2 = {
    "required": ["id"],
    "properties": {
        "id": {"type": "integer"},
        "items": {
            "type": "array",
            "items": {"properties": {"a": {"type": "string"}, "b": {"type": "integer"}}},
        },
        "at": {"type": "string", "format": "date-time"},
    },
}
ORDERS = Declaration("topic-1", "typed_orders", JSON, (Schema(1, json.dumps(V1)),))
COUNTS = (
    "SELECT count(*) AS messages, count(reason) AS reasons, count(id) AS ids, count(at) AS times, max_by(items, id) AS items "
    "FROM typed_orders"
)
WITH_MESSAGES = f"{COUNTS} JOIN messages USING (broker, log_id, physical_offset)"
NEWEST = [{"a": "x", "b": 29}]


def union(spark: SparkSession, lake: Path, store: Path) -> UnionTables:
    return UnionTables(spark, FolderLake(spark, LocalFolder(lake)), {"store": str(store)})


def counts(spark: SparkSession, tables: LakeNames | UnionTables, asked: str = COUNTS) -> list[Any]:
    (row,) = query(spark, asked, tables=tables).to_pylist()
    return list(row.values())


@pytest.mark.timeout(900)
def test_a_typed_table_with_what_the_log_holds_beyond_it(spark: SparkSession, tmp_path: Path) -> None:
    with LogWriter(tmp_path / "store") as writer:
        for number in range(30):
            writer.messages(3)  # one of topic-1, which does not fit
            value: dict[str, Any] = {
                "id": number,
                "items": [{"a": "x", "b": number}],
                "at": "2026-11-25T00:00:00Z",
            }
            writer.record("topic-1", json.dumps(value).encode())
    store, lake = writer.folder, empty_lake(str(tmp_path / "lake")).path
    folder = LocalFolder(lake)
    first, second, third, end = cuts(store, 3)
    declare(folder, ORDERS)
    commit(
        lake, manifest(lake, store, first, second, Wanted(typed=(ORDERS,))), wanted=Wanted(typed=(ORDERS,))
    )
    later = alter(folder, "typed_orders", lambda declared: declared.evolved(Schema(2, json.dumps(V2))))
    tables = union(spark, lake, store)
    messages, reasons, ids, times, items = counts(spark, tables, WITH_MESSAGES)
    assert (messages, reasons, ids, items) == (60, 30, 30, NEWEST)
    assert 0 < times < 30

    commit(lake, manifest(lake, store, second, third))  # of a query that does not know the topic yet
    with pytest.raises(LakeError, match=r"table typed_orders lacks [\d,]+ bytes .* ask again"):
        counts(spark, tables)
    tables.bind(Statement(spark, "SELECT topic FROM messages"))  # which lacks nothing
    assert fill(folder, later) > 0
    wanted = Wanted(typed=(later,))
    commit(lake, manifest(lake, store, third, end, wanted), "typed_orders", wanted)
    assert counts(spark, tables) == [60, 30, 30, times, NEWEST]
    tables.close()

    there = FolderLake(spark, folder)
    assert counts(spark, names_of(spark, there)) == [60, 30, 30, times, NEWEST]
    told: list[str] = []
    at_first = names_of(spark, there, "1", told.append)
    asked = "SELECT count(*) AS messages, max(schema_version) AS newest FROM typed_orders"
    (then,) = query(spark, asked, tables=at_first).to_pylist()
    assert 0 < then["messages"] < 60
    assert then["newest"] == 1
    assert told[-1].startswith("tables as of batch 1")
