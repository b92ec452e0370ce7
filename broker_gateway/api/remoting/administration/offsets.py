"""Offsets of queues and groups: searched, told, set and reset."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Set
from typing import Any, NamedTuple

import structlog

from broker_gateway.api.remoting.administration.topics import refused_by_log, store_time_of
from broker_gateway.delivery.queue_delivery import QueueDelivery, QueueKey
from broker_gateway.delivery.retry_topics import subscribed_topic
from broker_gateway.delivery.table import DeliveryTable
from broker_gateway.delivery.wakeups import Wakeups
from broker_gateway.journal.deliveries import DeliveryJournal
from broker_gateway.metadata.catalog import Catalog
from broker_gateway.protocol.codes import ResponseCode
from broker_gateway.protocol.errors import RequestError
from store.index.time_search import BoundaryType
from store.message_store import MessageStore

log = structlog.get_logger(__name__)
MAX_SEARCHES = 32
"""By time, at once: each reads the log on a thread."""
_STATES = 1000
"""Looked at before others get a turn."""


class Progress(NamedTuple):
    """A group on a queue. `pull_offset` is behind what was handed out; `last_ms` the store time of the last settled."""

    topic: str
    queue_id: int
    broker_offset: int
    consumer_offset: int
    pull_offset: int
    last_ms: int

    @property
    def behind(self) -> int:
        return self.broker_offset - self.consumer_offset

    @property
    def in_flight(self) -> int:
        return self.pull_offset - self.consumer_offset


class OffsetAdministration:
    """Of this broker's queues. What sets an offset returns when that is in the log."""

    def __init__(
        self,
        catalog: Catalog,
        store: MessageStore,
        deliveries: DeliveryTable,
        changes: DeliveryJournal,
        wakeups: Wakeups[Any],
    ) -> None:
        self._catalog = catalog
        self._store = store
        self._deliveries = deliveries
        self._changes = changes
        self._journal = changes.journal
        self._wakeups = wakeups
        self._searches = 0

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """The first offset in the log and the next one to be given."""
        index = self._store.index
        return index.min_offset(topic, queue_id), index.max_offset(topic, queue_id)

    def earliest_ms(self, topic: str, queue_id: int) -> int:
        """Store time of a queue's first message; -1 without one."""
        first, following = self.bounds(topic, queue_id)
        return (store_time_of(self._store, topic, queue_id, first) or -1) if first < following else -1

    async def at_time(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: BoundaryType = BoundaryType.LOWER
    ) -> int:
        """The queue offset of a store time. SYSTEM_BUSY."""
        if self._searches >= MAX_SEARCHES:
            raise RequestError(
                f"{MAX_SEARCHES} searches by time run already; try again later", ResponseCode.SYSTEM_BUSY
            )
        self._searches += 1
        try:
            return await asyncio.to_thread(self._store.at_time(topic, queue_id), timestamp_ms, boundary)
        finally:
            self._searches -= 1

    def committed(self, group: str, topic: str, queue_id: int) -> int | None:
        """Where a group is, None when it never was there."""
        state = self._deliveries.known(QueueKey(group, topic, queue_id))
        return None if state is None else state.consumer_offset

    def begins_at_zero(self, topic: str, queue_id: int) -> bool:
        """Whether a group new to a queue begins with its first message, which is there and fits memory."""
        first, following = self.bounds(topic, queue_id)
        return first == 0 < following and self._deliveries.first_offset(topic, queue_id) == 0

    async def all(self) -> dict[str, dict[int, int]]:
        """Committed offsets by `topic@group` and queue id."""
        found: dict[str, dict[int, int]] = {}
        async for state in self._states():
            group, topic, queue_id = state.key
            found.setdefault(f"{topic}@{group}", {})[queue_id] = state.consumer_offset
        return found

    def groups_of(self, topic: str) -> list[str]:
        """Groups that have, or had, something of a topic."""
        return sorted(self._deliveries.groups_of(topic))

    def topics_of(self, group: str) -> list[str]:
        """Topics of which a group has, or had, something."""
        return sorted(self._deliveries.topics_of(group))

    def topics_by_group(self) -> Mapping[str, Set[str]]:
        """`topics_of` for every group."""
        return self._deliveries.topics_by_group()

    async def _states(self) -> AsyncIterator[QueueDelivery]:
        """Every state there is now; others are served in between."""
        for count, state in enumerate(list(self._deliveries.queues()), 1):
            yield state
            if count % _STATES == 0:
                await asyncio.sleep(0)

    def read_queues(self, topic: str) -> int:
        """How many a topic has; 0 when there is none of that name."""
        found = self._catalog.topic(topic)
        return found.read_queues if found is not None else 0

    def progress(self, group: str, topic: str, queue_id: int) -> Progress:
        """A group on a queue."""
        state = self._deliveries.known(QueueKey(group, topic, queue_id))
        committed = state.consumer_offset if state is not None else 0
        return Progress(
            topic,
            queue_id,
            self._store.index.max_offset(topic, queue_id),
            committed,
            max(state.position, committed) if state is not None else 0,
            store_time_of(self._store, topic, queue_id, committed - 1) if committed else 0,
        )

    async def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """A consumer says how far the group is: that is its offset until a receive goes on from there, and what is in
        flight stays in flight."""
        if self._catalog.group(group) is None:
            raise RequestError(f"Group {group[:255]} not exist!", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
        self._check_queue(topic, queue_id, "not exist!")
        if offset < 0:
            raise RequestError(
                f"commitOffset {offset} is negative; give one of 0 or more", ResponseCode.INVALID_PARAMETER
            )
        self._commit({QueueKey(group, topic, queue_id): offset})

    async def reset(
        self, group: str, topic: str, queue_id: int, timestamp_ms: int, offset: int | None
    ) -> dict[int, int]:
        """Lets a group go on elsewhere: in one queue or (-1) in all, at an offset or a time (negative: the end).

        Returns the new offset of each queue. Raises RequestError.
        """
        found = self._check_queue(topic, max(queue_id, 0), "does not exist")
        if self._catalog.group(group) is None:
            raise RequestError(
                f"Group {group[:255]} does not exist", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            )
        queues = [queue_id] if queue_id >= 0 else list(range(found))
        offsets = {}
        for each in queues:
            first, following = self.bounds(topic, each)
            if queue_id >= 0 and offset is not None and offset != -1:
                if not first <= offset <= following:
                    raise RequestError(
                        f"Target offset {offset} not in consume queue range [{first}-{following}]"
                    )
                offsets[each] = offset
            elif timestamp_ms < 0:
                offsets[each] = following
            else:
                offsets[each] = await self.at_time(topic, each, timestamp_ms)
        self._check_queue(topic, max(offsets, default=0), "does not exist")  # it may be gone by now
        if self._catalog.group(group) is None:
            raise RequestError(
                f"Group {group[:255]} was deleted meanwhile", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            )
        self._set({QueueKey(group, topic, each): target for each, target in offsets.items()})
        log.info("offsets reset", group=group, topic=topic, offsets=offsets)
        return offsets

    async def clone(self, source: str, target: str, topics: Iterable[str]) -> None:
        """Lets a group go on where another one is; topics and queues where that one never was are passed over."""
        offsets = {
            QueueKey(target, name, queue_id): offset
            for name in topics
            for queue_id in range(self.read_queues(name))
            if (offset := self.committed(source, name, queue_id)) is not None
        }
        self._commit(offsets)
        log.info("offsets cloned", group=source, to=target)

    def _check_queue(self, name: str, queue_id: int, missing: str) -> int:
        """The number of the topic's read queues."""
        topic = self._catalog.topic(name)
        if topic is None:
            raise RequestError(f"Topic {name[:255]} {missing}", ResponseCode.TOPIC_NOT_EXIST)
        queues = topic.queues
        if not 0 <= queue_id < queues:
            raise RequestError(
                f"topic {name} has no queue {queue_id}; it has 0 to {queues - 1}",
                ResponseCode.INVALID_PARAMETER,
            )
        return topic.read_queues

    def _commit(self, offsets: Mapping[QueueKey, int]) -> None:
        """All of them or, when the log does not take it, none."""
        before: dict[QueueKey, tuple[int, int | None]] = {}
        made: list[QueueKey] = []

        def roll_back() -> None:
            for key, (cursor, client_offset) in before.items():
                self._deliveries.queue(key).restore_offsets(cursor, client_offset)
            for key in made:
                self._deliveries.forget(key)

        with refused_by_log(), self._journal.kept(roll_back):
            made += [key for key in offsets if self._deliveries.known(key) is None]
            self._changes.moved(*map(self._deliveries.queue, offsets))
            for key, offset in offsets.items():
                state = self._deliveries.queue(key)
                before[key] = (state.cursor, state.client_offset)
                state.commit_offset(min(offset, self._store.index.max_offset(key.topic, key.queue_id)))
        for key in offsets:
            self._deliveries.arrivals.came_back(key)
            self._wakeups.due(subscribed_topic(key), key.group)

    def _set(self, offsets: Mapping[QueueKey, int]) -> None:
        """All of them or, when the log does not take it, none."""
        index = self._store.index
        cursors = {key: min(each, index.max_offset(key.topic, key.queue_id)) for key, each in offsets.items()}
        with refused_by_log():
            self._changes.reset(cursors)
        for key, cursor in cursors.items():
            state = self._deliveries.queue(key)
            state.reset(cursor)
            state.journaled_committed = cursor
            self._deliveries.arrivals.came_back(key)
            self._wakeups.due(subscribed_topic(key), key.group)
