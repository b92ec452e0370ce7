"""Reads an Iceberg mirror with Spark, and does to it what is not to be done; run by an interpreter that has a Spark of its own.

`python -m tests.support.spark.iceberg_spark JAR LAKE OUTPUT TABLE...`: rows of each table as OUTPUT/TABLE.parquet; the last line is JSON of
what Iceberg says to its own upkeep.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from structured_streaming.tables import TABLES

UPKEEP = (
    "CALL lake.system.expire_snapshots(table => 'lakebroker.messages', older_than => timestamp '2100-01-01 00:00:00')",
    "CALL lake.system.remove_orphan_files(table => 'lakebroker.messages')",
    "DROP TABLE lake.lakebroker.messages PURGE",
)


def main(jar: str, lake: str, output: str, *tables: str) -> None:
    catalog = "spark.sql.catalog.lake"
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.jars", jar)
        .config(catalog, "org.apache.iceberg.spark.SparkCatalog")
        .config(f"{catalog}.type", "hadoop")
        .config(f"{catalog}.warehouse", f"{lake}/_iceberg")
        .getOrCreate()
    )
    try:
        names = {row["tableName"] for row in spark.sql("SHOW TABLES IN lake.lakebroker").collect()}
        assert names == TABLES.keys(), names
        for name in tables:
            pq.write_table(spark.table(f"lake.lakebroker.{name}").toArrow(), Path(output, f"{name}.parquet"))
        said = {}
        for statement in UPKEEP:
            try:
                spark.sql(statement).collect()
                said[statement] = "done"
            except PySparkException as error:
                said[statement] = str(error)
            except Exception as error:  # py4j's, of Iceberg's own
                said[statement] = str(error)
        # a version of somebody else, with rows that are none
        values = "'nobody', 'l', 1, 'none', X'00', 1, TIMESTAMP '2026-01-01 00:00:00'"
        spark.sql(f"INSERT INTO lake.lakebroker.quarantine VALUES ({values})")
        count = spark.table("lake.lakebroker.quarantine").where("broker = 'nobody'").count()
    finally:
        spark.stop()
    sys.stdout.write(json.dumps({"said": said, "inserted": count}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
