"""Typed tables in a schema of a catalog: made, filled, kept up and altered by Spark alone."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from lakebroker_testing.logs import LogWriter
from structured_streaming.catalog import spark_commit
from structured_streaming.catalog.lake_tables import SchemaTables
from structured_streaming.catalog.names import CatalogSchema
from structured_streaming.catalog.spark_commit import SparkCommitSink
from structured_streaming.catalog.typed_tables import CatalogTyped
from structured_streaming.commit.ends import Ends
from structured_streaming.destination import KeptUpTopics
from structured_streaming.errors import LakeError
from structured_streaming.staging.wanted import Wanted
from structured_streaming.storage.local import LocalFolder
from structured_streaming.tables import MESSAGES, REPUT_PROGRESS
from structured_streaming.typed.declaration import FILLING, JSON, Schema
from structured_streaming.typed_topics import Asked, TypedTopics
from tests.support.lakes.empty import empty_lake
from tests.support.lakes.union import commit, cuts, manifest

SCHEMA = CatalogSchema("spark_catalog", "typed_lake")
V1 = {
    "required": ["id"],
    "description": "it's \\d ${spark.app.id} `x`",
    "properties": {
        "id": {"type": "integer"},
        "items": {"type": "array", "items": {"properties": {"a-b": {"type": "string"}}}},
    },
}
V2 = json.loads(
    json.dumps(V1).replace('"a-b": {"type": "string"}', '"a-b": {"type": "string"}, "n": {"type": "integer"}')
)
V2["properties"]["at"] = {"type": "string", "format": "date-time"}


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return empty_lake(str(tmp_path / "lake")).path


@pytest.fixture
def schema(spark: SparkSession, lake: Path) -> Iterator[CatalogSchema]:
    """Its tables are a lake's in a folder, where batches that say nothing of typed tables in a catalog are cheap; those that a typed
    table is made of, and no others."""
    spark.sql(f"CREATE SCHEMA {SCHEMA.quoted} LOCATION 'file://{lake}'")
    for name in (MESSAGES.name, REPUT_PROGRESS.name):
        spark.sql(f"CREATE TABLE {SCHEMA.table(name)} USING delta LOCATION 'file://{lake / name}'")
    yield SCHEMA
    spark.sql(f"DROP SCHEMA {SCHEMA.quoted} CASCADE")


def no_link(*_: object) -> None:
    raise OSError(errno.EPERM, "Operation not permitted")


@pytest.mark.timeout(1800)
def test_a_topic_in_a_catalog(
    spark: SparkSession, schema: CatalogSchema, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are staged where there are no hard links, as on a volume."""
    monkeypatch.setattr(spark_commit, "DATA_TABLES", (MESSAGES,))  # a start commits to each
    with LogWriter(tmp_path / "store") as writer:
        for number in range(60):
            value: dict[str, Any] = {
                "id": number,
                "items": [{"a-b": "x", "n": number}],
                "at": "2026-11-25T00:00:00Z",
            }
            writer.record("orders", json.dumps(value).encode() if number % 10 else b"bad")
            writer.messages(1)
    staging, store = tmp_path / "staging", writer.folder
    at = cuts(store, 3)
    there = CatalogTyped(spark, schema)
    topics = TypedTopics(there)

    def batch(number: int) -> None:
        """Of a reput that knows no typed topic."""
        commit(lake, manifest(lake, store, at[number], at[number + 1]))

    def messages() -> int:
        topics = DeltaTable(str(lake / "messages")).to_pyarrow_table(columns=["topic"])["topic"]
        return topics.to_pylist().count("orders")

    batch(0)
    asked = Asked("orders", JSON, [Schema(1, json.dumps(V1))], from_beginning=True)
    added = topics.add(asked, lambda count: None)
    assert added.rows == messages() > 0
    kept = KeptUpTopics(there)
    assert kept.filled() == (added.declared,)
    batch(1)
    later = topics.add(Asked("orders", JSON, [Schema(1, json.dumps(V2))]), lambda count: None).declared
    assert [each.version for each in later.schemas] == [1, 2]
    assert kept.declared_otherwise(["typed_orders"]) == ["typed_orders"]
    (filled,) = kept.filled()
    assert filled == later
    wanted, told = Wanted(typed=(later,)), list[Ends]()
    with monkeypatch.context() as patched:
        patched.setattr(os, "link", no_link)
        sink = SparkCommitSink(
            spark, SchemaTables(schema), LocalFolder(staging), told.append, uuid.uuid4().hex, wanted=wanted
        )
        sink.commit(manifest(staging, store, at[2], at[3], wanted))
    found = spark.table(schema.table("typed_orders")).orderBy("physical_offset").collect()
    assert len(found) == messages() == 60
    assert sum(row.reason is not None for row in found) == 6
    good = [row for row in found if row.reason is None]
    assert [row.id for row in good] == [number for number in range(60) if number % 10]
    assert good[0]["items"][0].asDict() == {"a-b": "x", "n": None}
    assert good[-1]["items"][0].asDict() == {"a-b": "x", "n": 59}
    assert (good[0]["at"], good[-1]["at"] is None) == (None, False)
    assert topics.lacks(later) == 0
    assert topics.remove("orders").state == "stopped"
    with pytest.raises(LakeError, match="typed already, in table typed_orders"):
        there.declare(dataclasses.replace(added.declared, table="typed_two", state=FILLING))
