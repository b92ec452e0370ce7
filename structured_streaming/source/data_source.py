"""The data source `lakebroker`.

    from structured_streaming import LakebrokerDataSource

    spark.dataSource.register(LakebrokerDataSource)
    spark.readStream.format("lakebroker").option("brokers", "host:8081").load()

| option | meaning |
|---|---|
| `store` | folders of stores on this machine, divided by commas |
| `brokers` | `host:port` of gateways, divided by commas; executors connect themselves |
| `namesrv` | `host:port` of name servers, divided by semicolons, in the place of `brokers`: all lakebrokers registered there, also those that join later |
| `tokenFile` | file with the gateways' token, on the driver |
| `tlsCa` | file with certificates of the authorities that count, PEM, on the driver; without it the system's count. Loopback is spoken to in plaintext without it, others over TLS always |
| `startingOffsets` | `earliest` (default), of a stream `latest`, or JSON `{"broker": offset}`: where a record begins |
| `endingOffsets` | nothing is read beyond: `latest` (default) or JSON `{"broker": offset}` |
| `maxBytesPerTrigger` | bytes of log in a micro-batch, of all brokers, in fair shares; default 256 MiB. Needs Spark 4.2; before it, a batch is all there is |
| `partitionBytes` | bytes of log in a partition, or one record; default 32 MiB |
| `messageDelayLevel` | durations of the brokers' delay levels, as in their configuration: needed with `store` only, gateways say theirs. Without it, when a message with a delay level is due is null |
| `notes` | of the reput: a file for lines about logs that cannot be reached |

A stream's rows are those of the table `messages`. An offset is `{broker: {"log_id": ID, "offset": N}}`; a batch query
takes offsets in that form too, and then reads no other log in its place.

| option of a batch query | meaning |
|---|---|
| `table` | whose rows: `messages` (default), `consume_queue`, `message_index`, `consumer_offsets`, `delivery_events`, `broker_stats` or `quarantine` |
| `columns` | its columns that are read, divided by commas; default all. Spark tells a Python source of no columns that it needs: name them here, and bodies are neither decompressed nor sent to it for nothing |
| `startingTimestamp`, `endingTimestamp` | records stored from the first on and before the second: ISO 8601 (UTC without a zone) or ms since 1970 |
| `pushFilters` | `true`: Spark's filters on broker, log_id, topic, queue_id, queue_offset, physical_offset and store_timestamp drop records before rows are made of them, and ranges by broker, log_id and physical_offset. Needs Spark 4.1 and `spark.sql.python.filterPushdown.enabled`; default `false` |

Times choose among the records of the range: a broker's clock may step back, so no range is ruled out by them. Narrow the
range by offsets where the log is long.

A stream leaves out a log that does not answer, and goes on with it when it does; a batch query fails. A range
that was planned but cannot be read fails a query. The reput has a source of its own (`reput_source.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from structured_streaming.errors import SourceError
from structured_streaming.source.batch import FilteringBatchReader, LogBatchReader
from structured_streaming.source.batch_options import OF_BATCHES, BatchOptions, selection_of
from structured_streaming.source.options import SourceOptions


def register(session: SparkSession, source: type[DataSource]) -> None:
    """In a session. Spark 4.2 refuses it where the active session, which may be another, has a source of that name: then the session
    is the active one meanwhile."""
    try:
        session.dataSource.register(source)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
        jvm: Any = session._jvm
        sessions = jvm.org.apache.spark.sql.classic.SparkSession
        before = sessions.getActiveSession()
        sessions.setActiveSession(session._jsparkSession)
        try:
            session.dataSource.register(source)
        finally:
            sessions.setActiveSession(before.get())


class LakebrokerDataSource(DataSource):
    """See the module."""

    @classmethod
    def name(cls) -> str:
        return "lakebroker"

    def schema(self) -> StructType:
        return from_arrow_schema(selection_of(self.options).schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        _check(self.options)
        options = BatchOptions(self.options)
        return FilteringBatchReader(options) if options.push_filters else LogBatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from structured_streaming.source.stream import LogStreamReader

        _check(self.options)
        given = {name.lower() for name in self.options}
        if wrong := [name for name in OF_BATCHES if name.lower() in given]:
            raise SourceError(f"option {wrong[0]} is for batch queries; a stream gives whole messages")
        options = SourceOptions(self.options)
        if options.log_ids:
            raise SourceError('a stream takes offsets without log_id: give JSON such as {"broker-a": 0}')
        return LogStreamReader(options)


def _check(given: Mapping[str, str]) -> None:
    """Raises SourceError for an option of the reput's source too, which would give other rows."""
    if any(name.lower() == "lake" for name in given):
        raise SourceError(
            "option lake is none of this source: it gives messages; `lakebroker reput --lake` builds a lake"
        )
