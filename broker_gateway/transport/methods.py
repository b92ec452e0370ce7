"""What every transport does the same way: RPCs by path, and which gRPC status an exception becomes.

A service has a method for each RPC of its descriptor, of one of these shapes:

| RPC | method |
|---|---|
| unary | `(request, context) -> response`, or a `Reply` or coroutine of it |
| server streaming | `(request, context) ->` async iterator of responses or of lists of them, or a `Reply` of all |
| client streaming | `async (requests, context) -> response` |
| bidirectional | `(requests, context) ->` async iterator of responses |

A method marked with `takes_bytes` is given the request's bytes. A response is a message, or its bytes where a service has them already. A list goes out in one write.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import structlog
from google.protobuf import message_factory
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message

from broker_gateway.transport.context import RpcError
from broker_gateway.transport.request_limits import LARGEST, RequestLimits, limits_of, parser

log = structlog.get_logger(__name__)

MESSAGE_LIMIT_BYTES = LARGEST.size
"""Of a request or a response; of requests each RPC has its own limit too."""
METADATA_LIMIT_BYTES = 32 << 10
"""Of all headers of a call."""
KEEPALIVE_S = 60.0
"""A connection that is silent for this long is asked for a sign of life."""
KEEPALIVE_TIMEOUT_S = 20.0
REQUEST_S = 60.0
"""A request may take this long to come, and longer for its bytes."""
LEAST_PING_INTERVAL_S = 5.0
"""Clients that ping more often, with nothing sent to them in between, are turned away."""

Response = Message | bytes


class Server(Protocol):
    """A gRPC server on one port. `local_endpoint` is what routes show when a client names no address."""

    port: int
    local_endpoint: tuple[str, int]

    def bind(
        self,
        service: ServiceDescriptor,
        implementation: object,
        around: Callable[[Method], Method] | None = None,
    ) -> None:
        """Serves every RPC of `service` by the method of that name, with something `around` each."""

    def close_idle_after(self, seconds: float) -> None:
        """How long a connection may be without calls, where the transport can change that."""

    async def start(self) -> None: ...

    async def stop(self, grace_s: float) -> None:
        """Takes no new calls; running ones get `grace_s` seconds, then they are refused as retryable."""


@dataclass(frozen=True, slots=True)
class Method:
    """One RPC: `path` is `/package.Service/Method`; `coroutine` says that the call gives one.

    `parse` gives what the call is given, from the request's bytes, within `limits`, and `request_of` the message of
    them; both raise RpcError. `response_of` gives the message of a response's bytes.
    """

    path: str
    limits: RequestLimits
    parse: Callable[[bytes], Any]
    client_streaming: bool
    server_streaming: bool
    call: Callable[..., Any]
    coroutine: bool
    request_of: Callable[[bytes], Message]
    response_of: Callable[[bytes], Message]


def methods(
    service: ServiceDescriptor, implementation: object, around: Callable[[Method], Method] | None = None
) -> Iterable[Method]:
    """The RPCs of a service with what answers them; `around` may put something around each."""
    for method in service.methods:
        call = getattr(implementation, method.name)
        path = f"/{service.full_name}/{method.name}"
        limits = limits_of(path)
        request_of = parser(message_factory.GetMessageClass(method.input_type), limits)
        described = Method(
            path,
            limits,
            bytes if getattr(call, "takes_bytes", False) else request_of,
            method.client_streaming,
            method.server_streaming,
            call,
            inspect.iscoroutinefunction(call),
            request_of,
            message_factory.GetMessageClass(method.output_type).FromString,
        )
        yield described if around is None else around(described)


def serialized(response: Response) -> bytes:
    """The bytes of a response."""
    return response if isinstance(response, bytes) else response.SerializeToString()


def failure(error: BaseException, path: str) -> tuple[str, str]:
    """Name of the gRPC status and message for an exception that left a service; unexpected ones are logged."""
    if isinstance(error, RpcError):
        return error.code, error.message
    log.error("call failed", call=path, exc_info=error)
    return "INTERNAL", "the gateway could not complete the call; its log says more"
