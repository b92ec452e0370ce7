"""Typed tables in a schema of a catalog: made, filled, kept up and altered by Spark alone."""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakebroker_testing.logs import LogWriter
from structured_streaming.catalog.lake_tables import SchemaTables, created
from structured_streaming.catalog.names import CatalogSchema
from structured_streaming.catalog.spark_commit import SparkCommitSink
from structured_streaming.catalog.typed_tables import CatalogTyped
from structured_streaming.destination import KeptUpTopics
from structured_streaming.errors import LakeError
from structured_streaming.staging.wanted import Wanted
from structured_streaming.storage.local import LocalFolder
from structured_streaming.tables import TABLES
from structured_streaming.typed.declaration import FILLING, JSON, Declaration, Schema
from structured_streaming.typed_topics import Asked, TypedTopics
from tests.support.lakes.union import manifest
from tests.support.spark.lake import SparkLake

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
def schema(spark: SparkSession) -> Iterator[CatalogSchema]:
    spark.sql(f"CREATE SCHEMA {SCHEMA.quoted}")
    for table in TABLES.values():
        spark.sql(created(SCHEMA, table))
    yield SCHEMA
    spark.sql(f"DROP SCHEMA {SCHEMA.quoted} CASCADE")


@pytest.mark.timeout(1800)
def test_a_topic_in_a_catalog(spark: SparkSession, schema: CatalogSchema, tmp_path: Path) -> None:
    with LogWriter(tmp_path / "store") as writer:
        for number in range(60):
            value: dict[str, Any] = {
                "id": number,
                "items": [{"a-b": "x", "n": number}],
                "at": "2026-11-25T00:00:00Z",
            }
            writer.record("orders", json.dumps(value).encode() if number % 10 else b"bad")
            writer.messages(1)
    lake = SparkLake(spark, tmp_path, writer.folder)
    cuts = lake.cuts(4000)
    assert len(cuts) > 4
    there = CatalogTyped(spark, schema)
    topics = TypedTopics(there)

    def batch(number: int, *typed: Declaration) -> None:
        wanted = Wanted(typed=typed)
        others = [each.table for each in there.readable() if each not in typed]
        sink = SparkCommitSink(
            spark,
            SchemaTables(schema),
            LocalFolder(lake.staging),
            lake.told.update,
            uuid.uuid4().hex,
            wanted=wanted,
            others=others,
        )
        end = cuts[number + 1] if number < 3 else cuts[-1]
        sink.commit(manifest(lake.staging, lake.store, cuts[number], end, wanted))

    def rows() -> list[Any]:
        return spark.table(schema.table("typed_orders")).orderBy("physical_offset").collect()

    def messages() -> int:
        return spark.table(schema.table("messages")).where("topic = 'orders'").count()

    batch(0)
    asked = Asked("orders", JSON, [Schema(1, json.dumps(V1))], from_beginning=True)
    added = topics.add(asked, lambda count: None)
    assert added.rows == len(rows()) == messages() > 0
    assert there.readable() == [added.declared]
    assert there.fill(added.declared) == 0
    kept = KeptUpTopics(there)
    assert kept.filled() == (added.declared,)
    batch(1, added.declared)
    assert len(rows()) == messages()
    batch(2)  # of a reput that does not know it
    assert topics.lacks(added.declared) > 0
    later = topics.add(Asked("orders", JSON, [Schema(1, json.dumps(V2))]), lambda count: None).declared
    assert [each.version for each in later.schemas] == [1, 2]
    assert kept.declared_otherwise(["typed_orders"]) == ["typed_orders"]
    (filled,) = kept.filled()
    assert filled == later
    batch(3, later)
    found = rows()
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
