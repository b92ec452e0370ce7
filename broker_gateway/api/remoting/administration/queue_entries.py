"""What the index has of a queue, and when its messages were stored: for tools that look into queues."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from broker_gateway.messaging.offsets import Offsets
from broker_gateway.metadata.catalog import Topic
from broker_gateway.protocol.codes import ResponseCode
from broker_gateway.protocol.errors import RequestError
from store.message_store import MessageStore

MAX_ENTRIES = 10_000


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """Store times of a queue's first and last message and of the last one that a group settled, -1 without one, and how
    long the next one has been there, in ms."""

    queue_id: int
    first_ms: int
    last_ms: int
    consumed_ms: int
    delay_ms: int

    def to_json(self, queue: dict[str, Any]) -> dict[str, Any]:
        """As Java's QueueTimeSpan."""
        return {
            "consumeTimeStamp": self.consumed_ms,
            "consumeTimeStampStr": _words(self.consumed_ms),
            "delayTime": self.delay_ms,
            "maxTimeStamp": self.last_ms,
            "maxTimeStampStr": _words(self.last_ms),
            "messageQueue": queue,
            "minTimeStamp": self.first_ms,
            "minTimeStampStr": _words(self.first_ms),
        }


def _words(time_ms: int) -> str:
    """In local time, as the original's tools write it."""
    found = datetime.fromtimestamp(time_ms // 1000)
    return f"{found:%Y-%m-%d#%H:%M:%S}:{time_ms % 1000:03}"


class QueueEntries:
    """Reads the index and the records of queues."""

    def __init__(self, store: MessageStore, offsets: Offsets) -> None:
        self._store = store
        self._offsets = offsets

    def entries(self, topic: Topic, queue_id: int, start: int, count: int) -> list[dict[str, Any]] | None:
        """At most `count` entries from an offset on, as Java's ConsumeQueueData; None when there is none at `start`.

        SYSTEM_ERROR without the queue, INVALID_PARAMETER.
        """
        if not 0 <= queue_id < topic.queues:
            raise RequestError(f"{queue_id}@{topic.name} is not exist!")
        if count > MAX_ENTRIES:
            raise RequestError(
                f"count {count}: {MAX_ENTRIES} entries are allowed; ask again for those that follow",
                ResponseCode.INVALID_PARAMETER,
            )
        low, high = self._offsets.bounds(topic.name, queue_id)
        if not low <= start < high:
            return None
        found = self._store.index.entries(topic.name, queue_id, start, max(count, 0))
        return [
            {"eval": False, "physicOffset": offset, "physicSize": size, "tagsCode": code}
            for offset, size, code in zip(*(each.tolist() for each in found), strict=True)
        ]

    def time_spans(self, topic: Topic, group: str, now_ms: int) -> list[TimeSpan]:
        """Of every write queue; a group that was never there has everything before it."""
        return [self._span(topic.name, queue_id, group, now_ms) for queue_id in range(topic.write_queues)]

    def _span(self, topic: str, queue_id: int, group: str, now_ms: int) -> TimeSpan:
        low, high = self._offsets.bounds(topic, queue_id)
        settled = self._offsets.known(group, topic, queue_id) or 0
        first = self._offsets.earliest_ms(topic, queue_id)
        following = self._time(topic, queue_id, max(settled, low)) if settled < high else 0
        return TimeSpan(
            queue_id,
            first,
            self._time(topic, queue_id, high - 1),
            self._time(topic, queue_id, settled - 1) if settled else first,
            max(now_ms - following, 0) if following > 0 else 0,
        )

    def _time(self, topic: str, queue_id: int, offset: int) -> int:
        return self._offsets.stored_ms(topic, queue_id, offset) or -1
