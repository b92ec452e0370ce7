"""Extensions around the RPCs of a gRPC transport; around remoting requests: `remoting/extended.py`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import structlog

from broker_gateway.api.extensions import Extensions, Outcome, Rpc
from broker_gateway.runtime.reply import Reply
from broker_gateway.transport.context import CallContext, RpcError
from broker_gateway.transport.methods import Method

log = structlog.get_logger(__name__)
T = TypeVar("T")


def around(extensions: Extensions) -> Callable[[Method], Method] | None:
    """What a gRPC transport is to put around each RPC; None: nothing."""
    return partial(_extended, extensions) if extensions.sees_calls else None


def within(
    outer: Callable[[Method], Method] | None, inner: Callable[[Method], Method]
) -> Callable[[Method], Method]:
    """Both around each RPC, `outer` first."""
    return inner if outer is None else lambda method: outer(inner(method))


def _extended(extensions: Extensions, method: Method) -> Method:
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
