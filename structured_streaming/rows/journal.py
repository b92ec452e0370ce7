"""Rows of consumer_offsets, delivery_events and broker_stats from the gateway's journal records.

Work is per journal record and per group of events, which are arrays in it; ordinals count as
`proto/lakebroker/journal/v1/journal.proto` says. Snapshots hold no rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError

from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb
from structured_streaming import tables
from structured_streaming.rows.arrays import timestamps
from structured_streaming.rows.records import JOURNAL_TOPIC, Records

_EVENTS = {value.number: value.name.lower() for value in pb.EventKind.DESCRIPTOR.values if value.number}


@dataclass(slots=True)
class _Columns:
    """Columns under construction: plain lists, and blocks of arrays that are joined at the end."""

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


def journal_tables(records: Records) -> tuple[pa.Table, pa.Table, pa.Table]:
    """consumer_offsets, delivery_events, broker_stats; a record that does not decode gives no rows."""
    scan = records.scan
    offsets, events, stats = _Columns(), _Columns(), _Columns()
    for row in np.flatnonzero(records.rows_of(lambda topic: topic == JOURNAL_TOPIC)).tolist():
        start = int(scan.body_start[row])
        body = scan.buffer[start : start + int(scan.body_length[row])].tobytes()
        batch = pb.Batch()
        try:
            batch.ParseFromString(body)
        except DecodeError:
            continue
        if batch.HasField("snapshot"):
            continue
        place = {
            "broker": records.broker,
            "log_id": records.log_id,
            "physical_offset": int(scan.physical_offset[row]),
        }
        _offsets(batch, place, offsets)
        _events(batch, place, events)
        _stats(batch, place, stats)
    return (
        offsets.table(tables.CONSUMER_OFFSETS),
        events.table(tables.DELIVERY_EVENTS),
        stats.table(tables.BROKER_STATS),
    )


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
            latency=list(zip(stats.latency.bucket, stats.latency.count, strict=False)),
        )
