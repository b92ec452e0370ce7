"""Fields of the Admin service's requests that many of its calls have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from broker_gateway.api.grpc.codec import to_resource
from broker_gateway.api.grpc.fields import group_name, timestamp_ms, topic_name
from broker_gateway.messaging.checks import check_group, check_lite_topic, shown
from broker_gateway.messaging.connections import Member
from broker_gateway.messaging.groups import Groups
from broker_gateway.messaging.outcome import Reason, ServiceError
from broker_gateway.messaging.resources import Resources
from broker_gateway.metadata.catalog import Topic
from broker_gateway.metadata.group_configuration import lite_bind_topic
from lakebroker_pb.apache.rocketmq.v2 import admin_pb2 as rpc
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.google.protobuf.timestamp_pb2 import Timestamp
from store.lite_queues import LiteTopic

MAX_TOPICS = 1000
"""That a request may name."""
MAX_QUEUES_ANSWERED = 32_768
_LITE_TOPIC_BYTES = 128
"""The largest `maxLiteTopicSize`: a lite topic stays when that is made smaller."""
_MODELS = {"BROADCASTING": rpc.BROADCASTING, "LITE_SELECTIVE": rpc.LITE_SELECTIVE}


class Named:
    """Topics and groups that requests name, checked. Nothing is created."""

    def __init__(self, resources: Resources, groups: Groups, cluster: str) -> None:
        self._resources = resources
        self._groups = groups
        self._cluster = cluster

    def check_deployment(self, request: Any) -> None:
        """BAD_REQUEST for another cluster's name; requests need not name one."""
        name = getattr(request, "deployment_name", "")
        if name not in ("", self._cluster):
            raise ServiceError(
                Reason.BAD_REQUEST,
                f"deployment_name {shown(name)} is not this broker's cluster, {shown(self._cluster)}; leave it out or ask there",
            )

    def topic(self, resource: pb.Resource) -> Topic:
        """ILLEGAL_TOPIC, TOPIC_NOT_FOUND."""
        return self._resources.known_topic(topic_name(resource))

    def group(self, resource: pb.Resource) -> str:
        """ILLEGAL_CONSUMER_GROUP, CONSUMER_GROUP_NOT_FOUND."""
        name = group_name(resource)
        check_group(name)
        try:
            return self._groups.known(name).name
        except ServiceError as error:
            raise ServiceError(
                error.reason,
                f"consumer group {shown(name)} does not exist; `lakebroker group list` names those that do",
            ) from error

    def lite_topic(self, group: str, name: str) -> LiteTopic:
        """One of the topic that a group is bound to. ILLEGAL_LITE_TOPIC, TOPIC_NOT_FOUND when it is bound to none."""
        check_lite_topic(name, _LITE_TOPIC_BYTES)
        parent = lite_bind_topic(self._groups.known(group))
        if not parent:
            raise ServiceError(
                Reason.TOPIC_NOT_FOUND,
                f"consumer group {shown(group)} is bound to no topic's lite topics (lite.bind.topic)",
            )
        return LiteTopic(parent, name)

    def topics(self, named: Iterable[pb.Resource], otherwise: Iterable[str]) -> list[Topic]:
        """Those named, each once; `otherwise` where none is, of which those are left out that are gone. ILLEGAL_TOPIC,
        TOPIC_NOT_FOUND, BAD_REQUEST when they are too many."""
        resources = list(named)
        if len(resources) > MAX_TOPICS:
            raise ServiceError(
                Reason.BAD_REQUEST, f"{len(resources)} topics in a request, at most {MAX_TOPICS} are taken"
            )
        if resources:
            found = list({topic.name: topic for topic in map(self.topic, resources)}.values())
        else:
            known = self._resources.catalog.topic
            found = [topic for name in sorted(set(otherwise)) if (topic := known(name)) is not None]
        queues = sum(topic.queues for topic in found)
        if queues > MAX_QUEUES_ANSWERED:
            raise ServiceError(
                Reason.PAYLOAD_TOO_LARGE,
                f"{len(found)} topics of {queues} queues in an answer, at most {MAX_QUEUES_ANSWERED} queues; name fewer topics",
            )
        return found


def time_ms(request: Any, field: str) -> int | None:
    """A timestamp's ms since the epoch, None without it. BAD_REQUEST for one before 1970 or a malformed one."""
    if not request.HasField(field):
        return None
    value: Timestamp = getattr(request, field)
    found = timestamp_ms(value)
    if found < 0:
        raise ServiceError(Reason.BAD_REQUEST, f"{field} is before 1970 ({value.seconds} s)")
    return found


def client_info(member: Member) -> rpc.ClientInfo:
    """A connected consumer."""
    client = member.client
    version = client.program or ("" if client.version is None else str(client.version))
    return rpc.ClientInfo(
        client_id=client.client_id,
        version=version,
        language=client.language,
        hostname=client.hostname,
        egress_ip=client.address,
        message_model=message_model(member.how.message_model),
    )


def message_model(name: str) -> rpc.MessageModel:
    return _MODELS.get(name, rpc.CLUSTERING)


def filter_expression(expression: str, kind: str) -> pb.FilterExpression:
    return pb.FilterExpression(type=pb.SQL if kind == "SQL92" else pb.TAG, expression=expression)


def message_queue(topic: str, queue_id: int, broker: str) -> pb.MessageQueue:
    return pb.MessageQueue(topic=to_resource(topic), id=queue_id, broker=pb.Broker(name=broker))
