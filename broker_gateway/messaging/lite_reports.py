"""What administrators ask about lite topics: of the broker, a parent topic, a lite topic, a client, a group.

Each answers as RocketMQ 5.5.0's broker does. Who waits long enough for it gets a whole walk over the lite topics of a group:
others are served between its slices.

Sources: `LiteManagerProcessor`, `LiteConsumerLagCalculator` and `LiteEventDispatcher` of RocketMQ 5.5.0.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import NamedTuple

from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.delivery.lite_arrivals import LiteSubscriber
from broker_gateway.delivery.queue_delivery import QueueDelivery, QueueKey
from broker_gateway.messaging.checks import shown
from broker_gateway.messaging.core import Core
from broker_gateway.messaging.lite_subscriptions import LiteSubscriptions
from broker_gateway.messaging.lite_topics import LiteTopics
from broker_gateway.messaging.ordered_sends import OrderedSends
from broker_gateway.messaging.outcome import Reason, ServiceError
from broker_gateway.metadata.catalog import Group, Topic
from broker_gateway.metadata.group_configuration import lite_bind_topic
from broker_gateway.metadata.message_types import has_lite_topics
from broker_gateway.metadata.topic_configuration import lite_topic_minutes
from broker_gateway.runtime.clock import now_ms
from store.lite_queues import LiteTopic, lite_name, lite_topic_of

MOST_NAMES = 10_000
"""Lite topics in an answer."""
_ACTIVE_MS = 35_000
"""A client whose receives had lite topics to search within this time counts as active, as the original's event sets."""
_SLICE = 256
"""Queues looked at before others get a turn."""


class LiteBroker(NamedTuple):
    """Counts of the broker. `minutes`: of each parent topic how long its lite topics live, -1 for ever; `groups` that are bound to each."""

    lite_topics: int
    subscriptions: int
    with_clients: int
    """Lite topics that have messages with clients, counted for each group."""
    topics: int
    """That have a queue."""
    offsets: int
    """Topics with offsets of a group, counted for each group."""
    active_clients: int
    minutes: Mapping[str, int]
    groups: Mapping[str, Sequence[str]]


class LiteParent(NamedTuple):
    """A parent topic. `all_lite_topics` counts those of every topic."""

    minutes: int
    groups: Sequence[str]
    all_lite_topics: int
    lite_topics: int


class LiteTopicStatus(NamedTuple):
    """A lite topic. `clients`: client id and group; `*` for those of a wildcard group. `here`: whether its messages go to this
    broker."""

    min_offset: int
    max_offset: int
    stored_ms: int
    clients: Sequence[tuple[str, str]]
    here: bool


class LiteClient(NamedTuple):
    """A client. `total` of lite topics, -1 of one without; some of their queues' names. `searched_ms`: -1 for never."""

    total: int
    queues: Sequence[str]
    searched_ms: int


class Lag(NamedTuple):
    """How far a group is behind on a lite topic. `since_ms`: when the first message that it has not settled was stored."""

    lite_topic: str
    messages: int
    since_ms: int


class GroupLag(NamedTuple):
    """A group on all lite topics where it has an offset: how many messages it has not settled, and the lite topics with the most."""

    messages: int
    most: Sequence[Lag]


class GroupOffset(NamedTuple):
    """A group on one lite topic. Times of storing, ms, -1: the log has no such message; `settled_ms`: of the last settled."""

    max_offset: int
    consumer_offset: int
    since_ms: int
    settled_ms: int


