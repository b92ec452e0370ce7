"""Binds services to grpcio by their protobuf descriptors and runs the server.

A service has a method for each RPC of its descriptor: `async (request, context) -> response`, an async
generator for a streamed response, and an async iterator of requests for a streamed request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import structlog
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor

from broker_gateway.service.context import CallContext, RpcError

log = structlog.get_logger(__name__)

MESSAGES_LIMIT_BYTES = 64 << 20
MAX_STREAMS = 100_000


class GrpcioServer:
    """A gRPC server on one port. `local_endpoint` is what routes show when a client names no address."""

    def __init__(self, host: str, port: int, advertised_host: str) -> None:
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", MESSAGES_LIMIT_BYTES),
                ("grpc.max_send_message_length", MESSAGES_LIMIT_BYTES),
                ("grpc.max_concurrent_streams", MAX_STREAMS),
                ("grpc.server.max_pending_requests", MAX_STREAMS),
                ("grpc.server.max_pending_requests_hard_limit", 2 * MAX_STREAMS),
                ("grpc.max_metadata_size", 32 << 10),
                ("grpc.keepalive_time_ms", 60_000),
                ("grpc.keepalive_timeout_ms", 20_000),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
                ("grpc.so_reuseport", 0),
            ]
        )
        target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.port = self._server.add_insecure_port(target)
        self.local_endpoint = (advertised_host, self.port)

    def bind(self, service: ServiceDescriptor, implementation: object) -> None:
        """Serves every RPC of `service` by the method of that name."""
        handlers = {
            method.name: self._handler(method, getattr(implementation, method.name))
            for method in service.methods
        }
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service.full_name, handlers),)
        )

    async def start(self) -> None:
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Takes no new calls; running ones get `grace_s` seconds, then they are cancelled."""
        await self._server.stop(grace_s)

    def _handler(self, method: MethodDescriptor, call: Callable[..., Any]) -> grpc.RpcMethodHandler[Any, Any]:
        request_type = message_factory.GetMessageClass(method.input_type)
        kind = {
            (False, False): (grpc.unary_unary_rpc_method_handler, self._unary),
            (False, True): (grpc.unary_stream_rpc_method_handler, self._stream),
            (True, True): (grpc.stream_stream_rpc_method_handler, self._stream),
        }[method.client_streaming, method.server_streaming]
        make, wrap = kind
        return make(
            wrap(call, method.full_name),
            request_deserializer=request_type.FromString,
            response_serializer=lambda response: response.SerializeToString(),
        )

    def _context(self, context: grpc.aio.ServicerContext[Any, Any]) -> CallContext:
        metadata = {
            key: value if isinstance(value, str) else value.decode("utf-8", "replace")
            for key, value in context.invocation_metadata() or ()
        }
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

    def _unary(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        async def handle(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            try:
                return await call(request, self._context(context))
            except Exception as error:
                await _abort(context, name, error)

        return handle

    def _stream(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        async def handle(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
            responses = call(request, self._context(context))
            try:
                async for response in responses:
                    yield response
            except asyncio.CancelledError:
                raise
            except Exception as error:
                await _abort(context, name, error)
            finally:
                await responses.aclose()

        return handle


async def _abort(context: grpc.aio.ServicerContext[Any, Any], name: str, error: Exception) -> None:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if isinstance(error, RpcError):
        await context.abort(grpc.StatusCode[error.code], error.message)
    log.error("call failed", call=name, exc_info=error)
    await context.abort(
        grpc.StatusCode.INTERNAL, "the gateway could not complete the call; its log says more"
    )
