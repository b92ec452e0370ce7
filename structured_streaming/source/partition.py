"""A partition of the data source."""

from __future__ import annotations

from pyspark.sql.datasource import InputPartition

from structured_streaming.source.log_range import LogRange


class LogPartition(LogRange, InputPartition):
    """A range of a log, as Spark wants its partitions."""

    value = None
    """Spark's, of partitions that are one value."""
