"""Where the messages of a message group or of a lite topic go: always to one queue, at whichever lakebroker that is.

The queue is the original's: a consistent hash of the group's or lite topic's name over the topic's writable queues of all brokers, by their names.
Clients choose the broker that they send to by hashes that differ by language. So a message that came to another broker than
its queue's is handed to that one.

A broker that stops running keeps its queues for `lakeOrderedBrokerAbsence`: sends to them fail, and clients try again, since
a group that went elsewhere meanwhile would have two orders. One that must not be written to has none at once; one that runs
and has the topic no more, after `MISSING_S`. Topics of types FIFO and LITE, and others that had such messages, are looked at all the time, so that brokers are known before they go, also to one
that starts while another is away (`placed_brokers.py`).

Sources: Guava's `Hashing.consistentHash`, after Lamping and Veach, "A Fast, Minimal Memory, Consistent Hash Algorithm";
Java's `String.hashCode`; RocketMQ's `MessageQueueSelector`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import NamedTuple

import structlog

from broker_gateway.cluster.hand_over import LARGEST, BusyError, HandOver, HandOverError
from broker_gateway.cluster.peer_routes import MAX_TOPICS
from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.messaging.checks import shown
from broker_gateway.messaging.outcome import Reason, ServiceError
from broker_gateway.messaging.placed_brokers import PlacedBrokers
from broker_gateway.messaging.routes import Routes
from broker_gateway.metadata.catalog import Topic
from broker_gateway.runtime.clock import monotonic_s
from broker_gateway.runtime.rate_limited_log import RateLimitedLog
from store.log.record import java_hash

log = structlog.get_logger(__name__)
LOOK_S = 10.0
_PLACED = frozenset({"FIFO", "LITE"})
"""Types of messages that belong to one queue."""
MAX_LOOKED_AT = 1000
"""Topics."""
MISSING_S = 15.0
"""A broker that runs and is not among a topic's brokers has it no more after this time: name servers leave one out that went
before it is known to be gone."""


class Place(NamedTuple):
    """A queue; `broker` is empty for this one's."""

    broker: str
    queue_id: int


class _Seen(NamedTuple):
    """A broker's queues of a topic. `missing_from`: since when it runs without them, by `clock.monotonic_s`; 0: it has them,
    or does not run."""

    queues: int
    missing_from: float = 0.0


