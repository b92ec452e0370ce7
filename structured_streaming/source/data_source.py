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
| `startingOffsets` | of a stream: `earliest` (default), `latest`, or JSON `{"broker": offset}` |
| `endingOffsets` | nothing is read beyond: `latest` (default) or JSON `{"broker": offset}` |
| `maxBytesPerTrigger` | bytes of log in a micro-batch, of all brokers, in fair shares; default 256 MiB. Needs Spark 4.2; before it, a batch is all there is |
| `partitionBytes` | bytes of log in a partition, or one record; default 16 MiB |
| `messageDelayLevel` | durations of the brokers' delay levels, as in their configuration: needed with `store` only, gateways say theirs. Without it, when a message with a delay level is due is null |
| `notes` | of the reput: a file for lines about logs that cannot be reached |

Rows are those of the table `messages`. An offset is `{broker: {"log_id": ID, "offset": N}}`.

A stream leaves out a log that does not answer, and goes on with it when it does; a batch query fails. A range
that was planned but cannot be read fails a query. The reput has a source of its own (`reput_source.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from structured_streaming.errors import SourceError
from structured_streaming.source.log_range import LogRange
from structured_streaming.source.log_watch import START_S, LogWatch
from structured_streaming.source.logs import by_broker, open_log
from structured_streaming.source.membership import Membership
from structured_streaming.source.notes import Notes
from structured_streaming.source.options import SourceOptions
from structured_streaming.source.reading import Reading
from structured_streaming.tables import MESSAGES


class LakebrokerDataSource(DataSource):
    """See the module."""

    @classmethod
    def name(cls) -> str:
        return "lakebroker"

    def schema(self) -> StructType:
        return from_arrow_schema(MESSAGES.schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        return LogBatchReader(_options(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from structured_streaming.source.stream import LogStreamReader

        return LogStreamReader(_options(self.options))


def _options(given: Mapping[str, str]) -> SourceOptions:
    """Raises SourceError for an option of the reput's source too, which would give other rows."""
    if any(name.lower() == "lake" for name in given):
        raise SourceError(
            "option lake is none of this source: it gives messages; `lakebroker reput --lake` builds a lake"
        )
    return SourceOptions(given)


class LogBatchReader(Reading, DataSourceReader):  # type: ignore[misc]
    """Everything in the logs at the time of the query."""

    def partitions(self) -> Sequence[LogRange]:
        note, access = Notes(self.options.notes), self.options.access
        watch = LogWatch(self.options.targets, access, note, START_S)
        Membership(self.options.name_servers, watch, note, fixed=True).update()
        states = watch.states()
        if missing := watch.missing():
            raise SourceError("; ".join(missing.values()))
        found = []
        for target, state in by_broker(states).values():
            end = min(state.end, (self.options.ending or {}).get(state.broker, state.end))
            if state.start < end:
                log = open_log(target, access)
                cuts = log.split(state.log_id, state.start, end, self.options.partition_bytes)
                log.close()
                found += self.parts(target, state, cuts)
        return found
