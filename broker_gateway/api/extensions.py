"""What others plug in, by entry points of installed packages; see `docs/extending.md`.

| entry point group | each is called with the GatewayConfig and gives |
|---|---|
| `lakebroker.authenticators` | an `Authenticator`: may refuse a call, gRPC or remoting, before anything else sees it |
| `lakebroker.interceptors` | an `Interceptor`: sees every call before and after |
| `lakebroker.append_hooks` | an `AppendHook`: sees messages of producers before they are checked and appended |
| `lakebroker.metrics_sinks` | a `MetricsSink`: is given the metrics at intervals, on a thread of its own |

All but the sinks run on the event loop and must not block. Several of a group run in the order of their names;
`after` in the reverse order. Without any, calls take the same path as if none could be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog
from google.protobuf.message import Message
from prometheus_client.core import Metric

from broker_gateway.messaging.outcome import Reason, ServiceError
from broker_gateway.protocol.command import Command
from broker_gateway.transport.context import RpcError
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb

log = structlog.get_logger(__name__)


class RefusedError(Exception):
    """Raised by an extension to refuse a call or messages; the text goes to the client."""


@dataclass(slots=True)
class Rpc:
    """One call: `path` is `/package.Service/Method`, or `/remoting/REQUEST_CODE` on the remoting ports; `peer` is
    `ip:port`. `metadata` are the headers, or the command's ext fields. `request` is the message, None where requests
    are a stream, or the command. `state` is the interceptors' own."""

    path: str
    peer: str
    metadata: Mapping[str, str]
    request: Message | Command | None
    state: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Outcome:
    """How a call ended: `responses` where it gave them all at once (of streams: none), or an `error`."""

    responses: Sequence[Message | Command] = ()
    error: BaseException | None = None


class Authenticator(Protocol):
    def authenticate(self, rpc: Rpc) -> None:
        """Raises RefusedError: the call fails with UNAUTHENTICATED, a remoting request with NO_PERMISSION."""


class Interceptor(Protocol):
    def before(self, rpc: Rpc) -> None:
        """Raises RefusedError: the call fails with PERMISSION_DENIED, a remoting request with NO_PERMISSION, and
        `after` is not called."""

    def after(self, rpc: Rpc, outcome: Outcome) -> None:
        """An exception is logged, the answer stays."""


class AppendHook(Protocol):
    def before_append(self, messages: Sequence[pb.Message], peer: str) -> None:
        """Messages of one call, unchecked; may be changed. Raises RefusedError: all are answered FORBIDDEN."""


class MetricsSink(Protocol):
    def publish(self, metrics: Iterable[Metric]) -> None:
        """May block and raise."""


@dataclass(frozen=True, slots=True)
class Extensions:
    """What is plugged in."""

    authenticators: tuple[Authenticator, ...] = ()
    interceptors: tuple[Interceptor, ...] = ()
    append_hooks: tuple[AppendHook, ...] = ()
    metrics_sinks: tuple[MetricsSink, ...] = ()

    @property
    def sees_calls(self) -> bool:
        """Whether anything is to be put around calls."""
        return bool(self.authenticators or self.interceptors)

    def before(self, rpc: Rpc) -> None:
        """Asks those who may refuse a call. Raises RpcError UNAUTHENTICATED or PERMISSION_DENIED."""
        try:
            for authenticator in self.authenticators:
                authenticator.authenticate(rpc)
        except RefusedError as error:
            raise RpcError("UNAUTHENTICATED", str(error)) from error
        try:
            for interceptor in self.interceptors:
                interceptor.before(rpc)
        except RefusedError as error:
            raise RpcError("PERMISSION_DENIED", str(error)) from error

    def after(self, rpc: Rpc, outcome: Outcome) -> None:
        """Tells interceptors how a call ended that `before` let pass."""
        for interceptor in reversed(self.interceptors):
            try:
                interceptor.after(rpc, outcome)
            except Exception:
                log.exception("an interceptor failed after a call", call=rpc.path)


def run_append_hook(hook: AppendHook, messages: Sequence[pb.Message], peer: str) -> None:
    """Raises ServiceError FORBIDDEN when the hook refuses them."""
    try:
        hook.before_append(messages, peer)
    except RefusedError as error:
        raise ServiceError(Reason.FORBIDDEN, str(error)) from error
