"""The data source `lakebroker`.

    from structured_streaming import LakebrokerDataSource

    spark.dataSource.register(LakebrokerDataSource)
    spark.readStream.format("lakebroker").option("brokers", "host:8081").load()

| option | meaning |
|---|---|
| `store` | folders of stores on this machine, divided by commas |
| `brokers` | `host:port` of gateways, divided by commas; executors connect themselves |
| `tokenFile` | file with the gateways' token |
| `startingOffsets` | of a stream: `earliest` (default), `latest`, or JSON `{"broker": offset}` |
| `endingOffsets` | nothing is read beyond: `latest` (default) or JSON `{"broker": offset}` |
| `maxBytesPerTrigger` | bytes of log in a micro-batch, of all brokers, in fair shares; default 256 MiB. Needs Spark 4.2; before it, a batch is all there is |
| `partitionBytes` | bytes of log in a partition, or one record; default 16 MiB |
| `messageDelayLevel` | durations of the brokers' delay levels, as in their configuration: needed with `store` only, gateways say theirs. Without it, when a message with a delay level is due is null |
| `lake` | of the reput: rows are staged as files of this lake's tables, and manifests are what the source emits |
| `notes` | of the reput: a file for lines about logs that cannot be reached |

Rows are those of the table `messages`. An offset is `{broker: {"log_id": ID, "offset": N}}`.

A stream leaves out a log that does not answer, and goes on with it when it does; a batch query fails. A range
that was planned but cannot be read fails a query; the reput commits the others and reads it again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from structured_streaming.errors import SourceError, UnreachableError
from structured_streaming.source.log_watch import LogWatch
from structured_streaming.source.logs import LogState, by_broker, open_log
from structured_streaming.source.notes import Notes
from structured_streaming.source.options import SourceOptions
from structured_streaming.tables import MESSAGES

START_S = 60.0
"""What reading begins with may take: opening logs, compiling the scan."""


@dataclass
class LogRange(InputPartition):
    """Bytes [start, end) of a log; they begin and end at records or within damage. The last two as in `LogState`."""

    target: str
    broker: str
    log_id: str
    start: int
    end: int
    log_end: int
    delay_levels: tuple[int, ...] | None = None
    segment_size: int | None = None

    def __post_init__(self) -> None:
        super().__init__(None)


class LakebrokerDataSource(DataSource):
    """See the module."""

    @classmethod
    def name(cls) -> str:
        return "lakebroker"

    def schema(self) -> StructType:
        if "lake" in {key.lower() for key in self.options}:
            from structured_streaming.sink.staging import MANIFEST

            return from_arrow_schema(MANIFEST)
        return from_arrow_schema(MESSAGES.schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        return LogBatchReader(SourceOptions(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from structured_streaming.source.stream import LogStreamReader

        return LogStreamReader(SourceOptions(self.options))


class Reading:
    """What batch and stream readers share: cutting a log into partitions, and reading one on an executor."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    def __getstate__(self) -> dict[str, Any]:
        """What executors need to read a range; what the driver knows of lake and logs stays there."""
        return {"options": self.options}

    def parts(self, target: str, state: LogState, cuts: Sequence[int]) -> list[LogRange]:
        """Partitions between boundaries."""
        levels = state.delay_levels or self.options.delay_levels
        return [
            LogRange(target, state.broker, state.log_id, begin, end, state.end, levels, state.segment_size)
            for begin, end in itertools.pairwise(cuts)
        ]

    def read(self, partition: LogRange) -> Iterator[pa.RecordBatch]:
        """The rows of a partition or, with `lake`, the manifest of the files they were written to."""
        log = open_log(partition.target, self.options.token)
        try:
            chunks = log.read(partition.log_id, partition.start, partition.end)
            if not self.options.lake:
                yield from _rows(partition, chunks)
                return
            from structured_streaming.sink.staging import stage
            from structured_streaming.source.unread import unread

            try:
                yield from stage(self.options.lake, partition, chunks)
            except UnreachableError as error:
                yield unread(partition, error)
        finally:
            log.close()


def _rows(partition: LogRange, chunks: Iterator[tuple[int, bytes | memoryview]]) -> Iterator[pa.RecordBatch]:
    from store.scan import scan
    from structured_streaming.rows.messages import message_batches
    from structured_streaming.rows.pieces import Piece

    for offset, data in chunks:
        found = scan(data, offset, segment_size=partition.segment_size)
        yield from message_batches(Piece(partition.broker, partition.log_id, partition.delay_levels, found))


class LogBatchReader(Reading, DataSourceReader):  # type: ignore[misc]
    """Everything in the logs at the time of the query."""

    def partitions(self) -> Sequence[LogRange]:
        watch = LogWatch(self.options.targets, self.options.token, Notes(self.options.notes), START_S)
        states = watch.states()
        if missing := watch.missing():
            raise SourceError("; ".join(missing.values()))
        found = []
        for target, state in by_broker(states).values():
            end = min(state.end, (self.options.ending or {}).get(state.broker, state.end))
            if state.start < end:
                log = open_log(target, self.options.token)
                cuts = log.split(state.log_id, state.start, end, self.options.partition_bytes)
                log.close()
                found += self.parts(target, state, cuts)
        return found
