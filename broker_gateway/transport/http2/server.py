"""The port: accepts connections, tells TLS from plaintext by the first byte, keeps them alive, drains them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Callable
from functools import partial

import structlog
from google.protobuf.descriptor import ServiceDescriptor

from broker_gateway.runtime.connection_slots import ConnectionSlot, ConnectionSlots
from broker_gateway.runtime.rate_limited_log import RateLimitedLog
from broker_gateway.runtime.tick import Tick
from broker_gateway.transport.http2.call import Call
from broker_gateway.transport.http2.engine import Connection
from broker_gateway.transport.http2.pace import Pace
from broker_gateway.transport.http2.replies import Replies
from broker_gateway.transport.http2.requests import Requests
from broker_gateway.transport.methods import (
    KEEPALIVE_S,
    KEEPALIVE_TIMEOUT_S,
    LEAST_PING_INTERVAL_S,
    METADATA_LIMIT_BYTES,
    Method,
    methods,
)

log = structlog.get_logger(__name__)

MAX_CONNECTIONS = 20_000
MAX_IDLE_S = 120.0
"""A connection without calls is closed after this time."""
HANDSHAKE_S = 10.0
"""How long a connection may take until its first settings are here."""
REQUEST_BYTES = 96 << 20
"""Of all requests that are on their way or being served, of all connections."""
REPLY_BYTES = 64 << 20
"""Of all replies that peers do not take."""
_ACCEPTS_A_TICK = 16
_LOOK_S = 2.0
_WARN_EVERY_S = 60.0
_CLOSE_S = 1.0
"""For what is queued to leave, and for a peer's part in the end of TLS."""
_TLS_HANDSHAKE = 0x16


