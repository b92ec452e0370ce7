"""What somebody set in a session that is there, while it ran, counts for what is done in sessions of our own beside it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from lakebroker_testing.logs import LogWriter
from structured_streaming.catalog import lake_tables
from structured_streaming.catalog.lake_tables import SchemaTables, created
from structured_streaming.catalog.names import CatalogSchema
from structured_streaming.catalog.spark_commit import SparkCommitSink
from structured_streaming.catalog.typed_tables import CatalogTyped
from structured_streaming.maintenance.in_catalog import maintain_schema
from structured_streaming.storage.local import LocalFolder
from structured_streaming.tables import TABLES
from structured_streaming.typed.declaration import JSON, Schema
from structured_streaming.typed_topics import Asked, TypedTopics
from tests.spark_lake import SparkLake

SCHEMA = CatalogSchema("spark_catalog", "settings")
_NOTE = "spark.databricks.delta.commitInfo.userMetadata"
"""Delta's: what it holds is written beside each commit."""
_CODEC = "spark.sql.parquet.compression.codec"
_FIELDS = {"type": "object", "properties": {"id": {"type": "integer"}}}


@pytest.fixture
def tables(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[SchemaTables]:
    monkeypatch.setattr(lake_tables, "_check_kept", lambda session, schema: None)  # this catalog is in memory
    spark.sql(f"CREATE SCHEMA {SCHEMA.quoted}")
    for table in TABLES.values():
        spark.sql(created(SCHEMA, table))
    yield SchemaTables(SCHEMA)
    for setting in (_NOTE, _CODEC):
        spark.conf.unset(setting)
    spark.sql(f"DROP SCHEMA {SCHEMA.quoted} CASCADE")


@pytest.mark.timeout(600)
def test_commits_typed_tables_and_maintenance_go_by_them(
    spark: SparkSession, tables: SchemaTables, tmp_path: Path
) -> None:
    with LogWriter(tmp_path / "store") as writer:
        for number in range(40):
            writer.record("orders", json.dumps({"id": number}).encode())
    lake = SparkLake(spark, tmp_path, writer.folder)
    start, middle, *_, end = lake.cuts(4000)

    def codecs() -> set[str]:
        files = spark.table(SCHEMA.table("messages")).inputFiles()
        footers = (pq.read_metadata(urlsplit(file).path) for file in files)
        return {footer.row_group(0).column(0).compression for footer in footers}

    def notes(table: str) -> set[str | None]:
        return {row.userMetadata for row in spark.sql(f"DESCRIBE HISTORY {SCHEMA.table(table)}").collect()}

    spark.conf.set(_CODEC, "gzip")
    for first, last in ((start, middle), (middle, end)):
        sink = SparkCommitSink(spark, tables, LocalFolder(lake.staging), lake.told.update, uuid.uuid4().hex)
        sink.commit(lake.manifest(first, last))
    assert codecs() == {"GZIP"}
    schemas = [Schema(1, json.dumps(_FIELDS))]
    spark.conf.set(_NOTE, "of the declaration")
    TypedTopics(CatalogTyped(spark, SCHEMA)).add(Asked("orders", JSON, schemas), lambda count: None)
    assert notes("typed_orders") == {"of the declaration"}
    spark.conf.set(_NOTE, "of maintenance")
    maintain_schema(spark, SCHEMA, 1 << 20, 7 * 86_400)
    assert "of maintenance" in notes("messages")
