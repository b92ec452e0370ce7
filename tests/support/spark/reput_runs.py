"""The reput in a Spark session of the test's own process."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from structured_streaming.reput_options import ReputOptions
from structured_streaming.reput_query import WORKER_LATE, start_reput


def reput_once(spark: SparkSession, lake: Path, *stores: Path, **options: Any) -> int:
    """Runs until everything is read; returns the number of batches."""
    batches: list[object] = []
    chosen = ReputOptions(str(lake), store=",".join(map(str, stores)), once=True, **options)
    to_the_end(lambda: start_reput(spark, chosen, batches.append))
    return len(batches)


def to_the_end(start: Callable[[], tuple[StreamingQuery, Path]]) -> None:
    """Runs a query until everything is read, again when a Python worker was late: Spark waits 10 s on any machine."""
    for left in range(9, -1, -1):
        query, checkpoint = start()
        try:
            query.awaitTermination()
            return
        except StreamingQueryException as error:
            if not left or WORKER_LATE not in str(error):
                raise
        finally:
            shutil.rmtree(checkpoint)