class Http2Server:
    """A gRPC server on one port. `local_endpoint` is what routes show when a client names no address.

    With `tls` the port takes TLS as well as plaintext; connections take `slots`. Raises OSError when the port cannot
    be opened.
    """

    def __init__(
        self,
        host: str,
        port: int,
        advertised_host: str,
        tick: Tick,
        tls: ssl.SSLContext | None = None,
        slots: ConnectionSlots | None = None,
    ) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=4096)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self.local_endpoint = (advertised_host, self.port)
        self._max_idle_s = MAX_IDLE_S
        self._tick = tick
        self._tls = tls
        self._slots = slots or ConnectionSlots(lambda: MAX_CONNECTIONS, MAX_CONNECTIONS)
        self._methods: dict[str, Method] = {}
        self.requests = Requests(REQUEST_BYTES)
        self._replies = Replies(REPLY_BYTES, _closed_for_replies(RateLimitedLog("closed")))
        self._pace = Pace(tick)
        self.calls: set[Call] = set()
        self.connections: set[Connection] = set()
        self._sniffing: dict[socket.socket, tuple[asyncio.TimerHandle, ConnectionSlot]] = {}
        self._opening: set[asyncio.Task[None]] = set()
        self._keeper: asyncio.Task[None] | None = None
        self._gone = asyncio.Event()
        self._tls_warned = float("-inf")

    def bind(
        self,
        service: ServiceDescriptor,
        implementation: object,
        around: Callable[[Method], Method] | None = None,
    ) -> None:
        """Serves every RPC of `service` by the method of that name, with something `around` each."""
        self._methods.update({method.path: method for method in methods(service, implementation, around)})

    def close_idle_after(self, seconds: float) -> None:
        """A connection without calls is closed after this time."""
        self._max_idle_s = seconds

    async def start(self) -> None:
        """Takes connections."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._listener, self._accept)
        self._keeper = asyncio.create_task(self._keep(), name="connections")

    async def stop(self, grace_s: float) -> None:
        """Takes no new connections or calls; running ones get `grace_s` seconds, then they are refused as retryable."""
        self._close_listener()
        for connection in list(self.connections):
            connection.drain()
        await self._all_closed(grace_s)
        for call in list(self.calls):
            call.fail("UNAVAILABLE", "the gateway is stopping; try another or try again")
        for connection in list(self.connections):
            connection.close()
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        await self._all_closed(_CLOSE_S)
        for connection in list(self.connections):
            connection.abort()

    async def _all_closed(self, limit_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                if self._opening:
                    await asyncio.wait(self._opening)
                while self.connections:
                    self._gone.clear()
                    await self._gone.wait()

    # ----- connections -----

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_A_TICK):
            try:
                accepted, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # out of file descriptors: leave them in the backlog for a while
                log.error("connections are not accepted", error=str(error))
                loop = asyncio.get_running_loop()
                loop.remove_reader(self._listener)
                loop.call_later(1.0, self._accept_again)
                return
            slot = self._slots.take(address[0], partial(self._drop_silent, accepted))
            if slot is None or len(self.connections) >= MAX_CONNECTIONS:
                if slot is not None:
                    slot.leave()
                accepted.close()
                continue
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is None:
                self._open(accepted, None, slot)
            else:
                self._sniff(accepted, slot)

    def _accept_again(self) -> None:
        if self._listener.fileno() >= 0:
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _sniff(self, accepted: socket.socket, slot: ConnectionSlot) -> None:
        """Waits for the first byte and leaves it where it is."""
        loop = asyncio.get_running_loop()
        late = loop.call_later(HANDSHAKE_S, self._drop_silent, accepted)
        self._sniffing[accepted] = (late, slot)
        loop.add_reader(accepted, self._first_byte, accepted, slot)

    def _first_byte(self, accepted: socket.socket, slot: ConnectionSlot) -> None:
        try:
            first = accepted.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        self._sniffing.pop(accepted)[0].cancel()
        asyncio.get_running_loop().remove_reader(accepted)
        if not first:
            slot.leave()
            accepted.close()
        else:
            self._open(accepted, self._tls if first[0] == _TLS_HANDSHAKE else None, slot)

    def _drop_silent(self, accepted: socket.socket) -> None:
        waiting = self._sniffing.pop(accepted, None)
        if waiting is not None:
            timer, slot = waiting
            timer.cancel()
            slot.leave()
            asyncio.get_running_loop().remove_reader(accepted)
            accepted.close()

    def _open(self, accepted: socket.socket, tls: ssl.SSLContext | None, slot: ConnectionSlot) -> None:
        task = asyncio.create_task(self._opened(accepted, tls, slot))
        slot.close = task.cancel
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _opened(
        self, accepted: socket.socket, tls: ssl.SSLContext | None, slot: ConnectionSlot
    ) -> None:
        loop = asyncio.get_running_loop()
        handshake_s, shutdown_s = (None, None) if tls is None else (HANDSHAKE_S, _CLOSE_S)
        connection = self._connection(slot)
        try:  # with TLS uvloop returns a protocol of its own
            await loop.connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=tls,
                ssl_handshake_timeout=handshake_s,
                ssl_shutdown_timeout=shutdown_s,
            )
        except (OSError, ssl.SSLError, asyncio.CancelledError) as error:
            slot.leave()
            accepted.close()
            log.debug("connection not opened", error=str(error))
        else:
            slot.close = connection.abort

    def _connection(self, slot: ConnectionSlot) -> Connection:
        return Connection(
            self._tick,
            self._pace,
            self._replies,
            slot,
            self._call,
            self.connections.add,
            self._closed,
            self._spoke_tls,
            max_header_bytes=METADATA_LIMIT_BYTES,
            least_ping_interval_s=LEAST_PING_INTERVAL_S,
        )

    def _call(self, connection: Connection) -> Call:
        return Call(
            connection,
            self._methods,
            self.requests,
            self.calls,
            self.local_endpoint,
            asyncio.get_running_loop(),
        )

    def _closed(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self._gone.set()

    def _spoke_tls(self, connection: Connection) -> None:
        now = time.monotonic()
        if now - self._tls_warned > _WARN_EVERY_S:
            self._tls_warned = now
            log.warning(
                "a client wants TLS, this port takes plaintext only; give tlsCertPath and tlsKeyPath, "
                "leave out tlsTestModeEnable=false, or switch TLS off in the client",
                peer=connection.peer,
            )

    def _close_listener(self) -> None:
        loop = asyncio.get_running_loop()
        if self._listener.fileno() >= 0:
            loop.remove_reader(self._listener)
            self._listener.close()
        for accepted in list(self._sniffing):
            self._drop_silent(accepted)

    async def _keep(self) -> None:
        """Closes connections that never spoke HTTP/2 or are dead; asks silent ones whether they live."""
        while True:
            await asyncio.sleep(_LOOK_S)
            now = time.monotonic()
            self.requests.expire(now)
            for connection in list(self.connections):
                if not connection.settled and now - connection.opened_at > HANDSHAKE_S:
                    connection.abort()
                    continue
                if connection.streams:
                    connection.called_at = now
                elif now - connection.called_at > self._max_idle_s:
                    connection.drain()
                if connection.pinged_at:
                    if now - connection.pinged_at > KEEPALIVE_TIMEOUT_S:
                        connection.abort()
                elif now - connection.last_heard > KEEPALIVE_S:
                    connection.ping()


def _closed_for_replies(rate_limited_log: RateLimitedLog) -> Callable[[str, int], None]:
    def closed(peer: str, held: int) -> None:
        rate_limited_log.happened(
            log.warning,
            "too many bytes of replies are held; connections that do not take theirs are closed",
            peer=peer,
            bytes=held,
        )

    return closed
