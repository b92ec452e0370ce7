"""The reput in a Spark session of the test's own process."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from structured_streaming.reput import run_reput
from structured_streaming.reput_options import ReputOptions
from structured_streaming.reput_query import WORKER_LATE, start_reput
from tests.support.waiting import wait_until


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


class RunningReput:
    """A reput that goes on, in the session that is there, on a thread of its own; it is stopped at the end."""

    def __init__(
        self, spark: SparkSession, options: ReputOptions, tell: Callable[[str], None] = lambda line: None
    ) -> None:
        self._spark = spark
        self._done: list[object] = []
        self._error: BaseException | None = None

        def run() -> None:
            try:
                run_reput(options, self._done.append, tell=tell)
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        wait_until(self._stopped, "the end of the reput")

    def batches(self) -> int:
        """How many were committed. Raises what ended it."""
        if not self._thread.is_alive():
            raise self._error or AssertionError("the reput has ended by itself")
        return len(self._done)

    def _stopped(self) -> bool:
        """Where other topics are typed, it stops its query itself, and begins another one."""
        for query in self._spark.streams.active:
            query.stop()
        return not self._thread.is_alive()
