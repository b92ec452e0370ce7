"""Clients of the gateway: their settings, telemetry streams and signs of life. Bounded, expiring."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from broker_gateway.clock import now_ms
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2, service_pb2

IDLE_MS = 120_000
"""A client that shows no sign of life for this long is forgotten."""
ALIVE_MS = 35_000
"""A client heard of within this time counts as alive (heartbeats come every 10 s)."""
COMMANDS_A_CLIENT = 64


@dataclass(slots=True, eq=False)
class ClientSession:
    """One client by its id; `settings` are what it sent, `commands` what its telemetry stream is to carry."""

    client_id: str
    settings: definition_pb2.Settings | None = None
    commands: asyncio.Queue[service_pb2.TelemetryCommand | None] | None = None
    seen_ms: int = field(default_factory=now_ms)
    peer: str = ""
    """`ip:port` of its stream."""
    language: str = "OTHER"

    @property
    def group(self) -> str:
        return self.settings.subscription.group.name if self.settings is not None else ""


class ClientRegistry:
    """Sessions by client id, at most `limit`; the longest silent one gives way."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._sessions: dict[str, ClientSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def seen(self, client_id: str) -> ClientSession:
        """The session of a client that just called, made if new."""
        session = self._sessions.pop(client_id, None)
        if session is None:
            session = ClientSession(client_id)
            if len(self._sessions) >= self._limit:
                self.forget(next(iter(self._sessions)))
        session.seen_ms = now_ms()
        self._sessions[client_id] = session  # last in order: the first is the longest silent
        return session

    def known(self, client_id: str) -> ClientSession | None:
        return self._sessions.get(client_id)

    def alive(self, client_id: str) -> bool:
        """Whether the client's stream is open or it was heard of lately."""
        session = self._sessions.get(client_id)
        return session is not None and (session.commands is not None or now_ms() - session.seen_ms < ALIVE_MS)

    def forget(self, client_id: str) -> ClientSession | None:
        """Removes a session and ends its stream."""
        session = self._sessions.pop(client_id, None)
        if session is not None:
            self.end_stream(session)
        return session

    def expire(self) -> list[ClientSession]:
        """Removes clients without a stream that were silent for `IDLE_MS`; returns them."""
        limit = now_ms() - IDLE_MS
        idle = [s for s in self._sessions.values() if s.commands is None and s.seen_ms < limit]
        for session in idle:
            del self._sessions[session.client_id]
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
