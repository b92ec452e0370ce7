"""`apache.rocketmq.v2.MessagingService`: every RPC, each answered with a status and never an exception."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import structlog

from broker_gateway.api.extensions import AppendHook
from broker_gateway.api.grpc.deferred import DeferredService
from broker_gateway.api.grpc.fields import client_id_of
from broker_gateway.api.grpc.lite import LiteService
from broker_gateway.api.grpc.offsets import OffsetService
from broker_gateway.api.grpc.pull import PullService
from broker_gateway.api.grpc.put_off_sends import PutOffSends
from broker_gateway.api.grpc.receive import ReceiveService
from broker_gateway.api.grpc.route import RouteService
from broker_gateway.api.grpc.send import SendService
from broker_gateway.api.grpc.settlement import SettlementService
from broker_gateway.api.grpc.status import OK, status_of
from broker_gateway.api.grpc.telemetry import ClientService
from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.messaging.admission import Bulkhead
from broker_gateway.messaging.core import Core
from broker_gateway.messaging.factory import Messaging
from broker_gateway.messaging.outcome import Reason, ServiceError
from broker_gateway.metadata.catalog import Catalog
from broker_gateway.runtime.reply import Reply
from broker_gateway.transport.context import CallContext, RpcError, takes_bytes
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from store.errors import StoreReadOnlyError

log = structlog.get_logger(__name__)
R = TypeVar("R")
Answer = Reply[R | bytes]
"""A response, or its bytes."""


class MessagingService:
    """The public API over the services."""

    def __init__(
        self,
        config: GatewayConfig,
        core: Core,
        messaging: Messaging,
        append_hooks: Sequence[AppendHook] = (),
    ) -> None:
        self._route = RouteService(messaging.routes, messaging.resources)
        self._put_off = PutOffSends(config, messaging.delays, messaging.transactions)
        self._send = SendService(
            config,
            messaging.producer,
            messaging.ordered_sends,
            self._put_off,
            messaging.lite_topics,
            append_hooks,
        )
        self._deferred = DeferredService(messaging.delays, messaging.transactions, messaging.resources)
        self._receive = ReceiveService(messaging.polls, messaging.long_polling)
        self._settlement = SettlementService(messaging.settlement)
        self._client = ClientService(config, core, messaging)
        self._offsets = OffsetService(messaging.offsets, messaging.offset_changes)
        self._lite = LiteService(messaging.lite_subscriptions, messaging.lite_peers, messaging.clients)
        self._pull = PullService(messaging.pulls)
        self._journal = core.journal
        self._admission = messaging.admission

    def configure(self, config: GatewayConfig) -> None:
        """Takes what may change while the broker runs."""
        self._put_off.configure(config)

    def listen(self, catalog: Catalog) -> None:
        """Has connected clients told of groups that change."""
        catalog.listen(group_changed=self._client.group_changed, rolled_back=self._client.change_rolled_back)

    @property
    def compiled_parts(self) -> Mapping[str, Callable[[], None]]:
        """What loads compiled code, by what goes faster with it. To be called on a thread."""
        return {"sends": self._send.load_compiled, "receives": self._receive.load_compiled}

    def QueryRoute(
        self, request: rpc.QueryRouteRequest, context: CallContext
    ) -> Answer[rpc.QueryRouteResponse]:
        bulkhead = self._admission.load_balance
        return self._routed(rpc.QueryRouteResponse, self._route.query_route, request, context, bulkhead)

    def QueryAssignment(
        self, request: rpc.QueryAssignmentRequest, context: CallContext
    ) -> Answer[rpc.QueryAssignmentResponse]:
        bulkhead = self._admission.load_balance
        return self._routed(
            rpc.QueryAssignmentResponse, self._route.query_assignment, request, context, bulkhead
        )

    @takes_bytes
    def SendMessage(self, request: bytes, context: CallContext) -> rpc.SendMessageResponse | Reply[bytes]:
        try:
            client_id_of(context)
            return self._send.send(request, context)
        except RpcError:
            raise
        except Exception as error:
            return rpc.SendMessageResponse(status=_status("SendMessage", error))

    def send_one(self, request: bytes, context: CallContext) -> Reply[bytes]:
        """The response to a SendMessageRequest of an administrator, who need not be a client. Raises ServiceError."""
        return self._send.send(request, context)

    def send_ordered(self, request: bytes, topic: str, queue_id: int, peer: str) -> Reply[bytes]:
        """The response to a SendMessageRequest of `peer` (`host:port`) that another broker hands over."""
        try:
            return self._send.handed_over(request, topic, queue_id, peer)
        except Exception as error:
            reply: Reply[bytes] = Reply()
            status = _status("SendMessage", _of_handed_over(error))
            reply.set(rpc.SendMessageResponse(status=status).SerializeToString())
            return reply

    def ReceiveMessage(
        self, request: rpc.ReceiveMessageRequest, context: CallContext
    ) -> Reply[list[rpc.ReceiveMessageResponse | bytes]]:
        try:
            timeout_ms = self._client.request_timeout_ms(context)
            return self._receive.receive(request, context, timeout_ms)
        except Exception as error:
            reply: Reply[list[rpc.ReceiveMessageResponse | bytes]] = Reply()
            reply.set([rpc.ReceiveMessageResponse(status=_status("ReceiveMessage", error))])
            return reply

    def AckMessage(
        self, request: rpc.AckMessageRequest, context: CallContext
    ) -> Answer[rpc.AckMessageResponse]:
        bulkhead = self._admission.ack
        return self._journaled(rpc.AckMessageResponse, self._settlement.ack, request, context, bulkhead)

    def ChangeInvisibleDuration(
        self, request: rpc.ChangeInvisibleDurationRequest, context: CallContext
    ) -> Answer[rpc.ChangeInvisibleDurationResponse]:
        return self._journaled(
            rpc.ChangeInvisibleDurationResponse,
            self._settlement.change_invisible,
            request,
            context,
            self._admission.ack,
        )

    def ForwardMessageToDeadLetterQueue(
        self, request: rpc.ForwardMessageToDeadLetterQueueRequest, context: CallContext
    ) -> Answer[rpc.ForwardMessageToDeadLetterQueueResponse]:
        return self._journaled(
            rpc.ForwardMessageToDeadLetterQueueResponse,
            self._settlement.forward_to_dead_letters,
            request,
            context,
            self._admission.ack,
        )

    def Heartbeat(self, request: rpc.HeartbeatRequest, context: CallContext) -> Answer[rpc.HeartbeatResponse]:
        bulkhead = self._admission.heartbeat
        return self._journaled(rpc.HeartbeatResponse, self._client.heartbeat, request, context, bulkhead)

    def NotifyClientTermination(
        self, request: rpc.NotifyClientTerminationRequest, context: CallContext
    ) -> Answer[rpc.NotifyClientTerminationResponse]:
        return self._journaled(
            rpc.NotifyClientTerminationResponse,
            self._client.terminated,
            request,
            context,
            self._admission.client_manager,
        )

    async def Telemetry(
        self, requests: AsyncIterator[rpc.TelemetryCommand], context: CallContext
    ) -> AsyncIterator[rpc.TelemetryCommand]:
        try:
            self._admission.client_manager.check(context.peer)
            with self._admission.client_manager.entered(context.peer):
                async for command in self._client.telemetry(requests, context):
                    yield command
        except Exception as error:
            yield rpc.TelemetryCommand(status=_status("Telemetry", error))

    async def PullMessage(
        self, request: rpc.PullMessageRequest, context: CallContext
    ) -> AsyncIterator[rpc.PullMessageResponse]:
        try:
            client_id_of(context)
            self._admission.pull.check(context.peer)
            with self._admission.pull.entered(context.peer):
                responses = await self._pull.pull(request, context, self._client.request_timeout_ms(context))
        except Exception as error:
            responses = [rpc.PullMessageResponse(status=_status("PullMessage", error))]
        for response in responses:
            yield response

    def UpdateOffset(
        self, request: rpc.UpdateOffsetRequest, context: CallContext
    ) -> Answer[rpc.UpdateOffsetResponse]:
        bulkhead = self._admission.consumer_manager
        return self._journaled(rpc.UpdateOffsetResponse, self._offsets.update, request, context, bulkhead)

    async def GetOffset(self, request: rpc.GetOffsetRequest, context: CallContext) -> rpc.GetOffsetResponse:
        try:
            client_id_of(context)
            self._admission.consumer_manager.check(context.peer)
            with self._admission.consumer_manager.entered(context.peer):
                return self._offsets.committed(request)
        except Exception as error:
            return rpc.GetOffsetResponse(status=_status("GetOffset", error))

    async def QueryOffset(
        self, request: rpc.QueryOffsetRequest, context: CallContext
    ) -> rpc.QueryOffsetResponse:
        try:
            client_id_of(context)
            self._admission.query.check(context.peer)
            with self._admission.query.entered(context.peer):
                return await self._offsets.query(request)
        except Exception as error:
            return rpc.QueryOffsetResponse(status=_status("QueryOffset", error))

    def EndTransaction(
        self, request: rpc.EndTransactionRequest, context: CallContext
    ) -> Answer[rpc.EndTransactionResponse]:
        bulkhead = self._admission.end_transaction
        return self._kept(
            rpc.EndTransactionResponse, self._deferred.end_transaction, request, context, bulkhead
        )

    def RecallMessage(
        self, request: rpc.RecallMessageRequest, context: CallContext
    ) -> Answer[rpc.RecallMessageResponse]:
        bulkhead = self._admission.send
        return self._kept(rpc.RecallMessageResponse, self._deferred.recall, request, context, bulkhead)

    def SyncLiteSubscription(
        self, request: rpc.SyncLiteSubscriptionRequest, context: CallContext
    ) -> Answer[rpc.SyncLiteSubscriptionResponse]:
        bulkhead = self._admission.client_manager
        return self._routed(
            rpc.SyncLiteSubscriptionResponse,
            self._lite.sync,
            request,
            context,
            bulkhead,
            self._lite.tell_others,
        )

    def lite_subscription_told(self, request: bytes, group: str, client_id: str, peer: str) -> Reply[bytes]:
        """The response to a SyncLiteSubscriptionRequest of a group, of a client at `peer` (`host:port`), which another broker passes
        on."""
        reply: Reply[bytes] = Reply()

        def answer(error: Exception | None) -> None:
            status = OK if error is None else _status("SyncLiteSubscription", error)
            reply.set(rpc.SyncLiteSubscriptionResponse(status=status).SerializeToString())

        try:
            self._lite.told(request, group, client_id, peer)
        except Exception as error:
            answer(_of_handed_over(error))
        else:
            self._journal.after(answer)
        return reply

    def _routed(
        self,
        response: Callable[..., R],
        call: Callable[[Any, CallContext], R | bytes],
        request: Any,
        context: CallContext,
        bulkhead: Bulkhead,
        then: Callable[[Any, CallContext, Callable[[R], None], R], None] | None = None,
    ) -> Answer[R]:
        """Answers a call after name servers said who else has its topic; under way from when it came. `then` gets the answer, and
        gives one."""
        reply: Answer[R]
        try:
            client_id_of(context)
            bulkhead.check(context.peer)
        except Exception as error:
            reply = Reply()
            reply.set(response(status=_status(type(request).__name__, error)))
            return reply
        reply = Reply(None, bulkhead, context.peer)

        def known() -> None:
            if not reply.done:  # else the caller went away
                give = reply.set if then is None else partial(then, request, context, reply.set)
                self._journaled(response, call, request, context).when_set(give)

        try:
            self._route.when_known(request.topic, known)
        except Exception as error:
            reply.set(response(status=_status(type(request).__name__, error)))
        return reply

    def _kept(
        self,
        response: Callable[..., R],
        call: Callable[[Any, Callable[[R], None]], None],
        request: Any,
        context: CallContext,
        bulkhead: Bulkhead,
    ) -> Answer[R]:
        """Answers a call when what it did is kept as `flushDiskType` has it, which the call says by itself."""
        reply: Answer[R]
        try:
            client_id_of(context)
            bulkhead.check(context.peer)
            reply = Reply(None, bulkhead, context.peer)
        except Exception as error:
            reply = Reply()
            reply.set(response(status=_status(type(request).__name__, error)))
            return reply
        try:
            call(request, reply.set)
        except Exception as error:
            reply.set(response(status=_status(type(request).__name__, error)))
        return reply

    def _journaled(
        self,
        response: Callable[..., R],
        call: Callable[[Any, CallContext], R | bytes],
        request: Any,
        context: CallContext,
        bulkhead: Bulkhead | None = None,
    ) -> Answer[R]:
        """Answers a call after what it changed is in the journal; without a bulkhead it was taken already."""
        answer: R | bytes
        try:
            client_id_of(context)
            if bulkhead is not None:
                bulkhead.check(context.peer)
            answer = call(request, context)
        except Exception as error:
            answer = response(status=_status(type(request).__name__, error))
        reply: Answer[R] = Reply(None, bulkhead, context.peer)

        def written(error: Exception | None) -> None:
            if error is None:
                reply.set(answer)
            else:
                reply.set(response(status=_status(type(request).__name__, error)))

        self._journal.after(written)
        return reply


def _of_handed_over(error: Exception) -> Exception:
    """What another broker is answered. Bytes that are no request fail no gRPC call here."""
    if isinstance(error, RpcError):
        return ServiceError(Reason.BAD_REQUEST, f"{error}; it was handed over by another broker")
    return error


def _status(call: str, error: Exception) -> pb.Status:
    if not isinstance(error, (ServiceError, StoreReadOnlyError)):
        log.error("call failed", call=call, exc_info=error)
    return status_of(error)
