"""QueryRoute and QueryAssignment: which queues a topic has and where they are."""

from __future__ import annotations

import ipaddress

from broker_gateway.config import GatewayConfig
from broker_gateway.metadata.catalog import Topic
from broker_gateway.metadata.peers import Peers
from broker_gateway.service.context import CallContext
from broker_gateway.service.resources import Resources
from broker_gateway.service.status import OK, ServiceError
from broker_gateway.service.validation import shown
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc

ANY_QUEUE = -1
_ALL_TYPES = (pb.NORMAL, pb.FIFO, pb.DELAY, pb.TRANSACTION)


class RouteService:
    """Answers routes of this broker and its peers."""

    def __init__(self, config: GatewayConfig, resources: Resources, peers: Peers) -> None:
        self._broker_name = config.broker.broker_name
        self._resources = resources
        self._peers = peers

    def query_route(self, request: rpc.QueryRouteRequest, context: CallContext) -> rpc.QueryRouteResponse:
        """A queue of the reply is one that can be read, written or both, as the permission says."""
        topic = self._resources.topic(request.topic)
        types: list[pb.MessageType | str] = list(topic.accept_message_types) or list(_ALL_TYPES)
        queues = []
        for queue_id in range(max(topic.read_queues, topic.write_queues)):
            permission = _permission(
                topic.readable and queue_id < topic.read_queues,
                topic.writable and queue_id < topic.write_queues,
            )
            queues.append((queue_id, permission))
        message_queues = [
            pb.MessageQueue(
                topic=request.topic,
                id=queue_id,
                permission=permission,
                broker=broker,
                accept_message_types=types,
            )
            for broker in self._brokers(request.endpoints, context)
            for queue_id, permission in queues
        ]
        return rpc.QueryRouteResponse(status=OK, message_queues=message_queues)

    def query_assignment(
        self, request: rpc.QueryAssignmentRequest, context: CallContext
    ) -> rpc.QueryAssignmentResponse:
        """Of each broker, one queue with id -1 (any) for an ordinary group, every queue for a FIFO group."""
        topic = self._resources.topic(request.topic)
        group = self._resources.group(request.group)
        if not topic.readable or not topic.read_queues:
            raise ServiceError(pb.FORBIDDEN, f"topic {shown(topic.name)} has no readable queue")
        ids = range(topic.read_queues) if group.fifo else [ANY_QUEUE]
        permission = _permission(topic.readable, topic.writable)
        return rpc.QueryAssignmentResponse(
            status=OK,
            assignments=[
                pb.Assignment(
                    message_queue=pb.MessageQueue(
                        topic=request.topic, id=queue_id, permission=permission, broker=broker
                    )
                )
                for broker in self._brokers(request.endpoints, context)
                for queue_id in ids
            ],
        )

    def _brokers(self, endpoints: pb.Endpoints, context: CallContext) -> list[pb.Broker]:
        """This broker at the address by which the client came, since that one is known to reach it; its peers
        at the same host."""
        for address in endpoints.addresses:
            if not address.host or not 0 < address.port < 65536:
                raise ServiceError(
                    pb.ILLEGAL_ACCESS_POINT,
                    f"access point {shown(address.host)}:{address.port} needs a host and a port of 1 to 65535",
                )
        if len(endpoints.addresses) != 1:
            host, port = context.local_endpoint
            endpoints = pb.Endpoints(scheme=_scheme(host), addresses=[pb.Address(host=host, port=port)])
        host = endpoints.addresses[0].host
        found = [pb.Broker(name=self._broker_name, id=0, endpoints=endpoints)]
        for peer in self._peers.all:
            there = pb.Endpoints(
                scheme=endpoints.scheme, addresses=[pb.Address(host=host, port=peer.grpc_port)]
            )
            found.append(pb.Broker(name=peer.name, id=0, endpoints=there))
        return found


def topic_accepts(topic: Topic, message_type: pb.MessageType) -> bool:
    """Whether messages of that type may be sent to `topic`."""
    return not topic.accept_message_types or pb.MessageType.Name(message_type) in topic.accept_message_types


def _permission(readable: bool, writable: bool) -> pb.Permission:
    if readable and writable:
        return pb.READ_WRITE
    if readable:
        return pb.READ
    return pb.WRITE if writable else pb.NONE


def _scheme(host: str) -> pb.AddressScheme:
    try:
        return pb.IPv6 if ipaddress.ip_address(host).version == 6 else pb.IPv4
    except ValueError:
        return pb.DOMAIN_NAME
