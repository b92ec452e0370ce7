"""What lite consumers subscribe to: said by SyncLiteSubscription, kept in memory, said again by clients after a restart.

| what | RocketMQ 5.5.0 | here |
|---|---|---|
| subscriptions | by client id, in the broker's memory; a client says all of them every 30 s (COMPLETE_ADD) | of a client at its address, with its session |
| several brokers | the proxy tells every broker of the topic; each keeps those of lite topics that are its own or that it has messages of | the broker that the client calls passes the subscription on to the others (`lite_peers.py`), and each keeps all of it. A broker that does not know the client yet keeps the subscription until the client sends its settings |
| the proxy in LOCAL mode | INTERNAL_SERVER_ERROR: it has no subscriptions | served |
| gone after | `liteSubscriptionCheckTimeoutMills` without a word, checked every `liteSubscriptionCheckInterval`; the client's termination | with the session too |
| versions | passed on, read by nobody | one that is older than the client's last COMPLETE_ADD is passed over |
| quotas | `maxLiteSubscriptionCount` of all clients, at PARTIAL_ADD; `lite.sub.client.quota` of the group is told to the client | both are enforced, at every addition |
| offset options | at PARTIAL_ADD: MIN, MAX, an offset, the last n before the group's offset; LAST and a time change nothing | the same, within the queue |
| exclusive groups (`lite.sub.model`) | a client's PARTIAL_ADD takes the lite topic from the others of its group | the same; those are told (NotifyUnsubscribeLiteCommand) |
| order | each lite topic is consumed in its order, whatever the group says | the same |
| wildcard groups (`lite.sub.wildcard`) | after COMPLETE_ADD a client receives from every lite topic, whatever the call names; messages stored before come with a later scan; PARTIAL_ADD is INTERNAL_SERVER_ERROR | the same, but messages stored before come at once |
| time to live | `lite.topic.expiration` minutes after the last message, at least `minLiteTTl`, checked every `liteTtlCheckInterval`: queue, offsets and subscriptions are deleted | the same; subscribers are told |
"""

from __future__ import annotations

import asyncio
import enum
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import structlog

from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.delivery.lite_arrivals import LiteArrivals, LiteLine, LiteSubscriber
from broker_gateway.delivery.queue_delivery import QueueKey
from broker_gateway.journal.resources import lite_topics_deleted
from broker_gateway.messaging.checks import check_lite_topic, shown
from broker_gateway.messaging.client_commands import ClientCommands, UnsubscribeLite
from broker_gateway.messaging.clients import ClientRegistry, ClientSession
from broker_gateway.messaging.core import Core
from broker_gateway.messaging.lite_topics import LiteTopics
from broker_gateway.messaging.outcome import Reason, ServiceError, refused_by_log
from broker_gateway.messaging.resources import Resources
from broker_gateway.metadata.catalog import Group, Topic
from broker_gateway.metadata.group_configuration import lite_attribute, lite_bind_topic
from broker_gateway.metadata.message_types import has_lite_topics
from broker_gateway.metadata.topic_configuration import lite_topic_minutes
from broker_gateway.runtime.clock import now_ms
from broker_gateway.runtime.shares import address_of
from store.lite_queues import LiteTopic, lite_name, lite_topic_of

log = structlog.get_logger(__name__)
CLIENT_QUOTA = 2000
"""Lite topics of a client, where its group does not say how many (`lite.sub.client.quota`)."""
MAX_NAMES_A_CALL = 20_000
MAX_EARLY = 1000
"""Clients that are known by what another broker told alone."""
_OFFERED_AT_ONCE = 256
"""Before others get a turn."""
_EXPIRED_AT_ONCE = 1000
"""Lite topics that one look deletes."""
_LOOKED_AT = 128
"""Lite topics whose last message is read before others get a turn."""


class Action(enum.Enum):
    """What a client says of the lite topics that it names."""

    PARTIAL_ADD = enum.auto()
    PARTIAL_REMOVE = enum.auto()
    COMPLETE_ADD = enum.auto()
    COMPLETE_REMOVE = enum.auto()


