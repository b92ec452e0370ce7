"""A lake in a catalog that ends with its session is refused before anything is made."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from structured_streaming.catalog.lake_tables import check_tables, make_tables
from structured_streaming.catalog.names import CatalogSchema
from structured_streaming.errors import LocationError


def test_a_catalog_in_memory_is_refused(spark: SparkSession) -> None:
    schema = CatalogSchema("spark_catalog", "not_kept")
    for refused in (make_tables, check_tables):
        with pytest.raises(
            LocationError, match=r"spark_catalog\.not_kept.*keeps its catalog in memory alone"
        ):
            refused(spark, schema)
    assert not spark.catalog.databaseExists("spark_catalog.not_kept")
