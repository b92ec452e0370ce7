"""A service whose calls count in a lane."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from broker_gateway.messaging.admission import Lane
from broker_gateway.messaging.outcome import ServiceError
from broker_gateway.transport.context import CallContext, RpcError


class Guarded:
    """A service whose RPCs, all coroutines, count in a lane; refused ones fail with RESOURCE_EXHAUSTED."""

    def __init__(self, service: object, lane: Lane) -> None:
        self._service = service
        self._lane = lane

    def __getattr__(self, name: str) -> Callable[[Any, CallContext], Awaitable[Any]]:
        method, lane = getattr(self._service, name), self._lane

        async def guarded(request: Any, context: CallContext) -> Any:
            try:
                lane.check(context.peer)
            except ServiceError as error:
                raise RpcError("RESOURCE_EXHAUSTED", error.message) from error
            with lane.place(context.peer):
                return await method(request, context)

        return guarded
