"""Offsets of groups, set by hand or by a client: committed, reset, taken over from another group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import structlog

from broker_gateway.delivery.queue_delivery import QueueKey
from broker_gateway.messaging.core import Core
from broker_gateway.messaging.offsets import Offsets, check_queue_id
from broker_gateway.messaging.outcome import Reason, ServiceError, refused_by_log
from broker_gateway.metadata.catalog import Topic

log = structlog.get_logger(__name__)


class OffsetChanges:
    """Of this broker's queues. What sets an offset returns when that is in the log; INTERNAL_SERVER_ERROR when the log
    does not take it, and nothing is set."""

    def __init__(self, core: Core, offsets: Offsets) -> None:
        self._catalog = core.catalog
        self._store = core.store
        self._deliveries = core.deliveries
        self._changes = core.changes
        self._journal = core.journal
        self._core = core
        self._offsets = offsets

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """A consumer says how far the group is: that is its offset until a receive goes on from there, and what is in
        flight stays in flight. CONSUMER_GROUP_NOT_FOUND, TOPIC_NOT_FOUND, BAD_REQUEST, TOO_MANY_REQUESTS for a queue more than
        the group may begin on."""
        self._check_group(group, f"does not exist; create it with `lakebroker group create {group[:255]}`")
        check_queue_id(topic, queue_id, self._topic(topic).queues)
        if offset < 0:
            raise ServiceError(Reason.BAD_REQUEST, f"offset {offset} is negative; give one of 0 or more")
        key = QueueKey(group, topic, queue_id)
        if self._deliveries.known(key) is None:
            refusal = self._catalog.auto_created.refusal_of_queues(group, 1)
            if refusal is not None:
                raise ServiceError(Reason.TOO_MANY_REQUESTS, refusal)
        self._commit({key: offset})

    async def reset(
        self, group: str, topic: str, queue_id: int, timestamp_ms: int, offset: int | None
    ) -> dict[int, int]:
        """Lets a group go on elsewhere: in one queue or (-1) in all, at an offset or a time (negative: the end).

        Returns the new offset of each queue. CONSUMER_GROUP_NOT_FOUND, TOPIC_NOT_FOUND, BAD_REQUEST,
        TOO_MANY_REQUESTS, OFFSET_NOT_FOUND for one outside of the queue.
        """
        found = self._topic(topic)
        check_queue_id(topic, max(queue_id, 0), found.queues)
        self._check_group(group, "does not exist")
        queues = [queue_id] if queue_id >= 0 else list(range(found.read_queues))
        offsets = {}
        for each in queues:
            first, end = self._offsets.bounds(topic, each)
            if queue_id >= 0 and offset is not None and offset != -1:
                if 0 <= offset < first:
                    first = await self._offsets.oldest(topic, each)
                if not first <= offset <= end:
                    raise ServiceError(
                        Reason.OFFSET_NOT_FOUND,
                        f"Target offset {offset} not in consume queue range [{first}-{end}]",
                    )
                offsets[each] = offset
            elif timestamp_ms < 0:
                offsets[each] = end
            else:
                offsets[each] = await self._offsets.at(topic, each, timestamp_ms)
        check_queue_id(topic, max(offsets, default=0), self._topic(topic).queues)  # it may be gone by now
        self._check_group(group, "was deleted meanwhile")
        self._set({QueueKey(group, topic, each): target for each, target in offsets.items()})
        log.info("offsets reset", group=group, topic=topic, offsets=offsets)
        return offsets

    def clone(self, source: str, target: str, topics: Iterable[str]) -> None:
        """Lets a group go on where another one is; topics and queues where that one never was are passed over."""
        offsets = {
            QueueKey(target, name, queue_id): offset
            for name in topics
            for queue_id in range(self._offsets.read_queues(name))
            if (offset := self._offsets.known(source, name, queue_id)) is not None
        }
        self._commit(offsets)
        log.info("offsets cloned", group=source[:255], to=target)

    def _topic(self, name: str) -> Topic:
        topic = self._catalog.topic(name)
        if topic is None:
            raise ServiceError(Reason.TOPIC_NOT_FOUND, f"Topic {name[:255]} does not exist")
        return topic

    def _check_group(self, name: str, otherwise: str) -> None:
        if self._catalog.group(name) is None:
            raise ServiceError(Reason.CONSUMER_GROUP_NOT_FOUND, f"Group {name[:255]} {otherwise}")

    def _commit(self, offsets: Mapping[QueueKey, int]) -> None:
        """All of them or, when the log does not take it, none."""
        before: dict[QueueKey, tuple[int, int | None]] = {}
        made: list[QueueKey] = []

        def roll_back() -> None:
            for key, (cursor, client_offset) in before.items():
                self._deliveries.queue(key).restore_offsets(cursor, client_offset)
            for key in made:
                self._deliveries.forget(key)

        with refused_by_log():
            self._changes.make_room(len(offsets))
            made += [key for key in offsets if self._deliveries.known(key) is None]
            self._changes.offsets_changed(*map(self._deliveries.queue, offsets))
            for key, offset in offsets.items():
                state = self._deliveries.queue(key)
                before[key] = (state.cursor, state.client_offset)
                state.commit_offset(min(offset, self._store.index.max_offset(key.topic, key.queue_id)))
            self._journal.keep(roll_back)
        self._wake(offsets)

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
        self._wake(cursors)

    def _wake(self, keys: Iterable[QueueKey]) -> None:
        for key in keys:
            self._core.came_back(key)
