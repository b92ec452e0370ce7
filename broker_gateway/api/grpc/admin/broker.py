"""ChangeLogLevel, DescribeTopicStatus, GetTopicRoute, GetProxyRuntimeStats."""

from __future__ import annotations

import asyncio

from broker_gateway.api.grpc.admin.requests import Named
from broker_gateway.api.grpc.codec import timestamp
from broker_gateway.api.grpc.fields import topic_name
from broker_gateway.api.grpc.status import OK
from broker_gateway.config.reload import Configuration, NotKeptError
from broker_gateway.messaging.checks import shown
from broker_gateway.messaging.connections import Connections
from broker_gateway.messaging.offsets import Offsets
from broker_gateway.messaging.outcome import Reason, ServiceError
from broker_gateway.messaging.routes import Endpoint, Routes
from broker_gateway.metadata.catalog import READ, WRITE, Topic
from broker_gateway.observability.statistics import Statistics
from broker_gateway.protocol.body.route import MASTER_ID, BrokerData, QueueData, TopicRouteData
from broker_gateway.protocol.errors import ConnectError
from broker_gateway.runtime.errors import OptionError
from broker_gateway.runtime.running_version import RUNNING
from broker_gateway.transport.context import CallContext, RpcError
from broker_gateway.transport.remoting.address import parse_address, written_address
from lakebroker_pb.apache.rocketmq.v2 import admin_pb2 as rpc
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb

_LEVELS = {"TRACE": "debug", "DEBUG": "debug", "INFO": "info", "WARN": "warning", "ERROR": "error"}
"""There is none below debug."""
_OPTION = "lakeLogLevel"
_PROTOCOLS = ("", "grpc", "remoting")
_SLICE = 256


class BrokerAdmin:
    """Tells of this broker, its topics and where they are."""

    def __init__(
        self,
        named: Named,
        configuration: Configuration,
        offsets: Offsets,
        connections: Connections,
        routes: Routes,
        statistics: Statistics,
    ) -> None:
        self._named = named
        self._configuration = configuration
        self._offsets = offsets
        self._connections = connections
        self._routes = routes
        self._statistics = statistics
        broker = configuration.current.broker
        self._cluster, self._broker = broker.broker_cluster_name, broker.broker_name

    async def change_log_level(self, request: rpc.ChangeLogLevelRequest) -> rpc.ChangeLogLevelResponse:
        """Changes the option lakeLogLevel. What is refused is a gRPC status: the answer has none. Raises RpcError."""
        levels = rpc.ChangeLogLevelRequest.Level
        if request.level not in levels.values():
            raise RpcError(
                "INVALID_ARGUMENT", f"log level {request.level} is unknown; use {', '.join(levels.keys())}"
            )
        current = self._configuration.current
        if _OPTION in current.overridden:
            raise RpcError(
                "FAILED_PRECONDITION",
                f"option {_OPTION} was given on the command line or in the environment, which counts before the file; "
                "change it there and restart",
            )
        before, level = current.lake.lake_log_level, _LEVELS[levels.Name(request.level)]
        try:
            changes = await self._configuration.apply({_OPTION: level})
        except (NotKeptError, OptionError) as error:
            raise RpcError("FAILED_PRECONDITION", f"{error}; nothing was changed") from error
        until = "until the broker stops" if changes.kept is None else f"kept in {changes.kept}"
        return rpc.ChangeLogLevelResponse(
            remark=f"{self._broker}: {_OPTION} is {level}, it was {before}; {until}"
        )

    async def topic_status(self, request: rpc.DescribeTopicStatusRequest) -> rpc.DescribeTopicStatusResponse:
        """A topic that takes several types of messages has none as its own; `tags` name them."""
        topic = self._named.topic(request.topic)
        types = topic.accept_message_types
        response = rpc.DescribeTopicStatusResponse(
            status=OK, topic_message_type=types[0] if len(types) == 1 else pb.MESSAGE_TYPE_UNSPECIFIED
        )
        if topic.created_ms:
            response.create_timestamp.CopyFrom(timestamp(topic.created_ms))
        messages, newest_ms = await self._content(topic)
        told = {
            "broker": self._broker,
            "cluster": self._cluster,
            "lastUpdateTimestamp": str(newest_ms) if newest_ms else "",
            "messageTypes": ",".join(types) or "MIXED",
            "messages": str(messages),
            "order": str(topic.order).lower(),
            "perm": str(topic.permission),
            "readQueueNums": str(topic.read_queues),
            "writeQueueNums": str(topic.write_queues),
        }
        response.tags.update({name: value for name, value in told.items() if value})
        return response

    async def _content(self, topic: Topic) -> tuple[int, int]:
        """How many messages the local log has of it, and when the newest was stored, ms."""
        messages = newest_ms = 0
        for queue_id in range(topic.queues):
            status = self._offsets.status(topic.name, queue_id)
            messages += status.max_offset - status.min_offset
            newest_ms = max(newest_ms, status.last_update_ms)
            if queue_id % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
        return messages, newest_ms

    async def topic_route(
        self, request: rpc.GetTopicRouteRequest, context: CallContext
    ) -> rpc.GetTopicRouteResponse:
        """Java's TopicRouteData as JSON. All networks and kinds of request have the same route; a broker whose remoting
        address nobody knows is left out of a route for remoting."""
        name = topic_name(request.topic)
        if request.network_type not in rpc.GetTopicRouteRequest.NetworkType.values():
            raise ServiceError(
                Reason.BAD_REQUEST,
                f"network_type {request.network_type} is unknown; use INTERNAL, INTERNET or INTRANET",
            )
        protocol = request.protocol_type.lower()
        if protocol not in _PROTOCOLS:
            raise ServiceError(
                Reason.BAD_REQUEST,
                f"protocol_type {shown(request.protocol_type)} is unknown; use grpc or remoting, or leave it out for grpc",
            )
        if request.client_address:
            try:
                parse_address(request.client_address)
            except ConnectError as error:
                raise ServiceError(Reason.BAD_REQUEST, f"client_address: {error}") from error
        known = asyncio.Event()
        self._routes.when_known(name, known.set)
        await known.wait()
        route = self._routes.find(name, Endpoint(*context.local_endpoint))
        queues, brokers = [], []
        for each in route.queues:
            if protocol == "remoting":
                address = self._routes.remoting_address(each.broker)
            else:
                address = written_address(*each.endpoint)
            if address is None:
                continue
            permission = (READ if each.read else 0) | (WRITE if each.write else 0)
            queues.append(QueueData(each.broker, each.read, each.write, permission))
            brokers.append(BrokerData(self._cluster, each.broker, {MASTER_ID: address}))
        data = TopicRouteData(tuple(queues), tuple(brokers)).encode(standard=True)
        return rpc.GetTopicRouteResponse(status=OK, topic_route_data=data.decode())

    def runtime_stats(self) -> rpc.GetProxyRuntimeStatsResponse:
        """Rates are of messages over the last minute; connections are those of clients that have said what they are."""
        clients = list(self._connections.clients())
        return rpc.GetProxyRuntimeStatsResponse(
            status=OK,
            proxy_name=self._broker,
            version=RUNNING,
            in_tps=self._statistics.rate("messages_in", None),
            out_tps=self._statistics.rate("messages_out", None),
            connections=len(clients),
            producers=sum(produces for _, produces, _ in clients),
            consumers=sum(consumes for _, _, consumes in clients),
        )
