"""Where a queue begins and ends, where it was at a time, how far a group is: for every edge. Nothing is created here."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping, Set
from typing import NamedTuple

import structlog

from broker_gateway.delivery.queue_delivery import QueueDelivery, QueueKey
from broker_gateway.lake.reader import LakeReadStoppedError, LakeUnreachableError
from broker_gateway.messaging.checks import check_group, shown
from broker_gateway.messaging.core import Core
from broker_gateway.messaging.old_messages import OldMessages
from broker_gateway.messaging.outcome import Reason, ServiceError
from broker_gateway.messaging.resources import Resources
from broker_gateway.runtime.clock import LATEST_MS
from broker_gateway.runtime.rate_limited_log import RateLimitedLog
from store.index.time_search import BoundaryType

log = structlog.get_logger(__name__)
MAX_SEARCHES = 32
"""By time, at once, for all edges together: each reads the log on a thread."""
MAX_LAKE_SEARCHES = 32
"""At once, beside those: none of the log waits for a lake that is slow."""
_STATES = 1000
"""Visited before others get a turn."""


class QueueStatus(NamedTuple):
    """Offsets of a queue; when its last message was stored, ms, 0 without one."""

    queue_id: int
    min_offset: int
    max_offset: int
    last_update_ms: int


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


class Offsets:
    """Answers about queues of this broker."""

    def __init__(self, core: Core, resources: Resources, old: OldMessages | None = None) -> None:
        self._old = old
        self._store = core.store
        self._catalog = core.catalog
        self._resources = resources
        self._deliveries = core.deliveries
        self._unread = RateLimitedLog("calls")
        self._searches = _Searches(MAX_SEARCHES, "searches of queues")
        self._lake_searches = _Searches(MAX_LAKE_SEARCHES, "searches of queues in the lake")

    def first(self, topic: str, queue_id: int) -> int:
        """The first offset that the log has."""
        return self._store.index.min_offset(topic, queue_id)

    async def oldest(self, topic: str, queue_id: int) -> int:
        """The first offset that can be received: of the lake, where there is one.

        TOO_MANY_REQUESTS; INTERNAL_SERVER_ERROR while the lake cannot be read.
        """
        if self._old is None or self._store.index.begin(topic, queue_id) >= self.first(topic, queue_id):
            return self.first(topic, queue_id)
        with self._lake_searches.one(), self._lake_read():
            return await self._old.first(topic, queue_id)

    def end(self, topic: str, queue_id: int) -> int:
        """The next offset to be given."""
        return self._store.index.max_offset(topic, queue_id)

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """`first` and `end`."""
        return self.first(topic, queue_id), self.end(topic, queue_id)

    def status(self, topic: str, queue_id: int) -> QueueStatus:
        """Of one queue of a topic."""
        first, end = self.bounds(topic, queue_id)
        return QueueStatus(queue_id, first, end, self.stored_ms(topic, queue_id, end - 1))

    def stored_ms(self, topic: str, queue_id: int, offset: int) -> int:
        """When a message was stored, ms; 0 when the log has it no more, or it cannot be read."""
        if offset < self.first(topic, queue_id):
            return 0
        return self._store.stored_ms(topic, queue_id, offset) or 0

    def earliest_ms(self, topic: str, queue_id: int) -> int:
        """Store time of a queue's first message; -1 without one."""
        first, end = self.bounds(topic, queue_id)
        return (self.stored_ms(topic, queue_id, first) or -1) if first < end else -1

    async def at(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: BoundaryType = BoundaryType.LOWER
    ) -> int:
        """The queue offset of a store time: LOWER the first stored then or later, the end when there is none. Of the lake,
        where the log has nothing so old; it is not looked for in absences of the log.

        TOO_MANY_REQUESTS; INTERNAL_SERVER_ERROR while the lake cannot be read.
        """
        # no message was stored outside, and the lake's columns end somewhere
        timestamp_ms = min(max(timestamp_ms, 0), LATEST_MS)
        with self._searches.one():
            found = await asyncio.to_thread(self._store.at_time(topic, queue_id), timestamp_ms, boundary)
        first = self.first(topic, queue_id)
        if self._old is None or found > first:
            return found
        if self._store.index.begin(topic, queue_id) >= first:
            return first  # the lake has nothing that is older
        if boundary is not BoundaryType.LOWER and found < self.end(topic, queue_id):
            if 0 < self.stored_ms(topic, queue_id, found) <= timestamp_ms:
                return found
        with self._lake_searches.one(), self._lake_read():
            if boundary is BoundaryType.LOWER:
                older = await self._old.at_time(topic, queue_id, timestamp_ms)
                return found if older is None else older
            oldest = await self._old.first(topic, queue_id)
            later = await self._old.at_time(topic, queue_id, timestamp_ms + 1)
            return max((first if later is None else later) - 1, oldest)

    @contextlib.contextmanager
    def _lake_read(self) -> Iterator[None]:
        """INTERNAL_SERVER_ERROR where the lake cannot be read."""
        try:
            yield
        except (LakeUnreachableError, LakeReadStoppedError) as error:
            raise self.unread(error) from error

    def unread(self, error: Exception) -> ServiceError:
        """What is answered while the lake, which has the beginning of a queue, cannot be read. Why, the log says alone: that names
        folders and hosts, and everybody may ask."""
        if not isinstance(error, LakeReadStoppedError):
            self._unread.happened(log.warning, "the lake cannot be read for a call", error=str(error))
        return ServiceError(
            Reason.INTERNAL_SERVER_ERROR,
            "the lake, which has older messages of the queue, cannot be read now; the broker's log says why, try again later",
        )

    def known(self, group: str, topic: str, queue_id: int) -> int | None:
        """How far a group is: what it has settled, or a client committed; None when it never was there."""
        state = self._deliveries.known(QueueKey(group, topic, queue_id))
        return None if state is None else state.consumer_offset

    def committed(self, group: str, topic: str, queue_id: int) -> int:
        """As `known`. ILLEGAL_CONSUMER_GROUP, OFFSET_NOT_FOUND."""
        check_group(group)
        offset = self.known(group, topic, queue_id)
        if offset is None:
            raise ServiceError(
                Reason.OFFSET_NOT_FOUND,
                f"consumer group {shown(group)} has received nothing from queue {queue_id} of {shown(topic)} yet",
            )
        return offset

    def begins_at_zero(self, topic: str, queue_id: int) -> bool:
        """Whether a group new to a queue begins with its first message, which is there and fits memory."""
        first, end = self.bounds(topic, queue_id)
        return first == 0 < end and self._deliveries.first_offset(topic, queue_id) == 0

    def progress(self, group: str, topic: str, queue_id: int) -> Progress:
        """A group on a queue."""
        state = self._deliveries.known(QueueKey(group, topic, queue_id))
        committed = state.consumer_offset if state is not None else 0
        return Progress(
            topic,
            queue_id,
            self.end(topic, queue_id),
            committed,
            max(state.position, committed) if state is not None else 0,
            self.stored_ms(topic, queue_id, committed - 1) if committed else 0,
        )

    async def all(self) -> dict[str, dict[int, int]]:
        """Committed offsets by `topic@group` and queue id."""
        found: dict[str, dict[int, int]] = {}
        async for state in self._states():
            group, topic, queue_id = state.key
            found.setdefault(f"{topic}@{group}", {})[queue_id] = state.consumer_offset
        return found

    async def _states(self) -> AsyncIterator[QueueDelivery]:
        """Every state there is now; others are served in between."""
        for count, state in enumerate(list(self._deliveries.queues()), 1):
            yield state
            if count % _STATES == 0:
                await asyncio.sleep(0)

    def groups_of(self, topic: str) -> list[str]:
        """Groups that have, or had, something of a topic."""
        return sorted(self._deliveries.groups_of(topic))

    def topics_of(self, group: str) -> list[str]:
        """Topics of which a group has, or had, something."""
        return sorted(self._deliveries.topics_of(group))

    def topics_by_group(self) -> Mapping[str, Set[str]]:
        """`topics_of` for every group."""
        return self._deliveries.topics_by_group()

    def read_queues(self, topic: str) -> int:
        """How many a topic has; 0 when there is none of that name."""
        found = self._catalog.topic(topic)
        return found.read_queues if found is not None else 0

    def check_queue(self, topic: str, queue_id: int, broker: str) -> None:
        """ILLEGAL_TOPIC, TOPIC_NOT_FOUND, BAD_REQUEST unless this broker has the queue; an empty `broker` is this one."""
        queues = self._resources.known_topic(topic).queues
        if broker not in ("", self._store.broker):
            raise ServiceError(
                Reason.BAD_REQUEST,
                f"the queue is of broker {shown(broker)}, this one is {self._store.broker}; ask there",
            )
        check_queue_id(topic, queue_id, queues)


class _Searches:
    """Searches under way; `limit` at once."""

    def __init__(self, limit: int, what: str) -> None:
        self._limit = limit
        self._what = what
        self._under_way = 0

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """Counts one. TOO_MANY_REQUESTS."""
        if self._under_way >= self._limit:
            raise ServiceError(
                Reason.TOO_MANY_REQUESTS, f"{self._limit} {self._what} run already; try again later"
            )
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1


def check_queue_id(topic: str, queue_id: int, queues: int) -> None:
    """BAD_REQUEST for a queue that a topic of so many does not have."""
    if not 0 <= queue_id < queues:
        raise ServiceError(
            Reason.BAD_REQUEST, f"topic {shown(topic)} has no queue {queue_id}; it has 0 to {queues - 1}"
        )
