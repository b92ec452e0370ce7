"""The calling side: one connection for each address, made when it is needed and kept.

Limits are the original's: 256 one-way requests and 64 others under way; what comes beyond waits for its turn, within its time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

import structlog

from broker_gateway.protocol.command import Command
from broker_gateway.protocol.errors import (
    ConnectError,
    RemotingError,
    RequestTimeoutError,
    TooManyRequestsError,
)
from broker_gateway.runtime.peer_log import PeerLog
from broker_gateway.transport.remoting.address import parse_address
from broker_gateway.transport.remoting.connection import Connection, ConnectionOptions, Processors

log = structlog.get_logger(__name__)

MAX_CONNECTIONS = 4096
HEDGE_S = 0.5
"""Silence after which another address is asked too."""
_SLACK_S = 0.1  # a request ends by itself, and closes a half-open connection


class RemotingClient:
    """Sends requests to addresses. `processors` serve what peers ask on these connections; `on_lost` is told the address
    of one that ended otherwise than by `disconnect` or `close`."""

    def __init__(
        self,
        processors: Processors | None = None,
        options: ConnectionOptions | None = None,
        *,
        one_way_limit: int = 256,
        async_limit: int = 64,
        connect_timeout_s: float = 3.0,
        on_lost: Callable[[str], None] | None = None,
    ) -> None:
        self._on_lost = on_lost
        self._processors = processors or Processors()
        self._options = options or ConnectionOptions()
        self._one_way = asyncio.Semaphore(one_way_limit)
        self._async = asyncio.Semaphore(async_limit)
        self._connect_timeout_s = connect_timeout_s
        self._peer_log = PeerLog()
        self._connecting: dict[str, asyncio.Task[Connection]] = {}
        self._connections: dict[str, Connection] = {}
        self._preferred: str | None = None
        self._closed = False

    async def invoke(self, address: str, command: Command, timeout_s: float = 3.0) -> Command:
        """The response of `address`. Raises a RemotingError; the response's code is the caller's to judge.

        A connection from which nothing at all came within the time is closed: it may be half open.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        async with _slot(self._async, timeout_s, "requests"):
            connection = await self._connection(address, deadline)
            seen = connection.received
            try:
                return await connection.invoke(command, max(deadline - loop.time(), 0.001))
            except RequestTimeoutError:
                if connection.received == seen:
                    connection.close("no answer in time", at_once=True)
                raise

    async def invoke_one_way(self, address: str, command: Command, timeout_s: float = 3.0) -> None:
        """Hands a request to the connection; whether it arrives is unknown. Raises a RemotingError."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        async with _slot(self._one_way, timeout_s, "one-way requests"):
            connection = await self._connection(address, deadline)
            await connection.invoke_one_way(command, max(deadline - loop.time(), 0.001))

    async def invoke_first(
        self, addresses: Sequence[str], command: Command, timeout_s: float = 3.0
    ) -> Command:
        """The response of the first address that answers; the one that answered last is asked first.

        The next one is asked as well when one failed or said nothing for `HEDGE_S`, less when there are many. Raises ConnectError with what every
        address said, after `timeout_s` at most.
        """
        order = sorted(addresses, key=lambda each: each != self._preferred)
        deadline = asyncio.get_running_loop().time() + timeout_s
        hedge_s = min(HEDGE_S, timeout_s / (len(order) + 1))
        asked: dict[asyncio.Task[Command], str] = {}
        failures = dict.fromkeys(order, "not asked in time")
        try:
            while order or asked:
                left = deadline - asyncio.get_running_loop().time()
                if left <= 0:
                    break
                if order:
                    address = order.pop(0)
                    failures[address] = f"no answer in {left:.1f} s"
                    asked[asyncio.create_task(self.invoke(address, command, left))] = address
                done, _ = await asyncio.wait(
                    asked,
                    timeout=min(left, hedge_s) if order else left + _SLACK_S,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for task in done:
                    address = asked.pop(task)
                    error = task.exception()
                    if error is None:
                        self._preferred = address
                        return task.result()
                    if not isinstance(error, RemotingError):
                        raise error
                    failures[address] = str(error)
        finally:
            for task in asked:
                task.cancel()
        said = "; ".join(f"{address}: {why}" for address, why in failures.items())
        raise ConnectError(f"no address answered: {said or 'none is configured'}")

    def peer_host(self, address: str) -> str | None:
        """The numeric address that the connection to an address goes to; None without one."""
        connection = self._connections.get(address)
        return connection.peer_host if connection is not None else None

    def disconnect(self, address: str) -> None:
        """Closes the connection to an address, if there is one."""
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close("not needed any more")

    async def close(self) -> None:
        """Closes every connection; requests under way fail with SendError."""
        self._closed = True
        for task in list(self._connecting.values()):
            task.cancel()
        connections = list(self._connections.values())
        for connection in connections:
            connection.close("the client is closed", at_once=True)
        for connection in connections:
            await connection.wait_closed()

    async def _connection(self, address: str, deadline: float) -> Connection:
        if self._closed:
            raise ConnectError(f"{address}: the client is closed")
        connection = self._connections.get(address)
        if connection is not None and connection.is_open:
            return connection
        task = self._connecting.get(address)
        if task is None:
            if len(self._connections) + len(self._connecting) >= MAX_CONNECTIONS:
                raise TooManyRequestsError(f"{address}: {MAX_CONNECTIONS} connections are open")
            task = asyncio.create_task(self._connect(address), name=f"connect {address}")
            self._connecting[address] = task
            task.add_done_callback(lambda done: self._connected(address, done))
        try:
            async with asyncio.timeout_at(deadline):
                return await asyncio.shield(task)
        except TimeoutError as error:
            raise ConnectError(f"{address}: no connection in time") from error
        except asyncio.CancelledError:
            if self._closed and task.cancelled() and not _is_cancelled():
                raise ConnectError(f"{address}: the client is closed") from None
            raise

    async def _connect(self, address: str) -> Connection:
        host, port = parse_address(address)
        loop = asyncio.get_running_loop()

        def gone(connection: Connection) -> None:
            if self._connections.get(address) is connection:
                del self._connections[address]
                if self._on_lost is not None and not self._closed:
                    self._on_lost(address)

        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await loop.create_connection(
                    lambda: Connection(
                        self._processors, self._options, on_close=gone, peer_log=self._peer_log
                    ),
                    host,
                    port,
                )
        except TimeoutError as error:
            raise ConnectError(f"{address}: no connection in {self._connect_timeout_s:g} s") from error
        except OSError as error:
            raise ConnectError(f"{address}: {error.strerror or error}") from error
        except UnicodeError as error:  # a label of the host name is empty or too long
            raise ConnectError(f"{address}: this is no host name: {error}") from error
        self._connections[address] = connection
        return connection

    def _connected(self, address: str, task: asyncio.Task[Connection]) -> None:
        self._connecting.pop(address, None)
        if not task.cancelled() and task.exception() is not None:
            log.debug("no connection", address=address, error=str(task.exception()))


def _is_cancelled() -> bool:
    """Whether who runs was itself cancelled, rather than what it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


@contextlib.asynccontextmanager
async def _slot(limit: asyncio.Semaphore, timeout_s: float, what: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(timeout_s):
            await limit.acquire()
    except TimeoutError as error:
        raise TooManyRequestsError(f"too many {what} are under way; none ended in {timeout_s:g} s") from error
    try:
        yield
    finally:
        limit.release()