class OffsetKind(enum.Enum):
    """Where a group is to go on."""

    AS_IT_IS = enum.auto()
    MIN = enum.auto()
    MAX = enum.auto()
    OFFSET = enum.auto()
    TAIL = enum.auto()


class OffsetOption(NamedTuple):
    """`value`: the offset, or how many messages before the group's offset."""

    kind: OffsetKind
    value: int = 0


AS_IT_IS = OffsetOption(OffsetKind.AS_IT_IS)


class Said(NamedTuple):
    """What a client says of some lite topics. `version`: None where it has none."""

    action: Action
    names: Sequence[str]
    version: int | None
    option: OffsetOption = AS_IT_IS


def client_quota(group: Group) -> int:
    """How many lite topics a client of the group may subscribe to."""
    text = lite_attribute(group, "lite.sub.client.quota")
    quota = int(text) if text else CLIENT_QUOTA
    return quota if quota >= 0 else CLIENT_QUOTA


def is_wildcard(group: Group) -> bool:
    """Whether the clients of a group receive from every lite topic of their topic: the attribute is there, with any value."""
    return bool(lite_attribute(group, "lite.sub.wildcard"))


class LiteSubscriptions:
    """Of all lite consumers."""

    def __init__(
        self,
        config: GatewayConfig,
        core: Core,
        resources: Resources,
        clients: ClientRegistry,
        commands: ClientCommands,
        topics: LiteTopics,
        *,
        with_lake: bool = False,
    ) -> None:
        self._core = core
        self._first = core.store.index.begin if with_lake else core.store.index.min_offset
        """The first offset that a group may go to."""
        self._catalog = core.catalog
        self._index = core.store.index
        self._resources = resources
        self._clients = clients
        self._commands = commands
        self._topics = topics
        self._sessions: dict[LiteSubscriber, ClientSession] = {}
        self._early: OrderedDict[tuple[str, str], LiteSubscriber] = OrderedDict()
        """By id and address: clients that another broker told of, and whose settings have not come yet."""
        self._versions: dict[LiteSubscriber, int] = {}
        self._arrivals = core.deliveries.arrivals.lite = LiteArrivals(core.wakeups.due)
        self._began_ms = now_ms()
        self.configure(config)
        clients.on_forgotten(self.end)

    def configure(self, config: GatewayConfig) -> None:
        """Takes what may change while the broker runs."""
        self._most = config.broker.max_lite_subscription_count
        self._silent_ms = config.broker.lite_subscription_check_timeout_mills
        self._least_ttl_ms = config.broker.min_lite_t_tl
        self._most_bytes = config.proxy.max_lite_topic_size

    def begin(self, session: ClientSession, group: Group, topics: Sequence[str]) -> None:
        """A lite consumer said its settings. BAD_REQUEST unless its group is bound to the lite topics of the one topic that it
        names."""
        parent = lite_bind_topic(group)
        if not parent or any(topic != parent for topic in topics):
            raise ServiceError(
                Reason.BAD_REQUEST,
                f"consumer group {shown(group.name)} is bound to lite topics of {shown(parent) if parent else 'no topic'}; set "
                f"its attribute lite.bind.topic to the one topic that lite consumers subscribe to",
            )
        self._check(group, parent)
        known = session.lite
        if known is not None and (known.group, known.parent) == (group.name, parent):
            return
        self.end(session)
        subscriber = self._early.pop((session.client_id, session.address), None)
        if subscriber is not None and (subscriber.group, subscriber.parent) != (group.name, parent):
            self._drop(subscriber)
            subscriber = None
        if subscriber is None:
            subscriber = _subscriber(session.client_id, session.address, group.name, parent)
        session.lite = subscriber
        self._sessions[subscriber] = session

    def end(self, session: ClientSession) -> None:
        """A client is gone, and with it what it subscribed to."""
        subscriber, session.lite = session.lite, None
        if subscriber is not None:
            self._drop(subscriber)

    def _drop(self, subscriber: LiteSubscriber) -> None:
        self._arrivals.unsubscribe_all(subscriber)
        self._sessions.pop(subscriber, None)
        self._versions.pop(subscriber, None)

    def sync(
        self,
        session: ClientSession | None,
        group_name: str,
        topic_name: str,
        said: Said,
    ) -> None:
        """A client says what it subscribes to. Raises ServiceError, and then nothing is changed."""
        topic, group = self._named(topic_name, group_name)
        if session is None or session.lite is None:
            raise ServiceError(
                Reason.UNRECOGNIZED_CLIENT_TYPE,
                "no settings of a lite consumer are known of this client; send them over Telemetry first",
            )
        self._sync(session.lite, group, topic, said)

    def told(self, client_id: str, peer: str, group_name: str, topic_name: str, said: Said) -> None:
        """The same of a client at `peer` (`host:port`), which said it to another broker; it may not be known here yet."""
        topic, group = self._named(topic_name, group_name)
        session = self._clients.own(client_id, peer)
        if session is not None and session.lite is not None:
            self._sync(session.lite, group, topic, said)
            return
        if lite_bind_topic(group) != topic.name:
            raise ServiceError(
                Reason.BAD_REQUEST,
                f"consumer group {shown(group.name)} is not bound to topic {shown(topic.name)} (lite.bind.topic)",
            )
        client = client_id, address_of(peer)
        known = self._early.get(client)
        if known is not None and (known.group, known.parent) != (group.name, topic.name):
            self._drop(self._early.pop(client))
            known = None
        subscriber = known or _subscriber(*client, group.name, topic.name)
        self._sync(subscriber, group, topic, said)
        if not subscriber.subscribes:
            self._early.pop(client, None)
            self._drop(subscriber)
            return
        self._early[client] = subscriber
        self._early.move_to_end(client)
        if len(self._early) > MAX_EARLY:
            self._drop(self._early.popitem(last=False)[1])

    def _named(self, topic_name: str, group_name: str) -> tuple[Topic, Group]:
        topic = self._resources.topic(topic_name)
        group = self._catalog.group(group_name)
        if group is None:
            raise ServiceError(
                Reason.CONSUMER_GROUP_NOT_FOUND, f"consumer group {shown(group_name)} does not exist"
            )
        return topic, group

    def _sync(self, subscriber: LiteSubscriber, group: Group, topic: Topic, said: Said) -> None:
        action, names, version, option = said
        if (subscriber.group, subscriber.parent) != (group.name, topic.name):
            raise ServiceError(
                Reason.BAD_REQUEST,
                f"the client is a lite consumer of group {shown(subscriber.group)} and topic {shown(subscriber.parent)}, not of "
                f"{shown(group.name)} and {shown(topic.name)}",
            )
        if len(names) > MAX_NAMES_A_CALL:
            raise ServiceError(
                Reason.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
                f"{len(names)} lite topics in one call, at most {MAX_NAMES_A_CALL} are taken",
            )
        if action in (Action.PARTIAL_ADD, Action.COMPLETE_ADD):
            self._check(group, topic.name)
            for name in names:
                check_lite_topic(name, self._most_bytes)
        queues = dict.fromkeys(LiteTopic(topic.name, name).queue for name in names)
        self._do(subscriber, group, topic, action, queues, version or 0, option)
        subscriber.updated_ms = now_ms()

    def _do(
        self,
        subscriber: LiteSubscriber,
        group: Group,
        topic: Topic,
        action: Action,
        queues: dict[str, None],
        version: int,
        option: OffsetOption,
    ) -> None:
        if action is Action.COMPLETE_REMOVE:
            self._arrivals.unsubscribe_all(subscriber)
            return
        if action is Action.PARTIAL_REMOVE:
            from_start = lite_attribute(group, "lite.sub.reset.offset.unsubscribe").lower() == "true"
            held = [queue for queue in queues if queue in subscriber.queues]
            if from_start:
                self._reset(group.name, held, OffsetOption(OffsetKind.MIN))
            for queue in held:
                self._arrivals.unsubscribe(subscriber, queue)
            return
        if is_wildcard(group):
            self._add_all(subscriber, action)
            return
        if action is Action.COMPLETE_ADD:
            if version < self._versions.get(subscriber, 0):
                return  # a later one came before it
            if subscriber.shared_line is not None:  # its group was a wildcard group
                self._arrivals.unsubscribe_all(subscriber)
            self._check_quota(subscriber, group, len(queues), len(queues.keys() - subscriber.queues.keys()))
            self._expire_new(subscriber, topic, queues)
            self._reset(group.name, queues, AS_IT_IS)
            self._versions[subscriber] = version
            for queue in [each for each in subscriber.queues if each not in queues]:
                self._arrivals.unsubscribe(subscriber, queue)
        else:
            new = len(queues.keys() - subscriber.queues.keys())
            self._check_quota(subscriber, group, len(subscriber.queues) + new, new)
            self._expire_new(subscriber, topic, queues)
            self._reset(group.name, queues, option)
            if lite_attribute(group, "lite.sub.model") == "Exclusive":
                self._exclude(subscriber, group, queues)
        for queue in queues:
            there = self._index.max_offset(queue, 0) > self._first(queue, 0)
            self._arrivals.subscribe(subscriber, queue, there)

    def _expire_new(self, subscriber: LiteSubscriber, topic: Topic, queues: Iterable[str]) -> None:
        """What is over of what it did not subscribe to yet goes first: it must not receive that. Nothing else has changed when it cannot."""
        self._expire(topic, [queue for queue in queues if queue not in subscriber.queues])

    def _add_all(self, subscriber: LiteSubscriber, action: Action) -> None:
        """A client of a wildcard group says that it receives, from every lite topic."""
        if action is Action.PARTIAL_ADD:
            raise ServiceError(
                Reason.INTERNAL_SERVER_ERROR,
                f"consumer group {shown(subscriber.group)} receives from every lite topic (lite.sub.wildcard); subscribe to none",
            )
        if subscriber.shared_line is None:
            self._check_room(1)
            self._arrivals.unsubscribe_all(subscriber)
            self._arrivals.subscribe_to_all(subscriber, self._topics.of(subscriber.parent))

    def _check(self, group: Group, parent: str) -> None:
        topic = self._catalog.topic(parent)
        if topic is None or not has_lite_topics(topic):
            raise ServiceError(
                Reason.BAD_REQUEST,
                f"topic {shown(parent)} is not of type LITE; make one that accepts LITE messages alone",
            )
        if not group.consume_enabled:
            raise ServiceError(Reason.FORBIDDEN, f"consumer group {shown(group.name)} must not consume")

    def _check_quota(self, subscriber: LiteSubscriber, group: Group, after: int, new: int) -> None:
        quota = client_quota(group)
        if new and after > quota:
            raise ServiceError(
                Reason.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
                f"{after} lite topics, at most {quota} (lite.sub.client.quota) of a client; unsubscribe from some first",
            )
        self._check_room(new)

    def _check_room(self, new: int) -> None:
        if new and self._arrivals.subscriptions + new > self._most:
            raise ServiceError(
                Reason.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
                f"clients subscribe to {self._arrivals.subscriptions} lite topics, at most {self._most} "
                "(maxLiteSubscriptionCount); unsubscribe from some first",
            )

    def _exclude(self, subscriber: LiteSubscriber, group: Group, queues: Iterable[str]) -> None:
        """The lite topics are this client's alone, of its group."""
        taken = [
            (other, queue)
            for queue in queues
            for other in self._arrivals.subscribers(queue, group.name)
            if other is not subscriber
        ]
        if lite_attribute(group, "lite.sub.reset.offset.exclusive").lower() == "true":
            self._reset(group.name, [queue for _, queue in taken], OffsetOption(OffsetKind.MIN))
        for other, queue in taken:
            self._unsubscribe(other, queue)

    def _unsubscribe(self, subscriber: LiteSubscriber, queue: str) -> None:
        """The broker takes a lite topic from a client, and tells it if it can; else the client's next COMPLETE_ADD asks again."""
        self._arrivals.unsubscribe(subscriber, queue)
        session = self._sessions.get(subscriber)
        if session is None or not session.takes_commands:
            return
        try:
            self._commands.send(session, UnsubscribeLite(lite_name(queue)))
        except ServiceError as error:
            log.warning(
                "a client was not told of a lite topic", client_id=session.client_id, error=str(error)
            )

    def _reset(self, group: str, queues: Iterable[str], option: OffsetOption) -> None:
        """Lets the group go on where the option says; INTERNAL_SERVER_ERROR when the log does not take it."""
        cursors: dict[QueueKey, int] = {}
        for queue in queues:
            key = QueueKey(group, queue, 0)
            state = self._core.deliveries.known(key)
            least, most = self._first(queue, 0), self._index.max_offset(queue, 0)
            if state is None and least == most:
                continue  # nothing is there: the group begins there anyway, and clients may name any lite topic
            current = None if state is None else state.consumer_offset
            target = _target(option, current, most)
            if state is not None and state.position > most:
                target = min(target or 0, most)  # of a log that is lost: it has nothing of what is there
            if target is not None and target != current:
                cursors[key] = min(max(target, least), most)
        if not cursors:
            return
        with refused_by_log():
            self._core.changes.reset(cursors)
        for key, cursor in cursors.items():
            state = self._core.deliveries.queue(key)
            state.reset(cursor)
            state.journaled_committed = cursor
            self._core.came_back(key)

    # ----- what administrators ask -----

    @property
    def count(self) -> int:
        """Subscriptions of all clients."""
        return self._arrivals.subscriptions

    def active(self, since_ms: int) -> int:
        """Clients whose receives had lite topics to search since then."""
        return sum(each.searched_ms >= since_ms for each in self._sessions)

    def clients_of(self, queue: str) -> list[tuple[str, str]]:
        """Id and group of each client that receives from a lite topic; the id is `*` for those of a wildcard group."""
        named = {(each.client_id, each.group): None for each in self._arrivals.subscribers(queue)}
        lite = lite_topic_of(queue)
        groups = [] if lite is None else self._arrivals.wildcard_groups(lite.parent)
        return [*named, *(("*", group) for group in groups)]

    def of_client(self, client_id: str) -> LiteSubscriber | None:
        """What the client of that id subscribes to: of several at other addresses the one that said it last."""
        found = [each for each in self._subscribers() if each.client_id == client_id]
        return max(found, key=lambda each: each.updated_ms, default=None)

    async def offer_all(self, group: str, client_id: str) -> None:
        """Has the clients of a group, or one of them, search every lite topic that they subscribe to."""
        for subscriber in self._subscribers():
            if subscriber.group != group or client_id not in ("", subscriber.client_id):
                continue
            wildcard = subscriber.shared_line is not None
            names = list(self._topics.of(subscriber.parent)) if wildcard else []
            queues = [LiteTopic(subscriber.parent, name).queue for name in names] or list(subscriber.queues)
            for start in range(0, len(queues), _OFFERED_AT_ONCE):
                for queue in queues[start : start + _OFFERED_AT_ONCE]:
                    if self._index.max_offset(queue, 0) > self._first(queue, 0):
                        self._arrivals.offered(queue, group)
                await asyncio.sleep(0)
            if wildcard:
                return  # one line for all of them

    # ----- what ends by itself -----

    def look(self) -> None:
        """Ends subscriptions of clients that said nothing for long. To be called every now and then."""
        least = now_ms() - self._silent_ms
        for subscriber in self._subscribers():
            if subscriber.updated_ms < least and subscriber.subscribes:
                self._arrivals.unsubscribe_all(subscriber)
        self._forget_early(lambda each: not each.subscribes)

    async def expire(self) -> None:
        """Deletes lite topics whose time to live is over. To be called every now and then; others are served in between."""
        self._topics.forget_deleted()
        if now_ms() - self._began_ms < self._least_ttl_ms:
            return
        left = _EXPIRED_AT_ONCE
        for parent in [each.name for each in self._catalog.topics() if has_lite_topics(each)]:
            names = list(self._topics.of(parent))
            for first in range(0, len(names), _LOOKED_AT):
                topic = self._catalog.topic(parent)  # as it is by now
                if topic is None:
                    break
                some = [LiteTopic(parent, each).queue for each in names[first : first + _LOOKED_AT]]
                left -= self._expire(topic, some, left)
                if left <= 0:
                    return
                await asyncio.sleep(0)

    def _expire(self, topic: Topic, queues: Iterable[str], most: int = _EXPIRED_AT_ONCE) -> int:
        """Deletes those of some lite topics that are there and whose time to live is over; how many. One whose last message cannot be
        read stays as long as the log has that."""
        minutes = lite_topic_minutes(topic)
        if minutes <= 0:
            return 0
        before = now_ms() - max(minutes * 60_000, self._least_ttl_ms)
        expired: list[str] = []
        there = self._topics.of(topic.name)
        for queue in queues:
            if len(expired) == most:
                break
            end = self._index.max_offset(queue, 0)
            if not end or lite_name(queue) not in there:
                continue
            stored = self._topics.stored_ms(queue, end - 1)
            if stored < before if stored is not None else self._index.min_offset(queue, 0) == end:
                expired.append(queue)
        self.delete(expired)
        return len(expired)

    def delete(self, queues: Sequence[str]) -> None:
        """Lite topics are no more: neither offsets of groups nor subscriptions, and nobody gets what they hold."""
        if not queues:
            return
        keys = [key for queue in queues for key in self._core.deliveries.keys_of_topic(queue)]
        ends = {queue: self._index.max_offset(queue, 0) for queue in queues}
        with refused_by_log():
            self._core.changes.removed(keys, lite_topics_deleted(ends))
        for key in keys:
            self._core.deliveries.forget(key)
        for queue in queues:
            for subscriber in self._arrivals.subscribers(queue):
                self._unsubscribe(subscriber, queue)
            self._arrivals.deleted(queue)
            self._topics.delete(queue)
        log.info("lite topics deleted", lite_topics=len(queues))

    def topic_removed(self, name: str) -> None:
        """A topic was deleted, and its lite topics with it; their consumers have to begin anew."""
        self.delete([LiteTopic(name, each).queue for each in self._topics.of(name)])
        for subscriber, session in list(self._sessions.items()):
            if subscriber.parent == name:
                self.end(session)
        self._forget_early(lambda each: each.parent == name)

    def _forget_early(self, which: Callable[[LiteSubscriber], bool]) -> None:
        for client in [client for client, each in self._early.items() if which(each)]:
            self._drop(self._early.pop(client))

    def _subscribers(self) -> list[LiteSubscriber]:
        return [*self._sessions, *self._early.values()]


def _subscriber(client_id: str, address: str, group: str, parent: str) -> LiteSubscriber:
    line = LiteLine(f"%LITE%{client_id}@{address}", parent)
    return LiteSubscriber(client_id, group, parent, line, updated_ms=now_ms())


def _target(option: OffsetOption, current: int | None, most: int) -> int | None:
    """The offset that an option stands for; None: it stays as it is."""
    match option.kind:
        case OffsetKind.MIN:
            return 0
        case OffsetKind.MAX:
            return most
        case OffsetKind.OFFSET:
            return option.value
        case OffsetKind.TAIL if current is not None:
            return max(0, current - option.value)
    return None
