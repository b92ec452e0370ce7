"""SyncLiteSubscription: what a lite consumer subscribes to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog
from google.protobuf.message import DecodeError

from broker_gateway.api.grpc.fields import client_id_of, group_name, topic_name
from broker_gateway.api.grpc.status import OK, status_of
from broker_gateway.messaging.checks import shown
from broker_gateway.messaging.clients import ClientRegistry
from broker_gateway.messaging.lite_peers import LitePeers
from broker_gateway.messaging.lite_subscriptions import (
    AS_IT_IS,
    Action,
    LiteSubscriptions,
    OffsetKind,
    OffsetOption,
    Said,
)
from broker_gateway.messaging.outcome import Reason, ServiceError
from broker_gateway.protocol.resource_names import resource_name
from broker_gateway.transport.context import CallContext
from broker_gateway.transport.request_limits import limits_of, parser
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc

log = structlog.get_logger(__name__)
_parse = parser(
    rpc.SyncLiteSubscriptionRequest,
    limits_of("/apache.rocketmq.v2.MessagingService/SyncLiteSubscription"),
)
_ACTIONS = {
    pb.PARTIAL_ADD: Action.PARTIAL_ADD,
    pb.PARTIAL_REMOVE: Action.PARTIAL_REMOVE,
    pb.COMPLETE_ADD: Action.COMPLETE_ADD,
    pb.COMPLETE_REMOVE: Action.COMPLETE_REMOVE,
}
_POLICIES = {pb.OffsetOption.MIN: OffsetKind.MIN, pb.OffsetOption.MAX: OffsetKind.MAX}


class LiteService:
    """Reads what lite consumers say, and passes it on to the other brokers of their topic."""

    def __init__(self, subscriptions: LiteSubscriptions, peers: LitePeers, clients: ClientRegistry) -> None:
        self._subscriptions = subscriptions
        self._peers = peers
        self._clients = clients
        self._under_way: set[asyncio.Task[None]] = set()

    def sync(
        self, request: rpc.SyncLiteSubscriptionRequest, context: CallContext
    ) -> rpc.SyncLiteSubscriptionResponse:
        """OK once it counts here."""
        session = self._clients.own(client_id_of(context), context.peer)
        self._subscriptions.sync(
            session, group_name(request.group), topic_name(request.topic), _said(request)
        )
        return rpc.SyncLiteSubscriptionResponse(status=OK)

    def tell_others(
        self,
        request: rpc.SyncLiteSubscriptionRequest,
        context: CallContext,
        give: Callable[[rpc.SyncLiteSubscriptionResponse], None],
        answer: rpc.SyncLiteSubscriptionResponse,
    ) -> None:
        """Gives the answer of this broker, or the first of another that says that it did not take it."""
        others = self._peers.of(resource_name(request.topic)) if answer.status.code == pb.OK else ()
        if not others:
            give(answer)
            return
        task = asyncio.create_task(self._tell(others, request, context, give), name="lite subscription")
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _tell(
        self,
        others: Sequence[str],
        request: rpc.SyncLiteSubscriptionRequest,
        context: CallContext,
        give: Callable[[rpc.SyncLiteSubscriptionResponse], None],
    ) -> None:
        answer = rpc.SyncLiteSubscriptionResponse(status=OK)
        try:
            group, client_id = resource_name(request.group), client_id_of(context)
            found = await self._peers.tell(
                others, group, client_id, request.SerializeToString(), context.peer
            )
            for each in found:
                said = status_of(each) if isinstance(each, ServiceError) else _status_in(each)
                if said.code != pb.OK:
                    answer.status.CopyFrom(said)
                    break
        except Exception as error:
            log.exception("other brokers were not told of a subscription", client_id=client_id_of(context))
            answer.status.CopyFrom(status_of(error))
        give(answer)

    def told(self, request: bytes, group: str, client_id: str, peer: str) -> None:
        """A SyncLiteSubscriptionRequest of a group that a client at `peer` sent to another broker. Raises ServiceError, RpcError."""
        asked = _parse(request)
        named, topic = group_name(asked.group), topic_name(asked.topic)
        if named != group:
            raise ServiceError(
                Reason.BAD_REQUEST,
                f"what is handed over for consumer group {shown(group)} is of {shown(named)}",
            )
        self._subscriptions.told(client_id, peer, group, topic, _said(asked))


def _status_in(answer: bytes) -> pb.Status:
    try:
        return rpc.SyncLiteSubscriptionResponse.FromString(answer).status
    except DecodeError as error:
        return status_of(
            ServiceError(Reason.INTERNAL_SERVER_ERROR, f"another broker's answer cannot be read: {error}")
        )


def _said(request: rpc.SyncLiteSubscriptionRequest) -> Said:
    action = _ACTIONS.get(request.action)
    if action is None:
        raise ServiceError(Reason.BAD_REQUEST, f"action {request.action} is unknown")
    return Said(
        action,
        request.lite_topic_set,
        request.version if request.HasField("version") else None,
        _option(request.offset_option) if request.HasField("offset_option") else AS_IT_IS,
    )


def _option(asked: pb.OffsetOption) -> OffsetOption:
    """A time changes nothing, as in the original."""
    match asked.WhichOneof("offset_type"):
        case "policy":
            return OffsetOption(_POLICIES.get(asked.policy, OffsetKind.AS_IT_IS))
        case "offset":
            return OffsetOption(OffsetKind.OFFSET, _not_negative(asked.offset))
        case "tail_n":
            return OffsetOption(OffsetKind.TAIL, _not_negative(asked.tail_n))
    return AS_IT_IS


def _not_negative(value: int) -> int:
    if value < 0:
        raise ServiceError(Reason.BAD_REQUEST, f"offset option {value} is negative; give 0 or more")
    return value
