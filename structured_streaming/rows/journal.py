"""Rows of consumer_offsets, delivery_events, broker_stats and erasures from the gateway's journal records; those of topics and
consumer_groups, `configurations.py` makes.

Work is per journal record and per group of events, which are arrays in it; ordinals count as
`proto/lakebroker/journal/v1/journal.proto` says. Snapshots hold no other rows. A record that is not as the gateway
writes it has no rows at all, and a reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError

from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb
from structured_streaming import tables
from structured_streaming.errors import TooMuchError
from structured_streaming.rows import configurations
from structured_streaming.rows.arrays import GREATEST_MS, LEAST_MS, timestamps

LARGEST = 4 << 20
"""Bytes of a record that is decoded; the gateway's are smaller."""
MOST_ROWS = 250_000
MOST_TEXT = 64 << 20
"""Rows, and bytes of the texts in them, that are made at a time: a group's name stands once in a record and in
each of its rows."""
_VERSIONS = (1, 2, 3)
_MOST_LONG = (1 << 63) - 1
_EVENTS = {value.number: value.name.lower() for value in pb.EventKind.DESCRIPTOR.values if value.number}


@dataclass(slots=True)
class _Columns:
    """Columns under construction, as lists."""

    lists: dict[str, list[Any]] = field(default_factory=dict)

    def add(self, **values: Any) -> None:
        for name, value in values.items():
            self.lists.setdefault(name, []).append(value)

    def extend(self, count: int, **values: Any) -> None:
        for name, value in values.items():
            column = self.lists.setdefault(name, [])
            if isinstance(value, list):
                column.extend(value)
            else:
                column.extend([value] * count)

    def table(self, table: tables.Table) -> pa.Table:
        arrays = []
        for column in table.columns:
            values = self.lists.get(column.name, [])
            if column.type == tables.TIMESTAMP:
                arrays.append(timestamps(np.array(values, dtype=np.int64)))
            else:
                arrays.append(pa.array(values, column.type))
        return pa.table(arrays, names=[column.name for column in table.columns])


class JournalRows:
    """Rows of journal records; `bad` names the records that have none, by their row in the scan, with the reason."""

    def __init__(self) -> None:
        self._offsets, self._events, self._stats = _Columns(), _Columns(), _Columns()
        self._topics, self._groups, self._erasures = _Columns(), _Columns(), _Columns()
        self._rows = self._text = 0
        self.bad: list[tuple[int, str]] = []

    def read(self, records: Iterable[tuple[int, bytes, dict[str, Any]]]) -> None:
        """Takes up records: row in the scan, body, and the columns that are the row key.

        Raises TooMuchError when several records together have too many rows.
        """
        for count, (row, body, place) in enumerate(records):
            batch, problem = _decoded(body)
            if batch is None:
                self.bad.append((row, problem))
                continue
            changes = not batch.HasField("snapshot")
            rows, text = _extent(batch) if changes else configurations.extent(batch)
            if rows > MOST_ROWS or text > MOST_TEXT:
                self.bad.append((row, f"journal record with {rows} rows of {text} bytes of text: too many"))
                continue
            self._rows += rows
            self._text += text
            if count and (self._rows > MOST_ROWS or self._text > MOST_TEXT):
                raise TooMuchError(f"{self._rows} rows of journal records, {self._text} bytes of text")
            if changes:
                _offsets(batch, place, self._offsets)
                _events(batch, place, self._events)
                _stats(batch, place, self._stats)
                _erasures(batch, place, self._erasures)
            for topic in configurations.topic_rows(batch, place):
                self._topics.add(**topic)
            for group in configurations.group_rows(batch, place):
                self._groups.add(**group)

    def tables(self) -> Iterator[tuple[tables.Table, pa.Table]]:
        """A table each, its rows in the order of the records."""
        yield tables.CONSUMER_OFFSETS, self._offsets.table(tables.CONSUMER_OFFSETS)
        yield tables.DELIVERY_EVENTS, self._events.table(tables.DELIVERY_EVENTS)
        yield tables.BROKER_STATS, self._stats.table(tables.BROKER_STATS)
        yield tables.TOPICS, self._topics.table(tables.TOPICS)
        yield tables.CONSUMER_GROUPS, self._groups.table(tables.CONSUMER_GROUPS)
        yield tables.ERASURES, self._erasures.table(tables.ERASURES)


