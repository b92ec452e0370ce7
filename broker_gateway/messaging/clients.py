"""Clients of the gateway: their settings, telemetry streams and signs of life. Bounded, expiring.

A client is its id and the address that it calls from. What comes from another address under the same id is another
client: it changes and ends nothing of the first. A client that lives is never forgotten to make room for a new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple, Protocol

from broker_gateway.delivery.lite_arrivals import LiteSubscriber
from broker_gateway.messaging.outcome import Reason, ServiceError
from broker_gateway.runtime.clock import now_ms
from broker_gateway.runtime.peer_log import PeerLog
from broker_gateway.runtime.shares import Shares, address_of, host_of

IDLE_MS = 120_000
"""A client that shows no sign of life for this long is forgotten."""
ALIVE_MS = 35_000
"""A client heard of within this time counts as alive (heartbeats come every 10 s)."""
COMMANDS_A_CLIENT = 64
SETTINGS_BYTES = 64 << 20
"""Of all clients together."""
_A_PUBLISHED_TOPIC = 256
"""Bytes of memory of a topic that a producer names, beside its settings, about."""
_LOOKED_AT = 64
"""Of the longest silent clients, for one that gives way to a new one; of a topic's producers, for one with a stream."""


class Subscription(NamedTuple):
    """A topic, and which of its messages: an expression of a kind, TAG or SQL92. `version`: when the client made it, in ms."""

    topic: str
    expression: str
    kind: str
    version: int = 0


class ClientSettings(Protocol):
    """What is needed of the settings that a client sent, as small as its edge can keep it."""

    @property
    def size(self) -> int:
        """Bytes of memory, about."""

    @property
    def kind(self) -> str:
        """PRODUCER, PUSH_CONSUMER, SIMPLE_CONSUMER or another kind of client."""

    @property
    def group(self) -> str:
        """The consumer group's full name; empty for producers."""

    @property
    def request_timeout_ms(self) -> int | None:
        """How long the client waits for an answer."""

    @property
    def version(self) -> str:
        """Of the client's program, as it says; empty where it does not."""

    @property
    def hostname(self) -> str:
        """Of the client's host, as it says; empty where it does not."""

    @property
    def published(self) -> Sequence[str]:
        """Full names of topics that a producer says it sends to."""

    @property
    def subscriptions(self) -> Sequence[Subscription]:
        """What a consumer subscribes to."""


@dataclass(slots=True, eq=False)
class ClientSession:
    """One client; `commands` is what its telemetry stream is to carry, None at its end. It has no bound of its own: who puts
    something into it looks at `takes_commands`."""

    client_id: str
    address: str = ""
    """It is the client of that id at this address, and no other."""
    host: str = ""
    """What its shares are counted by."""
    settings: ClientSettings | None = None
    """None before it sent any."""
    published: tuple[str, ...] = ()
    """Of its settings."""
    group: str = ""
    request_timeout_ms: int | None = None
    commands: asyncio.Queue[Any] | None = None
    began_ms: int = field(default_factory=now_ms)
    seen_ms: int = field(default_factory=now_ms)
    peer: str = ""
    """`ip:port` of its stream."""
    language: str = "OTHER"
    lite: LiteSubscriber | None = None
    """Of a lite consumer."""

    @property
    def alive(self) -> bool:
        """Whether its stream is open or it was heard of lately."""
        return self.commands is not None or now_ms() - self.seen_ms < ALIVE_MS

    @property
    def takes_commands(self) -> bool:
        """Whether its stream is open and reads what it is to carry."""
        return self.commands is not None and self.commands.qsize() < COMMANDS_A_CLIENT


