"""Reading the journal back at start: the newest complete snapshot, then what follows it.

The time this takes depends on the log since that snapshot, not on what was consumed before. Moves (copies
with `LB_ORIGIN`) behind the snapshot settle their originals.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import structlog
from google.protobuf.message import DecodeError

from broker_gateway.delivery.moves import ORIGIN_PROPERTY, decode_origin
from broker_gateway.delivery.queue_delivery import InFlight, QueueDelivery, QueueKey, Status
from broker_gateway.delivery.table import DeliveryTable
from broker_gateway.journal.journal import SNAPSHOT_TAG, VERSION
from broker_gateway.journal.snapshot import GIVEN_BACK, RETURNED, SUSPENDED
from broker_gateway.metadata.catalog import Catalog, Group, Topic
from broker_gateway.metadata.data_version import DataVersion
from broker_gateway.metadata.names import DLQ_PREFIX, JOURNAL_TOPIC
from broker_gateway.runtime.clock import now_ms
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb
from store.log.record import Record, tags_code
from store.message_store import MessageStore

log = structlog.get_logger(__name__)


class JournalVersionError(Exception):
    """The journal was written by a later version."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """Where the snapshot used stands (0: none) and how many records were applied after it."""

    snapshot_offset: int
    records: int


def replay(store: MessageStore, catalog: Catalog, deliveries: DeliveryTable) -> Replayed:
    """Restores topics, groups and delivery state; raises JournalVersionError."""
    offset, snapshot_id = _newest_snapshot(store)
    records, now = 0, now_ms()
    for _, record in heapq.merge(*_sources(store, offset), key=lambda item: item[0]):
        records += 1
        if record.topic == JOURNAL_TOPIC:
            batch = _decode(record)
            if batch is not None:
                _apply(batch, snapshot_id, catalog, deliveries, store)
        else:
            _apply_move(record, deliveries)
    for state in deliveries.queues():
        state.sort()
        state.end_returns(now)
        for message in state.returned:
            _, _, codes = store.index.entries(state.key.topic, state.key.queue_id, message.queue_offset, 1)
            message.tags_code = int(codes[0]) if len(codes) else 0
        deliveries.schedule(state)
    return Replayed(offset, records)


def _apply(
    batch: pb.Batch, snapshot_id: str, catalog: Catalog, deliveries: DeliveryTable, store: MessageStore
) -> None:
    """Changes, or a part of a snapshot where it stands. Parts that stand together count of the chosen one only."""
    part = batch.snapshot if batch.HasField("snapshot") else None
    if part is not None and not part.in_place and part.snapshot_id != snapshot_id:
        return
    _apply_catalog(batch, catalog, store)
    for change in batch.queues:
        if part is None:
            _apply_events(change, deliveries)
        else:
            _apply_piece(change, part.in_place, deliveries)


def _newest_snapshot(store: MessageStore) -> tuple[int, str]:
    """Where a replay begins, and the id of the newest complete snapshot; 0 and an empty one without."""
    code = tags_code(SNAPSHOT_TAG)
    low, high = store.index.min_offset(JOURNAL_TOPIC, 0), store.index.max_offset(JOURNAL_TOPIC, 0)
    found: dict[str, tuple[int, int]] = {}  # by id: parts seen, parts there are
    while high > low:
        start = max(low, high - 4096)
        offsets, sizes, codes = store.index.entries(JOURNAL_TOPIC, 0, start, high - start)
        for position in range(len(offsets) - 1, -1, -1):
            if codes[position] != code or not sizes[position]:
                continue
            batch = _decode(store.record(int(offsets[position]), int(sizes[position])))
            if batch is None:
                continue
            part = batch.snapshot
            seen, there_are = found.get(part.snapshot_id, (0, 0))
            seen, there_are = seen + 1, max(there_are, part.parts)
            if seen == there_are and part.snapshot_id:
                return part.log_offset, part.snapshot_id
            found[part.snapshot_id] = (seen, there_are)
        high = start
    return 0, ""


def _sources(store: MessageStore, offset: int) -> list[Iterator[tuple[int, Record]]]:
    topics = [
        (topic, queue)
        for topic, queue in store.index.queues()
        if topic == JOURNAL_TOPIC or topic.startswith(DLQ_PREFIX)
    ]
    return [records_from(store, topic, queue, offset) for topic, queue in topics]


def records_from(store: MessageStore, topic: str, queue_id: int, offset: int) -> Iterator[tuple[int, Record]]:
    """Records of a queue at or above a physical offset, in order, each with its own."""
    low, high = store.index.min_offset(topic, queue_id), store.index.max_offset(topic, queue_id)
    start = high
    while start > low:  # entries ascend: walk back in blocks to the first at or above `offset`
        block = max(low, start - 4096)
        offsets, _, _ = store.index.entries(topic, queue_id, block, 1)
        start = block
        if len(offsets) and offsets[0] < offset:
            break
    for first in range(start, high, 4096):
        offsets, sizes, _ = store.index.entries(topic, queue_id, first, min(4096, high - first))
        for physical, size in zip(offsets.tolist(), sizes.tolist(), strict=True):
            if physical >= offset and size:
                yield physical, store.record(physical, size)


def _decode(record: Record) -> pb.Batch | None:
    batch = pb.Batch()
    try:
        batch.ParseFromString(bytes(record.body))
    except DecodeError:
        log.error("journal record does not decode; skipped", physical_offset=record.physical_offset)
        return None
    if batch.version > VERSION:
        raise JournalVersionError(
            f"journal record at physical offset {record.physical_offset} has version {batch.version}, "
            f"this lakebroker reads up to {VERSION}; start the version that wrote it or a later one"
        )
    return batch


def _apply_catalog(batch: pb.Batch, catalog: Catalog, store: MessageStore) -> None:
    for version in batch.data_versions:
        catalog.versions[version.file] = DataVersion(
            version.state_version, version.counter, version.timestamp_ms
        )
    for topic in batch.topics:
        catalog.restore_topic(
            None
            if topic.deleted
            else Topic(
                topic.topic,
                topic.read_queues,
                topic.write_queues,
                topic.permission,
                tuple(topic.accept_message_types),
                topic.created_ms,
                topic.order,
            ),
            topic.topic,
        )
        for queue_id, next_offset in enumerate(topic.next_queue_offset):
            store.index.raise_next(topic.topic, queue_id, next_offset)
        for queue_id, first_offset in enumerate(topic.first_queue_offset):
            if first_offset:
                store.index.begin_at(topic.topic, queue_id, first_offset)
    for group in batch.groups:
        catalog.restore_group(
            None
            if group.deleted
            else Group(
                group.group,
                group.retry_max_times,
                group.fifo,
                group.consume_enabled,
                group.created_ms,
                group.first_used_by,
            ),
            group.group,
        )


def _apply_piece(change: pb.QueueChange, in_place: bool, deliveries: DeliveryTable) -> None:
    """The first piece of a queue replaces what changes before it said."""
    state = _restored(change, deliveries)
    if in_place and not change.continued:
        state.reset(change.cursor)
        _restored(change, deliveries)
    kept = change.in_flight
    none = [0] * len(kept.queue_offset)
    for offset, attempt, until, delivery_id, message_id, client_id, first_ms, flags in zip(
        kept.queue_offset,
        kept.attempt,
        kept.invisible_until_ms,
        kept.delivery_id,
        kept.message_id,
        kept.client_id,
        kept.first_delivered_ms or none,
        kept.flags or none,
        strict=True,
    ):
        state.restore(
            InFlight(
                offset,
                attempt,
                until,
                delivery_id,
                message_id,
                client_id,
                given_back=bool(flags & GIVEN_BACK),
                suspended=bool(flags & SUSPENDED),
                status=_status(flags & RETURNED),
                earlier_ms=first_ms,
            )
        )


def _apply_events(change: pb.QueueChange, deliveries: DeliveryTable) -> None:
    if change.removed:
        deliveries.forget(_key(change))
        return
    state = _restored(change, deliveries)
    for events in change.events:
        if events.kind in (pb.DELIVERED, pb.NACKED):
            for offset, attempt, message_id in zip(
                events.queue_offset, events.attempt, events.message_id, strict=True
            ):
                state.restore(
                    InFlight(
                        offset,
                        attempt,
                        events.invisible_until_ms,
                        events.delivery_id,
                        message_id,
                        events.client_id,
                        given_back=events.kind == pb.NACKED,
                        delivered_ms=events.timestamp_ms,
                        suspended=events.suspended,
                        status=_status(events.returned),
                    )
                )
        elif events.kind == pb.RESET:
            state.reset(change.cursor)
        elif events.kind != pb.EXPIRED:
            for offset in events.queue_offset:
                state.restore_settled(offset)


def _status(returned: int) -> Status:
    """What was READY is INVISIBLE and due."""
    return Status.RETURNED if returned else Status.INVISIBLE


def _apply_move(record: Record, deliveries: DeliveryTable) -> None:
    origin = decode_origin(record.properties_map().get(ORIGIN_PROPERTY, ""))
    if origin is None:
        return
    state = deliveries.known(QueueKey(origin.group, origin.topic, origin.queue_id))
    if state is not None:
        state.restore_settled(origin.queue_offset)


def _restored(change: pb.QueueChange, deliveries: DeliveryTable) -> QueueDelivery:
    client_offset = change.client_offset if change.HasField("client_offset") else None
    return deliveries.restore(_key(change), change.cursor, client_offset)


def _key(change: pb.QueueChange) -> QueueKey:
    return QueueKey(change.consumer_group, change.topic, change.queue_id)
