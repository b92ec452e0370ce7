"""`apache.rocketmq.v2.Admin`: every call, answered with a status and never an exception.

Calls answer for this broker; what changes something is done at the other brokers of its host too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import structlog

from broker_gateway.api.grpc.admin.broker import BrokerAdmin
from broker_gateway.api.grpc.admin.clients import ClientAdmin
from broker_gateway.api.grpc.admin.messages import FoundMessages, MessageAdmin
from broker_gateway.api.grpc.admin.peer_calls import PeerCalls
from broker_gateway.api.grpc.admin.progress import ProgressAdmin
from broker_gateway.api.grpc.admin.requests import Named
from broker_gateway.api.grpc.admin.subscriptions import SubscriptionAdmin
from broker_gateway.api.grpc.status import status_of
from broker_gateway.config.reload import Configuration
from broker_gateway.messaging.admission import Bulkhead
from broker_gateway.messaging.factory import Messaging
from broker_gateway.messaging.outcome import ServiceError
from broker_gateway.observability.statistics import Statistics
from broker_gateway.runtime.reply import Reply
from broker_gateway.transport.context import CallContext, RpcError
from lakebroker_pb.apache.rocketmq.v2 import admin_pb2 as rpc
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from store.errors import StoreReadOnlyError

log = structlog.get_logger(__name__)
R = TypeVar("R")
_SERVICE = rpc.DESCRIPTOR.services_by_name["Admin"].full_name


class PublicAdminService:
    """The public administration over the services."""

    def __init__(
        self,
        configuration: Configuration,
        messaging: Messaging,
        statistics: Statistics,
        peers: PeerCalls,
        send: Callable[[bytes, CallContext], Reply[bytes]],
    ) -> None:
        broker = configuration.current.broker
        own = broker.broker_name
        named = self._named = Named(messaging.resources, messaging.groups, broker.broker_cluster_name)
        found = FoundMessages(messaging.message_queries)
        connections, offsets, progress = messaging.connections, messaging.offsets, messaging.progress
        self._broker = BrokerAdmin(named, configuration, offsets, connections, messaging.routes, statistics)
        self._subscriptions = SubscriptionAdmin(named, messaging.subscriptions)
        self._progress = ProgressAdmin(named, own, progress, offsets, messaging.offset_changes, connections)
        timeout_s = float(configuration.current.proxy.grpc_proxy_relay_request_timeout_in_seconds)
        self._clients = ClientAdmin(named, own, messaging, statistics, found, timeout_s)
        self._messages = MessageAdmin(named, own, found, send)
        self._peers = peers
        self._bulkhead: Bulkhead = messaging.admission.admin_broker

    async def ChangeLogLevel(
        self, request: rpc.ChangeLogLevelRequest, context: CallContext
    ) -> rpc.ChangeLogLevelResponse:
        try:
            self._bulkhead.check(context.peer)
        except ServiceError as error:
            raise RpcError("RESOURCE_EXHAUSTED", error.message) from error
        with self._bulkhead.entered(context.peer):
            answer = await self._broker.change_log_level(request)
            told = await self._peers.tell(
                f"/{_SERVICE}/ChangeLogLevel", request, context, rpc.ChangeLogLevelResponse.FromString
            )
        remarks = [answer.remark, *(each.remark for _, each in told)]
        return rpc.ChangeLogLevelResponse(remark="\n".join(remarks))

    async def DescribeTopicStatus(
        self, request: rpc.DescribeTopicStatusRequest, context: CallContext
    ) -> rpc.DescribeTopicStatusResponse:
        return await self._answer(
            rpc.DescribeTopicStatusResponse, request, context, lambda: self._broker.topic_status(request)
        )

    async def ListSubscription(
        self, request: rpc.ListSubscriptionRequest, context: CallContext
    ) -> rpc.ListSubscriptionResponse:
        return await self._answer(
            rpc.ListSubscriptionResponse, request, context, lambda: self._subscriptions.list(request)
        )

    async def DescribeSubscription(
        self, request: rpc.DescribeSubscriptionRequest, context: CallContext
    ) -> rpc.DescribeSubscriptionResponse:
        return await self._answer(
            rpc.DescribeSubscriptionResponse, request, context, lambda: self._subscriptions.describe(request)
        )

    async def DeleteSubscription(
        self, request: rpc.DeleteSubscriptionRequest, context: CallContext
    ) -> rpc.DeleteSubscriptionResponse:
        async def delete() -> rpc.DeleteSubscriptionResponse:
            answer = self._subscriptions.delete(request)
            return await self._everywhere("DeleteSubscription", request, context, answer)

        return await self._answer(rpc.DeleteSubscriptionResponse, request, context, delete)

    async def DescribeGroupAccumulation(
        self, request: rpc.DescribeGroupAccumulationRequest, context: CallContext
    ) -> rpc.DescribeGroupAccumulationResponse:
        return await self._answer(
            rpc.DescribeGroupAccumulationResponse,
            request,
            context,
            lambda: self._progress.accumulation(request),
        )

    async def ListConsumerConnection(
        self, request: rpc.ListConsumerConnectionRequest, context: CallContext
    ) -> rpc.ListConsumerConnectionResponse:
        async def connections() -> rpc.ListConsumerConnectionResponse:
            return self._clients.list(request)

        return await self._answer(rpc.ListConsumerConnectionResponse, request, context, connections)

    async def ResetGroupOffset(
        self, request: rpc.ResetGroupOffsetRequest, context: CallContext
    ) -> rpc.ResetGroupOffsetResponse:
        async def reset() -> rpc.ResetGroupOffsetResponse:
            answer = await self._progress.reset(request)
            return await self._everywhere("ResetGroupOffset", request, context, answer)

        return await self._answer(rpc.ResetGroupOffsetResponse, request, context, reset)

    async def QueryMessage(
        self, request: rpc.ListMessageRequest, context: CallContext
    ) -> rpc.ListMessageResponse:
        return await self._answer(
            rpc.ListMessageResponse, request, context, lambda: self._messages.query(request)
        )

    async def PrintThreadStackTrace(
        self, request: rpc.PrintThreadStackTraceRequest, context: CallContext
    ) -> rpc.PrintThreadStackTraceResponse:
        return await self._answer(
            rpc.PrintThreadStackTraceResponse,
            request,
            context,
            lambda: self._clients.stack_trace(request, context),
        )

    async def VerifyMessage(
        self, request: rpc.VerifyMessageRequest, context: CallContext
    ) -> rpc.VerifyMessageResponse:
        return await self._answer(
            rpc.VerifyMessageResponse, request, context, lambda: self._clients.verify(request, context)
        )

    async def AdminSendMessage(
        self, request: rpc.AdminSendMessageRequest, context: CallContext
    ) -> rpc.AdminSendMessageResponse:
        return await self._answer(
            rpc.AdminSendMessageResponse, request, context, lambda: self._messages.send(request, context)
        )

    async def GetConsumerRunningInfo(
        self, request: rpc.GetConsumerRunningInfoRequest, context: CallContext
    ) -> rpc.GetConsumerRunningInfoResponse:
        return await self._answer(
            rpc.GetConsumerRunningInfoResponse, request, context, lambda: self._clients.running_info(request)
        )

    async def GetTopicRoute(
        self, request: rpc.GetTopicRouteRequest, context: CallContext
    ) -> rpc.GetTopicRouteResponse:
        return await self._answer(
            rpc.GetTopicRouteResponse, request, context, lambda: self._broker.topic_route(request, context)
        )

    async def QueryTimeSpan(
        self, request: rpc.QueryTimeSpanRequest, context: CallContext
    ) -> rpc.QueryTimeSpanResponse:
        return await self._answer(
            rpc.QueryTimeSpanResponse, request, context, lambda: self._progress.time_spans(request)
        )

    async def GetProxyRuntimeStats(
        self, request: rpc.GetProxyRuntimeStatsRequest, context: CallContext
    ) -> rpc.GetProxyRuntimeStatsResponse:
        async def stats() -> rpc.GetProxyRuntimeStatsResponse:
            return self._broker.runtime_stats()

        return await self._answer(rpc.GetProxyRuntimeStatsResponse, request, context, stats)

    async def _answer(
        self,
        response: Callable[..., R],
        request: Any,
        context: CallContext,
        call: Callable[[], Awaitable[R]],
    ) -> R:
        """What a call gives, or why not."""
        try:
            self._bulkhead.check(context.peer)
            with self._bulkhead.entered(context.peer):
                self._named.check_deployment(request)
                return await call()
        except RpcError:
            raise
        except Exception as error:
            if not isinstance(error, (ServiceError, StoreReadOnlyError)):
                log.error("call failed", call=type(request).__name__, exc_info=error)
            return response(status=status_of(error))

    async def _everywhere(self, method: str, request: Any, context: CallContext, answer: R) -> R:
        """The answer, once the other brokers of the host have done the same; else the first that has not."""
        told = await self._peers.tell(
            f"/{_SERVICE}/{method}",
            request,
            context,
            type(answer).FromString,  # type: ignore[attr-defined]
        )
        for peer, each in told:
            if each.status.code != pb.OK:
                each.status.message = f"done here, refused by {peer}: {each.status.message}"
                return each  # type: ignore[no-any-return]
        return answer