class ClientRegistry:
    """Sessions, at most `limit`; of that, beyond the first half, an address has `percent` at most."""

    def __init__(self, limit: int, percent: int = 100) -> None:
        self._limit = limit
        self._percent = percent
        self._shares = Shares(limit, percent)
        self._peer_log = PeerLog()
        self._sessions: dict[tuple[str, str], ClientSession] = {}
        self._by_id: dict[str, dict[str, ClientSession]] = {}
        """Sessions of an id by their addresses."""
        self._publishers: dict[str, dict[ClientSession, None]] = {}
        """Producers of a topic, the one asked last at the end."""
        self._settings_bytes = 0
        self._settings_shares = Shares(SETTINGS_BYTES, percent)
        self._forgotten: list[Callable[[ClientSession], None]] = []

    def on_forgotten(self, listener: Callable[[ClientSession], None]) -> None:
        """Registers who is told of each session that is known no more."""
        self._forgotten.append(listener)

    def __len__(self) -> int:
        return len(self._sessions)

    def seen(self, client_id: str, peer: str) -> ClientSession:
        """The session of a client that just called from `peer` (`host:port`), made if new. Raises ServiceError."""
        address = address_of(peer)
        session = self._sessions.get((client_id, address))
        if session is None:
            self._make_room(host_of(peer))
            session = self._sessions[client_id, address] = ClientSession(client_id, address, host_of(peer))
            self._by_id.setdefault(client_id, {})[address] = session
            self._shares.count(session.host)
        self.touch(session)
        return session

    def touch(self, session: ClientSession) -> None:
        """A sign of life of a client; nothing when it is not known any more."""
        key = (session.client_id, session.address)
        if self._sessions.get(key) is session:
            session.seen_ms = now_ms()
            self._sessions[key] = self._sessions.pop(key)  # last in order: the first is the longest silent

    def _make_room(self, host: str) -> None:
        """One that is not alive gives way. TOO_MANY_REQUESTS when there is none, or the address has its share."""
        if self._shares.refuse(host, len(self._sessions)):
            event = "clients of an address are refused: it has its share; behind a proxy or NAT set lakeMaxSharePerAddress=100"
            self._peer_log.warning(host, event, address=host, limit=f"lakeMaxClients={self._limit}")
            raise ServiceError(
                Reason.TOO_MANY_REQUESTS,
                f"{self._shares.of(host)} clients of {host} are known, its share of lakeMaxClients={self._limit} "
                f"(lakeMaxSharePerAddress={self._percent}); try again later",
            )
        if len(self._sessions) < self._limit:
            return
        for session in islice(self._sessions.values(), _LOOKED_AT):
            if not session.alive:
                self.forget(session)
                return
        raise ServiceError(
            Reason.TOO_MANY_REQUESTS,
            f"{self._limit} clients are known and alive (lakeMaxClients); try again later",
        )

    def keep(self, session: ClientSession, settings: ClientSettings) -> None:
        """Keeps a client's settings. TOO_MANY_REQUESTS when those of all, or of its address, are too many bytes."""
        published = tuple(dict.fromkeys(settings.published))
        more, host = _size(settings, published) - _size(session.settings, session.published), session.host
        total = self._settings_bytes + more
        if total > SETTINGS_BYTES or self._settings_shares.refuse(host, self._settings_bytes, more):
            own = self._settings_shares.of(host) + more
            raise ServiceError(
                Reason.TOO_MANY_REQUESTS,
                f"settings of all clients have {total} bytes, of {host} {own}; {SETTINGS_BYTES} are kept, and of an "
                f"address its share (lakeMaxSharePerAddress={self._percent}); subscribe to fewer topics or try again later",
            )
        if self._sessions.get((session.client_id, session.address)) is not session:
            return  # it is forgotten already
        self._count_settings(session, settings, published)
        session.group = settings.group
        session.request_timeout_ms = settings.request_timeout_ms

    def _count_settings(
        self, session: ClientSession, settings: ClientSettings | None, published: tuple[str, ...] = ()
    ) -> None:
        change = _size(settings, published) - _size(session.settings, session.published)
        for topic in session.published:
            publishers = self._publishers[topic]
            del publishers[session]
            if not publishers:
                del self._publishers[topic]
        for topic in published:
            self._publishers.setdefault(topic, {})[session] = None
        session.settings, session.published = settings, published
        self._settings_bytes += change
        self._settings_shares.count(session.host, change)

    def known(self, client_id: str, peer: str) -> ClientSession | None:
        """The client that calls from there, else the one of that id that was heard of last."""
        own = self._sessions.get((client_id, address_of(peer)))
        if own is not None:
            return own
        return max(self._by_id.get(client_id, {}).values(), key=lambda each: each.seen_ms, default=None)

    def own(self, client_id: str, peer: str) -> ClientSession | None:
        """The client that calls from there."""
        return self._sessions.get((client_id, address_of(peer)))

    def consumer(self, group: str, client_id: str) -> ClientSession | None:
        """The consumer of that group and id: of several at other addresses one with a stream, heard of last."""
        of_id = self._by_id.get(client_id, {}).values()
        found = [each for each in of_id if each.settings is not None and each.group == group]
        return max(found, key=lambda each: (each.commands is not None, each.seen_ms), default=None)

    def publisher_of(self, topic: str) -> ClientSession | None:
        """A producer of the topic that takes commands, another one each time; None when there is none among some."""
        publishers = self._publishers.get(topic)
        if publishers is None:
            return None
        for session in list(islice(publishers, _LOOKED_AT)):
            publishers[session] = publishers.pop(session)  # last in order
            if session.takes_commands:
                return session
        return None

    def alive(self, client_id: str, address: str = "") -> bool:
        """Whether the client of that id at `address` is; without one, whether any of that id is."""
        if address:
            session = self._sessions.get((client_id, address))
            return session is not None and session.alive
        return any(session.alive for session in self._by_id.get(client_id, {}).values())

    def forget(self, session: ClientSession) -> None:
        """Removes a session and ends its stream."""
        if self._sessions.pop((session.client_id, session.address), None) is None:
            return
        of_id = self._by_id[session.client_id]
        del of_id[session.address]
        if not of_id:
            del self._by_id[session.client_id]
        self._count_settings(session, None)
        self._shares.count(session.host, -1)
        self.end_stream(session)
        for listener in self._forgotten:
            listener(session)

    def expire(self) -> list[ClientSession]:
        """Removes clients without a stream that were silent for `IDLE_MS`; returns them."""
        limit = now_ms() - IDLE_MS
        idle = [s for s in self._sessions.values() if s.commands is None and s.seen_ms < limit]
        for session in idle:
            self.forget(session)
        return idle

    def sessions(self) -> Iterable[ClientSession]:
        return self._sessions.values()

    def end_streams(self) -> None:
        """Ends every telemetry stream."""
        for session in list(self._sessions.values()):
            self.end_stream(session)

    @staticmethod
    def end_stream(session: ClientSession) -> None:
        if session.commands is not None:
            session.commands.put_nowait(None)


def _size(settings: ClientSettings | None, published: tuple[str, ...]) -> int:
    return 0 if settings is None else settings.size + len(published) * _A_PUBLISHED_TOPIC
