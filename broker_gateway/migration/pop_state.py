"""What POP consumers of a real broker held when it stopped, as delivery state of ours; and ours as its check points.

A check point's messages that are below the group's offset and not acknowledged are in flight until the end of its
invisible time. Several may name a message: that of the latest pop says. `migration/check_points.py` has the formats.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from broker_gateway.delivery.handles import new_delivery_id
from broker_gateway.delivery.in_flight import InFlight, Status
from broker_gateway.delivery.queue_delivery import QueueKey
from broker_gateway.delivery.retry_topics import retry_topic, subscribed_topic
from broker_gateway.delivery.table import DeliveryTable
from broker_gateway.journal.replay import records_from
from broker_gateway.migration.check_points import (
    ACK,
    ACK_INTERVAL_MS,
    BATCH_ACK,
    CK,
    MOST_MESSAGES,
    REVIVE_GROUP,
    REVIVE_PREFIX,
    TIMER_TOPIC,
    CheckPoint,
    CheckPoints,
    PopKey,
    ReviveQueue,
    ack_body,
    check_point_body,
)
from store.log.record import PendingRecord, Record, encode_properties, offset_msg_id, tags_code
from store.message_store import MessageStore

_WRITTEN_AT_ONCE = 1024
_TIMER_PRECISION_MS = 1000


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
    for _, record, revive in _revive_log(store, 0, (CK,)):
        points.add(record, revive, record.queue_offset if record.topic == revive.topic else None)
    start = points.acks_from()
    if start is not None:
        for tag, record, _ in _revive_log(store, start, (ACK, BATCH_ACK)):
            points.add_ack(record, batch=tag == BATCH_ACK)
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
                    new_delivery_id(),
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


def _revive_log(
    store: MessageStore, start: int, tags: Collection[str]
) -> Iterator[tuple[str, Record, ReviveQueue]]:
    """Records with these tags in the revive topic or on the way there, from a physical offset on, in order."""
    sources = [
        _tagged(store, topic, queue_id, start, tags)
        for topic, queue_id in store.index.queues()
        if topic == TIMER_TOPIC or topic.startswith(REVIVE_PREFIX)
    ]
    for _, tag, record in heapq.merge(*sources, key=lambda item: item[0]):
        if record.topic != TIMER_TOPIC:
            yield tag, record, ReviveQueue(record.topic, record.queue_id)
            continue
        properties = record.properties_map()
        topic, queue_id = properties.get("REAL_TOPIC", ""), properties.get("REAL_QID", "")
        if topic.startswith(REVIVE_PREFIX):  # else somebody's message with that tag
            known = queue_id.isascii() and queue_id.isdigit() and len(queue_id) < 10
            yield tag, record, ReviveQueue(topic, int(queue_id) if known else 0)


def _tagged(
    store: MessageStore, topic: str, queue_id: int, start: int, tags: Collection[str]
) -> Iterator[tuple[int, str, Record]]:
    """Records of a queue with these tags, from a physical offset on, each with its own and its tag."""
    index, wanted = store.index, {tags_code(tag): tag for tag in tags}
    low, high = index.min_offset(topic, queue_id), index.max_offset(topic, queue_id)
    for first in range(low, high, 4096):
        columns = index.entries(topic, queue_id, first, min(4096, high - first))
        for physical, size, code in zip(*(column.tolist() for column in columns), strict=True):
            tag = wanted.get(code)
            if tag is not None and size and physical >= start:
                yield physical, tag, store.record(physical, size)


def write_check_points(
    store: MessageStore,
    deliveries: DeliveryTable,
    in_order: Callable[[str], bool],
    now_ms: int,
) -> dict[QueueKey, int]:
    """Makes the check points of the log say what is in flight; returns the offsets that go with them.

    Only what differs is written: check points of what has none, acks for what is in flight no more. Groups that are
    `in_order` get none: their offset is the first that is not settled. Raises StoreError, OSError.
    """
    states = list(deliveries.queues())
    wanted: dict[tuple[QueueKey, int], int] = {}
    offsets: dict[QueueKey, int] = {}
    for state in states:
        if state.key.group == REVIVE_GROUP or in_order(state.key.group):
            offsets[state.key] = state.consumer_offset
            continue
        offsets[state.key] = state.position
        for message in state.in_flight.values():
            held = message.status == Status.HELD
            wanted[state.key, message.queue_offset] = now_ms if held else message.invisible_until_ms
    points = read_check_points(store, {state.key: state.position for state in states})
    topics = {point.revive.topic for point in points}
    own = f"{REVIVE_PREFIX}{store.cluster}"
    revive = ReviveQueue(own if own in topics or not topics else min(topics), 0)
    latest = points.latest()
    records: list[PendingRecord] = []
    for point in points:
        key = point.key.queue
        for offset in point.open:
            if latest[key][offset] is point and wanted.get((key, offset)) == point.due_ms:
                del wanted[key, offset]
            else:
                records.append(_ack_record(store, point, offset, now_ms))
    made = _made_check_points(wanted, store.broker, revive, now_ms)
    records += [_check_point_record(store, point, now_ms) for point in made]
    for start in range(0, len(records), _WRITTEN_AT_ONCE):
        store.append(records[start : start + _WRITTEN_AT_ONCE])
    return offsets


def _made_check_points(
    wanted: Mapping[tuple[QueueKey, int], int], broker: str, revive: ReviveQueue, now_ms: int
) -> Iterator[CheckPoint]:
    """Check points for queue and offset, each with the end of its invisible time."""
    together: dict[tuple[QueueKey, int], list[int]] = {}
    for (key, offset), until in wanted.items():
        together.setdefault((key, until), []).append(offset)
    for (key, until), offsets in together.items():
        offsets.sort()
        for start in range(0, len(offsets), MOST_MESSAGES):
            some = offsets[start : start + MOST_MESSAGES]
            pop_ms = min(now_ms, until)
            yield CheckPoint(PopKey(key, some[0], pop_ms, broker), tuple(some), until, revive)


def _check_point_record(store: MessageStore, point: CheckPoint, now_ms: int) -> PendingRecord:
    queue, start, pop_ms, broker = point.key
    unique = f"{queue.topic}@{queue.queue_id}@{start}@{queue.group}@{pop_ms}@{broker}@{CK}"
    due = point.due_ms - ACK_INTERVAL_MS
    return _revive_record(store, point.revive, CK, unique, check_point_body(point), due, now_ms)


def _ack_record(store: MessageStore, point: CheckPoint, offset: int, now_ms: int) -> PendingRecord:
    """Behind its check point: in the revive topic where that is there already, else by the timer after it."""
    queue, _, pop_ms, broker = point.key
    unique = f"{queue.topic}@{queue.queue_id}@{offset}@{queue.group}@{pop_ms}@{broker}@{ACK}"
    due = 0 if point.arrived else max(point.due_ms, now_ms + ACK_INTERVAL_MS)
    return _revive_record(store, point.revive, ACK, unique, ack_body(point.key, offset), due, now_ms)


def _revive_record(
    store: MessageStore, revive: ReviveQueue, tag: str, unique: str, body: bytes, due_ms: int, now_ms: int
) -> PendingRecord:
    properties = {"TAGS": tag, "UNIQ_KEY": unique}
    topic, queue_id = revive
    if due_ms > now_ms:
        properties |= {
            "REAL_TOPIC": topic,
            "REAL_QID": str(queue_id),
            "TIMER_DELIVER_MS": str(due_ms),
            "TIMER_OUT_MS": str((due_ms - 1) // _TIMER_PRECISION_MS * _TIMER_PRECISION_MS),
        }
        topic, queue_id = TIMER_TOPIC, 0
    return PendingRecord(
        topic=topic,
        queue_id=queue_id,
        body=body,
        properties=encode_properties(properties),
        born_timestamp=now_ms,
        born_host=store.store_host.packed,
        tags_code=tags_code(tag),
    )
