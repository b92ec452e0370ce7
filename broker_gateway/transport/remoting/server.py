"""The listening side: accepts connections and keeps what all of them hold within bounds."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial

import structlog

from broker_gateway.runtime.connection_slots import ConnectionSlot, ConnectionSlots
from broker_gateway.runtime.peer_log import PeerLog
from broker_gateway.runtime.rate_limited_log import RateLimitedLog
from broker_gateway.transport.remoting.address import is_loopback
from broker_gateway.transport.remoting.connection import Connection, ConnectionOptions, Processors

log = structlog.get_logger(__name__)

MAX_CONNECTIONS = 20_000
SPARE = 64
"""Connections from this machine beyond the limit, for administrators."""
MAX_HELD = 256 << 20
"""Bytes of frames not whole, requests being served and answers not sent, of all connections."""
_SMALL = 64 << 10


class RemotingServer:
    """Serves requests by `processors`; `on_close` is told every connection that ended.

    A connection takes one of `slots`, where it shares them with other ports. Beyond `max_connections` a connection is closed as it comes; one from this machine, beyond SPARE more. Beyond
    `max_held` bytes connections are closed that have made no progress for longest: first of those that hold more than
    64 KiB, then of the others.
    """

    def __init__(
        self,
        processors: Processors,
        options: ConnectionOptions | None = None,
        *,
        on_close: Callable[[Connection], None] | None = None,
        max_connections: int = MAX_CONNECTIONS,
        max_held: int = MAX_HELD,
        slots: ConnectionSlots | None = None,
    ) -> None:
        self._processors = processors
        self._options = options or ConnectionOptions()
        self._on_close = on_close
        self._max_connections = max_connections
        self._max_held = max_held
        self._slots = slots
        self._slot_of: dict[Connection, ConnectionSlot] = {}
        self._held: dict[Connection, int] = {}
        self._total_held = 0
        self._refused, self._stalled = RateLimitedLog("closed"), RateLimitedLog("closed")
        self._peer_log = PeerLog()
        self._servers: list[asyncio.Server] = []
        self.port = 0
        """The port that was listened on first."""

    @property
    def connections(self) -> int:
        return len(self._held)

    async def start(self, host: str, port: int, *, backlog: int = 1024) -> None:
        """Listens; port 0 takes a free one. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._listens(await loop.create_server(self._accept, host, port, backlog=backlog))

    async def start_on(self, bound: socket.socket, *, backlog: int = 1024) -> None:
        """Listens on a socket that is bound, beside others; closes it at the end. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._listens(await loop.create_server(self._accept, sock=bound, backlog=backlog))

    def _listens(self, server: asyncio.Server) -> None:
        self._servers.append(server)
        self.port = self.port or int(server.sockets[0].getsockname()[1])

    async def stop(self, grace_s: float = 1.0) -> None:
        """No new connections; requests that are being served get `grace_s`, then all is closed."""
        for server in self._servers:
            server.close()
        served = [task for each in self._held for task in each.in_flight]
        if served:
            await asyncio.wait(served, timeout=grace_s)
        open_ones = list(self._held)
        for each in open_ones:
            each.close("the server stops")
        if open_ones:
            closing = [asyncio.ensure_future(each.wait_closed()) for each in open_ones]
            _, late = await asyncio.wait(closing, timeout=max(grace_s, 0.1))
            for waiter in late:
                waiter.cancel()
            for each in list(self._held):
                each.abort()
        for server in self._servers:
            await server.wait_closed()
        self._servers.clear()

    def _accept(self) -> Connection:
        return Connection(
            self._processors,
            self._options,
            on_open=self._opened,
            on_close=self._closed,
            on_held=self._weigh,
            peer_log=self._peer_log,
        )

    def _opened(self, connection: Connection) -> None:
        spare = SPARE if is_loopback(connection.peer_host) else 0
        if len(self._held) >= self._max_connections + spare:
            self._refused.happened(
                log.warning,
                "too many connections; new ones are closed",
                peer=connection.peer,
                limit=self._max_connections,
            )
            connection.close(f"{self._max_connections} connections are open", at_once=True)
            return
        if self._slots is not None:
            slot = self._slots.take(
                connection.peer_host, partial(connection.close, "others wait", at_once=True)
            )
            if slot is None:
                connection.close("no more connections can be open", at_once=True)
                return
            self._slot_of[connection] = slot
        self._held[connection] = 0

    def _closed(self, connection: Connection) -> None:
        held = self._held.pop(connection, None)
        if held is None:
            return
        if (slot := self._slot_of.pop(connection, None)) is not None:
            slot.leave()
        self._total_held -= held
        if self._on_close is not None:
            self._on_close(connection)

    def _weigh(self, connection: Connection) -> None:
        before = self._held.get(connection)
        if before is None:
            return
        if connection.received and (slot := self._slot_of.get(connection)) is not None:
            slot.called()
        self._held[connection] = connection.held
        self._total_held += self._held[connection] - before
        if self._total_held > self._max_held:
            self._close_stalled()

    def _close_stalled(self) -> None:
        holding = [each for each, held in self._held.items() if held and each.is_open]
        holding.sort(key=lambda each: (self._held[each] <= _SMALL, each.stalled_since))
        most = self._max_held
        for each in holding:
            if self._total_held <= most:
                return
            if (
                self._held[each] <= _SMALL
            ):  # many of them at once, for the next one to come would look at all again
                most = self._max_held - (self._max_held >> 4)
            self._stalled.happened(
                log.warning,
                "too much is held; stalled connections are closed",
                peer=each.peer,
                bytes=each.held,
            )
            each.close(f"{self._max_held} bytes are held for connections", at_once=True)
            self._total_held -= self._held[each]
            self._held[each] = 0
