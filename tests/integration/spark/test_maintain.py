"""Spark reads a maintained lake as before, and maintenance reads what Spark wrote into it."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from structured_streaming.maintenance.maintain import maintain
from structured_streaming.tables import CONSUME_QUEUE, MESSAGES, REPUT_PROGRESS, TABLES
from tests.support.lakes.maintained import ReputLake


def test_rows_of_spark_and_of_the_reput_become_one_file(spark: SparkSession, tmp_path: Path) -> None:
    lake = ReputLake(tmp_path)
    lake.fill()
    messages = str(lake.lake / "messages")
    spark.sql(f"ALTER TABLE delta.`{messages}` ADD COLUMN note STRING")
    spark.sql(
        f"INSERT INTO delta.`{messages}` (broker, log_id, physical_offset, topic, keys, properties, body, store_timestamp, "
        "origin, note) SELECT broker, 'by hand', physical_offset, topic, keys, properties, body, "
        f"timestamp'9999-12-31 23:59:59', named_struct('topic', 't', 'queue_id', 1, 'queue_offset', 2L, "
        f"'consumer_group', 'g', 'attempt', 3), 'seen' FROM delta.`{messages}`"
    )
    read = [table.name for table in (MESSAGES, CONSUME_QUEUE, REPUT_PROGRESS)]
    by_spark = {name: spark.read.format("delta").load(str(lake.lake / name)).toArrow() for name in read}
    reports = {report.table: report for report in maintain(str(lake.lake))}
    assert [report.problems for report in reports.values() if report.problems] == []
    assert reports["messages"].files_after == 1
    for name, rows in by_spark.items():
        after = spark.read.format("delta").load(str(lake.lake / name)).toArrow()
        order = [(column, "ascending") for column in TABLES[name].key]
        assert after.sort_by(order).equals(rows.sort_by(order)), f"Spark reads other rows of {name}"
    there = lake.rows()["messages"]  # Arrow could not read Spark's times of that year
    assert there["note"].drop_null().to_pylist() == ["seen"] * (len(there) // 2)
