"""A receive: what it asks for, checked, and kept as a `Poll` until it is answered."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.delivery.filters.message_filter import MessageFilter
from broker_gateway.delivery.filters.tags import TagFilter
from broker_gateway.delivery.in_flight import InFlight
from broker_gateway.delivery.lite_arrivals import LiteLine, LiteSubscriber
from broker_gateway.delivery.queue_delivery import QueueDelivery, QueueKey
from broker_gateway.messaging.checks import check_invisible_ms, shown
from broker_gateway.messaging.clients import ClientRegistry, ClientSession
from broker_gateway.messaging.filter_warnings import FilterWarnings
from broker_gateway.messaging.outcome import Outcome, Reason, ServiceError
from broker_gateway.messaging.resources import Resources
from broker_gateway.messaging.stored_message import StoredMessage
from broker_gateway.metadata.catalog import READ, Group, Topic
from broker_gateway.metadata.group_configuration import lite_bind_topic
from broker_gateway.runtime.reply import Reply
from broker_gateway.runtime.shares import address_of

Array = NDArray[Any]
MAX_BATCH = 32
RECEIVE_BYTES = 1 << 20
"""A receive stops taking messages once their bodies pass this (RocketMQ's at 256 KiB): larger ones would hold the loop."""
RENEWED_MS = 60_000
"""Invisible time of a message whose client renews it by staying alive (`auto_renew`)."""
_SLACK_S = 0.2
"""Part of a call's deadline left for the reply to travel."""
_REQUEST_TIMEOUT_MS = 3000


class Delivered(NamedTuple):
    """What an edge wrote for a message, and what the broker needs to know of it."""

    written: bytes
    message_id: str
    body_length: int


class UsualWriter(Protocol):
    """Writes usual messages of a batch together, faster than one by one."""

    def __call__(
        self,
        data: memoryview,
        starts: Array,
        sizes: Array,
        offsets: Array,
        most_bytes: int,
        topic: str,
        handle: tuple[int, int],
        invisible_ms: int,
        wanted: Callable[[str | None], bool] | None,
    ) -> Sequence[Delivered | None]:
        """Writes the first of these records, those that are usual and whole, until their bodies have `most_bytes`.

        `starts` and `sizes` say where in `data` records are, `offsets` their queue offsets, `handle` is the queue and
        the delivery that receipt handles name. Deliveries are first attempts. None stands for a message whose tag is
        not `wanted` (no function: all are).
        """


class ReplyWriter(Protocol):
    """How an edge writes what a receive gives."""

    @property
    def usual(self) -> UsualWriter | None:
        """The shortcut for usual messages; None while there is none."""

    def message(
        self, stored: StoredMessage, topic: str, handle: str, attempt: int, invisible_ms: int
    ) -> bytes:
        """Writes any message."""

    def answer(self, poll: Poll, outcome: Outcome, now_ms: int) -> None:
        """Gives the reply: OK with `poll.messages`, MESSAGE_NOT_FOUND, or why the call failed."""


class Patience(NamedTuple):
    """What decides how long a call waits for a message.

    `polling_ms` is what the call asks for, None when it does not say. `remaining_s` is the time until its deadline, None when
    it has none. `request_timeout_ms` is the client's timeout of other calls.
    """

    polling_ms: int | None = None
    remaining_s: float | None = None
    request_timeout_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a receive asks for. `invisible_ms` is None for messages that are renewed while their client lives. `peer` is
    `host:port`."""

    topic: str
    group: str
    filter: MessageFilter
    batch_size: int
    invisible_ms: int | None
    client_id: str
    attempt_id: str
    peer: str
    patience: Patience


@dataclass(slots=True, eq=False)
class Poll:
    """One receive, and what it took (`messages` are what `writer` wrote).

    `left`: queues that a search under way has yet to search (ids of the topic's, names of lite topics' queues, keys of others), the
    next one last;
    `seen`: what had been offered when it began; `failed`: the first queue's error of that search. `put_off_s`:
    since when its first search has been put off, by `clock.monotonic_s`; 0: it has not. `woken`: something is there for it or those
    who wait behind it, and it has not searched yet. `renewed_at`: see `InFlight.host`.
    `journal_mark`: the journal's, before it took the first message.
    """

    group: Group
    topic: Topic
    filter: MessageFilter
    batch_size: int
    invisible_ms: int
    auto_renew: bool
    client_id: str
    attempt_id: str
    wait_s: float
    writer: ReplyWriter
    peer: str = ""
    renewed_at: str = ""
    lite: LiteSubscriber | None = None
    """Of a lite consumer, which receives from lite topics of the topic, each in its order."""
    lite_line: LiteLine | None = None
    """The consumer's line when the receive began."""
    lite_topics_left: int = 0
    """How many of the line a search has yet to search beside `left`."""
    delivery_id: int = 0
    journal_mark: int = 0
    timer: asyncio.TimerHandle | None = None
    body_bytes: int = 0
    seen: int = 0
    put_off_s: float = 0.0
    woken: bool = False
    failed: Exception | None = None
    left: list[int | str | QueueKey] = field(default_factory=list)
    reply: Reply[Any] = field(default_factory=Reply)
    messages: list[bytes] = field(default_factory=list)
    taken: list[tuple[QueueDelivery, InFlight]] = field(default_factory=list)

    @property
    def line(self) -> str:
        """Where it waits, beside others of its group; a lite consumer alone, or with those of its wildcard group."""
        return self.topic.name if self.lite_line is None else self.lite_line.name

    @property
    def full(self) -> bool:
        """Whether the reply takes no more."""
        return len(self.messages) >= self.batch_size or self.body_bytes >= RECEIVE_BYTES


def check_may_receive(topic: Topic, group: Group) -> None:
    """FORBIDDEN where the topic must not be read, or the group must not consume."""
    if not topic.readable or not topic.read_queues:
        raise ServiceError(Reason.FORBIDDEN, f"topic {shown(topic.name)} must not be read")
    if not group.consume_enabled:
        raise ServiceError(Reason.FORBIDDEN, f"consumer group {shown(group.name)} must not consume")


def batch_of(asked: int) -> int:
    """How many messages a call gets at most. BAD_REQUEST."""
    if asked <= 0:
        raise ServiceError(
            Reason.BAD_REQUEST, f"batch size {asked} is not positive; ask for 1 to {MAX_BATCH}"
        )
    return min(asked, MAX_BATCH)


def lite_subscriber(topic: Topic, group: Group, session: ClientSession | None) -> LiteSubscriber | None:
    """Who receives, when the group is of lite consumers. UNRECOGNIZED_CLIENT_TYPE, BAD_REQUEST."""
    parent = lite_bind_topic(group)
    if not parent:
        return None
    if parent != topic.name:
        raise ServiceError(
            Reason.BAD_REQUEST,
            f"consumer group {shown(group.name)} is bound to lite topics of {shown(parent)} (lite.bind.topic), not of "
            f"{shown(topic.name)}; receive from that topic",
        )
    if session is None or session.lite is None:
        raise ServiceError(
            Reason.UNRECOGNIZED_CLIENT_TYPE,
            f"consumer group {shown(group.name)} is of lite consumers, and no settings of one are known of this client; send "
            "those of a lite push or lite simple consumer over Telemetry first",
        )
    return session.lite


class Polls:
    """Makes polls of what receives ask for."""

    def __init__(self, config: GatewayConfig, resources: Resources, clients: ClientRegistry) -> None:
        self._resources = resources
        self._clients = clients
        self._warnings = FilterWarnings()
        self.configure(config)

    def configure(self, config: GatewayConfig) -> None:
        """Takes what may change while the broker runs."""
        broker = config.broker
        self._proxy = config.proxy
        self._permission = broker.broker_permission
        self._longest_wait_s = (
            math.inf if broker.long_polling_enable else broker.short_polling_time_mills / 1000
        )

    def make(self, wanted: Wanted, writer: ReplyWriter) -> Poll:
        """Raises ServiceError when the call cannot be served."""
        self.check_readable()
        topic = self._resources.topic(wanted.topic)
        group = self._resources.group(wanted.group, wanted.peer)
        check_may_receive(topic, group)
        lite = (
            lite_subscriber(topic, group, self._clients.own(wanted.client_id, wanted.peer))
            if group.others
            else None
        )
        most = batch_of(wanted.batch_size)
        auto_renew, invisible_ms = wanted.invisible_ms is None, self._invisible_ms(wanted)
        if isinstance(wanted.filter, TagFilter) and wanted.filter.doubtful:
            self._warnings.check(wanted.filter, group.name, topic.name, wanted.peer)
        known = auto_renew and self._clients.own(wanted.client_id, wanted.peer) is not None
        return Poll(
            group,
            topic,
            wanted.filter,
            most,
            invisible_ms,
            auto_renew,
            wanted.client_id,
            wanted.attempt_id[:128],
            self.waits(wanted.patience),
            writer,
            wanted.peer,
            address_of(wanted.peer) if known else "",
            lite,
            None if lite is None else lite.line,
        )

    def check_readable(self) -> None:
        """FORBIDDEN while the broker gives no messages."""
        if not self._permission & READ:
            raise ServiceError(
                Reason.FORBIDDEN,
                f"the broker gives no messages now (brokerPermission={self._permission}); receive from another",
            )

    def waits(self, patience: Patience) -> float:
        """How long a call waits for a message, s. ILLEGAL_POLLING_TIME."""
        return min(self._polling_s(patience), self._longest_wait_s)

    def _invisible_ms(self, wanted: Wanted) -> int:
        if wanted.invisible_ms is None:
            return RENEWED_MS
        least, most = self._proxy.min_invisible_time_mills_for_recv, self._proxy.max_invisible_time_mills
        return check_invisible_ms(wanted.invisible_ms, least, most)

    def _polling_s(self, wanted: Patience) -> float:
        """Within the proxy's limits and the call's deadline."""
        shortest = self._proxy.grpc_client_consumer_min_long_polling_timeout_millis / 1000
        longest = self._proxy.grpc_client_consumer_max_long_polling_timeout_millis / 1000
        remaining = wanted.remaining_s
        if wanted.polling_ms is not None:
            asked = wanted.polling_ms / 1000
            if asked < 0:
                raise ServiceError(
                    Reason.ILLEGAL_POLLING_TIME, f"the polling timeout of {asked:g} s is negative"
                )
        elif remaining is not None:
            asked = remaining - (wanted.request_timeout_ms or _REQUEST_TIMEOUT_MS) / 2000
        else:
            asked = longest
        wait_s = min(max(asked, shortest), longest)
        if remaining is None or wait_s <= remaining - _SLACK_S:
            return wait_s
        if remaining < shortest - _SLACK_S:
            raise ServiceError(
                Reason.ILLEGAL_POLLING_TIME,
                f"the deadline leaves {remaining:.1f} s, long polling needs at least {shortest:g} s",
            )
        return remaining - _SLACK_S
