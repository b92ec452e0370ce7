"""QueryRoute and QueryAssignment."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable

from broker_gateway.api.grpc.fields import group_name, topic_name
from broker_gateway.api.grpc.status import OK
from broker_gateway.messaging.checks import shown
from broker_gateway.messaging.outcome import Reason, ServiceError
from broker_gateway.messaging.resources import Resources
from broker_gateway.messaging.routes import BrokerQueues, Endpoint, Route, Routes
from broker_gateway.protocol.resource_names import resource_name
from broker_gateway.transport.context import CallContext
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc

ANY_QUEUE = -1
_ALL_TYPES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION")


class RouteService:
    """Answers clients that ask where a topic is."""

    def __init__(self, routes: Routes, resources: Resources) -> None:
        self._routes = routes
        self._resources = resources

    def when_known(self, topic: pb.Resource, callback: Callable[[], None]) -> None:
        """Calls `callback` once it is known who else has the topic, or cannot be within a few seconds."""
        try:
            name = topic_name(topic)
        except ServiceError:
            callback()  # whose answer says what is wrong
        else:
            self._routes.when_known(name, callback)

    def query_route(self, request: rpc.QueryRouteRequest, context: CallContext) -> rpc.QueryRouteResponse:
        """A queue of the reply is one that can be read, written or both, as the permission says."""
        reached, route = self._route(request.topic, request.endpoints, context)
        types: list[pb.MessageType | str] = list(route.message_types or _ALL_TYPES)
        message_queues = []
        for queues in route.queues:
            broker = _broker(queues, reached)
            message_queues += [
                pb.MessageQueue(
                    topic=request.topic,
                    id=queue_id,
                    permission=_permission(queue_id < queues.read, queue_id < queues.write),
                    broker=broker,
                    accept_message_types=types,
                )
                for queue_id in range(max(queues.read, queues.write))
            ]
        return rpc.QueryRouteResponse(status=OK, message_queues=message_queues)

    def query_assignment(
        self, request: rpc.QueryAssignmentRequest, context: CallContext
    ) -> rpc.QueryAssignmentResponse:
        """Of each broker, one queue with id -1 (any) for an ordinary group, every queue for a FIFO group."""
        reached, route = self._route(request.topic, request.endpoints, context)
        group = self._resources.group(group_name(request.group), context.peer)
        assignments = []
        for queues in route.queues:
            if not queues.read:
                continue
            broker, permission = _broker(queues, reached), _permission(True, bool(queues.write))
            assignments += [
                pb.Assignment(
                    message_queue=pb.MessageQueue(
                        topic=request.topic, id=queue_id, permission=permission, broker=broker
                    )
                )
                for queue_id in (range(queues.read) if group.fifo else [ANY_QUEUE])
            ]
        if not assignments:
            raise ServiceError(
                Reason.FORBIDDEN, f"topic {shown(resource_name(request.topic))} has no readable queue"
            )
        return rpc.QueryAssignmentResponse(status=OK, assignments=assignments)

    def _route(
        self, topic: pb.Resource, endpoints: pb.Endpoints, context: CallContext
    ) -> tuple[pb.Endpoints, Route]:
        """How the client reaches this broker, and the topic's route."""
        reached = _own_endpoints(endpoints, context)
        address = reached.addresses[0]
        return reached, self._routes.of(topic_name(topic), Endpoint(address.host, address.port))


def _broker(queues: BrokerQueues, reached: pb.Endpoints) -> pb.Broker:
    """A broker as a client is told of it. The client came by `reached`, and is told to go on there for this broker."""
    address, endpoint = reached.addresses[0], queues.endpoint
    same = (address.host, address.port) == endpoint
    return pb.Broker(name=queues.broker, id=0, endpoints=reached if same else _endpoints(*endpoint))


def _own_endpoints(endpoints: pb.Endpoints, context: CallContext) -> pb.Endpoints:
    """The one address of the request, else the one that the call came in by. ILLEGAL_ACCESS_POINT."""
    for address in endpoints.addresses:
        if not address.host or not 0 < address.port < 65536:
            raise ServiceError(
                Reason.ILLEGAL_ACCESS_POINT,
                f"access point {shown(address.host)}:{address.port} needs a host and a port of 1 to 65535",
            )
    if len(endpoints.addresses) == 1:
        return endpoints
    return _endpoints(*context.local_endpoint)


def _endpoints(host: str, port: int) -> pb.Endpoints:
    return pb.Endpoints(scheme=_scheme(host), addresses=[pb.Address(host=host, port=port)])


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
