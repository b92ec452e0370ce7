"""HTTP/2 by httpunk's connection state (h2 in Rust): the only file that knows the engine.

A `Connection` is an asyncio protocol: bytes in, events on `StreamHandler`s, bytes out, all on the event loop and
without a task. Everything queued in a tick leaves in one write. While the peer does not read, nothing more
is read from it. What it may take of the loop is `pace.py`'s, what replies it does not take may hold `replies.py`'s.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

import structlog
from httpunk._httpunk import (
    H2_FLAG_CAPACITY,
    H2_FLAG_CONN_DONE,
    H2_FLAG_STOP_ACCEPTING,
    H2_FLAG_WAKE,
    H2_HEADERS_OPENED,
    H2_HEADERS_TRAILERS,
    ConnectionClosedError,
    H2Error,
    H2FrameData,
    H2FrameGoAway,
    H2FrameHeaders,
    H2FramePing,
    H2FramePriority,
    H2FrameRstStream,
    H2FrameSettings,
    H2FrameStreamError,
    H2FrameWindowUpdate,
    H2ProtocolError,
    H2StreamError,
    H2Streams,
    HeaderMap,
    HTTPunkError,
)

from broker_gateway.runtime.connection_slots import ConnectionSlot
from broker_gateway.runtime.shares import network_of
from broker_gateway.runtime.tick import Stage, Tick
from broker_gateway.transport.http2.pace import Backlogged, Overhead, Pace
from broker_gateway.transport.http2.replies import CONNECTION_BYTES, Replies

log = structlog.get_logger(__name__)

STREAM_WINDOW = 1 << 20
CONNECTION_WINDOW = 8 << 20
MAX_FRAME_BYTES = 16 << 10
"""The protocol's default: httpunk decodes all that was read before our settings count as acknowledged, so that
a larger frame right behind the acknowledgement would be refused."""
MAX_STREAMS = 20_000
"""Of one connection at a time."""
SEND_BUFFER_BYTES = 1 << 20
"""Of one stream, framed and not yet written."""
_PING = b"\x00\x00\x08\x06\x00\x00\x00\x00\x00"
_PING_PAYLOAD = b"lakebrkr"
_PING_STRIKES = 10
_DECODED_BYTES = 32 << 10
"""Decoded at a time: 3,600 frames at most."""
_LOOK_EVERY = 8
"""Frames between two looks at the clock."""
PROTOCOL_ERROR, ENHANCE_YOUR_CALM = 0x1, 0xB

Headers = HeaderMap


def headers(fields: Mapping[str, str]) -> Headers:
    """Header fields to send; values must be ASCII without control characters."""
    return HeaderMap(list(fields.items()))


class StreamHandler(Protocol):
    """What a connection tells about one of its streams. `stream_id` is set before the first event."""

    stream_id: int

    def opened(self, method: str, path: str, fields: Headers, ended: bool) -> None: ...

    def data(self, payload: bytes, last: bool) -> None:
        """A piece of the body; unless it is the last, the handler calls `release` once it is consumed."""

    def ended(self) -> None:
        """The peer has sent all, without a last piece."""

    def writable(self) -> None:
        """There may be room to send again."""

    def stopped(self) -> None:
        """The peer reset the stream, or the connection is gone."""


class StreamGoneError(Exception):
    """The stream was reset, or its connection closed, before this could be sent."""


class Connection(asyncio.Protocol):
    """One connection of a peer; `handler` makes the handler of a new stream.

    `on_open` and `on_close` tell the server of it, `on_tls` that it spoke TLS where none is taken. `last_heard` is the time of the last bytes, monotonic s.
    """

    # More than 30 attributes: without slots the interpreter would look up each of them, and each method, by name.
    __slots__ = (
        "_called",
        "_closing",
        "_deferred",
        "_draining",
        "_ending",
        "_first",
        "_handler",
        "_last_ping",
        "_least_ping_interval_s",
        "_left",
        "_lost",
        "_on_close",
        "_on_open",
        "_on_tls",
        "_overhead",
        "_pace",
        "_paused",
        "_replies",
        "_scheduled",
        "_share",
        "_slot",
        "_spare",
        "_state",
        "_strikes",
        "_tick",
        "_transport",
        "_unread",
        "_unwritten",
        "_waiting",
        "called_at",
        "full",
        "host",
        "last_heard",
        "opened_at",
        "peer",
        "pinged_at",
        "settled",
    )

    def __init__(
        self,
        tick: Tick,
        pace: Pace,
        replies: Replies,
        slot: ConnectionSlot,
        handler: Callable[[Connection], StreamHandler],
        on_open: Callable[[Connection], None],
        on_close: Callable[[Connection], None],
        on_tls: Callable[[Connection], None],
        *,
        max_header_bytes: int,
        least_ping_interval_s: float,
    ) -> None:
        self._tick = tick
        self._pace = pace
        self._replies = replies
        self._handler = handler
        self._slot = slot
        self._called = False
        self._on_open = on_open
        self._on_close = on_close
        self._on_tls = on_tls
        self._first = b""
        self._least_ping_interval_s = least_ping_interval_s
        self._state: Any = H2Streams(  # its stubs type handlers as object
            "server",
            initial_window_size=STREAM_WINDOW,
            connection_window=CONNECTION_WINDOW,
            max_frame_size=MAX_FRAME_BYTES,
            max_header_list_size=max_header_bytes,
            max_send_buf_size=SEND_BUFFER_BYTES,
            max_concurrent_streams=MAX_STREAMS,
            auto_date_header=False,
        )
        self._spare: StreamHandler | None = None
        self._transport: asyncio.Transport | None = None
        self._scheduled = False
        self._paused = False
        self._closing = False
        self._draining = False
        self._strikes = 0
        self._last_ping = 0.0
        self._unread: deque[bytes] = deque()
        self._left: list[Any] = []  # frames of an earlier tick
        self._deferred = False
        self._ending: deque[StreamHandler] = deque()  # calls to be stopped, of a connection that is closed
        self._lost = False
        self._waiting = 0  # bytes of replies
        self._unwritten = 0  # of them, those that the peer's socket does not take
        self.full = False
        """Whether so many bytes of replies wait that no more may."""
        self.peer = self.host = ""
        self.opened_at = self.last_heard = self.called_at = time.monotonic()
        self._overhead = Overhead(self.opened_at)
        self.pinged_at = 0.0
        self.settled = False
        """Whether the peer's first settings came."""

    # ----- asyncio -----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        address = self._transport.get_extra_info("peername") or ("", 0)
        self.host = network_of(address[0])
        self._share = self._pace.share(self.host)
        self.peer = f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"
        self._transport.set_write_buffer_limits(high=1 << 20)
        self._state.begin()
        self._flush()
        self._on_open(self)

    def data_received(self, data: bytes) -> None:
        now = self.last_heard = time.monotonic()
        self.pinged_at = 0.0
        if not self.settled and not self._first:
            self._first = data[:1]
        if self._deferred:
            self._unread.append(data)
            return
        until = self._share.until(now)
        if len(data) > _DECODED_BYTES or until <= now:
            self._unread.extend(
                [data[at : at + _DECODED_BYTES] for at in range(0, len(data), _DECODED_BYTES)]
            )
            self._serve_unread(until)
        elif not self._serve(data, until):
            self._defer()
        self._share.took(time.monotonic() - now)

    def go_on(self, until: float) -> None:
        """Serves some of what a tick before left."""
        self._deferred = False
        try:
            if self._closing:
                self._end(until)
            else:
                self._serve_unread(until)
        except Exception:
            log.exception("a connection is closed", peer=self.peer)
            self.abort()

    def _serve_unread(self, until: float) -> None:
        unread = self._unread
        done = self._serve(b"", until)
        while done and unread and not self._closing and time.monotonic() <= until:
            done = self._serve(unread.popleft(), until)
        if self._closing:
            unread.clear()
        elif not done or unread:
            self._defer()
        elif not self._paused and self._transport is not None:
            self._transport.resume_reading()

    def _defer(self) -> None:
        if not self._closing and self._transport is not None:
            self._deferred = True
            self._transport.pause_reading()
            self._pace.defer(self)

    def _serve(self, data: bytes, until: float) -> bool:
        """Serves the frames that are left, and then those in `data`, up to a time; whether all were.

        `data` must be empty unless all were before.
        """
        state = self._state
        try:
            frames = state.receive(data) if data else self._left
            at = 0
            while at < len(frames):
                for frame in frames[at : at + _LOOK_EVERY]:
                    try:
                        self._dispatch(frame)
                    except H2StreamError as error:
                        self._reset_stream(error)
                at += _LOOK_EVERY
                if at < len(frames) and time.monotonic() > until:
                    break
            self._left = frames[at:]
            flags = state.maybe_goaway_reply()
            if flags:
                self._after(flags)
        except H2Error as error:
            reason = error.args[0] if error.args and isinstance(error.args[0], int) else 1
            self._left = []
            self._turn_away(reason)
            return True
        self._wake()
        return not self._left

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._closing = True
        self._unread.clear()
        self._left = []
        self._lost = True
        self._fail("connection closed")

    def _fail(self, reason: str) -> None:
        """Nothing more comes or goes: ends what is under way, of thousands of calls some in each tick."""
        self._ending.extend(handler for handler, _ in self._state.fail(ConnectionClosedError(reason)))
        if not self._deferred:
            now = time.monotonic()
            self._end(self._share.until(now))
            self._share.took(time.monotonic() - now)

    def _end(self, until: float) -> None:
        while self._ending and time.monotonic() < until:
            for _ in range(min(_LOOK_EVERY, len(self._ending))):
                try:
                    self._ending.popleft().stopped()
                except Exception:
                    log.exception("a call of a connection that is closed was not ended", peer=self.peer)
        if self._ending:
            self._deferred = True
            self._pace.defer(self)
        elif self._lost:
            self._lost = False  # told once
            self._waiting, self.full = 0, False
            self._replies.holds(self, 0)
            self._slot.leave()
            self._pace.leave(self._share)
            self._on_close(self)

    def pause_writing(self) -> None:
        self._paused = True
        if self._transport is not None:
            self._transport.pause_reading()
            self._not_written(self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._paused = False
        self.hold(-self._unwritten)
        self._unwritten = 0
        if self._transport is not None and not self._closing and not self._deferred:
            self._transport.resume_reading()
        self._flush()

    def _not_written(self, count: int) -> None:
        self._unwritten += count
        self.hold(count)

    # ----- for handlers -----

    def respond(self, stream_id: int, fields: Headers, end: bool) -> None:
        """Sends the headers of a response (status 200). Raises StreamGoneError."""
        self._sent(self._state.send_response_head(stream_id, 200, fields, end))

    def refuse(self, stream_id: int, status: int) -> None:
        """Answers with a bare HTTP status. Raises StreamGoneError."""
        self._sent(self._state.send_response_head(stream_id, status, None, True))

    def reply(self, stream_id: int, fields: Headers, data: bytes, trailers: Headers) -> int:
        """A whole response at once; returns how much of `data` was sent, the trailers too if it was all.

        Raises StreamGoneError.
        """
        state = self._state
        verdict = state.send_response_head(stream_id, 200, fields, False)
        if verdict.stopped is not None:
            raise StreamGoneError
        sent: int = 0
        if data:
            verdict = state.send_data(stream_id, data, 0, False)
            if verdict.stopped is not None:
                raise StreamGoneError
            sent = len(data)
            if self._paused:
                self._not_written(sent if verdict.done else verdict.sent)
            if not verdict.done:
                self._after(verdict.flags)
                reached = self.send(stream_id, data, verdict.sent)
                if reached < sent:
                    return reached
        verdict = state.send_trailers(stream_id, trailers)
        if verdict.flags & ~H2_FLAG_WAKE:
            self._after(verdict.flags)
        elif not self._scheduled:
            self._wake()
        self._strikes = 0
        return sent

    def send(self, stream_id: int, data: bytes, offset: int) -> int:
        """Sends `data` from `offset` on as far as windows and buffer allow; returns where it stopped.

        `writable` follows when there is room again. Raises StreamGoneError.
        """
        size = len(data)
        while offset < size:
            verdict = self._state.send_data(stream_id, data, offset, False)
            self._sent(verdict)
            sent: int = size - offset if verdict.done else verdict.sent
            if not sent:
                return offset
            if self._paused:
                self._not_written(sent)
            offset += sent
        return offset

    def trailers(self, stream_id: int, fields: Headers) -> None:
        """Ends the response. Raises StreamGoneError."""
        self._sent(self._state.send_trailers(stream_id, fields))

    def reset(self, stream_id: int, reason: int) -> None:
        """Ends the stream at once."""
        self._after(self._state.reset_stream(stream_id, reason).flags)

    def release(self, stream_id: int, count: int) -> None:
        """Says that `count` bytes of the body were consumed: the peer may send as many more."""
        self._after(self._state.release_capacity(stream_id, count))

    def hold(self, count: int) -> None:
        """Counts bytes of replies that wait until the peer takes them."""
        if count and self._transport is not None and not self._closing:
            self._waiting += count
            self.full = self._waiting > CONNECTION_BYTES
            self._replies.holds(self, self._waiting)

    @property
    def crowded(self) -> bool:
        """Whether this tick takes no large request any more."""
        return self._pace.crowded

    def put_off(self, work: Backlogged) -> None:
        """Lets `work` go on in a later tick."""
        self._pace.defer(work)

    # ----- for the server -----

    @property
    def streams(self) -> int:
        """Open streams."""
        return int(self._state.num_streams)

    def ping(self) -> None:
        """Asks the peer for a sign of life."""
        if self._transport is not None and not self._paused:
            self._flush()
            self._transport.write(_PING + _PING_PAYLOAD)
        self.pinged_at = time.monotonic()

    def drain(self) -> None:
        """Tells the peer to open no more streams; the connection closes when those that are open have ended."""
        if not self._draining:
            self._draining = True
            self._after(self._state.begin_graceful_shutdown())

    def close(self) -> None:
        """Writes what is queued and closes."""
        self._write_pending()
        self._shut()

    def abort(self) -> None:
        """Closes at once."""
        if self._transport is not None:
            self._closing = True
            self._transport.abort()

    # ----- inside -----

    def _dispatch(self, frame: Any) -> None:
        state = self._state
        kind = type(frame)
        if kind is H2FrameHeaders:
            handler = self._spare or self._handler(self)
            self._spare = None
            verdict = state.recv_headers(frame, handler)
            if verdict.kind == H2_HEADERS_OPENED:
                if not frame.path or frame.method is None or frame.scheme is None or frame.status is not None:
                    raise H2StreamError(verdict.stream_id, PROTOCOL_ERROR, "library")
                if not self._called:
                    self._called = True
                    self._slot.called()
                handler.stream_id = verdict.stream_id
                state.accepted(verdict.stream_id)
                handler.opened(frame.method or "", frame.path or "", frame.headers, verdict.eof)
            else:
                self._spare = handler
                if verdict.kind == H2_HEADERS_TRAILERS:
                    verdict.handle.ended()
            if verdict.flags:
                self._after(verdict.flags)
        elif kind is H2FrameData:
            verdict = state.recv_data(frame)
            handler, payload = verdict.handle, verdict.payload
            if handler is not None:
                if payload is None:
                    if verdict.eof:
                        handler.ended()
                else:
                    if verdict.budgeted:
                        state.release_data_frame(handler.stream_id, len(payload))
                    handler.data(payload, verdict.eof)
            if verdict.flags:
                self._after(verdict.flags)
        elif kind is H2FrameWindowUpdate:
            self._carries_nothing()
            for handler in state.recv_window_update(frame):
                handler.writable()
        elif kind is H2FrameSettings:
            if not frame.ack and self._overhead.settings(self.last_heard):
                raise H2ProtocolError(ENHANCE_YOUR_CALM, "too_many_settings")
            initial, waiting, flags = state.recv_settings(frame)
            self.settled |= initial
            for handler in waiting:
                handler.writable()
            self._after(flags)
        elif kind is H2FramePing:
            self._pinged(frame)
        elif kind is H2FrameRstStream:
            ended = state.recv_reset(frame)
            if ended is not None:
                handler, _, _, flags = ended
                handler.stopped()
                self._after(flags)
        elif kind is H2FrameGoAway:
            aborted, flags = state.recv_go_away(frame)
            for handler, _ in aborted:
                handler.stopped()
            self._after(flags)
        elif kind is H2FramePriority:
            self._carries_nothing()
        elif kind is H2FrameStreamError:
            raise H2StreamError(frame.stream_id, frame.error_code, "library")

    def _pinged(self, frame: H2FramePing) -> None:
        if not frame.ack:
            if self.last_heard - self._last_ping < self._least_ping_interval_s:
                self._strikes += 1
                if self._strikes > _PING_STRIKES:
                    raise H2ProtocolError(ENHANCE_YOUR_CALM, "too_many_pings")
            self._last_ping = self.last_heard
        else:
            self._carries_nothing()
            if frame.data == _PING_PAYLOAD:
                return
        self._after(self._state.recv_ping(frame))

    def _carries_nothing(self) -> None:
        if self._overhead.other(self.last_heard):
            raise H2ProtocolError(ENHANCE_YOUR_CALM, "too_many_frames")

    def _reset_stream(self, error: H2StreamError) -> None:
        stream_id, reason, initiator = error.args
        if initiator != "remote":
            verdict = self._state.reset_on_error(stream_id, reason)
            if verdict.handle is not None:
                verdict.handle.stopped()
            self._after(verdict.flags)

    def _turn_away(self, reason: int) -> None:
        """The peer broke the rules of the connection: say so and close."""
        if not self.settled and self._first == b"\x16":
            self._on_tls(self)
        self._after(self._state.send_goaway(reason))
        self.close()
        self._fail("protocol error")

    def _sent(self, verdict: Any) -> None:
        if verdict.stopped is not None:
            raise StreamGoneError
        if flags := verdict.flags:
            self._after(flags)
        self._strikes = 0

    def _after(self, flags: int) -> None:
        if flags & H2_FLAG_CAPACITY:
            handler = self._state.next_capacity_wake()
            if handler is not None:
                handler.writable()
        if flags & (H2_FLAG_CONN_DONE | H2_FLAG_STOP_ACCEPTING):
            self._draining = True
        self._wake()

    def _wake(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._tick.add(Stage.WRITE, self._flush)

    def _flush(self) -> None:
        """The end of a tick: writes what is queued, closes what has drained."""
        self._scheduled = False
        self._write_pending()
        if self._draining and not self._paused and self._drained():
            self._shut()

    def _write_pending(self) -> None:
        """Writes what is queued; streams that waited for room in the buffer go on."""
        while not self._paused and self._transport is not None and not self._closing:
            pending, _ = self._state.take_pending()
            if not pending:
                pending.release()
                break
            data = bytes(pending)
            pending.release()
            if self._transport.is_closing():  # the peer is gone, and that is told next
                return
            self._transport.write(data)
            self._overhead.sent += len(data)
            for handler in self._state.credit_written():
                handler.writable()

    def _shut(self) -> None:
        if self._transport is not None and not self._closing:
            self._closing = True
            self._transport.close()

    def _drained(self) -> bool:
        state = self._state
        return bool(state.num_streams == 0 and (state.shutdown_final or state.is_closed()))


__all__ = ["Connection", "HTTPunkError", "Headers", "StreamGoneError", "StreamHandler", "headers"]
