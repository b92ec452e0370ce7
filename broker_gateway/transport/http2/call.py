"""One RPC on an HTTP/2 stream: from its headers to a call on a service, from the answer to trailers.

| kind | runs as |
|---|---|
| unary, answered at once | part of the read that completed its request |
| a `Reply` | a callback of it |
| the others | a task |

A producer of responses waits while the peer does not take what is there; requests of a stream are released
to the peer as they are consumed. What requests hold is bounded by `requests.py`, what replies hold by `replies.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import grpc

from broker_gateway.runtime.reply import Reply
from broker_gateway.transport.context import CallContext, RpcError
from broker_gateway.transport.http2 import engine
from broker_gateway.transport.http2.framing import (
    PREFIX_BYTES,
    FramingError,
    compressed_frame,
    frame,
    length_at,
    percent_encoded,
    timeout_s,
    unpacked,
)
from broker_gateway.transport.http2.requests import COUNTED_BYTES, Requests, RequestStream
from broker_gateway.transport.methods import MESSAGE_LIMIT_BYTES, Method, Response, failure, serialized

CONTENT_TYPE = "application/grpc"
_HEADERS = engine.headers({"content-type": CONTENT_TYPE, "grpc-accept-encoding": "identity,gzip"})
_GZIP_HEADERS = engine.headers(
    {"content-type": CONTENT_TYPE, "grpc-encoding": "gzip", "grpc-accept-encoding": "identity,gzip"}
)
_OK = engine.headers({"grpc-status": "0"})
_CODES: dict[str, int] = {code.name: code.value[0] for code in grpc.StatusCode}
_ONE_PIECE = 8 << 10
"""Bytes of a response that is certainly within all limits."""
_LARGE, _LARGE_PACKED = 32 << 10, 1 << 10
"""Bytes of a request that takes a while to be parsed and served, as it is and compressed."""


class Metadata(Mapping[str, str]):
    """The headers of a call as text, read when asked for."""

    __slots__ = ("_fields",)

    def __init__(self, fields: engine.Headers) -> None:
        self._fields = fields

    def __getitem__(self, key: str) -> str:
        value: bytes = self._fields[key]
        return value.decode("utf-8", "replace")

    def get(self, key: str, default: Any = None) -> Any:
        value = self._fields.get(key)
        return default if value is None else value.decode("utf-8", "replace")

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)


class Call:
    """An engine's stream handler. `methods` are the RPCs by path; `active` are the calls of the server."""

    __slots__ = (
        "_active",
        "_awaited",
        "_buffer",
        "_compress",
        "_connection",
        "_context",
        "_done",
        "_encoding",
        "_finish",
        "_local_endpoint",
        "_loop",
        "_method",
        "_methods",
        "_offset",
        "_outgoing",
        "_queue",
        "_reply",
        "_requests",
        "_responded",
        "_room",
        "_task",
        "_timer",
        "_unsent",
        "_using",
        "stream_id",
    )

    def __init__(
        self,
        connection: engine.Connection,
        methods: Mapping[str, Method],
        requests: Requests,
        active: set[Call],
        local_endpoint: tuple[str, int],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.stream_id = 0
        self._connection = connection
        self._methods = methods
        self._requests = requests
        self._active = active
        self._local_endpoint = local_endpoint
        self._loop = loop
        self._method: Method | None = None
        self._context: CallContext | None = None
        self._buffer: bytes | bytearray = b""
        self._encoding = ""
        self._compress = False
        self._queue: RequestStream | None = None
        self._task: asyncio.Task[Any] | None = None
        self._reply: Reply[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._outgoing: bytes | None = None
        self._offset = 0
        self._unsent = 0
        self._finish: engine.Headers | None = None
        self._room: asyncio.Future[None] | None = None
        self._responded = False
        self._done = False
        self._using = 0
        self._awaited = (
            False  # whether `requests` may hold an entry of it: until its request is complete, or it ends
        )

    # ----- from the engine -----

    def opened(self, method: str, path: str, fields: engine.Headers, ended: bool) -> None:
        self._connection.called_at = self._connection.last_heard
        if method != "POST":
            self._refuse(405)
            return
        content_type = fields.get("content-type", b"")
        if content_type != b"application/grpc" and (
            not content_type.startswith(b"application/grpc")
            or content_type.startswith(b"application/grpc-web")
        ):
            self._refuse(415)
            return
        try:
            found = self._methods.get(path)
            if found is None:
                raise FramingError("UNIMPLEMENTED", f"unknown method {path[:200]}")
            encoding = fields.get("grpc-encoding")
            if encoding is not None:
                self._encoding = encoding.decode("ascii", "replace")
                if self._encoding not in ("identity", "gzip"):
                    raise FramingError(
                        "UNIMPLEMENTED",
                        f"grpc-encoding {self._encoding[:40]!r} is not supported; use identity or gzip",
                    )
                self._compress = self._encoding == "gzip"
            timeout = fields.get("grpc-timeout")
            remaining = None if timeout is None else timeout_s(timeout)
        except FramingError as error:
            self.fail(error.code, error.message)
            return
        self._method = found
        self._context = CallContext(Metadata(fields), self._connection.peer, remaining, self._local_endpoint)
        self._awaited = not ended or found.client_streaming
        if found.client_streaming:
            self._queue = RequestStream(
                self,
                self._connection,
                self.stream_id,
                self._requests,
                found.limits.size,
                self._parsed,
                self._loop,
            )
            self._start(self._queue)
        elif not ended:
            self._requests.opened(self, self._connection.last_heard)
        if ended:
            self.ended()

    def data(self, payload: bytes, last: bool) -> None:
        if self._done:
            if not last:
                self._connection.release(self.stream_id, len(payload))
        elif self._queue is not None:
            try:
                self._queue.feed(payload)
            except FramingError as error:
                self.fail(error.code, error.message)
                return
            if last:
                self.ended()
        elif last and not self._buffer:
            self._serve_whole(payload)
        else:
            self._collect(payload)
            if last:
                self.ended()
            elif not self._done:
                self._connection.release(self.stream_id, len(payload))

    def ended(self) -> None:
        if self._done or self._method is None:
            return
        if self._queue is not None:
            if self._queue.within_a_message:
                self.fail("INTERNAL", "the stream of requests ends within a message")
            else:
                self._queue.end()
            return
        buffer, self._buffer = self._buffer, b""
        self._serve_whole(buffer)

    def _collect(self, payload: bytes) -> None:
        """Keeps a piece of a request that came in several."""
        assert self._method is not None
        if not isinstance(self._buffer, bytearray):
            self._buffer = bytearray()
        buffer = self._buffer
        buffer += payload
        self._requests.wait(self, len(payload))
        if self._done or len(buffer) < PREFIX_BYTES:
            return
        try:
            length = length_at(buffer, 0, self._method.limits.size)
            if len(buffer) > PREFIX_BYTES + length:
                raise FramingError("INTERNAL", f"more than the request of {length} bytes was sent")
        except FramingError as error:
            self.fail(error.code, error.message)

    @property
    def host(self) -> str:
        """Whose share of a tick it takes."""
        return self._connection.host

    def go_on(self, until: float) -> None:
        """Serves the request that was put off, unless the call ended meanwhile."""
        buffer, self._buffer = self._buffer, b""
        if not self._done:
            self._serve_whole(buffer, put_off=True)

    def _serve_whole(self, buffer: bytes | bytearray, put_off: bool = False) -> None:
        """The one request of a call, complete. A large one waits for a tick in which not so much was done yet, once."""
        assert self._method is not None
        if (
            len(buffer) > _LARGE_PACKED
            and (len(buffer) > _LARGE or buffer[0] == 1)
            and not put_off
            and self._connection.crowded
        ):
            self._buffer = buffer
            self._connection.put_off(self)
            return
        if self._awaited:
            self._awaited = False
            self._requests.finished(self)
        try:
            if len(buffer) < PREFIX_BYTES:
                raise FramingError("INTERNAL", "the call ends before its request")
            length = length_at(buffer, 0, self._method.limits.size)
            if length != len(buffer) - PREFIX_BYTES:
                raise FramingError(
                    "INTERNAL", f"a request of {length} bytes, {len(buffer) - PREFIX_BYTES} were sent"
                )
            payload = (
                buffer[PREFIX_BYTES:] if type(buffer) is bytes else bytes(memoryview(buffer)[PREFIX_BYTES:])
            )
            request = self._parsed(payload, bool(buffer[0]))
        except FramingError as error:
            self.fail(error.code, error.message)
            return
        self._start(request)

    def writable(self) -> None:
        if self._outgoing is not None and not self._done:
            self._push()

    def stopped(self) -> None:
        """The peer went away: what is under way for it is cancelled."""
        self._end()

    # ----- from the server -----

    def fail(self, code: str, message: str) -> None:
        """Ends the call with a status."""
        if self._done:
            return
        fields = {"grpc-status": str(_CODES[code])}
        if message:
            fields["grpc-message"] = percent_encoded(message)
        try:
            if not self._responded:
                self._responded = True
                self._connection.respond(
                    self.stream_id, engine.headers({"content-type": CONTENT_TYPE, **fields}), True
                )
            elif self._outgoing:
                self._finish = engine.headers(fields)  # behind what is still on its way
                self._cancel()
                self._drop_requests()
                return
            else:
                self._connection.trailers(self.stream_id, engine.headers(fields))
        except engine.StreamGoneError:
            pass  # nobody is there to be told
        self._end()

    # ----- inside -----

    def _refuse(self, status: int) -> None:
        with contextlib.suppress(engine.StreamGoneError):
            self._connection.refuse(self.stream_id, status)
        self._end()

    def _parsed(self, payload: bytes, compressed: bool) -> Any:
        """The request; raises FramingError. It counts as held until the call, or the next request of it, ends."""
        assert self._method is not None
        if compressed:
            payload = unpacked(payload, self._encoding, self._method.limits)
        size = len(payload)
        if size > COUNTED_BYTES or self._using:
            self._use(size)
        try:
            return self._method.parse(payload)
        except RpcError as error:
            raise FramingError(error.code, error.message) from error

    def _use(self, size: int) -> None:
        self._requests.used(self._using)
        self._using = 0
        if not self._requests.use(size):
            raise FramingError("RESOURCE_EXHAUSTED", "too many bytes of requests are held; try again later")
        if self._done:  # it was the one that gave way
            self._requests.used(size)
            raise FramingError("RESOURCE_EXHAUSTED", "too many bytes of requests are held; try again later")
        self._using = size

    def _start(self, request: Any) -> None:
        method, context = self._method, self._context
        assert method is not None
        assert context is not None
        if method.coroutine:
            self._run(self._unary(method, request, context))
            return
        try:
            answer = method.call(request, context)
        except Exception as error:
            self.fail(*failure(error, method.path))
            return
        if isinstance(answer, Reply):
            self._wait_for(answer, method.server_streaming)
        elif method.server_streaming:
            self._run(self._stream(answer))
        else:
            self._answer((answer,))

    def _wait_for(self, reply: Reply[Any], many: bool) -> None:
        """A service that gives a `Reply` bounds its time itself, so no timer is set."""
        reply.when_set(self._answer if many else self._answer_one)
        if not self._done and not reply.done:
            self._reply = reply
            self._active.add(self)

    def _answer_one(self, response: Response) -> None:
        if self._compress or not isinstance(response, bytes) or len(response) > _ONE_PIECE:
            self._answer((response,))
            return
        if self._done:
            return
        if self._connection.full:
            self._refuse_reply()
            return
        try:
            data = b"\x00" + len(response).to_bytes(4, "big") + response
            sent = self._connection.reply(self.stream_id, _HEADERS, data, _OK)
        except engine.StreamGoneError:
            sent = len(data)
        except Exception as error:
            self._not_sent(error)
            return
        self._responded = True
        if sent < len(data):
            self._finish = _OK
            self._keep(data, sent)
            return
        self._end()

    def _keep(self, data: bytes, sent: int) -> None:
        """The rest of `data` leaves when the peer makes room; behind the last response no request is needed any more."""
        if self._finish is not None:
            self._drop_requests()
        self._outgoing, self._offset, self._unsent = data, sent, len(data) - sent
        self._active.add(self)
        self._connection.hold(self._unsent)
        if self._connection.full:  # those that still wait would make more replies for it
            for each in [call for call in self._active if call._waits_on(self._connection)]:
                each._refuse_reply()

    def _waits_on(self, connection: engine.Connection) -> bool:
        """Whether it is a call of this connection whose reply is not there yet."""
        return self._connection is connection and self._reply is not None and not self._reply.done

    def _refuse_reply(self) -> None:
        self.fail("RESOURCE_EXHAUSTED", "too many bytes of replies wait to be read; read them and try again")

    def _run(self, work: Any) -> None:
        self._task = self._loop.create_task(work)
        self._active.add(self)
        self._arm()

    def _arm(self) -> None:
        assert self._context is not None
        if self._context.remaining_s is not None:
            self._timer = self._loop.call_later(
                self._context.remaining_s, self.fail, "DEADLINE_EXCEEDED", "the call's deadline has passed"
            )

    async def _unary(self, method: Method, request: Any, context: CallContext) -> None:
        try:
            response = await method.call(request, context)
        except Exception as error:
            self.fail(*failure(error, method.path))
            return
        self._answer((response,))

    def _answer(self, responses: Sequence[Response]) -> None:
        """All responses of a call, and its end."""
        if self._done:
            return
        if self._connection.full:
            self._refuse_reply()
            return
        try:
            data = self._framed_together(responses)
            head = _GZIP_HEADERS if self._compress else _HEADERS
            sent = self._connection.reply(self.stream_id, head, data, _OK)
            self._responded = True
            if sent < len(data):
                self._finish = _OK
                self._keep(data, sent)
                return
        except engine.StreamGoneError:
            pass
        except Exception as error:
            self._not_sent(error)
            return
        self._end()

    def _not_sent(self, error: Exception) -> None:
        """The answer is there and cannot be sent: the call fails, and nothing else does."""
        assert self._method is not None
        try:
            self.fail(*failure(error, self._method.path))
        finally:
            self._end()

    async def _stream(self, responses: AsyncIterator[Any]) -> None:
        assert self._method is not None
        try:
            try:
                async for response in responses:
                    await self._send(response)
            finally:
                await responses.aclose()  # type: ignore[attr-defined]
        except engine.StreamGoneError:
            self._end()
        except Exception as error:
            self.fail(*failure(error, self._method.path))
        else:
            self._complete()

    async def _send(self, response: Response | list[Response]) -> None:
        """Sends responses in one write; waits until the peer has taken all of them but what windows hold."""
        if self._connection.full:
            self._refuse_reply()
            raise engine.StreamGoneError
        data = self._framed_together(response if isinstance(response, list) else (response,))
        if not self._responded:
            self._responded = True
            self._connection.respond(self.stream_id, _GZIP_HEADERS if self._compress else _HEADERS, False)
        sent = self._connection.send(self.stream_id, data, 0)
        if sent < len(data):
            self._room = self._loop.create_future()
            self._keep(data, sent)
            await self._room

    def _complete(self) -> None:
        if self._done:
            return
        try:
            if not self._responded:
                self._responded = True
                self._connection.respond(self.stream_id, _HEADERS, False)
            self._connection.trailers(self.stream_id, _OK)
        except engine.StreamGoneError:
            pass
        self._end()

    def _framed_together(self, responses: Sequence[Response]) -> bytes:
        parts: list[bytes] = []
        for each in responses:
            if isinstance(each, bytes) and len(each) <= MESSAGE_LIMIT_BYTES and not self._compress:
                parts += (b"\0" + len(each).to_bytes(4, "big"), each)
            else:
                parts.append(self._framed(each))
        return b"".join(parts)

    def _framed(self, response: Response) -> bytes:
        data = serialized(response)
        if len(data) > MESSAGE_LIMIT_BYTES:
            raise RpcError(
                "RESOURCE_EXHAUSTED",
                f"a response of {len(data)} bytes, at most {MESSAGE_LIMIT_BYTES} are sent",
            )
        return compressed_frame(data) if self._compress else frame(data)

    def _push(self) -> None:
        """Goes on with what windows held back."""
        outgoing, before = self._outgoing, self._offset
        assert outgoing is not None
        try:
            self._offset = self._connection.send(self.stream_id, outgoing, before)
            self._unsent = len(outgoing) - self._offset
            self._connection.hold(before - self._offset)
            if self._unsent:
                return
            self._outgoing = None
            if self._finish is not None:
                self._connection.trailers(self.stream_id, self._finish)
                self._end()
                return
        except engine.StreamGoneError:
            self._end()
            return
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def _cancel(self) -> None:
        reply, self._reply = self._reply, None
        if reply is not None:
            reply.cancel()
        task = self._task
        if task is not None and not task.done() and task is not asyncio.current_task(self._loop):
            task.cancel()

    def _end(self) -> None:
        if self._done:
            return
        self._done = True
        if self._unsent:
            self._connection.hold(-self._unsent)
            self._unsent = 0
        self._active.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._reply is not None or self._task is not None:
            self._cancel()
        self._outgoing = None
        self._buffer = b""
        if self._awaited or self._using or self._queue is not None:
            self._drop_requests()
        # both lead back to the call: a flood of them would be a collector's work, for which everybody waits
        self._queue = self._task = None

    def _drop_requests(self) -> None:
        """The call is answered or has failed: nothing of its requests is kept, though its response may be on its way."""
        if self._awaited:
            self._awaited = False
            self._requests.finished(self)
        if self._using:
            self._requests.used(self._using)
            self._using = 0
        self._buffer = b""
        if self._queue is not None:
            self._queue.drop()
