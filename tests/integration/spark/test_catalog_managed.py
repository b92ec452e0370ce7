"""Tables whose commits a catalog owns: Delta's in-memory coordinator, within one JVM, in the place of a catalog.

Delta makes such tables only where a catalog asks for them, or in its own tests; these here are made as in those.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakebroker_testing.logs import written
from structured_streaming.catalog import spark_commit
from structured_streaming.catalog.lake_tables import SchemaTables, created
from structured_streaming.catalog.names import CatalogSchema
from structured_streaming.catalog.spark_commit import SparkCommitSink
from structured_streaming.commit.sink import AfterStep, no_step
from structured_streaming.errors import ForeignWriterError
from structured_streaming.storage.local import LocalFolder
from structured_streaming.tables import MESSAGES, REMOVAL_ORDER, REPUT_PROGRESS
from tests.suite.evidence import EVIDENCE
from tests.support.lakes.checks import expected_keys
from tests.support.spark.lake import Crash, SparkLake

MANAGED = CatalogSchema("spark_catalog", "managed")
SOME = REMOVAL_ORDER if EVIDENCE else (MESSAGES,)
_BACKFILL = 3
"""Commits after which the coordinator puts them where readers of the folder look."""


@pytest.fixture
def schema(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[CatalogSchema]:
    """With few tables: a start commits to each, and all are alike to it."""
    monkeypatch.setattr(spark_commit, "DATA_TABLES", SOME)
    jvm: Any = spark._jvm
    commits = jvm.org.apache.spark.sql.delta.coordinatedcommits
    commits.CatalogOwnedCommitCoordinatorProvider.registerBuilder(
        "spark_catalog", commits.InMemoryCommitCoordinatorBuilder(_BACKFILL)
    )
    spark.sql(f"CREATE SCHEMA {MANAGED.quoted}")
    jvm.java.lang.System.setProperty("spark.testing", "1")
    for table in (*SOME, REPUT_PROGRESS):
        spark.sql(created(MANAGED, table, {"delta.feature.catalogManaged": "supported"}))
    jvm.java.lang.System.clearProperty("spark.testing")
    yield MANAGED
    spark.sql(f"DROP SCHEMA {MANAGED.quoted} CASCADE")


def test_a_batch_is_there_once_though_writers_crash_and_overtake_each_other(
    spark: SparkSession, schema: CatalogSchema, tmp_path: Path
) -> None:
    """That a batch which was finished before stays is tried here in evidence, and in a folder in `test_spark_sink.py`."""
    lake = SparkLake(spark, tmp_path, written(tmp_path / "store", "broker-a", 40))
    crashing = False

    def crash(table: str) -> None:
        if crashing and table == "messages":
            raise Crash

    def sink(after: AfterStep = no_step) -> SparkCommitSink:
        return SparkCommitSink(
            spark,
            SchemaTables(schema),
            LocalFolder(lake.staging),
            lake.told.update,
            uuid.uuid4().hex,
            after_step=after,
        )

    first, second, *_, end = lake.cuts(20_000)
    stale = sink(crash)
    begin = first
    if EVIDENCE:
        stale.commit(lake.manifest(first, second))
        begin = second
    crashing = True
    with pytest.raises(Crash):
        stale.commit(lake.manifest(begin, end))
    crashing = False
    again = sink()
    with pytest.raises(ForeignWriterError):
        stale.commit(lake.manifest(begin, end))
    again.commit(lake.manifest(begin, end))
    features = spark.sql(f"DESCRIBE DETAIL {schema.table('messages')}").collect()[0]["tableFeatures"]
    assert "catalogManaged" in features
    expected = expected_keys(lake.store)
    for table in SOME:
        rows = spark.table(schema.table(table.name)).select(*table.key).collect()
        assert Counter(map(tuple, rows)) == expected[table.name], table.name
