"""Topics by hand, for every edge: created, changed, deleted."""

from __future__ import annotations

import asyncio
from functools import partial

import structlog

from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.journal.resources import topic_deleted
from broker_gateway.messaging.checks import check_topic
from broker_gateway.messaging.core import Core
from broker_gateway.messaging.outcome import Reason, ServiceError, refused_by_log
from broker_gateway.metadata.catalog import MAX_QUEUES, Topic
from broker_gateway.metadata.system_topics import is_system_topic

log = structlog.get_logger(__name__)

_AT_ONCE = 100
"""Topics that are changed before others are served."""


class Topics:
    """Topics of the broker; what changes them returns when the change is in the log."""

    def __init__(self, config: GatewayConfig, core: Core) -> None:
        self._cluster = config.broker.broker_cluster_name
        self._broker = config.broker.broker_name
        self._catalog = core.catalog
        self._store = core.store
        self._deliveries = core.deliveries
        self._changes = core.changes
        self._journal = core.journal
        core.catalog.listen(topic_deleted=self._deleted)

    def check_name(self, name: str) -> None:
        """ILLEGAL_TOPIC for a name that no topic may have."""
        check_topic(name, self._cluster, self._broker)

    def is_system(self, name: str) -> bool:
        """Whether the topic is the broker's own."""
        return is_system_topic(name, self._cluster, self._broker)

    def check(self, topic: Topic) -> None:
        """ILLEGAL_TOPIC, or BAD_REQUEST for numbers that no topic may have."""
        self.check_name(topic.name)
        for what, value in (("readQueueNums", topic.read_queues), ("writeQueueNums", topic.write_queues)):
            if not 1 <= value <= MAX_QUEUES:
                raise ServiceError(Reason.BAD_REQUEST, f"{what} {value} is outside of 1 to {MAX_QUEUES}")
        if not 0 <= topic.permission <= 7:
            raise ServiceError(
                Reason.BAD_REQUEST,
                f"perm {topic.permission} is outside of 0 to 7: 2 (write), 4 (read), 6 (both), and 1 (inherit) with them",
            )

    def put(self, topic: Topic, *, shrink: bool) -> tuple[Topic, bool]:
        """Creates or changes a topic, whose queues become fewer only with `shrink`; as it is now, and whether it is new.

        ILLEGAL_TOPIC, BAD_REQUEST, INTERNAL_SERVER_ERROR; raises CatalogFullError.
        """
        self.check(topic)
        return self._put(topic, shrink=shrink)

    async def put_all(self, *topics: Topic) -> None:
        """Creates or changes topics, as `put` with `shrink`; nothing is changed when one of them is refused for what it
        is, or when there is no room for all."""
        for topic in topics:
            self.check(topic)
        self._catalog.check_room_for_topics(topic.name for topic in topics)
        for number, topic in enumerate(topics, 1):
            self._put(topic, shrink=True)
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)

    def _put(self, topic: Topic, *, shrink: bool) -> tuple[Topic, bool]:
        roll_back = partial(self._catalog.roll_back_topic, self._catalog.topic(topic.name), topic.name)
        with refused_by_log():
            put = self._catalog.put_topic(topic, shrink=shrink)
            self._journal.keep(roll_back)
        return put

    def delete(self, name: str) -> None:
        """Deletes a topic and every group's state on it; one that is not there is deleted already.

        Its messages stay in the log until it is cut; a topic of the same name begins behind them. ILLEGAL_TOPIC,
        INTERNAL_SERVER_ERROR.
        """
        if not name.strip():
            raise ServiceError(Reason.ILLEGAL_TOPIC, "The specified topic is blank.")
        if self.is_system(name):
            raise ServiceError(
                Reason.ILLEGAL_TOPIC, f"The topic[{name[:255]}] is conflict with system topic."
            )
        with refused_by_log():
            if self._catalog.delete_topic(name) is not None:
                log.info("topic deleted", topic=name)

    def _deleted(self, topic: Topic) -> None:
        """What the log does not take is not done."""
        keys = self._deliveries.keys_of_topic(topic.name)
        index = self._store.index
        count = topic.queues
        known = [
            queue_id for name, queue_id in index.queues() if name == topic.name and queue_id < MAX_QUEUES
        ]
        firsts = [index.max_offset(topic.name, each) for each in range(max([count, *(k + 1 for k in known)]))]
        self._changes.removed(keys, topic_deleted(self._catalog, topic, firsts))
        for key in keys:
            self._deliveries.forget(key)
        for queue_id, first in enumerate(firsts):
            if first:
                index.begin_at(topic.name, queue_id, first)
