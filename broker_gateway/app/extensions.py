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

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol, TypeVar

import structlog
from google.protobuf.message import Message
from prometheus_client.core import Metric

from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.remoting.command import Command
from broker_gateway.runtime.errors import HostError
from broker_gateway.service.context import CallContext, RpcError
from broker_gateway.service.reply import Reply
from broker_gateway.service.status import ServiceError
from broker_gateway.transport.methods import Method
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb

log = structlog.get_logger(__name__)
T = TypeVar("T")


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

    @property
    def around(self) -> Callable[[Method], Method] | None:
        """What a gRPC transport is to put around each RPC; None: nothing."""
        return partial(_intercepted, self) if self.sees_calls else None

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


def load_extensions(config: GatewayConfig) -> Extensions:
    """What installed packages offer. Raises HostError, which names the entry point that cannot be used."""
    return Extensions(
        _load(config, "lakebroker.authenticators", ("authenticate",)),
        _load(config, "lakebroker.interceptors", ("before", "after")),
        _load(config, "lakebroker.append_hooks", ("before_append",)),
        _load(config, "lakebroker.metrics_sinks", ("publish",)),
    )


def _load(config: GatewayConfig, group: str, methods: Sequence[str]) -> tuple[Any, ...]:
    loaded = []
    for point in sorted(entry_points(group=group), key=lambda each: each.name):
        extension = _made(point, config)
        missing = [name for name in methods if not callable(getattr(extension, name, None))]
        if missing:
            raise HostError(
                f"the extension {point.name} ({point.value}) of {group} has no method {', '.join(missing)}; "
                "mend or uninstall it"
            )
        log.info("extension loaded", group=group, name=point.name, value=point.value)
        loaded.append(extension)
    return tuple(loaded)


def _made(point: EntryPoint, config: GatewayConfig) -> Any:
    try:
        return point.load()(config)
    except Exception as error:
        raise HostError(
            f"the extension {point.name} ({point.value}) of {point.group} cannot be loaded: "
            f"{type(error).__name__}: {error}; mend or uninstall it"
        ) from error


async def on_thread(work: Callable[[], None], name: str) -> None:
    """Does the work on a thread that nothing waits for when the process ends; raises what it raises."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def tell(error: Exception | None) -> None:
        if ended.done():
            return  # nobody waits any more
        if error is None:
            ended.set_result(None)
        else:
            ended.set_exception(error)

    def do() -> None:
        failed: Exception | None = None
        try:
            work()
        except Exception as error:
            failed = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
            loop.call_soon_threadsafe(tell, failed)

    threading.Thread(target=do, name=name, daemon=True).start()
    await ended


def run_append_hook(hook: AppendHook, messages: Sequence[pb.Message], peer: str) -> None:
    """Raises ServiceError FORBIDDEN when the hook refuses them."""
    try:
        hook.before_append(messages, peer)
    except RefusedError as error:
        raise ServiceError(pb.FORBIDDEN, str(error)) from error


def _intercepted(extensions: Extensions, method: Method) -> Method:
    """The RPC with everything around it, of the same shape."""
    around = _Around(extensions, method)
    if method.coroutine:
        return replace(method, call=around.coroutine)
    return replace(method, call=around.plain)


class _Around:
    """One RPC with interceptors before and after."""

    def __init__(self, extensions: Extensions, method: Method) -> None:
        self._extensions = extensions
        self._method = method

    def plain(self, request: Any, context: CallContext) -> Any:
        rpc = self._before(request, context)
        try:
            answer = self._method.call(request, context)
        except Exception as error:
            self._after(rpc, error=error)
            raise
        if isinstance(answer, Reply):
            return self._replied(rpc, answer)
        if self._method.server_streaming:
            return self._streamed(rpc, answer)
        self._after(rpc, answer)
        return answer

    async def coroutine(self, request: Any, context: CallContext) -> Any:
        rpc = self._before(request, context)
        try:
            answer = await self._method.call(request, context)
        except BaseException as error:
            self._after(rpc, error=error)
            raise
        self._after(rpc, answer)
        return answer

    def _replied(self, rpc: Rpc, inner: Reply[T]) -> Reply[T]:
        def left() -> None:
            inner.cancel()
            self._after(rpc, error=RpcError("CANCELLED", "the caller went away"))

        outer: Reply[T] = Reply(left)

        def given(answer: T) -> None:
            self._after(rpc, answer)
            outer.set(answer)

        inner.when_set(given)
        return outer

    async def _streamed(self, rpc: Rpc, responses: AsyncIterator[T]) -> AsyncIterator[T]:
        try:
            try:
                async for response in responses:
                    yield response
            finally:
                await responses.aclose()  # type: ignore[attr-defined]
        except BaseException as error:
            self._after(rpc, error=error)
            raise
        self._after(rpc)

    def _before(self, request: Any, context: CallContext) -> Rpc:
        if self._method.client_streaming:
            message = None
        else:
            message = self._method.request_of(request) if isinstance(request, bytes) else request
        rpc = Rpc(self._method.path, context.peer, context.metadata, message)
        self._extensions.before(rpc)
        return rpc

    def _after(self, rpc: Rpc, answer: Any = None, error: BaseException | None = None) -> None:
        if not self._extensions.interceptors:
            return
        answers = answer if isinstance(answer, list) else [] if answer is None else [answer]
        try:
            messages = [
                self._method.response_of(each) if isinstance(each, bytes) else each for each in answers
            ]
        except Exception:
            log.exception("interceptors are not told of an answer that cannot be read", call=rpc.path)
            return
        self._extensions.after(rpc, Outcome(messages, error))
