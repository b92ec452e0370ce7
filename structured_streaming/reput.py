"""The reput job: one streaming query that builds the lake from the commit logs.

Executors scan and stage (`sink/staging.py`), the driver commits (`sink/delta_commit.py`). Where to begin is
decided by the lake, never by Spark's checkpoint, which is scratch: each start makes a new one, so that a
lost, copied or second checkpoint neither skips nor repeats.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from structured_streaming.errors import ForeignWriterError, LakeError
from structured_streaming.jvm_output import jvm_output_to_file
from structured_streaming.progress import BatchReport
from structured_streaming.sink.base import Sink
from structured_streaming.sink.delta_commit import DeltaCommitSink
from structured_streaming.source.logs import Log, open_log
from structured_streaming.tables import create_tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


RETRIES = 10
"""Times that a failed query starts again without having committed anything in between."""
LONGEST_WAIT_S = 30.0
_JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""The JVM only coordinates: optimising its code took two of every three seconds that the batches had."""


@dataclass(frozen=True, slots=True)
class ReputOptions:
    """What to read and where to. `trigger` is Spark's processing time; `once` ends when all is read.

    `message_delay_level` is that of the brokers whose stores are read by path.
    """

    lake: str
    store: str = ""
    brokers: str = ""
    token_file: str = ""
    trigger: str = "0 seconds"
    once: bool = False
    max_bytes: int = 256 << 20
    partition_bytes: int = 16 << 20
    message_delay_level: str = ""

    def source(self) -> dict[str, str]:
        """Options of the data source."""
        options = {
            "lake": str(Path(self.lake).resolve()) if "://" not in self.lake else self.lake,
            "store": self.store,
            "brokers": self.brokers,
            "tokenFile": self.token_file,
            "maxBytesPerTrigger": str(self.max_bytes),
            "partitionBytes": str(self.partition_bytes),
            "messageDelayLevel": self.message_delay_level,
        }
        return {name: value for name, value in options.items() if value}


def reput_session(master: str = "local[2]") -> SparkSession:
    """A Spark session for the job: no UI, one Python for driver and workers. Delta's jars are not needed."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = (
        SparkSession.builder.appName("lakebroker-reput")
        .master(master)
        .config("spark.driver.extraJavaOptions", _JVM_OPTIONS)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.sql.streaming.stopTimeout", "30s")
        .config("spark.sql.warehouse.dir", tempfile.mkdtemp(prefix="lakebroker-warehouse-"))
    )
    with jvm_output_to_file():
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def start_reput(
    session: SparkSession,
    options: ReputOptions,
    on_batch: Callable[[BatchReport], None] = lambda report: None,
    sink: Sink | None = None,
) -> tuple[StreamingQuery, Path]:
    """Starts the query; returns it and its scratch checkpoint folder, to be removed after it ended.

    Raises LakeError.
    """
    from structured_streaming.source.data_source import LakebrokerDataSource

    create_tables(options.lake)
    session.dataSource.register(LakebrokerDataSource)
    destination = sink if sink is not None else DeltaCommitSink(options.lake)
    token = Path(options.token_file).read_text().strip() if options.token_file else None

    logs: dict[str, Log] = {}

    def commit(batch: DataFrame, _: int) -> None:
        report = destination.commit([row.asDict() for row in batch.collect()])
        if report is None:
            return
        for (target, _broker, log_id), offset in report.ends.items():
            try:
                if target not in logs:
                    logs[target] = open_log(target, token)
                logs[target].report(log_id, offset)
            except LakeError as error:  # a hint only: the gateway looks into the lake itself
                sys.stderr.write(f"lakebroker: progress not reported: {error}\n")
        on_batch(report)

    checkpoint = Path(tempfile.mkdtemp(prefix="lakebroker-checkpoint-"))
    writer = (
        session.readStream.format("lakebroker")
        .options(**options.source())
        .load()
        .writeStream.foreachBatch(commit)
        .option("checkpointLocation", str(checkpoint))
        .queryName("reput")
    )
    writer = (
        writer.trigger(availableNow=True) if options.once else writer.trigger(processingTime=options.trigger)
    )
    return writer.start(), checkpoint


def run_reput(
    options: ReputOptions,
    on_batch: Callable[[BatchReport], None] = lambda report: None,
    master: str = "local[2]",
    sink: Sink | None = None,
) -> None:
    """Runs the job until it is done (`once`) or a signal stops it; a failed query starts again. Raises LakeError."""
    session = reput_session(master)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stopping.set())
    committed = 0

    def counted(report: BatchReport) -> None:
        nonlocal committed
        committed += 1
        on_batch(report)

    failures, seen = 0, 0
    try:
        while True:
            problem = _run_query(session, options, counted, sink, stopping)
            if problem is None:
                return
            failures = failures + 1 if committed == seen else 1
            seen = committed
            if options.once or failures > RETRIES or ForeignWriterError.__name__ in problem:
                raise LakeError(_cause(problem))
            wait_s = min(2.0**failures, LONGEST_WAIT_S)
            sys.stderr.write(f"lakebroker: {_cause(problem)}; the query starts again in {wait_s:g} s\n")
            if stopping.wait(wait_s):
                return
    finally:
        session.stop()


def _run_query(
    session: SparkSession,
    options: ReputOptions,
    on_batch: Callable[[BatchReport], None],
    sink: Sink | None,
    stopping: threading.Event,
) -> str | None:
    """Runs the query until it ends or `stopping` is set; returns what it failed with, None for a good end."""
    from pyspark.errors import StreamingQueryException

    query, checkpoint = start_reput(session, options, on_batch, sink)
    try:
        while not stopping.is_set() and not query.awaitTermination(1):
            pass
        query.stop()
    except StreamingQueryException as error:
        return str(error)
    finally:
        shutil.rmtree(checkpoint, ignore_errors=True)
    return None


def _cause(text: str) -> str:
    """The sentence of our error inside Spark's report of it."""
    for line in reversed(text.splitlines()):
        if "structured_streaming.errors." in line:
            return line.split("Error: ", 1)[-1].strip()
    return text.split("JVM stacktrace", 1)[0].strip()