def _decoded(body: bytes) -> tuple[pb.Batch | None, str]:
    """The batch in a journal record, or what is wrong with it."""
    if len(body) > LARGEST:
        return None, f"journal record of {len(body)} bytes, at most {LARGEST} are read"
    batch = pb.Batch()
    try:
        batch.ParseFromString(body)
    except DecodeError as error:
        return None, f"journal record that does not decode: {error}"
    if batch.version not in _VERSIONS:
        return None, f"journal record of version {batch.version}, only those up to {_VERSIONS[-1]} are known"
    # without names and rows two million of them fit, to be looked at one by one
    if len(batch.queues) > MOST_ROWS:
        return None, f"journal record of {len(batch.queues)} queues, at most {MOST_ROWS} are read"
    return (None, problem) if (problem := _problem(batch)) else (batch, "")


def _problem(batch: pb.Batch) -> str:
    """What no column can hold, or is not as the gateway writes it; empty for nothing."""
    times = [batch.timestamp_ms, *(stats.minute_ms for stats in batch.stats)]
    times += [erasure.requested_ms for erasure in batch.erasures]
    for queue in batch.queues:
        for events in queue.events:
            times.append(events.timestamp_ms)
            counts = {len(events.queue_offset), len(events.message_id), len(events.attempt)}
            if len(counts) > 1:
                return "journal record whose events are not one offset, attempt and message id each"
    if any(len(stats.latency.bucket) != len(stats.latency.count) for stats in batch.stats):
        return "journal record whose latencies are not one bucket and count each"
    if min(times) < LEAST_MS or max(times) > GREATEST_MS:
        return "journal record with a time outside of the years 1 to 9999"
    return ""


def _extent(batch: pb.Batch) -> tuple[int, int]:
    """Rows of a batch, and about how many bytes of text are in them."""
    rows, text = configurations.extent(batch)
    for queue in batch.queues:
        names = len(queue.consumer_group) + len(queue.topic)
        count = int(queue.has_committed)
        for events in queue.events:
            count += len(events.queue_offset)
            text += len(events.queue_offset) * len(events.client_id) + sum(map(len, events.message_id))
        rows += count
        text += names * count
    for stats in batch.stats:
        rows += 1
        text += len(stats.topic) + len(stats.consumer_group) + 16 * len(stats.latency.bucket)
    for erasure in batch.erasures:
        count = len(erasure.physical_offset)
        rows += count
        text += count * (len(erasure.broker) + len(erasure.log_id))
    return rows, text


def _offsets(batch: pb.Batch, place: dict[str, Any], columns: _Columns) -> None:
    for ordinal, queue in enumerate(queue for queue in batch.queues if queue.has_committed):
        columns.add(
            **place,
            ordinal=ordinal,
            consumer_group=queue.consumer_group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            committed_offset=queue.committed,
            commit_timestamp=batch.timestamp_ms,
        )


def _events(batch: pb.Batch, place: dict[str, Any], columns: _Columns) -> None:
    ordinal = 0
    for queue in batch.queues:
        for events in queue.events:
            count = len(events.queue_offset)
            columns.extend(
                count,
                **place,
                ordinal=list(range(ordinal, ordinal + count)),
                consumer_group=queue.consumer_group,
                topic=queue.topic,
                queue_id=queue.queue_id,
                queue_offset=list(events.queue_offset),
                message_id=list(events.message_id),
                event=_EVENTS.get(events.kind, "unknown"),
                attempt=list(events.attempt),
                client_id=events.client_id,
                event_timestamp=events.timestamp_ms,
            )
            ordinal += count


def _stats(batch: pb.Batch, place: dict[str, Any], columns: _Columns) -> None:
    for ordinal, stats in enumerate(batch.stats):
        columns.add(
            **place,
            ordinal=ordinal,
            topic=stats.topic,
            consumer_group=stats.consumer_group or None,
            minute=stats.minute_ms,
            messages=stats.messages,
            bytes=stats.bytes,
            failures=stats.failures,
            latency=_merged(stats.latency),
        )


def _erasures(batch: pb.Batch, place: dict[str, Any], columns: _Columns) -> None:
    ordinal = 0
    for erasure in batch.erasures:
        count = len(erasure.physical_offset)
        columns.extend(
            count,
            **place,
            ordinal=list(range(ordinal, ordinal + count)),
            erased_broker=erasure.broker,
            erased_log_id=erasure.log_id,
            erased_physical_offset=list(erasure.physical_offset),
            request_timestamp=erasure.requested_ms,
        )
        ordinal += count


def _merged(latency: pb.LatencySketch) -> list[tuple[int, int]]:
    """Counts by bucket, those of a repeated bucket added: a map's key stands once."""
    counts: dict[int, int] = {}
    for bucket, count in zip(latency.bucket, latency.count, strict=True):
        counts[bucket] = max(min(counts.get(bucket, 0) + count, _MOST_LONG), -_MOST_LONG)
    return list(counts.items())
