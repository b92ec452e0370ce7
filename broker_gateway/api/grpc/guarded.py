"""A service whose calls count in a bulkhead."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from broker_gateway.messaging.admission import Bulkhead
from broker_gateway.messaging.outcome import ServiceError
from broker_gateway.transport.context import CallContext, RpcError


class Guarded:
    """A service whose RPCs, all coroutines, count in a bulkhead; refused ones fail with RESOURCE_EXHAUSTED."""

    def __init__(self, service: object, bulkhead: Bulkhead) -> None:
        self._service = service
        self._bulkhead = bulkhead

    def __getattr__(self, name: str) -> Callable[[Any, CallContext], Awaitable[Any]]:
        method, bulkhead = getattr(self._service, name), self._bulkhead

        async def guarded(request: Any, context: CallContext) -> Any:
            try:
                bulkhead.check(context.peer)
            except ServiceError as error:
                raise RpcError("RESOURCE_EXHAUSTED", error.message) from error
            with bulkhead.entered(context.peer):
                return await method(request, context)

        return guarded
