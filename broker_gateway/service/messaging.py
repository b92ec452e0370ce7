"""`apache.rocketmq.v2.MessagingService`: every RPC, each answered with a status and never an exception."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import structlog

from broker_gateway.journal.journal import Journal
from broker_gateway.service.client import ClientService
from broker_gateway.service.context import CallContext
from broker_gateway.service.receive import ReceiveService
from broker_gateway.service.route import RouteService
from broker_gateway.service.send import SendService
from broker_gateway.service.settlement import SettlementService
from broker_gateway.service.status import ServiceError, status_of
from broker_gateway.service.validation import client_id_of
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc

log = structlog.get_logger(__name__)
R = TypeVar("R")


class MessagingService:
    """The public API over the services."""

    def __init__(
        self,
        route: RouteService,
        send: SendService,
        receive: ReceiveService,
        settlement: SettlementService,
        client: ClientService,
        journal: Journal,
    ) -> None:
        self._route = route
        self._send = send
        self._receive = receive
        self._settlement = settlement
        self._client = client
        self._journal = journal

    async def QueryRoute(
        self, request: rpc.QueryRouteRequest, context: CallContext
    ) -> rpc.QueryRouteResponse:
        return await self._journaled(rpc.QueryRouteResponse, self._route.query_route, request, context)

    async def QueryAssignment(
        self, request: rpc.QueryAssignmentRequest, context: CallContext
    ) -> rpc.QueryAssignmentResponse:
        return await self._journaled(
            rpc.QueryAssignmentResponse, self._route.query_assignment, request, context
        )

    def SendMessage(
        self, request: rpc.SendMessageRequest, context: CallContext
    ) -> rpc.SendMessageResponse | asyncio.Future[bytes]:
        try:
            client_id_of(context)
            return self._send.send(request, context)
        except Exception as error:
            return rpc.SendMessageResponse(status=_status("SendMessage", error))

    async def ReceiveMessage(
        self, request: rpc.ReceiveMessageRequest, context: CallContext
    ) -> AsyncIterator[rpc.ReceiveMessageResponse]:
        try:
            timeout_ms = self._client.request_timeout_ms(client_id_of(context))
            async for response in self._receive.receive(request, context, timeout_ms):
                yield response
        except Exception as error:
            yield rpc.ReceiveMessageResponse(status=_status("ReceiveMessage", error))

    async def AckMessage(
        self, request: rpc.AckMessageRequest, context: CallContext
    ) -> rpc.AckMessageResponse:
        return await self._journaled(rpc.AckMessageResponse, self._settlement.ack, request, context)

    async def ChangeInvisibleDuration(
        self, request: rpc.ChangeInvisibleDurationRequest, context: CallContext
    ) -> rpc.ChangeInvisibleDurationResponse:
        return await self._journaled(
            rpc.ChangeInvisibleDurationResponse, self._settlement.change_invisible, request, context
        )

    async def ForwardMessageToDeadLetterQueue(
        self, request: rpc.ForwardMessageToDeadLetterQueueRequest, context: CallContext
    ) -> rpc.ForwardMessageToDeadLetterQueueResponse:
        return await self._journaled(
            rpc.ForwardMessageToDeadLetterQueueResponse,
            self._settlement.forward_to_dead_letters,
            request,
            context,
        )

    async def Heartbeat(self, request: rpc.HeartbeatRequest, context: CallContext) -> rpc.HeartbeatResponse:
        return await self._journaled(rpc.HeartbeatResponse, self._client.heartbeat, request, context)

    async def NotifyClientTermination(
        self, request: rpc.NotifyClientTerminationRequest, context: CallContext
    ) -> rpc.NotifyClientTerminationResponse:
        return await self._journaled(
            rpc.NotifyClientTerminationResponse, self._client.terminated, request, context
        )

    async def Telemetry(
        self, requests: AsyncIterator[rpc.TelemetryCommand], context: CallContext
    ) -> AsyncIterator[rpc.TelemetryCommand]:
        try:
            async for command in self._client.telemetry(requests, context):
                yield command
        except Exception as error:
            yield rpc.TelemetryCommand(status=_status("Telemetry", error))

    async def PullMessage(
        self, request: rpc.PullMessageRequest, context: CallContext
    ) -> AsyncIterator[rpc.PullMessageResponse]:
        yield rpc.PullMessageResponse(status=_later("PullMessage", "receive with a push or simple consumer"))

    async def UpdateOffset(
        self, request: rpc.UpdateOffsetRequest, context: CallContext
    ) -> rpc.UpdateOffsetResponse:
        return rpc.UpdateOffsetResponse(status=_later("UpdateOffset", "acknowledge messages instead"))

    async def GetOffset(self, request: rpc.GetOffsetRequest, context: CallContext) -> rpc.GetOffsetResponse:
        return rpc.GetOffsetResponse(status=_later("GetOffset", "ask the table consumer_offsets instead"))

    async def QueryOffset(
        self, request: rpc.QueryOffsetRequest, context: CallContext
    ) -> rpc.QueryOffsetResponse:
        return rpc.QueryOffsetResponse(status=_later("QueryOffset", "ask the table consume_queue instead"))

    async def EndTransaction(
        self, request: rpc.EndTransactionRequest, context: CallContext
    ) -> rpc.EndTransactionResponse:
        return rpc.EndTransactionResponse(status=_later("EndTransaction", "send NORMAL messages"))

    async def RecallMessage(
        self, request: rpc.RecallMessageRequest, context: CallContext
    ) -> rpc.RecallMessageResponse:
        return rpc.RecallMessageResponse(status=_later("RecallMessage", "send NORMAL messages"))

    async def SyncLiteSubscription(
        self, request: rpc.SyncLiteSubscriptionRequest, context: CallContext
    ) -> rpc.SyncLiteSubscriptionResponse:
        return rpc.SyncLiteSubscriptionResponse(
            status=_later("SyncLiteSubscription", "use a push or simple consumer")
        )

    async def _journaled(
        self,
        response: Callable[..., R],
        call: Callable[[Any, CallContext], R],
        request: Any,
        context: CallContext,
    ) -> R:
        """Answers a call after what it changed is in the journal."""
        try:
            client_id_of(context)
            answer = call(request, context)
            await self._journal.written()
            return answer
        except Exception as error:
            return response(status=_status(type(request).__name__, error))


def _status(call: str, error: Exception) -> pb.Status:
    if not isinstance(error, ServiceError):
        log.exception("call failed", call=call)
    return status_of(error)


def _later(call: str, instead: str) -> pb.Status:
    return pb.Status(code=pb.NOT_IMPLEMENTED, message=f"{call} is not implemented yet; {instead}")
