"""QueryRoute and QueryAssignment: which queues a topic has and where they are."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator
from typing import NamedTuple

from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.metadata.catalog import MAX_QUEUES, READ, WRITE, Topic
from broker_gateway.metadata.peers import Peers
from broker_gateway.registration.cluster import Cluster
from broker_gateway.service.context import CallContext
from broker_gateway.service.resources import Resources
from broker_gateway.service.status import OK, ServiceError
from broker_gateway.service.validation import resource_name, shown
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc

ANY_QUEUE = -1
MAX_ROUTE_QUEUES = 32_768
"""Queues of an answer; brokers beyond are left out."""
_ALL_TYPES = (pb.NORMAL, pb.FIFO, pb.DELAY, pb.TRANSACTION)


class _Queues(NamedTuple):
    """A broker's queues of a topic."""

    broker: pb.Broker
    read: int
    write: int

    @property
    def permission(self) -> pb.Permission:
        return _permission(bool(self.read), bool(self.write))


class RouteService:
    """Answers routes of this broker, its peers and the other brokers that name servers know."""

    def __init__(self, config: GatewayConfig, resources: Resources, peers: Peers, cluster: Cluster) -> None:
        self._broker_name = config.broker.broker_name
        self._own_host = config.broker.broker_ip1
        self._resources = resources
        self._peers = peers
        self._cluster = cluster
        self.configure(config)

    def configure(self, config: GatewayConfig) -> None:
        """Takes what may change while the broker runs."""
        self._auto_create = config.lake.lake_auto_create_topics
        self._broker_permission = config.broker.broker_permission

    def when_known(self, topic: pb.Resource, callback: Callable[[], None]) -> None:
        """Calls `callback` once it is known who else has the topic, or cannot be within a few seconds."""
        try:
            self._resources.check_topic(topic)
        except ServiceError:
            callback()  # whose answer says what is wrong
        else:
            name = resource_name(topic)
            self._cluster.when_known(name, callback, elsewhere=self._resources.find_topic(topic) is None)

    def query_route(self, request: rpc.QueryRouteRequest, context: CallContext) -> rpc.QueryRouteResponse:
        """A queue of the reply is one that can be read, written or both, as the permission says."""
        topic, found = self._queues(request.topic, request.endpoints, context)
        kinds = (
            topic.accept_message_types
            if topic is not None
            else self._cluster.message_types(resource_name(request.topic))
        )
        types: list[pb.MessageType | str] = list(kinds) or list(_ALL_TYPES)
        message_queues = [
            pb.MessageQueue(
                topic=request.topic,
                id=queue_id,
                permission=_permission(queue_id < queues.read, queue_id < queues.write),
                broker=queues.broker,
                accept_message_types=types,
            )
            for queues in found
            for queue_id in range(max(queues.read, queues.write))
        ]
        return rpc.QueryRouteResponse(status=OK, message_queues=message_queues)

    def query_assignment(
        self, request: rpc.QueryAssignmentRequest, context: CallContext
    ) -> rpc.QueryAssignmentResponse:
        """Of each broker, one queue with id -1 (any) for an ordinary group, every queue for a FIFO group."""
        _, found = self._queues(request.topic, request.endpoints, context)
        group = self._resources.group(request.group, context.peer)
        assignments = [
            pb.Assignment(
                message_queue=pb.MessageQueue(
                    topic=request.topic, id=queue_id, permission=queues.permission, broker=queues.broker
                )
            )
            for queues in found
            if queues.read
            for queue_id in (range(queues.read) if group.fifo else [ANY_QUEUE])
        ]
        if not assignments:
            raise ServiceError(
                pb.FORBIDDEN, f"topic {shown(resource_name(request.topic))} has no readable queue"
            )
        return rpc.QueryAssignmentResponse(status=OK, assignments=assignments)

    def _queues(
        self, resource: pb.Resource, endpoints: pb.Endpoints, context: CallContext
    ) -> tuple[Topic | None, list[_Queues]]:
        """The topic as it is here, if it is, and every broker's queues of it.

        A topic that only others have is not made here, unless by a broker with peers, which share their topics. This broker is at the address by which the client came, since
        that one is known to reach it; its peers, and others of its own address, are at the same host.
        """
        endpoints = _own_endpoints(endpoints, context)
        topic = self._resources.find_topic(resource)
        name = resource_name(resource)
        others = list(self._others(name, endpoints))
        if topic is None and not self._cluster.knows(name):
            raise ServiceError(
                pb.PROXY_TIMEOUT,
                f"no name server has said in time which brokers have topic {shown(name)}; try again",
            )
        if topic is None and (not others or (self._peers.all and self._auto_create)):
            topic = self._resources.topic(resource)
        if topic is None:
            return None, _bounded(others)
        read, write = self._counts(topic)
        own = _Queues(pb.Broker(name=self._broker_name, id=0, endpoints=endpoints), read, write)
        known = {each.broker.name for each in others}
        host = endpoints.addresses[0].host
        peers = [
            _Queues(pb.Broker(name=peer.name, id=0, endpoints=_endpoints(host, peer.grpc_port)), read, write)
            for peer in self._peers.all
            if peer.name not in known
        ]
        return topic, _bounded([own, *peers, *others])

    def _others(self, topic: str, endpoints: pb.Endpoints) -> Iterator[_Queues]:
        for member, data in self._cluster.queues(topic):
            host = endpoints.addresses[0].host if member.host == self._own_host else member.host
            broker = pb.Broker(name=member.name, id=0, endpoints=_endpoints(host, member.grpc_port))
            yield _Queues(
                broker,
                min(data.read_queue_nums, MAX_QUEUES) if data.perm & READ else 0,
                min(data.write_queue_nums, MAX_QUEUES) if data.perm & WRITE else 0,
            )

    def _counts(self, topic: Topic) -> tuple[int, int]:
        permission = topic.permission & self._broker_permission
        return (
            topic.read_queues if permission & READ else 0,
            topic.write_queues if permission & WRITE else 0,
        )


def _bounded(found: list[_Queues]) -> list[_Queues]:
    kept, count = [], 0
    for queues in found:
        count += max(queues.read, queues.write)
        if count > MAX_ROUTE_QUEUES:
            break
        kept.append(queues)
    return kept


def _own_endpoints(endpoints: pb.Endpoints, context: CallContext) -> pb.Endpoints:
    """The one address of the request, else the one that the call came in by. ILLEGAL_ACCESS_POINT."""
    for address in endpoints.addresses:
        if not address.host or not 0 < address.port < 65536:
            raise ServiceError(
                pb.ILLEGAL_ACCESS_POINT,
                f"access point {shown(address.host)}:{address.port} needs a host and a port of 1 to 65535",
            )
    if len(endpoints.addresses) == 1:
        return endpoints
    return _endpoints(*context.local_endpoint)


def _endpoints(host: str, port: int) -> pb.Endpoints:
    return pb.Endpoints(scheme=_scheme(host), addresses=[pb.Address(host=host, port=port)])


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
