"""The port: who may open it to whom, TLS, sizes, connections, start and stop."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from lakebroker_pb.arrow.flight.protocol import flight_pb2 as flight
from structured_streaming.errors import LakeError
from structured_streaming.flight.access import Access
from structured_streaming.flight.failures import Hidden, bad, status_of
from structured_streaming.flight.service import FlightService
from structured_streaming.source.addresses import is_loopback, written

_SERVICE = flight.DESCRIPTOR.services_by_name["FlightService"]
_REQUEST_BYTES = 2 << 20
_METADATA_BYTES = 16 << 10
CONNECTIONS = 128
_CALLS = 64
_STREAMS_OF_CONNECTION = 32
_KEEPALIVE_MS, _KEEPALIVE_TIMEOUT_MS = 60_000, 20_000
_IDLE_MS = 300_000
"""Of a connection without calls: then it makes room, and its client connects again when it needs to."""
_HANDSHAKE_MS = 10_000
_REQUEST_S = 20.0
"""For a call to send its one message."""
_ANSWER_S = 5.0
_LOOK_S = 0.1
"""How soon a stop sees that it is to hurry, and how long it then waits for the answers of calls that were ended."""
_IDENTITY_ALONE = 1
"""Of compressions: a kilobyte of gzip can be a megabyte of request."""
_OPTIONS = (
    ("grpc.max_receive_message_length", _REQUEST_BYTES),
    ("grpc.max_metadata_size", _METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", _METADATA_BYTES),
    ("grpc.max_concurrent_streams", _STREAMS_OF_CONNECTION),
    ("grpc.max_allowed_incoming_connections", CONNECTIONS),
    ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
    ("grpc.max_connection_idle_ms", _IDLE_MS),
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.compression_enabled_algorithms_bitset", _IDENTITY_ALONE),
    ("grpc.so_reuseport", 0),
)


@dataclass(frozen=True, slots=True)
class Listen:
    """Where to listen, and how callers are known. `certificate` and `key` are PEM."""

    host: str = "127.0.0.1"
    port: int = 0
    token: bytes | None = None
    certificate: bytes = b""
    key: bytes = b""

    def check(self) -> None:
        """Raises LakeError for an address that others reach without TLS and a token, and for a token that is no header."""
        if self.token is not None and not (self.token.isascii() and self.token.decode().isprintable()):
            raise LakeError("the token is not of letters and digits, as `openssl rand -hex 32` makes one")
        if is_loopback(self.host):
            return
        missing = [
            option
            for option, given in (("--tls-cert and --tls-key", self.key), ("--token-file", self.token))
            if not given
        ]
        if missing:
            raise LakeError(
                f"--listen {written(self.host, self.port)} is reached from other machines: give {' and '.join(missing)}, or "
                "listen at 127.0.0.1"
            )


def _message(kind: type[Message], data: bytes) -> Message | bytes:
    """The bytes where they are none: for an error here grpcio answers itself, and a second answer, ours, leaves the stream open."""
    try:
        return kind.FromString(data)
    except DecodeError:
        return data


def _messages(requests: Iterator[Message | bytes]) -> Iterator[Message]:
    """Raises CallError, and grpc.RpcError where the call ended."""
    for each in requests:
        if isinstance(each, bytes):
            raise bad("a request of the call is no message of its kind")
        yield each


def _of_one(answer: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """An answer to one message, of which a call is given so long to send it. Raises CallError."""

    def answered(requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
        timer = threading.Timer(_REQUEST_S, context.cancel)
        timer.daemon = True
        timer.start()
        try:
            request = next(requests, None)
        except grpc.RpcError:  # the call ended meanwhile, also for a request that is too large
            request = None
        finally:
            timer.cancel()
        if request is None:
            raise bad(f"the call has no request, or did not send it within {_REQUEST_S:g} s")
        return answer(request, context)

    return answered


class FlightServer:
    """A service at a port, as a context: open within it."""

    def __init__(
        self,
        make: Callable[[str], FlightService],
        listen: Listen,
        tell: Callable[[str], None],
        hidden: Hidden = Hidden(),
    ) -> None:
        """`make` gets what Handshake answers; `tell` what goes wrong and nobody expected; `hidden` stands in no error that a client
        gets. Raises LakeError."""
        listen.check()
        access = Access(listen.token)
        self._service = make(access.bearer())
        self._tell = tell
        self._hidden = hidden
        self._threads = ThreadPoolExecutor(_CALLS, "flight")
        self._server = grpc.server(
            self._threads, interceptors=[access], options=_OPTIONS, maximum_concurrent_rpcs=_CALLS
        )
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(_SERVICE.full_name, self._handlers()),)
        )
        address = written(listen.host, listen.port)
        try:
            self.port: int = (
                self._server.add_secure_port(
                    address, grpc.ssl_server_credentials([(listen.key, listen.certificate)])
                )
                if listen.key
                else self._server.add_insecure_port(address)
            )
        except RuntimeError as error:
            raise LakeError(
                f"--listen {address} cannot be opened: another process has the port, or this machine not the address"
                + (
                    "; or --tls-cert and --tls-key are no certificate and its key, in PEM"
                    if listen.key
                    else ""
                )
            ) from error

    def start(self) -> None:
        self._server.start()

    def stop(self, grace_s: float, at_once: Callable[[], bool] = lambda: False) -> None:
        """Takes no more calls. Those that run have `grace_s`; then they are ended, and get an answer that says so. When `at_once` says
        yes meanwhile, they have a moment for that, and are cut off.

        No signal handler may raise here: gRPC's server would be left halfway, and never end."""
        ended = self._server.stop(grace_s + _ANSWER_S)
        until = time.monotonic() + grace_s
        while not (at_once() or time.monotonic() > until or ended.wait(min(grace_s, _LOOK_S))):
            pass
        self._service.stop()
        while not ended.wait(_LOOK_S):
            if at_once():
                self._server.stop(None)
        self._threads.shutdown()

    def _handlers(self) -> dict[str, Any]:
        made = {}
        for method in _SERVICE.methods:
            answer = getattr(self._service, method.name, None)
            if answer is None:
                continue
            if not method.client_streaming:
                answer = _of_one(answer)
            wrapped = self._streamed(answer) if method.server_streaming else self._answered(answer)
            kind = "stream_stream" if method.server_streaming else "stream_unary"
            # all take a stream: for a single message gRPC would wait without an end, before it calls anything
            made[method.name] = getattr(grpc, f"{kind}_rpc_method_handler")(
                wrapped,
                request_deserializer=partial(_message, GetMessageClass(method.input_type)),
                response_serializer=GetMessageClass(method.output_type).SerializeToString,
            )
        return made

    def _answered(self, answer: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def answered(requests: Any, context: grpc.ServicerContext) -> Any:
            try:
                return answer(_messages(requests), context)
            except Exception as error:
                failure = self._status(error)
            context.abort(*failure)

        return answered

    def _streamed(self, answer: Callable[[Any, Any], Iterator[Any]]) -> Callable[[Any, Any], Iterator[Any]]:
        def streamed(requests: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            try:
                yield from answer(_messages(requests), context)
                return
            except Exception as error:
                failure = self._status(error)
            context.abort(*failure)

        return streamed

    def _status(self, error: Exception) -> tuple[grpc.StatusCode, str]:
        known = status_of(error, self._hidden)
        if known is None:
            self._tell("a call failed: " + "".join(traceback.format_exception(error)).rstrip())
            known = grpc.StatusCode.INTERNAL, "the call failed; the server's output says how"
        return known
