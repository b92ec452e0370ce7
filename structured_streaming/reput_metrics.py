"""What Prometheus can read of a reput: counted of its batches, of what failed, and of what Spark tells of its query.

Spark tells on a thread of its own behind its batches, which wait for nobody here. Its numbers of rows are not exported: the rows of
the query are the files of a batch, not records.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    Summary,
    disable_created_metrics,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from structured_streaming.commit.report import BatchReport
from structured_streaming.reput_watch import BROKER, CATALOG, STORE, Behind, Watch
from structured_streaming.tables import TABLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryListener

QUERY = "reput"
"""The query's name."""
MAX_BROKERS, MAX_TYPED = 10_000, 200
"""Series of a metric that has one for each broker, or typed table; those beyond are not told."""
_COMMIT_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_PHASES = {
    "triggerExecution": "whole",
    "latestOffset": "ask_logs",
    "getBatch": "get_batch",
    "queryPlanning": "plan",
    "walCommit": "note_offsets",
    "addBatch": "stage_and_commit",
    "commitOffsets": "note_end",
}
"""Spark's names for the parts of a batch, and ours."""


class ReputMetrics(Watch):
    """`registry` has them all; a number that is not known yet has no series. Times in seconds, sizes in bytes."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call] # a series more of each, of when this process began
        self.registry = registry = CollectorRegistry()
        self._batches = Counter("lakebroker_reput_batches", "Batches committed", registry=registry)
        self._records = Counter(
            "lakebroker_reput_records", "Records of the logs in them", ["broker"], registry=registry
        )
        self._bytes = Counter(
            "lakebroker_reput_bytes", "Bytes of the logs in them", ["broker"], registry=registry
        )
        self._quarantined = Counter(
            "lakebroker_reput_quarantined_records", "Rows that went to quarantine", registry=registry
        )
        self._commit = Histogram(
            "lakebroker_reput_commit_seconds",
            "Time from a batch's staged files to its progress row",
            registry=registry,
            buckets=_COMMIT_S,
        )
        self._table_commit = Histogram(
            "lakebroker_reput_table_commit_seconds",
            "Time of a table's commit",
            ["table"],
            registry=registry,
            buckets=_COMMIT_S,
        )
        self._last_batch = Gauge(
            "lakebroker_reput_last_batch_timestamp_seconds",
            "When the last batch was committed; of none yet: when the reput started",
            registry=registry,
        )
        self._last_batch.set_to_current_time()
        self._log_batch = Gauge(
            "lakebroker_reput_log_last_batch_timestamp_seconds",
            "When the last batch with records of the broker was committed",
            ["broker"],
            registry=registry,
        )
        self._lag = Gauge(
            "lakebroker_reput_lag_bytes",
            "Bytes of the log behind the last batch, when that was planned",
            ["broker"],
            registry=registry,
        )
        self._away = Counter(
            "lakebroker_reput_absences",
            "Times that a broker, the lake's store or its catalog was not there when it was needed",
            ["what"],
            registry=registry,
        )
        for what in (BROKER, STORE, CATALOG):
            self._away.labels(what)
        self._failures = Counter(
            "lakebroker_reput_query_failures", "Ends of the streaming query by an error", registry=registry
        )
        self._restarts = Counter(
            "lakebroker_reput_spark_restarts", "Starts of Spark after its JVM ended", registry=registry
        )
        self._phases = Summary(
            "lakebroker_reput_phase_seconds",
            "Time of a batch's parts, as Spark tells it",
            ["phase"],
            registry=registry,
        )
        for phase in _PHASES.values():
            self._phases.labels(phase)
        for table in TABLES:
            self._table_commit.labels(table)
        self._newest: dict[str, float] = {}
        registry.register(_Ages(self._newest))
        self._typed = _Typed()
        registry.register(self._typed)
        ProcessCollector(registry=registry)

    def committed(self, report: BatchReport) -> None:
        """A batch is in the lake."""
        self._batches.inc()
        self._quarantined.inc(report.quarantined)
        self._commit.observe(report.seconds)
        for table, seconds in report.table_seconds.items():
            self._table_commit.labels(table).observe(seconds)
        self._last_batch.set_to_current_time()
        for log in report.logs:
            if log.broker not in self._newest and len(self._newest) >= MAX_BROKERS:
                continue
            self._records.labels(log.broker).inc(log.records)
            self._bytes.labels(log.broker).inc(log.bytes)
            self._lag.labels(log.broker).set(log.lag_bytes)
            self._log_batch.labels(log.broker).set_to_current_time()
            self._newest[log.broker] = max(self._newest.get(log.broker, 0.0), log.newest_ms / 1000)

    def away(self, what: str) -> None:
        """See `Watch.away`."""
        self._away.labels(what).inc()

    def query_failed(self) -> None:
        """See `Watch.query_failed`."""
        self._failures.inc()

    def typed(self, behind: Mapping[str, Behind]) -> None:
        """See `Watch.typed`."""
        self._typed.behind = dict(sorted(behind.items())[:MAX_TYPED])

    def spark_ended(self) -> None:
        """See `Watch.spark_ended`."""
        self._restarts.inc()

    def attached(self, session: SparkSession) -> Callable[[], None]:
        """See `Watch.attached`."""
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]

        listener = self._listener()
        session.streams.addListener(listener)

        def undo() -> None:
            with contextlib.suppress(Py4JError, OSError):  # its JVM may have ended
                session.streams.removeListener(listener)

        return undo

    def _listener(self) -> StreamingQueryListener:
        from pyspark.sql.streaming.listener import StreamingQueryListener

        noted = self._noted

        class Listener(StreamingQueryListener):
            """What Spark tells of our query."""

            def onQueryStarted(self, event: Any) -> None:
                """It is told elsewhere."""

            def onQueryProgress(self, event: Any) -> None:
                """A batch has ended."""
                progress = event.progress
                if progress.name == QUERY:
                    noted(dict(progress.durationMs))

            def onQueryIdle(self, event: Any) -> None:
                """Nothing was done."""

            def onQueryTerminated(self, event: Any) -> None:
                """Who waits for its end tells it."""

        return Listener()

    def _noted(self, took_ms: dict[str, int]) -> None:
        """Of a batch, or of a look that found nothing new, which is not counted."""
        if "addBatch" not in took_ms:
            return
        for theirs, ours in _PHASES.items():
            if theirs in took_ms:
                self._phases.labels(ours).observe(took_ms[theirs] / 1000)


class _Ages(Collector):
    """Reckoned when somebody asks."""

    def __init__(self, newest: dict[str, float]) -> None:
        self._newest = newest

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily(
            "lakebroker_reput_newest_record_age_seconds",
            "Since the newest record in the lake was stored; it grows, too, while a broker stores nothing",
            labels=["broker"],
        )
        now = time.time()
        for broker, stored in list(self._newest.items()):
            if stored:
                family.add_metric([broker], max(now - stored, 0.0))
        yield family


class _Typed(Collector):
    """Typed tables as they were when somebody looked last; those that are gone have no series."""

    def __init__(self) -> None:
        self.behind: Mapping[str, Behind] = {}

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily(
            "lakebroker_reput_typed_behind",
            "1 while a typed table lacks messages that the lake has, or cannot be used; else 0",
            labels=["table", "topic"],
        )
        for table, its in self.behind.items():
            family.add_metric([table, its.topic], float(its.lacks))
        yield family