class OrderedSends:
    """Of the topics of this broker."""

    def __init__(
        self,
        config: GatewayConfig,
        routes: Routes,
        hand_over: HandOver,
        topics: Callable[[], Iterable[Topic]],
        placed: PlacedBrokers,
    ) -> None:
        self._topics = topics
        self._absence_s = config.lake.lake_ordered_broker_absence / 1000
        self._routes = routes
        self._hand_over = hand_over
        self._placed = placed
        self._unwritten = RateLimitedLog("times")
        self._seen: OrderedDict[str, dict[str, _Seen]] = OrderedDict()
        """By topic, last used last: other brokers with queues of it."""
        self._ran: dict[str, float] = {}
        """When each broker was known to run last, by `clock.monotonic_s`."""
        for topic, brokers in placed.load().items():
            self._seen[topic] = {
                name: _Seen(queues) for name, queues in brokers.items() if name != routes.own_name
            }
            self._ran |= dict.fromkeys(brokers, monotonic_s())

    def when_known(self, topic: Topic, callback: Callable[[], None]) -> None:
        """Calls `callback` once it is known which brokers have the topic, or cannot be within a few seconds."""
        self._routes.when_known(topic.name, callback)

    async def run(self) -> None:
        """Looks at the cluster, and keeps what was found by the last look. To be called at least every `LOOK_S`."""
        self.look()
        there = {each.name for each in self._topics()}
        placed = {
            topic: {name: known.queues for name, known in brokers.items() if known.queues}
            for topic, brokers in self._seen.items()
            if brokers and topic in there
        }
        if not self._placed.differs(placed):
            return
        try:
            await asyncio.to_thread(self._placed.save, placed)
        except OSError as error:
            self._unwritten.happened(
                log.warning,
                "the file of brokers with ordered queues cannot be written; a start while one is away will not know of it",
                error=str(error),
            )

    def look(self) -> None:
        """Sees which brokers have the topics of FIFO and LITE messages, sent or not, and others that had such messages: one that
        goes later is known then, and its message groups and lite topics wait for it."""
        now = monotonic_s()
        recent = {name: at for name, at in self._ran.items() if now - at <= self._absence_s}
        self._ran = recent | dict.fromkeys(self._routes.alive, now)
        topics = (
            each
            for each in self._topics()
            if each.name in self._seen or _PLACED.intersection(each.accept_message_types)
        )
        for topic in itertools.islice(topics, MAX_LOOKED_AT):
            self.when_known(topic, partial(self._see, topic))

    def _see(self, topic: Topic) -> None:
        with contextlib.suppress(ServiceError):  # nobody has said yet who there is
            self._writers(topic)

    def place(self, topic: Topic, name: str) -> Place:
        """Where a message group's or lite topic's messages go; to be called when that is known. FORBIDDEN, PROXY_TIMEOUT."""
        writers = self._writers(topic)
        count = sum(writers.values())
        if not count:
            raise ServiceError(Reason.FORBIDDEN, f"topic {shown(topic.name)} must not be written to")
        number = bucket(name, count)
        for broker in sorted(writers):
            if number < writers[broker]:
                return Place("" if broker == self._routes.own_name else broker, number)
            number -= writers[broker]
        raise AssertionError

    def _writers(self, topic: Topic) -> dict[str, int]:
        """How many queues each broker has that counts, whether it runs or not."""
        now, counts = monotonic_s(), self._routes.writable(topic)
        seen = self._seen.get(topic.name, {})
        alive = self._routes.alive
        self._ran.update(dict.fromkeys(alive, now))
        away = {}
        for name, known in seen.items():
            if name not in counts and now - self._ran.get(name, 0.0) <= self._absence_s:
                missing_s = now - (known.missing_from or now) if name in alive else 0.0
                if missing_s <= MISSING_S:
                    away[name] = _Seen(known.queues, now - missing_s if name in alive else 0.0)
        others = {name: _Seen(count) for name, count in counts.items() if name != self._routes.own_name}
        if seen or others:
            self._seen[topic.name] = away | others
            self._seen.move_to_end(topic.name)
            if len(self._seen) > MAX_TOPICS:
                self._seen.popitem(last=False)
        return {name: known.queues for name, known in away.items()} | counts

    async def hand_over(self, place: Place, topic: str, request: bytes, peer: str) -> bytes:
        """The other broker's answer to a send, as it is. INTERNAL_SERVER_ERROR, PAYLOAD_TOO_LARGE, TOO_MANY_REQUESTS."""
        if len(request) > LARGEST:
            raise ServiceError(
                Reason.PAYLOAD_TOO_LARGE,
                f"a call of {len(request)} bytes for a queue at broker {shown(place.broker)}, at most "
                f"{LARGEST} are handed over; send fewer messages in a call",
            )
        try:
            return await self._hand_over.send(place.broker, place.queue_id, topic, request, peer)
        except BusyError as error:
            raise ServiceError(
                Reason.TOO_MANY_REQUESTS,
                f"the queue of these messages is at broker {shown(place.broker)}: {error}; try again later",
            ) from error
        except HandOverError as error:
            raise ServiceError(
                Reason.INTERNAL_SERVER_ERROR,
                f"the queue of these messages is at broker {shown(place.broker)}, which did not take them, or did not say so: "
                f"{error}; send it again, their message group or lite topic waits for that broker (lakeOrderedBrokerAbsence)",
            ) from error


@lru_cache(maxsize=65_536)
def bucket(name: str, buckets: int) -> int:
    """The number below `buckets` of a message group or lite topic."""
    state, found, following = java_hash(name), -1, 0
    while following < buckets:
        found = following
        state = (state * 2_862_933_555_777_941_757 + 1) & 0xFFFF_FFFF_FFFF_FFFF
        following = int((found + 1) / (((state >> 33) + 1) / (1 << 31)))
    return found
