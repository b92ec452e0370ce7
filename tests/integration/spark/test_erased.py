"""Spark beside an erasure: a session that is open reads on, union views and earlier instants leave out what is erased."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession

from store.log.erased import write_erased
from structured_streaming.maintenance.erasure import purge
from structured_streaming.sql import query
from structured_streaming.union.lakes import FolderLake
from structured_streaming.union.tables import UnionTables, frames
from tests.support.lakes.marked import TOPIC, TYPED, MarkedLake

IDS = f"SELECT message_id FROM {{table}} WHERE topic = '{TOPIC}' ORDER BY message_id"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> MarkedLake:
    """It stays as it is."""
    made = MarkedLake(tmp_path_factory.mktemp("marked"))
    made.write(1)
    made.checkpoint()
    made.declare()
    made.write(1)
    return made


@pytest.fixture
def lake(written: MarkedLake, tmp_path: Path) -> MarkedLake:
    return written.copied(tmp_path)


def ids(spark: SparkSession, table: str = "messages") -> list[str]:
    return [row["message_id"] for row in spark.sql(IDS.format(table=table)).collect()]


def test_a_log_that_spark_wrote_to_forgets_too_and_an_open_session_reads_the_newest_rows(
    spark: SparkSession, lake: MarkedLake
) -> None:
    """Spark's commits state what the files that they remove held, and have checksums beside."""
    index = f"{lake.lake}/message_index"

    def count(table: str) -> int:
        return spark.read.format("delta").load(f"{lake.lake}/{table}").count()

    lake.write(1)
    lake.remember()
    spark.sql(f"OPTIMIZE delta.`{index}`").collect()
    before = lake.others()
    rows = count("messages")
    assert any(lake.marker in each.read_text() for each in Path(index, "_delta_log").glob("*.json"))
    lake.erase()
    found = purge(lake.folder, None)
    assert [each.problems for each in found.tables if each.problems] == []
    assert lake.found() == []
    assert lake.others()["message_index"] == before["message_index"]
    assert count("messages") == rows - 9 == lake.table("messages").num_rows
    assert ids(spark, f"delta.`{lake.lake}/messages`") == [f"OTHER{n}" for n in range(3)]
    assert count("message_index") == lake.table("message_index").num_rows
    spark.sql(f"OPTIMIZE delta.`{index}`").collect()
    assert spark.sql(f"DESCRIBE HISTORY delta.`{index}`").count() > 4
    lake.write_others()
    assert count("messages") == rows - 9 + 7
    lake.assert_whole()


def test_union_views_and_earlier_instants_leave_them_out(spark: SparkSession, lake: MarkedLake) -> None:
    others = [f"OTHER{n}" for n in range(3)]
    (log,) = lake.mine().by_log
    lake.append()
    union = UnionTables(spark, FolderLake(spark, lake.folder), {"store": str(lake.store)})
    write_erased(lake.store, log[1], np.array(lake.places_in_log(), np.int64))
    shown = [
        *(
            f"SELECT '{table}' AS found, message_id FROM {table} WHERE topic = '{TOPIC}'"
            for table in ("messages", TYPED)
        ),
        f"SELECT 'key', key FROM message_index WHERE key LIKE '{lake.marker}%' OR key LIKE 'OTHER%'",
    ]
    rows = query(spark, " UNION ALL ".join(shown), tables=union).to_pylist()
    assert sorted(tuple(row.values()) for row in rows) == [
        (found, message_id) for found in ("key", "messages", TYPED) for message_id in others
    ]
    union.close()
    lake.erase()
    for _ in ("stated", "removed"):
        then = frames(FolderLake(spark, lake.folder), "1")
        then["messages"]().createOrReplaceTempView("messages")
        assert ids(spark) == others[:1]
        purge(lake.folder, None)
