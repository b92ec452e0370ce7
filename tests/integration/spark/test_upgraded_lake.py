"""What a lake of an earlier version holds once it was upgraded, as Spark reads it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from structured_streaming.commit.upgrade import prepare_lake
from structured_streaming.lake import create_tables
from structured_streaming.tables import MESSAGES, SCHEMA_PROPERTY


def test_columns_that_an_upgrade_added_are_null_in_rows_of_before(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = create_tables(str(tmp_path / "lake")).path
    old = pa.schema([field for field in MESSAGES.schema if field.name not in ("lite_topic", "priority")])
    row = {"broker": "b", "log_id": "l", "physical_offset": 1, "topic": "t"}
    write_deltalake(
        str(lake / "messages"), pa.Table.from_pylist([row], old), mode="overwrite", schema_mode="overwrite"
    )
    for name in ("messages", "reput_progress"):  # which an upgrade ends with
        DeltaTable(str(lake / name)).alter.set_table_properties(
            {SCHEMA_PROPERTY: "1"}, raise_if_not_exists=False
        )
    prepare_lake(str(lake))
    found = spark.read.format("delta").load(str(lake / "messages"))
    assert found.columns == MESSAGES.schema.names
    assert [each.lite_topic for each in found.collect()] == [None]
