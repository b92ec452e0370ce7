"""What the index has of a queue, and how time spans of queues are written: for tools that look into queues."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from broker_gateway.messaging.group_progress import TimeSpan
from broker_gateway.messaging.offsets import Offsets
from broker_gateway.metadata.catalog import Topic
from broker_gateway.protocol.codes import ResponseCode
from broker_gateway.protocol.errors import RequestError
from store.message_store import MessageStore

MAX_ENTRIES = 10_000


def time_span_json(span: TimeSpan, queue: dict[str, Any]) -> dict[str, Any]:
    """As Java's QueueTimeSpan."""
    return {
        "consumeTimeStamp": span.consumed_ms,
        "consumeTimeStampStr": _words(span.consumed_ms),
        "delayTime": span.delay_ms,
        "maxTimeStamp": span.last_ms,
        "maxTimeStampStr": _words(span.last_ms),
        "messageQueue": queue,
        "minTimeStamp": span.first_ms,
        "minTimeStampStr": _words(span.first_ms),
    }


def _words(time_ms: int) -> str:
    """In local time, as the original's tools write it."""
    found = datetime.fromtimestamp(time_ms // 1000)
    return f"{found:%Y-%m-%d#%H:%M:%S}:{time_ms % 1000:03}"


class QueueEntries:
    """Reads the index of queues."""

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
