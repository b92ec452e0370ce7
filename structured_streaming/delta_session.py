"""What a Spark session of ours needs for Delta. A session that a platform provides has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DELTA_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "1",
}


def with_delta(builder: SparkSession.Builder, packages: Sequence[str] = ()) -> SparkSession.Builder:
    """Adds Delta's jars and others, which come from Maven Central once, then from Ivy's cache."""
    from delta import configure_spark_with_delta_pip

    return configure_spark_with_delta_pip(builder, list(packages))
