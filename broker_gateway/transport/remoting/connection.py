"""One connection: either end may send requests, each is answered by its opaque.

Bounds, and what happens there:

| bound | then |
|---|---|
| frame, header | the connection is closed (ProtocolError) |
| requests being served (`max_in_flight`, their frames `max_frame`) | nothing more is read until one is answered |
| unsent answers (transport's high-water mark) | nothing more is read until the peer reads, unless a response is awaited |
| no byte either way, a frame begun, or answers not read for `idle_s` | the connection is closed |
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import structlog

from broker_gateway.protocol.codes import ResponseCode
from broker_gateway.protocol.command import ONE_WAY_FLAG, Command
from broker_gateway.protocol.errors import (
    BodyError,
    EncodeError,
    ProtocolError,
    RequestError,
    RequestTimeoutError,
    SendError,
)
from broker_gateway.protocol.frame import MAX_FRAME, Decoder, encode_head
from broker_gateway.runtime.peer_log import PeerLog

log = structlog.get_logger(__name__)

_TURN = 256
"""Commands of one connection before others get a turn."""
_TURN_S = 0.002
"""Serving one connection before others get a turn."""
_LARGE = 64 << 10
"""Bytes of a body."""
_FAILED_LINES = 10
"""Of requests that failed, with what was raised, for an address and a minute."""

Answer = Command | None | Awaitable[Command | None]
Processor = Callable[["Connection", Command], "Answer"]
"""Serves a request: the response, or None when there is none to send. RequestError and BodyError are answered."""


@dataclass(slots=True)
class Processors:
    """Who serves which request code. `around` is put around every processor as it is registered."""

    by_code: dict[int, Processor] = field(default_factory=dict)
    default: Processor | None = None
    around: Callable[[int, Processor], Processor] | None = None

    def register(self, code: int, processor: Processor) -> None:
        self.by_code[int(code)] = processor if self.around is None else self.around(code, processor)


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """Bounds of a connection."""

    max_frame: int = MAX_FRAME
    max_in_flight: int = 1024
    idle_s: float = 120.0


class Connection(asyncio.Protocol):
    """`on_open`, `on_close` and `on_held` are told this connection; `on_held` when `held` has changed.

    What its peer causes is logged in `peer_log`, which connections share whose peers are to be bounded together.
    """

    def __init__(
        self,
        processors: Processors,
        options: ConnectionOptions,
        *,
        on_open: Callable[[Connection], None] | None = None,
        on_close: Callable[[Connection], None] | None = None,
        on_held: Callable[[Connection], None] | None = None,
        peer_log: PeerLog | None = None,
    ) -> None:
        self._processors = processors
        self._options = options
        self._on_open, self._on_close, self._on_held = on_open, on_close, on_held
        self._loop = asyncio.get_running_loop()
        self._decoder = Decoder(options.max_frame)
        self._transport: asyncio.Transport | None = None
        self._pending: dict[int, asyncio.Future[Command]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._serving = 0
        self._next_opaque = 0
        self._write_paused = False
        self._resumed = asyncio.Event()
        self._read_paused = False
        self._again: asyncio.Handle | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._last_active = self._loop.time()
        self._frame_since: float | None = None
        self._unread_since: float | None = None
        self._reason: str | None = None
        self._closed = self._loop.create_future()
        self.peer = "?"
        """`host:port` of the other end."""
        self.peer_host = ""
        self.peer_log = peer_log or PeerLog()
        self.received = 0
        """Commands that came in."""

    # what users of a connection call

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def in_flight(self) -> frozenset[asyncio.Task[None]]:
        """Requests of the peer that are being served."""
        return frozenset(self._tasks)

    @property
    def held(self) -> int:
        """Bytes kept for this connection: frames not whole yet, requests being served, answers not sent yet."""
        unsent = self._transport.get_write_buffer_size() if self._transport is not None else 0
        return self._decoder.buffered + self._serving + unsent

    @property
    def stalled_since(self) -> float:
        """Loop time at which the frame being read began, or at which the peer stopped reading."""
        since = [each for each in (self._frame_since, self._unread_since) if each is not None]
        return min(since, default=self._last_active)

    async def invoke(self, command: Command, timeout_s: float) -> Command:
        """Sends a request; its response. Raises RequestTimeoutError, SendError or EncodeError."""
        opaque = self._take_opaque()
        answer: asyncio.Future[Command] = self._loop.create_future()
        self._pending[opaque] = answer
        if self._read_paused:
            self._loop.call_soon(self._serve_buffered)
        try:
            async with asyncio.timeout(timeout_s):
                await self.writable()
                self._send(command.with_opaque(opaque, command.flag))
                return await answer
        except TimeoutError as error:
            raise RequestTimeoutError(
                f"{self.peer} did not answer request {int(command.code)} within {timeout_s:g} s"
            ) from error
        finally:
            self._pending.pop(opaque, None)
            answer.cancel()

    async def invoke_one_way(self, command: Command, timeout_s: float) -> None:
        """Sends a request that has no response. Raises RequestTimeoutError, SendError or EncodeError."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.writable()
        except TimeoutError as error:
            raise RequestTimeoutError(
                f"{self.peer} took no request {int(command.code)} within {timeout_s:g} s"
            ) from error
        self._send(command.with_opaque(self._take_opaque(), command.flag | ONE_WAY_FLAG))

    async def writable(self) -> None:
        """Returns when the peer has read what was sent before, or the connection is closed."""
        while self._write_paused and self.is_open:
            self._resumed.clear()
            await self._resumed.wait()

    def close(self, reason: str, *, at_once: bool = False) -> None:
        """Closes it, after what is still to be sent unless `at_once`; the peer's open requests are given up."""
        if self._transport is None or self._reason is not None:
            return
        self._reason = reason
        self._read_paused = True
        if at_once:
            self._transport.abort()
        else:
            self._transport.close()

    def abort(self) -> None:
        """Closes it even when it is closing already and the peer does not read."""
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self) -> None:
        await asyncio.shield(self._closed)

    # what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        name = transport.get_extra_info("peername")
        if isinstance(name, tuple):
            self.peer_host = str(name[0])
            self.peer = f"[{name[0]}]:{name[1]}" if ":" in self.peer_host else f"{name[0]}:{name[1]}"
        self._idle = self._loop.call_later(self._options.idle_s, self._look_at_idle)
        if self._on_open is not None:
            self._on_open(self)

    def data_received(self, data: bytes) -> None:
        self._last_active = self._loop.time()
        self._decoder.feed(data)
        self._serve_buffered()

    def pause_writing(self) -> None:
        self._write_paused = True
        self._unread_since = self._loop.time()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._resumed.set()
        self._unread_since = None
        self._serve_buffered()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._reason = self._reason or (f"connection lost: {exc}" if exc else "closed by the peer")
        for handle in (self._idle, self._again):
            if handle is not None:
                handle.cancel()
        for answer in self._pending.values():
            if not answer.done():
                answer.set_exception(SendError(f"{self.peer}: {self._reason}"))
        self._pending.clear()
        for task in self._tasks:
            task.cancel()
        self._decoder = Decoder(self._options.max_frame)
        self._resumed.set()
        if not self._closed.done():
            self._closed.set_result(None)
        log.debug("connection closed", peer=self.peer, reason=self._reason)
        if self._on_close is not None:
            self._on_close(self)

    # reading

    def _serve_buffered(self) -> None:
        """Takes commands from the buffer while there is room for their answers."""
        self._again = None
        until = self._loop.time() + _TURN_S
        for served in range(_TURN + 1):
            if served == _TURN or (served and self._loop.time() >= until):
                self._again = self._loop.call_soon(self._serve_buffered)
                break
            if not self.is_open or self._is_full():
                break
            try:
                command = self._decoder.next_command()
            except ProtocolError as error:
                self._broken(error)
                return
            if command is None:
                break
            self.received += 1
            self._frame_since = None
            if command.is_response:
                self._answered(command)
            else:
                self._request(command, self._decoder.taken)
        if not self._decoder.buffered:
            self._frame_since = None
        elif self._frame_since is None and not self._is_full():
            self._frame_since = self._loop.time()
        self._read_or_wait()
        if self._on_held is not None:
            self._on_held(self)

    def _is_full(self) -> bool:
        options = self._options
        busy = len(self._tasks) >= options.max_in_flight or self._serving >= options.max_frame
        # who waits for responses goes on reading: two ends that both wait for the other to read would wait for ever
        return (self._write_paused and not self._pending) or busy

    def _read_or_wait(self) -> None:
        if self._transport is None or self._reason is not None:
            return
        wait = self._is_full() or self._again is not None
        if wait and not self._read_paused:
            self._transport.pause_reading()
        elif not wait and self._read_paused:
            self._transport.resume_reading()
        self._read_paused = wait

    def _broken(self, error: ProtocolError) -> None:
        self.peer_log.warning(
            self.peer_host,
            "a peer broke the protocol; its connection is closed",
            peer=self.peer,
            error=str(error),
        )
        self.close(str(error), at_once=True)

    def _answered(self, command: Command) -> None:
        answer = self._pending.pop(command.opaque, None)
        if answer is None:
            log.debug("a response nobody waits for", peer=self.peer, opaque=command.opaque, code=command.code)
        elif not answer.done():
            answer.set_result(command)

    def _request(self, command: Command, size: int) -> None:
        processor = self._processors.by_code.get(command.code, self._processors.default)
        if processor is None:
            remark = f" request type {command.code} not supported"
            self._respond(command, command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark))
            return
        try:
            answer = processor(self, command)
        except Exception as error:
            self._respond(command, self._failure(command, error))
            return
        if inspect.isawaitable(answer):
            task = self._loop.create_task(self._serve(command, answer))
            self._tasks.add(task)
            self._serving += size
            task.add_done_callback(partial(self._served, size))
        else:
            self._respond(command, answer)

    async def _serve(self, command: Command, answer: Awaitable[Command | None]) -> None:
        try:
            response = await answer
        except Exception as error:
            response = self._failure(command, error)
        self._respond(command, response)

    def _served(self, size: int, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._serving -= size
        if self._again is None and self.is_open:
            self._serve_buffered()

    def _failure(self, command: Command, error: Exception) -> Command:
        """The answer to a request whose processor raised."""
        if isinstance(error, RequestError):
            return command.reply(error.code, remark=str(error))
        if isinstance(error, BodyError):
            return command.reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
        self.peer_log.error(
            self.peer_host,
            "a request failed",
            _FAILED_LINES,
            peer=self.peer,
            code=command.code,
            exc_info=error,
        )
        return command.reply(
            ResponseCode.SYSTEM_ERROR,
            remark=f"the request failed ({type(error).__name__}); the broker's log says more",
        )

    # writing

    def _respond(self, request: Command, response: Command | None) -> None:
        if response is None or request.is_one_way or not self.is_open:
            return
        try:
            self._send(response)
        except EncodeError as error:
            self.peer_log.error(
                self.peer_host, "a response does not fit", peer=self.peer, code=request.code, error=str(error)
            )
            self._send(request.reply(ResponseCode.SYSTEM_ERROR, remark=str(error)))

    def _send(self, command: Command) -> None:
        head = encode_head(command, self._options.max_frame)
        if self._transport is None or self._transport.is_closing():
            raise SendError(f"{self.peer}: {self._reason or 'not connected'}")
        if len(command.body) < _LARGE:
            self._transport.write(head + command.body)
        else:  # not copied: answers to many may have the same body
            self._transport.write(head)
            self._transport.write(command.body)
        self._last_active = self._loop.time()

    def _take_opaque(self) -> int:
        self._next_opaque = (self._next_opaque + 1) & 0x7FFFFFFF
        return self._next_opaque

    def _look_at_idle(self) -> None:
        now, idle_s = self._loop.time(), self._options.idle_s
        oldest = min(self._last_active, self.stalled_since)
        if self._reason is not None:
            self.abort()  # it is closing, and the peer does not take the rest
        elif now - oldest >= idle_s:
            self.close(f"idle for {idle_s:g} s", at_once=True)
        else:
            self._idle = self._loop.call_at(oldest + idle_s, self._look_at_idle)
