"""Spark beside an erasure: a session that is open reads on, union views and earlier instants leave out what is erased."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession

from store.log.erased import write_erased
from structured_streaming.maintenance.erasure import purge
from structured_streaming.union.lakes import FolderLake
from structured_streaming.union.tables import UnionTables, register_as_of
from tests.support.lakes.marked import TOPIC, TYPED, MarkedLake

IDS = f"SELECT message_id FROM {{table}} WHERE topic = '{TOPIC}' ORDER BY message_id"


@pytest.fixture
def lake(tmp_path: Path) -> MarkedLake:
    made = MarkedLake(tmp_path)
    made.write(1)
    made.checkpoint()
    made.declare()
    made.write(1)
    return made


def ids(spark: SparkSession, table: str = "messages") -> list[str]:
    return [row["message_id"] for row in spark.sql(IDS.format(table=table)).collect()]


def test_a_session_that_is_open_reads_the_newest_rows(spark: SparkSession, lake: MarkedLake) -> None:
    path = f"{lake.lake}/messages"
    before = spark.read.format("delta").load(path)
    rows = before.count()
    lake.erase()
    purge(lake.folder, None)
    after = spark.read.format("delta").load(path)
    assert after.count() == rows - 6 == lake.table("messages").num_rows
    assert {row["message_id"] for row in after.select("message_id").collect()} == set(
        lake.table("messages")["message_id"].to_pylist()
    )
    lake.write_others()
    assert spark.read.format("delta").load(path).count() == rows - 6 + 7
    assert (
        spark.read.format("delta").load(f"{lake.lake}/message_index").count()
        == lake.table("message_index").num_rows
    )
    assert lake.found() == []


def test_a_log_that_spark_wrote_to_forgets_too(spark: SparkSession, lake: MarkedLake) -> None:
    """Its commits state what the files that they remove held, and have checksums beside."""
    path = f"{lake.lake}/message_index"
    spark.sql(f"OPTIMIZE delta.`{path}`").collect()
    lake.write(1)
    lake.remember()
    spark.sql(f"OPTIMIZE delta.`{path}`").collect()
    before = lake.others()
    assert any(lake.marker in (each.read_text()) for each in Path(path, "_delta_log").glob("*.json"))
    lake.erase()
    found = purge(lake.folder, None)
    assert [each.problems for each in found.tables if each.problems] == []
    assert lake.found() == []
    assert lake.others()["message_index"] == before["message_index"]
    assert spark.read.format("delta").load(path).count() == lake.table("message_index").num_rows
    spark.sql(f"OPTIMIZE delta.`{path}`").collect()
    assert spark.sql(f"DESCRIBE HISTORY delta.`{path}`").count() > 4
    lake.write_others()
    lake.assert_whole()


def test_union_views_and_earlier_instants_leave_them_out(spark: SparkSession, lake: MarkedLake) -> None:
    others = [f"OTHER{n}" for n in range(4)]
    mine = [f"{lake.marker}ID{n}" for n in range(4)]
    register_as_of(FolderLake(spark, lake.folder), "1", lambda line: None)
    assert ids(spark) == [mine[0], others[0]]
    (log,) = lake.mine().by_log
    lake.append()
    union = UnionTables(spark, FolderLake(spark, lake.folder), {"store": str(lake.store)})
    union.bind(IDS.format(table="messages"))
    assert ids(spark) == [*mine[:3], *others[:3]]
    write_erased(lake.store, log[1], np.array(lake.places_in_log(), np.int64))
    for table in ("messages", TYPED):
        union.bind(IDS.format(table=table))
        assert ids(spark, table) == others[:3]
    keys = f"SELECT count(*) FROM message_index WHERE key LIKE '{lake.marker}%'"
    union.bind(keys)
    assert spark.sql(keys).collect()[0][0] == 0
    lake.erase()
    register_as_of(FolderLake(spark, lake.folder), "1", lambda line: None)
    assert ids(spark) == others[:1]
    union.close()
    purge(lake.folder, None)
    union = UnionTables(spark, FolderLake(spark, lake.folder), {"store": str(lake.store)})
    union.bind(IDS.format(table="messages"))
    assert ids(spark) == others[:3]
    union.close()
    register_as_of(FolderLake(spark, lake.folder), "1", lambda line: None)
    assert ids(spark) == others[:1]
