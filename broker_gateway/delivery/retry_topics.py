"""Retry topics that a real broker left in a store: `%RETRY%<group>_<topic>`, and `%RETRY%<group>+<topic>` (V2).

Our own retries are delivery state of the queue itself; nothing new goes there. A group receives what waits in them
through its subscription to the topic, and the two highest bits of a receipt handle's queue id say whose queue it is:

| bits | queue of |
|---|---|
| 0 | the topic |
| 1 | `%RETRY%<group>_<topic>` |
| 2 | `%RETRY%<group>+<topic>` |
| 3 | a lite topic of the topic, which the call names. The other bits are its number, for calls that do not name it |
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence

from broker_gateway.delivery.queue_delivery import QueueKey
from broker_gateway.metadata.names import RETRY_PREFIX
from store.lite_queues import PREFIX, lite_topic_of

_SHIFT = 30
FORM_BITS = 3 << _SHIFT
"""Of a receipt handle's queue id."""
OF_LITE_TOPIC = 3 << _SHIFT
"""Bits of the queue id of a receipt handle of a lite topic's message."""
_SEPARATORS = {1: "_", 2: "+"}


def lite_number(queue: str) -> int:
    """A number of 30 bits for a lite topic's queue; few have the same."""
    return zlib.crc32(queue.encode()) & ~FORM_BITS


def of_lite_topic(queue_id: int) -> bool:
    """Whether a receipt handle's queue id is of a lite topic."""
    return queue_id & FORM_BITS == OF_LITE_TOPIC


def retry_topic(group: str, topic: str, separator: str = "_") -> str:
    """Where a real broker puts messages of `topic` that `group` gets again."""
    return f"{RETRY_PREFIX}{group}{separator}{topic}"


def subscribed_topic(key: QueueKey) -> str:
    """The topic that the group subscribes to when it receives from the queue."""
    prefix = RETRY_PREFIX + key.group
    if key.topic.startswith(prefix) and key.topic[len(prefix) : len(prefix) + 1] in ("_", "+"):
        return key.topic[len(prefix) + 1 :]
    if key.topic.startswith(PREFIX) and (lite := lite_topic_of(key.topic)) is not None:
        return lite.parent
    return key.topic


def handle_queue(key: QueueKey) -> int:
    """The queue id for a receipt handle."""
    topic = subscribed_topic(key)
    if topic is key.topic:
        return key.queue_id
    if key.topic.startswith(PREFIX):
        return OF_LITE_TOPIC | lite_number(key.topic)
    form = 2 if key.topic[-len(topic) - 1] == "+" else 1
    return form << _SHIFT | key.queue_id


def handled_queue(group: str, topic: str, queue_id: int) -> QueueKey:
    """The queue that a receipt handle means; one that cannot be for what we never hand out."""
    separator = _SEPARATORS.get(queue_id >> _SHIFT)
    if separator is None:
        return QueueKey(group, topic, queue_id)
    return QueueKey(group, retry_topic(group, topic, separator), queue_id & (1 << _SHIFT) - 1)


class RetryQueues:
    """The retry topics' queues of a store, of all of its `queues` (topic, queue id)."""

    def __init__(self, queues: Iterable[tuple[str, int]]) -> None:
        self._queues: dict[str, list[int]] = {}
        for topic, queue_id in queues:
            self.add(topic, queue_id)

    def add(self, topic: str, queue_id: int) -> None:
        """Takes note of a queue, if it is a retry topic's."""
        if topic.startswith(RETRY_PREFIX) and queue_id not in (known := self._queues.setdefault(topic, [])):
            known.append(queue_id)

    def count(self, name: str) -> int:
        """Every queue id of the retry topic `name` is below it."""
        return max(self._queues[name]) + 1

    def of(self, group: str, topic: str) -> Sequence[QueueKey]:
        """Those that `group` receives from with `topic`."""
        if not self._queues:
            return ()
        return [
            QueueKey(group, name, queue_id)
            for name in (retry_topic(group, topic, each) for each in _SEPARATORS.values())
            for queue_id in sorted(self._queues.get(name, ()))
        ]
