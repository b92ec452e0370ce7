"""Lite topics of this broker: which there are, and whether there may be one more.

What RocketMQ 5.5.0 does with LITE messages, read from its classes and its proxy, and what is done here:

| what | RocketMQ 5.5.0 | here |
|---|---|---|
| a lite topic | a queue `%LMQ%$PARENT$NAME`, id 0, of records of the parent topic (`store/lite_queues.py`); made by the first message | the same, byte for byte |
| a name | 1 to `maxLiteTopicSize` (64) bytes of letters, digits, `-` and `_`: else ILLEGAL_LITE_TOPIC | the same |
| the parent's queue | by consistent hash of the lite topic over the queues of all brokers | the same (`ordered_sends.py`); messages of several lite topics in one call go to any queue, as there |
| too many lite topics | with `enableLmqQuota` (off) above `maxLmqConsumeQueueNum`: LITE_TOPIC_QUOTA_EXCEEDED | always |
| other types with a lite topic | stored in the lite topic's queue too | MESSAGE_PROPERTY_CONFLICT_WITH_TYPE |
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.messaging.checks import shown
from broker_gateway.messaging.core import Core
from broker_gateway.messaging.outcome import Reason, ServiceError
from broker_gateway.metadata.catalog import Topic
from store.lite_queues import lite_topic_of


class LiteTopics:
    """Those that have, or had, a message."""

    def __init__(self, config: GatewayConfig, core: Core) -> None:
        self._store = core.store
        self._deliveries = core.deliveries
        self._known: dict[str, dict[str, None]] | None = None
        self._count = 0
        self._deleted: dict[str, None] = {}
        self.configure(config)
        core.store.on_appended(self._appended)

    def configure(self, config: GatewayConfig) -> None:
        """Takes what may change while the broker runs."""
        self._most = config.store.max_lmq_consume_queue_num

    def __len__(self) -> int:
        self._all()
        return self._count

    def of(self, parent: str) -> Set[str]:
        """The names of a topic's lite topics."""
        return self._all().get(parent, {}).keys()

    def stored_ms(self, queue: str, offset: int) -> int | None:
        """When a message of a lite topic's queue was stored, ms; None when the log has it no more, or it cannot be read."""
        return self._store.stored_ms(queue, 0, offset)

    def delete(self, queue: str) -> None:
        """A lite topic is no more: nobody gets what the log still has of it."""
        index, lite = self._store.index, lite_topic_of(queue)
        if lite is None or self._all().get(lite.parent, {}).pop(lite.name, self) is self:
            return
        self._count -= 1
        index.begin_at(queue, 0, index.max_offset(queue, 0))
        self._deleted[queue] = None

    def forget_deleted(self) -> None:
        """Frees what is kept of deleted lite topics that the log has nothing of any more."""
        for queue in list(self._deleted):
            lite = lite_topic_of(queue)
            again = lite is not None and lite.name in self.of(lite.parent)
            # a group that has an offset there would pass over what comes from 0 on
            if again or (not self._deliveries.groups_of(queue) and self._store.index.forget(queue, 0)):
                del self._deleted[queue]

    def check_room(self, topic: Topic, names: Iterable[str]) -> None:
        """LITE_TOPIC_QUOTA_EXCEEDED where there may be no such lite topics of a topic beside the others."""
        distinct, there = set(names), self.of(topic.name)
        more = sum(
            name not in there for name in distinct
        )  # `distinct - there` would go through all that are there
        if more and len(self) + more > self._most:
            raise ServiceError(
                Reason.LITE_TOPIC_QUOTA_EXCEEDED,
                f"{len(self)} lite topics are there, at most {self._most} (maxLmqConsumeQueueNum): no message of lite topic "
                f"{shown(min(distinct))} is taken; send to one that is there, or wait until others expire",
            )

    def _all(self) -> dict[str, dict[str, None]]:
        if self._known is None:
            self._known = {}
            index = self._store.index
            for name, _ in index.queues():
                if lite_topic_of(name) is not None and 0 < index.begin(name, 0) == index.max_offset(name, 0):
                    self._deleted[name] = None
                else:
                    self._add(self._known, name)
        return self._known

    def _appended(self, topic: str, _queue_ids: Set[int]) -> None:
        if self._known is not None and topic.startswith("%"):
            self._add(self._known, topic)

    def _add(self, known: dict[str, dict[str, None]], queue: str) -> None:
        lite = lite_topic_of(queue)
        if lite is None:
            return
        names = known.setdefault(lite.parent, {})
        if lite.name not in names:
            names[lite.name] = None
            self._count += 1
