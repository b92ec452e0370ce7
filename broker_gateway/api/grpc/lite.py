"""SyncLiteSubscription: what a lite consumer subscribes to."""

from __future__ import annotations

from broker_gateway.api.grpc.fields import client_id_of, group_name, topic_name
from broker_gateway.api.grpc.status import OK
from broker_gateway.messaging.clients import ClientRegistry
from broker_gateway.messaging.lite_subscriptions import (
    AS_IT_IS,
    Action,
    LiteSubscriptions,
    OffsetKind,
    OffsetOption,
)
from broker_gateway.messaging.outcome import Reason, ServiceError
from broker_gateway.transport.context import CallContext
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc

_ACTIONS = {
    pb.PARTIAL_ADD: Action.PARTIAL_ADD,
    pb.PARTIAL_REMOVE: Action.PARTIAL_REMOVE,
    pb.COMPLETE_ADD: Action.COMPLETE_ADD,
    pb.COMPLETE_REMOVE: Action.COMPLETE_REMOVE,
}
_POLICIES = {pb.OffsetOption.MIN: OffsetKind.MIN, pb.OffsetOption.MAX: OffsetKind.MAX}


class LiteService:
    """Reads what lite consumers say."""

    def __init__(self, subscriptions: LiteSubscriptions, clients: ClientRegistry) -> None:
        self._subscriptions = subscriptions
        self._clients = clients

    def sync(
        self, request: rpc.SyncLiteSubscriptionRequest, context: CallContext
    ) -> rpc.SyncLiteSubscriptionResponse:
        """OK once it counts."""
        action = _ACTIONS.get(request.action)
        if action is None:
            raise ServiceError(Reason.BAD_REQUEST, f"action {request.action} is unknown")
        self._subscriptions.sync(
            self._clients.own(client_id_of(context), context.peer),
            action,
            group_name(request.group),
            topic_name(request.topic),
            request.lite_topic_set,
            request.version if request.HasField("version") else None,
            _option(request.offset_option) if request.HasField("offset_option") else AS_IT_IS,
        )
        return rpc.SyncLiteSubscriptionResponse(status=OK)


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
