"""Binds services to grpcio by their protobuf descriptors and runs the server. Plaintext only."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor

from broker_gateway.runtime.reply import Reply
from broker_gateway.transport.context import CallContext
from broker_gateway.transport.methods import (
    KEEPALIVE_S,
    KEEPALIVE_TIMEOUT_S,
    LEAST_PING_INTERVAL_S,
    MESSAGE_LIMIT_BYTES,
    METADATA_LIMIT_BYTES,
    Method,
    failure,
    methods,
    serialized,
)

MAX_STREAMS = 100_000
MAX_STREAMS_A_CONNECTION = 1024
"""Clients hold back the calls beyond it, and gRPC refuses new ones until the calls that ended are gone from here: what is
opened and reset would fill the memory otherwise. Calls are begun in the order they came: others wait for all that one opens at once.
"""
_READ_BYTES = 8 << 10
"""What is read of a connection before others have their turn: a megabyte of small frames takes longer than most calls."""


class GrpcioServer:
    """A gRPC server on one port. `local_endpoint` is what routes show when a client names no address."""

    def __init__(self, host: str, port: int, advertised_host: str, max_idle_s: float = 120.0) -> None:
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", MESSAGE_LIMIT_BYTES),
                ("grpc.max_send_message_length", MESSAGE_LIMIT_BYTES),
                ("grpc.max_concurrent_streams", MAX_STREAMS_A_CONNECTION),
                ("grpc.server.max_pending_requests", MAX_STREAMS),
                ("grpc.server.max_pending_requests_hard_limit", 2 * MAX_STREAMS),
                ("grpc.max_metadata_size", METADATA_LIMIT_BYTES),
                ("grpc.keepalive_time_ms", int(KEEPALIVE_S * 1000)),
                ("grpc.keepalive_timeout_ms", int(KEEPALIVE_TIMEOUT_S * 1000)),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_ping_interval_without_data_ms", int(LEAST_PING_INTERVAL_S * 1000)),
                ("grpc.max_connection_idle_ms", int(max_idle_s * 1000)),
                ("grpc.compression_enabled_algorithms_bitset", 1),
                ("grpc.so_reuseport", 0),
                ("grpc.experimental.tcp_read_chunk_size", _READ_BYTES),
                ("grpc.experimental.tcp_min_read_chunk_size", 256),
                ("grpc.experimental.tcp_max_read_chunk_size", _READ_BYTES),
            ]
        )
        target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.port = self._server.add_insecure_port(target)
        self.local_endpoint = (advertised_host, self.port)

    def bind(
        self,
        service: ServiceDescriptor,
        implementation: object,
        around: Callable[[Method], Method] | None = None,
    ) -> None:
        """Serves every RPC of `service` by the method of that name, with something `around` each."""
        handlers = {
            method.path.rpartition("/")[2]: self._handler(method)
            for method in methods(service, implementation, around)
        }
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service.full_name, handlers),)
        )

    def close_idle_after(self, seconds: float) -> None:
        """Nothing: gRPC takes what it was made with."""

    async def start(self) -> None:
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Takes no new calls; running ones get `grace_s` seconds, then they are cancelled."""
        await self._server.stop(grace_s)

    def _handler(self, method: Method) -> grpc.RpcMethodHandler[Any, Any]:
        kind = {
            (False, False): (grpc.unary_unary_rpc_method_handler, self._unary),
            (False, True): (grpc.unary_stream_rpc_method_handler, self._stream),
            (True, False): (grpc.stream_unary_rpc_method_handler, self._unary),
            (True, True): (grpc.stream_stream_rpc_method_handler, self._stream),
        }[method.client_streaming, method.server_streaming]
        make, wrap = kind  # requests stay bytes until they are parsed within the method's limits
        return make(wrap(method), request_deserializer=None, response_serializer=serialized)

    def _context(self, context: grpc.aio.ServicerContext[Any, Any]) -> CallContext:
        metadata = {
            key: value if isinstance(value, str) else value.decode("utf-8", "replace")
            for key, value in reversed(tuple(context.invocation_metadata() or ()))
        }  # of a key that comes twice the first counts, as on http2
        peer = context.peer()
        kind, _, address = peer.partition(":")
        if kind not in ("ipv4", "ipv6"):
            address = peer
        return CallContext(
            metadata,
            address.replace("%5B", "[").replace("%5D", "]"),
            context.time_remaining(),
            self.local_endpoint,
        )

    def _unary(self, method: Method) -> Callable[..., Any]:
        async def handle(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            try:
                answer = method.call(_parsed(method, request), self._context(context))
                return await answer if inspect.isawaitable(answer) else answer
            except Exception as error:
                await _abort(context, method, error)

        return handle

    def _stream(self, method: Method) -> Callable[..., Any]:
        async def handle(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
            try:
                responses = method.call(_parsed(method, request), self._context(context))
                if isinstance(responses, Reply):
                    for each in await responses:
                        yield each
                    return
            except Exception as error:
                await _abort(context, method, error)
            try:
                async for response in responses:
                    if isinstance(response, list):
                        for each in response:
                            yield each
                    else:
                        yield response
            except Exception as error:
                await _abort(context, method, error)
            finally:
                await responses.aclose()

        return handle


def _parsed(method: Method, request: Any) -> Any:
    """What the service is given: a request, or an iterator that parses each as it is asked for. Raises RpcError."""
    if not method.client_streaming:
        return method.parse(request)

    async def parsed() -> AsyncIterator[Any]:
        async for each in request:
            yield method.parse(each)

    return parsed()


async def _abort(context: grpc.aio.ServicerContext[Any, Any], method: Method, error: Exception) -> None:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    code, message = failure(error, method.path)
    await context.abort(grpc.StatusCode[code], message)
