"""A call on a service in this process: what a transport makes of it, without one."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any

from broker_gateway.runtime.reply import Reply
from broker_gateway.transport.context import CallContext, RpcError
from broker_gateway.transport.methods import Method, serialized
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.messages import received


class NotAnsweredError(Exception):
    """A call waits for time or messages; `begin` it, then `advance` the clock or send."""


class Call:
    """A call under way. `response` is what it was answered with; of ReceiveMessage a list."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.done = False
        self.error: Exception | None = None
        """What left the service: an RpcError fails the call with a gRPC status, anything else is a defect."""
        self._value: Any = None
        self._under_way: Any = None

    @property
    def response(self) -> Any:
        """Raises NotAnsweredError, or what the call failed with."""
        if self.error is not None:
            raise self.error
        if not self.done:
            raise NotAnsweredError(f"{self.name} waits; advance the clock, or send what it waits for")
        return self._value

    @property
    def messages(self) -> list[pb.Message]:
        """Of a ReceiveMessage."""
        return received(self.response)[1]

    def invoke(self, method: Method, request: Any, context: CallContext) -> None:
        """Calls the service, on the event loop; `request` is a message or its bytes."""

        def answered(value: Any) -> None:
            self.answer(_parsed(method, value))

        try:
            given = request if isinstance(request, bytes) else request.SerializeToString()
            answer = method.call(method.parse(given), context)
        except Exception as error:
            self._fail(error)
            return
        if isinstance(answer, Reply):
            self._under_way = answer
            answer.when_set(answered)
        elif inspect.isawaitable(answer) or hasattr(answer, "__aiter__"):
            self._under_way = asyncio.get_running_loop().create_task(self._awaited(answer, answered))
        else:
            answered(answer)

    def answer(self, value: Any) -> None:
        """It is answered with a response, or several."""
        self.done, self._value = True, value

    def cancel(self) -> None:
        """The client went away."""
        if not self.done and self._under_way is not None:
            self._under_way.cancel()

    def expire(self) -> None:
        """Its deadline is over."""
        if not self.done:
            self.cancel()
            self._fail(RpcError("DEADLINE_EXCEEDED", f"{self.name} was not answered in time"))

    def _fail(self, error: Exception) -> None:
        self.done, self.error = True, error

    async def _awaited(self, answer: Any, answered: Callable[[Any], None]) -> None:
        """Waits for a coroutine, or for all responses of an iterator."""
        try:
            answered(await _all(answer) if hasattr(answer, "__aiter__") else await answer)
        except Exception as error:
            self._fail(error)


def _parsed(method: Method, value: Any) -> Any:
    """The messages of what a service gave, which may be bytes; a list of a list."""
    if isinstance(value, list):
        return [method.response_of(serialized(each)) for each in value]
    return method.response_of(serialized(value))


async def _all(responses: AsyncIterator[Any]) -> list[Any]:
    found: list[Any] = []
    async for response in responses:
        found += response if isinstance(response, list) else [response]
    return found
