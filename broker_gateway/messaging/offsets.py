"""Where a queue begins and ends, where it was at a time, how far a group is."""

from __future__ import annotations

import asyncio

from broker_gateway.delivery.queue_delivery import QueueKey
from broker_gateway.delivery.table import DeliveryTable
from broker_gateway.messaging.checks import check_group, shown
from broker_gateway.messaging.outcome import Reason, ServiceError
from broker_gateway.messaging.resources import Resources
from store.index.time_search import BoundaryType
from store.message_store import MessageStore

MAX_SEARCHES = 32
"""By time, at once: each reads the log on a thread."""


class Offsets:
    """Answers about queues of this broker; creates nothing."""

    def __init__(self, store: MessageStore, resources: Resources, deliveries: DeliveryTable) -> None:
        self._store = store
        self._resources = resources
        self._deliveries = deliveries
        self._searches = 0

    def first(self, topic: str, queue_id: int) -> int:
        """The first offset that can be received."""
        return self._store.index.min_offset(topic, queue_id)

    def end(self, topic: str, queue_id: int) -> int:
        """The next offset to be given."""
        return self._store.index.max_offset(topic, queue_id)

    async def at(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """The first offset stored at that time or later; the end when there is none."""
        if self._searches >= MAX_SEARCHES:
            raise ServiceError(
                Reason.TOO_MANY_REQUESTS, f"{MAX_SEARCHES} searches by time run already; try again later"
            )
        self._searches += 1
        try:
            search = self._store.at_time(topic, queue_id)
            return await asyncio.to_thread(search, timestamp_ms, BoundaryType.LOWER)
        finally:
            self._searches -= 1

    def committed(self, topic: str, queue_id: int, group: str) -> int:
        """How far the group is: what it has settled, or a client committed. OFFSET_NOT_FOUND."""
        check_group(group)
        state = self._deliveries.known(QueueKey(group, topic, queue_id))
        if state is None:
            raise ServiceError(
                Reason.OFFSET_NOT_FOUND,
                f"consumer group {shown(group)} has received nothing from queue {queue_id} of {shown(topic)} yet",
            )
        return state.consumer_offset

    def check_queue(self, topic: str, queue_id: int, broker: str) -> None:
        """Raises ServiceError unless this broker has the queue; an empty `broker` is this one."""
        known = self._resources.known_topic(topic)
        if broker not in ("", self._store.broker):
            raise ServiceError(
                Reason.BAD_REQUEST,
                f"the queue is of broker {shown(broker)}, this one is {self._store.broker}; ask there",
            )
        queues = known.queues
        if not 0 <= queue_id < queues:
            raise ServiceError(
                Reason.BAD_REQUEST, f"topic {shown(topic)} has no queue {queue_id}; it has 0 to {queues - 1}"
            )