class LiteReports:
    """Of one broker."""

    def __init__(
        self,
        config: GatewayConfig,
        core: Core,
        topics: LiteTopics,
        subscriptions: LiteSubscriptions,
        sends: OrderedSends,
    ) -> None:
        self._catalog = core.catalog
        self._deliveries = core.deliveries
        self._index = core.store.index
        self._topics = topics
        self._subscriptions = subscriptions
        self._sends = sends
        self.configure(config)

    def configure(self, config: GatewayConfig) -> None:
        """Takes what may change while the broker runs."""
        self.most_lite_topics = config.store.max_lmq_consume_queue_num

    async def broker(self) -> LiteBroker:
        """Of all lite topics."""
        with_clients = 0
        for number, state in enumerate(list(self._deliveries.queues())):
            if number % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
            with_clients += bool(state.in_flight) and lite_topic_of(state.key.topic) is not None
        groups: dict[str, list[str]] = {}
        for group in self._catalog.groups():
            if parent := lite_bind_topic(group):
                groups.setdefault(parent, []).append(group.name)
        lite = (each for each in self._catalog.topics() if has_lite_topics(each))
        return LiteBroker(
            len(self._topics),
            self._subscriptions.count,
            with_clients,
            len({name for name, _ in self._index.queues()}),
            sum(map(len, self._deliveries.topics_by_group().values())),
            self._subscriptions.active(now_ms() - _ACTIVE_MS),
            {topic.name: lite_topic_minutes(topic) for topic in lite},
            groups,
        )

    def parent(self, name: str) -> LiteParent:
        """Of a parent topic. TOPIC_NOT_FOUND, BAD_REQUEST."""
        topic = self._parent(name)
        bound = [each.name for each in self._catalog.groups() if lite_bind_topic(each) == name]
        return LiteParent(lite_topic_minutes(topic), bound, len(self._topics), len(self._topics.of(name)))

    async def lite_topic(self, parent: str, name: str) -> LiteTopicStatus:
        """Of a lite topic, which need not be there. TOPIC_NOT_FOUND, BAD_REQUEST."""
        topic = self._parent(parent)
        await self._when_known(topic)
        here, there = self._is_here(topic, name), name in self._topics.of(parent)
        queue = LiteTopic(parent, name).queue
        clients = [each for each in self._subscriptions.clients_of(queue) if here or there or each[0] == "*"]
        if not there:
            return LiteTopicStatus(0, 0, 0, clients, here)
        end = self._index.max_offset(queue, 0)
        return LiteTopicStatus(
            self._index.min_offset(queue, 0), end, self._stored_ms(queue, end - 1), clients, here
        )

    async def client(self, parent: str, group_name: str, client_id: str, most: int) -> LiteClient:
        """Of a client, with at most `most` of its lite topics whose messages go to this broker, or that it has messages of.
        TOPIC_NOT_FOUND, CONSUMER_GROUP_NOT_FOUND, BAD_REQUEST."""
        topic = self._parent(parent)
        group = self._group(group_name)
        if lite_bind_topic(group) != parent:
            raise ServiceError(
                Reason.BAD_REQUEST, f"Subscription [{shown(group_name)}]-[{shown(parent)}] not match."
            )
        if most < 0:
            raise ServiceError(Reason.BAD_REQUEST, f"maxCount {most} is negative; ask for 0 to {MOST_NAMES}")
        known = self._subscriptions.of_client(client_id)
        if known is None or not known.subscribes:
            return LiteClient(-1, (), -1)
        await self._when_known(topic)
        queues = self._queues_of(known, topic)
        return LiteClient(len(queues), queues[: min(most, MOST_NAMES)], known.searched_ms or -1)

    async def group(self, name: str, most: int) -> tuple[str, GroupLag]:
        """The topic that a group is bound to, and how far it is on its lite topics, with at most `most` of them.
        CONSUMER_GROUP_NOT_FOUND, BAD_REQUEST."""
        parent = self._bound_to(name)
        if not 0 < most <= MOST_NAMES:
            raise ServiceError(Reason.BAD_REQUEST, f"topK {most} is out of range; ask for 1 to {MOST_NAMES}")
        messages = 0
        found: list[tuple[int, int, QueueDelivery]] = []
        async for state in self._lite_states(name):
            behind = self._index.max_offset(state.key.topic, 0) - state.consumer_offset
            if behind <= 0:
                continue
            messages += behind
            entry = (behind, len(found), state)
            if len(found) < most:
                heapq.heappush(found, entry)
            else:
                heapq.heappushpop(found, entry)
        return parent, GroupLag(
            messages, [self._lag(state, behind) for behind, _, state in sorted(found, reverse=True)]
        )

    def group_on(self, name: str, lite_topic: str) -> tuple[str, GroupOffset | None, bool]:
        """The topic that a group is bound to, where the group is on a lite topic (None: nowhere yet), and whether that is there.
        CONSUMER_GROUP_NOT_FOUND, BAD_REQUEST."""
        parent = self._bound_to(name)
        if lite_topic not in self._topics.of(parent):
            return parent, None, False
        queue = LiteTopic(parent, lite_topic).queue
        state = self._deliveries.known(QueueKey(name, queue, 0))
        if state is None:
            return parent, None, True
        at = state.consumer_offset
        settled_ms = self._stored_ms(queue, at - 1) if at else 0
        end = self._index.max_offset(queue, 0)
        return parent, GroupOffset(end, at, self._stored_ms(queue, at), settled_ms), True

    async def dispatch(self, group: str, client_id: str) -> None:
        """Has a client, or all of a group, search every lite topic that has something. CONSUMER_GROUP_NOT_FOUND, BAD_REQUEST."""
        self._bound_to(group)
        await self._subscriptions.offer_all(group, client_id)

    async def _lite_states(self, group: str) -> AsyncIterator[QueueDelivery]:
        for number, topic in enumerate(list(self._deliveries.topics_of(group))):
            if number % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
            state = self._deliveries.known(QueueKey(group, topic, 0)) if lite_topic_of(topic) else None
            if state is not None:
                yield state

    def _lag(self, state: QueueDelivery, behind: int) -> Lag:
        queue = state.key.topic
        return Lag(lite_name(queue), behind, self._stored_ms(queue, state.consumer_offset))

    def _stored_ms(self, queue: str, offset: int) -> int:
        stored = self._topics.stored_ms(queue, offset) if offset >= self._index.min_offset(queue, 0) else None
        return -1 if stored is None else stored

    async def _when_known(self, topic: Topic) -> None:
        known = asyncio.get_running_loop().create_future()
        self._sends.when_known(topic, lambda: None if known.done() else known.set_result(None))
        await known

    def _queues_of(self, subscriber: LiteSubscriber, topic: Topic) -> list[str]:
        """As the original lists them; a client of a wildcard group has one entry."""
        if subscriber.shared_line is not None:
            return [f"{subscriber.parent}@{subscriber.group}"]
        there = self._topics.of(topic.name)
        names = {queue: lite_name(queue) for queue in subscriber.queues}
        return [queue for queue, name in names.items() if name in there or self._is_here(topic, name)]

    def _is_here(self, topic: Topic, name: str) -> bool:
        try:
            return not self._sends.place(topic, name).broker
        except ServiceError:  # it has no queues that can be written
            return True

    def _parent(self, name: str) -> Topic:
        topic = self._catalog.topic(name)
        if topic is None:
            raise ServiceError(Reason.TOPIC_NOT_FOUND, f"Topic [{shown(name)}] not exist.")
        if not has_lite_topics(topic):
            raise ServiceError(Reason.BAD_REQUEST, f"Topic [{shown(name)}] type not match.")
        return topic

    def _group(self, name: str) -> Group:
        group = self._catalog.group(name)
        if group is None:
            raise ServiceError(Reason.CONSUMER_GROUP_NOT_FOUND, f"Group [{shown(name)}] not exist.")
        return group

    def _bound_to(self, name: str) -> str:
        parent = lite_bind_topic(self._group(name))
        if not parent:
            raise ServiceError(Reason.BAD_REQUEST, f"Group [{shown(name)}] is not a LITE group.")
        return parent
