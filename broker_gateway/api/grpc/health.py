"""`grpc.health.v1.Health`: whether the gateway serves, for load balancers and probes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

from grpc_health.v1 import health_pb2 as pb

from broker_gateway.transport.context import CallContext, RpcError

_SERVING = pb.HealthCheckResponse.SERVING
_NOT_SERVING = pb.HealthCheckResponse.NOT_SERVING
_UNKNOWN = pb.HealthCheckResponse.SERVICE_UNKNOWN


class HealthService:
    """Answers for the gateway as a whole (the empty name) and for each of its services."""

    def __init__(self, services: Iterable[str]) -> None:
        self._services = frozenset(("", *services))
        self._serving = True
        self._changed = asyncio.Event()

    def stopping(self) -> None:
        """From now on nothing is served."""
        self._serving = False
        self._changed.set()

    def Check(self, request: pb.HealthCheckRequest, context: CallContext) -> pb.HealthCheckResponse:
        status = self._status(request.service)
        if status == _UNKNOWN:
            raise RpcError("NOT_FOUND", f"service {request.service[:200]!r} is none of the gateway's")
        return pb.HealthCheckResponse(status=status)

    def List(self, request: pb.HealthListRequest, context: CallContext) -> pb.HealthListResponse:
        return pb.HealthListResponse(
            statuses={name: pb.HealthCheckResponse(status=self._status(name)) for name in self._services}
        )

    async def Watch(
        self, request: pb.HealthCheckRequest, context: CallContext
    ) -> AsyncIterator[pb.HealthCheckResponse]:
        yield pb.HealthCheckResponse(status=self._status(request.service))
        if request.service in self._services:
            await self._changed.wait()
            yield pb.HealthCheckResponse(status=_NOT_SERVING)
        else:
            # it will never be known: until the caller leaves
            await asyncio.get_running_loop().create_future()

    def _status(self, service: str) -> pb.HealthCheckResponse.ServingStatus:
        if service not in self._services:
            return _UNKNOWN
        return _SERVING if self._serving else _NOT_SERVING
