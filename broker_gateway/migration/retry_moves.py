"""Messages that 4.x consumers sent back to a real broker, `%RETRY%<group>`, moved to where a group finds them here.

That topic holds messages of all topics of the group, each with its topic as the property `RETRY_TOPIC`. A pending one
is copied to `%RETRY%<group>_<topic>`, as POP has them; the copy carries `LB_ORIGIN` and settles it (invariant: a
move is one record), so that to do it again copies nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from broker_gateway.delivery.moves import moved_copy
from broker_gateway.delivery.queue_delivery import QueueDelivery, QueueKey
from broker_gateway.delivery.retry_topics import retry_topic
from broker_gateway.delivery.table import DeliveryTable
from broker_gateway.journal.replay import records_from
from broker_gateway.metadata.catalog import Catalog, Topic
from broker_gateway.metadata.names import NAME_PATTERN, RETRY_PREFIX, TOPIC_MAX_LENGTH
from store.log.copies import ORIGIN_PROPERTY, Origin, decode_origin
from store.log.record import Record
from store.message_store import MessageStore


@dataclass(slots=True)
class Moved:
    """How many were copied; `problems` names those that stay where they are."""

    count: int = 0
    problems: list[str] = field(default_factory=list)


def move_retries(store: MessageStore, catalog: Catalog, deliveries: DeliveryTable, now_ms: int) -> Moved:
    """Copies what is pending in the retry topics of the catalog's groups. Raises StoreError, OSError."""
    result = Moved()
    for topic, queue_id in store.index.queues():
        group = topic.removeprefix(RETRY_PREFIX)
        if group == topic or catalog.group(group) is None:
            continue  # no retry topic, or one of POP
        key = QueueKey(group, topic, queue_id)
        state = deliveries.known(key)
        if state is None:
            state = deliveries.restore(key, store.index.min_offset(topic, queue_id))
        _move_queue(store, catalog, deliveries, state, now_ms, result)
    return result


def _move_queue(
    store: MessageStore,
    catalog: Catalog,
    deliveries: DeliveryTable,
    state: QueueDelivery,
    now_ms: int,
    result: Moved,
) -> None:
    before: dict[str, set[Origin]] = {}
    moved = False
    for offset, record in _pending(store, state):
        properties = record.properties_map()
        topic = properties.get("RETRY_TOPIC")
        if topic is None:  # of POP: the group's name is that of another group and a topic, with _ between
            continue
        if NAME_PATTERN.fullmatch(topic) is None or len(topic) > TOPIC_MAX_LENGTH:
            result.problems.append(
                f"message {offset} of {state.key.topic} stays there: its RETRY_TOPIC is {topic[:130]!r}, no topic"
            )
            continue
        moved = True
        target = retry_topic(state.key.group, topic)
        if target not in before:
            before[target] = _origins(store, target)
            if catalog.topic(target) is None:
                catalog.restore_topic(Topic(target, 1, 1, created_ms=now_ms), target)
            to = QueueKey(state.key.group, target, 0)
            if deliveries.known(to) is None:
                deliveries.restore(to, store.index.min_offset(target, 0))
        origin = Origin(state.key.queue_id, offset, record.reconsume_times, state.key.group, state.key.topic)
        if origin not in before[target]:
            store.append([moved_copy(record, properties, origin, target, 0, record.reconsume_times)])
            result.count += 1
    if moved:
        state.reset(store.index.max_offset(state.key.topic, state.key.queue_id))


def _pending(store: MessageStore, state: QueueDelivery) -> Iterator[tuple[int, Record]]:
    _, topic, queue_id = state.key
    for offset in [*state.in_flight, *range(state.position, store.index.max_offset(topic, queue_id))]:
        offsets, sizes, _ = store.index.entries(topic, queue_id, offset, 1)
        if len(offsets) and sizes[0]:
            yield offset, store.record(int(offsets[0]), int(sizes[0]))


def _origins(store: MessageStore, topic: str) -> set[Origin]:
    """Of copies that are in `topic` already."""
    texts = (
        record.properties_map().get(ORIGIN_PROPERTY, "") for _, record in records_from(store, topic, 0, 0)
    )
    return {origin for origin in map(decode_origin, texts) if origin is not None}
