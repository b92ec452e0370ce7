"""Clients of the gateway: their settings, telemetry streams and signs of life. Bounded, expiring.

A client is its id and the address that it calls from. What comes from another address under the same id is another
client: it changes and ends nothing of the first. A client that lives is never forgotten to make room for a new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from broker_gateway.runtime.clock import now_ms
from broker_gateway.runtime.peer_log import PeerLog
from broker_gateway.runtime.shares import Shares, address_of, host_of
from broker_gateway.service.status import ServiceError
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2, service_pb2

IDLE_MS = 120_000
"""A client that shows no sign of life for this long is forgotten."""
ALIVE_MS = 35_000
"""A client heard of within this time counts as alive (heartbeats come every 10 s)."""
COMMANDS_A_CLIENT = 64
SETTINGS_BYTES = 64 << 20
"""Of all clients together."""
_LOOKED_AT = 64
"""Of the longest silent clients, for one that gives way to a new one."""


@dataclass(slots=True, eq=False)
class ClientSession:
    """One client; `settings` are what is needed of those it sent, `commands` what its telemetry stream is to carry."""

    client_id: str
    address: str = ""
    """It is the client of that id at this address, and no other."""
    host: str = ""
    """What its shares are counted by."""
    kept: bytes | None = None
    """The settings, encoded: parsed they take eight times as much."""
    group: str = ""
    request_timeout_ms: int | None = None
    commands: asyncio.Queue[service_pb2.TelemetryCommand | None] | None = None
    seen_ms: int = field(default_factory=now_ms)
    peer: str = ""
    """`ip:port` of its stream."""
    language: str = "OTHER"

    @property
    def settings(self) -> definition_pb2.Settings | None:
        """Parsed anew at each use. None before it sent any."""
        return None if self.kept is None else definition_pb2.Settings.FromString(self.kept)

    @property
    def alive(self) -> bool:
        """Whether its stream is open or it was heard of lately."""
        return self.commands is not None or now_ms() - self.seen_ms < ALIVE_MS


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
        self._settings_bytes = 0
        self._settings_shares = Shares(SETTINGS_BYTES, percent)

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
                definition_pb2.TOO_MANY_REQUESTS,
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
            definition_pb2.TOO_MANY_REQUESTS,
            f"{self._limit} clients are known and alive (lakeMaxClients); try again later",
        )

    def keep(self, session: ClientSession, settings: definition_pb2.Settings) -> None:
        """Keeps what is needed of a client's settings. TOO_MANY_REQUESTS when those of all, or of its address, are too
        many bytes."""
        kept = _needed(settings).SerializeToString()
        more, host = len(kept) - len(session.kept or b""), session.host
        total = self._settings_bytes + more
        if total > SETTINGS_BYTES or self._settings_shares.refuse(host, self._settings_bytes, more):
            own = self._settings_shares.of(host) + more
            raise ServiceError(
                definition_pb2.TOO_MANY_REQUESTS,
                f"settings of all clients have {total} bytes, of {host} {own}; {SETTINGS_BYTES} are kept, and of an "
                f"address its share (lakeMaxSharePerAddress={self._percent}); subscribe to fewer topics or try again later",
            )
        if self._sessions.get((session.client_id, session.address)) is not session:
            return  # it is forgotten already
        self._count_settings(session, kept)
        session.group = settings.subscription.group.name
        session.request_timeout_ms = _timeout_ms(settings)

    def _count_settings(self, session: ClientSession, kept: bytes | None) -> None:
        change = len(kept or b"") - len(session.kept or b"")
        session.kept = kept
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
        commands = session.commands
        if commands is None:
            return
        if commands.full():
            commands.get_nowait()
        commands.put_nowait(None)


def _needed(settings: definition_pb2.Settings) -> definition_pb2.Settings:
    """What answers and lists of clients are made of."""
    needed = definition_pb2.Settings(client_type=settings.client_type)
    if settings.HasField("request_timeout"):
        needed.request_timeout.CopyFrom(settings.request_timeout)
    if settings.HasField("publishing"):
        needed.publishing.topics.extend(settings.publishing.topics)
    if settings.HasField("subscription"):
        needed.subscription.CopyFrom(settings.subscription)
    return needed


def _timeout_ms(settings: definition_pb2.Settings) -> int | None:
    if not settings.HasField("request_timeout"):
        return None
    timeout = settings.request_timeout
    return max(0, min(timeout.seconds, 3600)) * 1000 + max(0, timeout.nanos) // 1_000_000
