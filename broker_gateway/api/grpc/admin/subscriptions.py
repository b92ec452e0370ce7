"""ListSubscription, DescribeSubscription, DeleteSubscription."""

from __future__ import annotations

from typing import Any

from broker_gateway.api.grpc.admin.requests import Named, client_info, filter_expression, message_model
from broker_gateway.api.grpc.codec import timestamp, to_resource
from broker_gateway.api.grpc.fields import filter_of
from broker_gateway.api.grpc.status import OK
from broker_gateway.messaging.subscriptions import Subscribed, Subscriptions
from lakebroker_pb.apache.rocketmq.v2 import admin_pb2 as rpc


class SubscriptionAdmin:
    """Answers with what `Subscriptions` knows."""

    def __init__(self, named: Named, subscriptions: Subscriptions) -> None:
        self._named = named
        self._subscriptions = subscriptions

    async def list(self, request: rpc.ListSubscriptionRequest) -> rpc.ListSubscriptionResponse:
        topic, group = self._asked(request)
        found = await self._subscriptions.all(topic, group)
        return rpc.ListSubscriptionResponse(status=OK, subscription_info=map(_info, found))

    async def describe(self, request: rpc.DescribeSubscriptionRequest) -> rpc.DescribeSubscriptionResponse:
        topic, group = self._asked(request)
        response = rpc.DescribeSubscriptionResponse(status=OK)
        for member, each, consistent in await self._subscriptions.of_clients(topic, group):
            model = member.how.message_model
            subscribed = Subscribed(
                member.group, each.topic, each.expression, each.kind, True, each.version, model, consistent
            )
            response.client_subscription_info.add(
                client_info=client_info(member), subscription_info=_info(subscribed)
            )
        return response

    def delete(self, request: rpc.DeleteSubscriptionRequest) -> rpc.DeleteSubscriptionResponse:
        """A group has one subscription to a topic, whatever its expression, which has to be one all the same."""
        topic, group = self._named.topic(request.topic), self._named.group(request.group)
        filter_of(request.expression)
        self._subscriptions.delete(group, topic.name)
        return rpc.DeleteSubscriptionResponse(status=OK)

    def _asked(self, request: Any) -> tuple[str | None, str | None]:
        topic = self._named.topic(request.topic).name if request.HasField("topic") else None
        group = self._named.group(request.group) if request.HasField("group") else None
        return topic, group


def _info(each: Subscribed) -> rpc.SubscriptionInfo:
    info = rpc.SubscriptionInfo(
        group=to_resource(each.group),
        topic=to_resource(each.topic),
        online=each.online,
        message_model=message_model(each.message_model),
        subscription_consistency=each.consistent,
    )
    if each.online:
        info.expression.CopyFrom(filter_expression(each.expression, each.kind))
    if each.updated_ms > 0:
        info.last_update_timestamp.CopyFrom(timestamp(each.updated_ms))
    return info
