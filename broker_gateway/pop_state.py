"""What POP consumers of a real broker held when it stopped, as delivery state of ours; and ours as its check points.

A check point's messages that are below the group's offset and not acknowledged are in flight until the end of its
invisible time. Several may name a message: that of the latest pop says. `metadata/check_points.py` has the formats.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from broker_gateway.delivery.queue_delivery import InFlight, QueueKey
from broker_gateway.delivery.retry_topics import retry_topic, subscribed_topic
from broker_gateway.delivery.table import DeliveryTable
from broker_gateway.journal.replay import records_from
from broker_gateway.metadata.check_points import (
    ACK,
    BATCH_ACK,
    CK,
    REVIVE_GROUP,
    REVIVE_PREFIX,
    TIMER_TOPIC,
    CheckPoints,
    ReviveQueue,
)
from store.message_store import MessageStore
from store.record import Record, offset_msg_id, tags_code

_CODES = {tags_code(tag): tag for tag in (CK, ACK, BATCH_ACK)}
_WRITTEN_AT_ONCE = 1024


@dataclass(slots=True)
class Restored:
    """What was put in flight; `gone` messages are no longer in the log."""

    in_flight: int = 0
    gone: int = 0


def read_check_points(store: MessageStore, offsets: Mapping[QueueKey, int]) -> CheckPoints:
    """Check points in the log that the revive service, at `offsets`, is not done with."""
    revived = {
        ReviveQueue(key.topic, key.queue_id): offset
        for key, offset in offsets.items()
        if key.group == REVIVE_GROUP and key.topic.startswith(REVIVE_PREFIX)
    }
    points = CheckPoints(revived)
    sources = [
        _tagged(store, topic, queue_id)
        for topic, queue_id in store.index.queues()
        if topic == TIMER_TOPIC or topic.startswith(REVIVE_PREFIX)
    ]
    for _, tag, record in heapq.merge(*sources, key=lambda item: item[0]):
        if record.topic != TIMER_TOPIC:
            revive = ReviveQueue(record.topic, record.queue_id)
            points.add(record, tag, revive, record.queue_offset)
            continue
        properties = record.properties_map()
        topic, queue_id = properties.get("REAL_TOPIC", ""), properties.get("REAL_QID", "")
        if topic.startswith(REVIVE_PREFIX):  # else somebody's message with that tag
            known = queue_id.isascii() and queue_id.isdigit() and len(queue_id) < 10
            points.add(record, tag, ReviveQueue(topic, int(queue_id) if known else 0), None)
    return points


def restore_in_flight(store: MessageStore, deliveries: DeliveryTable, points: CheckPoints) -> Restored:
    """Puts what is not acknowledged in flight."""
    done = _revived_already(store, points)
    result = Restored()
    for key, offsets in points.latest().items():
        state = deliveries.known(key)
        if state is None:  # popped, and the offset not written before the broker was killed
            deliveries.queue(key).reset(min(offsets))
            continue
        for offset, point in sorted(offsets.items()):
            if offset >= state.cursor or offset in point.acked:
                continue
            record = _message(store, key, offset)
            if record is None:
                result.gone += 1
                continue
            unique = record.properties_map().get("UNIQ_KEY")
            times = record.reconsume_times + 1
            if point.arrived and any((name, unique, times) in done for name in _retry_topics(key)):
                continue
            state.restore(
                InFlight(
                    offset,
                    times,
                    point.due_ms,
                    int.from_bytes(os.urandom(8), "big"),
                    unique or offset_msg_id(record.store_host.packed, record.physical_offset),
                    "",
                )
            )
            result.in_flight += 1
        state.sort()
    return result


def _retry_topics(key: QueueKey) -> tuple[str, ...]:
    """Where the revive service may put what was popped from a queue."""
    topic = subscribed_topic(key)
    if topic is not key.topic:
        return (key.topic,)
    return retry_topic(key.group, topic), retry_topic(key.group, topic, "+")


def _revived_already(store: MessageStore, points: CheckPoints) -> set[tuple[str, str | None, int]]:
    """Copies in retry topics behind check points in the revive topic, which a killed broker may have made before it
    wrote how far it was: retry topic, message id, reconsume times."""
    since: dict[str, int] = {}
    for point in points:
        if point.arrived and point.open:
            for name in _retry_topics(point.key.queue):
                since[name] = min(since.get(name, point.physical_offset), point.physical_offset)
    found: set[tuple[str, str | None, int]] = set()
    for topic, queue_id in store.index.queues():
        if topic in since:
            for _, record in records_from(store, topic, queue_id, since[topic]):
                unique = record.properties_map().get("UNIQ_KEY")
                if unique:
                    found.add((topic, unique, record.reconsume_times))
    return found


def _message(store: MessageStore, key: QueueKey, offset: int) -> Record | None:
    offsets, sizes, _ = store.index.entries(key.topic, key.queue_id, offset, 1)
    return store.record(int(offsets[0]), int(sizes[0])) if len(offsets) and sizes[0] else None


def _tagged(store: MessageStore, topic: str, queue_id: int) -> Iterator[tuple[int, str, Record]]:
    """Check points and acks of a queue by physical offset, with their tags."""
    index = store.index
    low, high = index.min_offset(topic, queue_id), index.max_offset(topic, queue_id)
    for start in range(low, high, 4096):
        columns = index.entries(topic, queue_id, start, min(4096, high - start))
        for physical, size, code in zip(*(column.tolist() for column in columns), strict=True):
            tag = _CODES.get(code)
            if tag is not None and size:
                yield physical, tag, store.record(physical, size)
