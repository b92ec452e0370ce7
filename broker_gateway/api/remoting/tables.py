"""Whole tables of the broker (its topics, groups, offsets): made for few at a time, the newest of each kind kept a while.

Whoever asks on a connection that still has to read an answer waits for that first, outside of the line of all.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, NamedTuple, TypeVar, cast

from broker_gateway.api.remoting.concurrency_limit import ConcurrencyLimit
from broker_gateway.protocol.codes import ResponseCode
from broker_gateway.protocol.errors import RequestError
from broker_gateway.protocol.frame import MAX_FRAME
from broker_gateway.transport.remoting.connection import Connection

AT_ONCE = 2
WAITING = 32
WAITING_ON_A_CONNECTION = 8
KEPT_S = 10.0
MAX_BODY = MAX_FRAME - (64 << 10)
"""Bytes of an answer's body that fit into a frame with any header of ours."""
Table = TypeVar("Table")


class Whole(NamedTuple):
    """A table's body, and how many entries it has."""

    total: int
    body: bytes


class _Kept(NamedTuple):
    version: object
    started: float
    table: Any
    refusal: RequestError | None


class _Turn:
    """Requests of one connection, one at a time."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.count = 0


class Tables:
    """`made` counts the tables that were made, rather than found."""

    def __init__(self) -> None:
        self._limit = ConcurrencyLimit(AT_ONCE, WAITING, "whole tables")
        self._kept: dict[str, _Kept] = {}
        self._making: dict[str, asyncio.Lock] = {}
        self._turns: dict[Connection, _Turn] = {}
        self.made = 0

    async def table(
        self,
        connection: Connection,
        kind: str,
        version: Callable[[], object],
        make: Callable[[], Awaitable[Table]],
    ) -> Table:
        """The table of a kind in its current `version`, made if need be: `make` takes the state in its first step.

        Of a version None, one that was begun after this was asked. Raises what `make` raises, or SYSTEM_BUSY.
        """
        asked = asyncio.get_running_loop().time()
        async with self._turn(connection):
            await connection.writable()
            if (kept := self._fresh(kind, version(), asked)) is None:
                async with self._limit, self._making.setdefault(kind, asyncio.Lock()):
                    kept = self._fresh(kind, version(), asked) or await self._make(kind, version(), make)
        if kept.refusal is not None:
            raise RequestError(str(kept.refusal), kept.refusal.code)
        return cast(Table, kept.table)

    def _fresh(self, kind: str, version: object, asked: float) -> _Kept | None:
        kept = self._kept.get(kind)
        if kept is None or kept.version != version or (version is None and kept.started < asked):
            return None
        return kept

    async def _make(self, kind: str, version: object, make: Callable[[], Awaitable[object]]) -> _Kept:
        loop = asyncio.get_running_loop()
        started = loop.time()
        self.made += 1
        try:
            kept = _Kept(version, started, await make(), None)
        except RequestError as error:
            kept = _Kept(version, started, None, error)
        self._kept[kind] = kept
        loop.call_later(KEPT_S, self._drop, kind, kept)
        return kept

    def _drop(self, kind: str, kept: _Kept) -> None:
        if self._kept.get(kind) is kept:
            del self._kept[kind]

    @contextlib.asynccontextmanager
    async def _turn(self, connection: Connection) -> AsyncIterator[None]:
        turn = self._turns.setdefault(connection, _Turn())
        if turn.count >= WAITING_ON_A_CONNECTION:
            raise RequestError(
                f"{turn.count} requests for whole tables are under way on this connection; wait for their answers",
                ResponseCode.SYSTEM_BUSY,
            )
        turn.count += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.count -= 1
            if not turn.count:
                del self._turns[connection]


def joined(head: bytes, members: Iterable[bytes], tail: bytes, too_large: str) -> bytes:
    """JSON of its parts, with commas between the members. RequestError with `too_large` when no frame has room for it."""
    size, parts = len(head) + len(tail), []
    for each in members:
        size += len(each) + 1
        if size > MAX_BODY:
            raise RequestError(too_large)
        parts.append(each)
    return b"".join((head, b",".join(parts), tail))
