"""Requests on their way: what of them is held, what gives way when it is too much, and how long they may take.

| bytes count | until | beyond the limit |
|---|---|---|
| of a request that is not complete | it is | the calls that have held some for longest fail |
| of a stream's requests that the service has not taken | it takes them | the same |
| of a request that is being served | it is answered | the call is refused when nothing of the above is left to fail |
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

from broker_gateway.transport.http2 import engine
from broker_gateway.transport.http2.framing import PREFIX_BYTES, FramingError, length_at
from broker_gateway.transport.methods import REQUEST_S

COUNTED_BYTES = 8 << 10
"""A request that is smaller does not count while it is served."""
_ENTRY_BYTES = 128
"""What a request of a stream costs beside its bytes."""
_LEAST_RATE = 16 << 10
"""Bytes a second that a request is given time for."""


class Holder(Protocol):
    """A call, as far as it can be made to give up."""

    def fail(self, code: str, message: str) -> None: ...


class Requests:
    """What the requests of all connections hold, at most `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: dict[Holder, int] = {}  # the first has held bytes for longest
        self._unfinished: dict[Holder, float] = {}  # the first was opened first
        self.held = 0

    def opened(self, call: Holder, now: float) -> None:
        """The request of `call` is awaited from `now` on, by the monotonic clock."""
        self._unfinished[call] = now

    def finished(self, call: Holder) -> None:
        """The request is complete, or will not be."""
        self._unfinished.pop(call, None)
        if self._waiting:
            self.held -= self._waiting.pop(call, 0)

    def wait(self, call: Holder, count: int) -> None:
        """`call` holds so many bytes more that wait; this may end it, and others."""
        self._waiting[call] = self._waiting.get(call, 0) + count
        self.held += count
        if self.held > self._limit:
            self._make_room(0)

    def waited(self, call: Holder, count: int) -> None:
        """So many bytes wait no more."""
        before = self._waiting.get(call)
        if before is None:
            return
        self.held -= min(count, before)
        if count >= before:
            del self._waiting[call]
        else:
            self._waiting[call] = before - count

    def use(self, count: int) -> bool:
        """Whether a request of so many bytes may be served; they are to be `used`."""
        if self.held + count > self._limit and not self._make_room(count):
            return False
        self.held += count
        return True

    def used(self, count: int) -> None:
        self.held -= count

    def expire(self, now: float) -> None:
        """Fails calls whose requests took too long."""
        late = []
        for call, opened_at in self._unfinished.items():
            if now - opened_at <= REQUEST_S:
                break
            if now - opened_at > REQUEST_S + self._waiting.get(call, 0) / _LEAST_RATE:
                late.append(call)
        for call in late:
            call.fail("DEADLINE_EXCEEDED", f"the request was not complete after {REQUEST_S:g} s; try again")

    def _make_room(self, count: int) -> bool:
        while self.held + count > self._limit:
            longest = next(iter(self._waiting), None)
            if longest is None:
                return False
            longest.fail(
                "RESOURCE_EXHAUSTED",
                "too many bytes of requests are held, this one's for longest; try again later",
            )
            self.finished(longest)
        return True


class RequestStream(AsyncIterator[Any]):
    """Requests of a streaming client in the order they came, each parsed when it is asked for.

    `parse` is given the bytes and whether they are compressed; `fail` ends the call.
    """

    __slots__ = (
        "_buffer",
        "_call",
        "_connection",
        "_early",
        "_end_at",
        "_ended",
        "_fail",
        "_limit",
        "_loop",
        "_parse",
        "_ready",
        "_requests",
        "_stream_id",
        "_waiter",
    )

    def __init__(
        self,
        call: Holder,
        connection: engine.Connection,
        stream_id: int,
        requests: Requests,
        limit: int,
        parse: Callable[[bytes, bool], Any],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._call = call
        self._connection = connection
        self._stream_id = stream_id
        self._requests = requests
        self._limit = limit
        self._parse = parse
        self._loop = loop
        self._buffer = bytearray()
        self._end_at = 0  # of the first message in the buffer; 0: not known yet
        self._early = 0  # bytes of that message that were released already
        self._ready: deque[tuple[bytes, bool, int]] = deque()  # payload, compressed, bytes to release
        self._waiter: asyncio.Future[None] | None = None
        self._ended = False

    @property
    def within_a_message(self) -> bool:
        return bool(self._buffer)

    def feed(self, payload: bytes) -> None:
        """Takes the next bytes; none once the call has ended, which this may do. Raises FramingError."""
        if self._ended:
            self._connection.release(self._stream_id, len(payload))
            return
        buffer = self._buffer
        buffer += payload
        self._requests.wait(self._call, len(payload))
        if self._ended:
            return
        while len(buffer) >= (self._end_at or PREFIX_BYTES):
            if not self._end_at:
                self._end_at = PREFIX_BYTES + length_at(buffer, 0, self._limit)
                continue
            end = self._end_at
            self._ready.append(
                (bytes(memoryview(buffer)[PREFIX_BYTES:end]), bool(buffer[0]), end - self._early)
            )
            del buffer[:end]
            self._end_at = self._early = 0
            self._requests.wait(self._call, _ENTRY_BYTES)
            if self._ended:
                return
        if self._end_at > engine.STREAM_WINDOW // 2:  # else the window could not hold the message
            self._connection.release(self._stream_id, len(buffer) - self._early)
            self._early = len(buffer)
        if self._ready:
            self._wake()

    def end(self) -> None:
        """No more will come; what is there may be asked for."""
        self._ended = True
        self._wake()

    def drop(self) -> None:
        """The call has ended: nothing is kept."""
        self._ready.clear()
        self._buffer.clear()
        self._end_at = self._early = 0
        self.end()

    async def __anext__(self) -> Any:
        while not self._ready:
            if self._ended:
                raise StopAsyncIteration
            self._waiter = self._loop.create_future()
            await self._waiter
        payload, compressed, unreleased = self._ready.popleft()
        size = len(payload)
        self._requests.waited(self._call, PREFIX_BYTES + size + _ENTRY_BYTES)
        if unreleased:
            self._connection.release(self._stream_id, unreleased)
        try:
            return self._parse(payload, compressed)
        except FramingError as error:
            self._call.fail(error.code, error.message)
            raise StopAsyncIteration from error

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
