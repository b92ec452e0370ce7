"""Requests of clients and tools that only read: routes, clusters, lists of topics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from broker_gateway.nameserver import route_queries
from broker_gateway.nameserver.answers import Answers, Encodable
from broker_gateway.nameserver.broker_requests import ZONE_NAME
from broker_gateway.nameserver.kv_config import ORDER_TOPIC_CONFIG
from broker_gateway.nameserver.route_table import RouteTable
from broker_gateway.nameserver.state import State
from broker_gateway.protocol.codes import RequestCode, ResponseCode, Version
from broker_gateway.protocol.command import Command
from broker_gateway.protocol.errors import RequestError
from broker_gateway.protocol.fields import Fields
from broker_gateway.transport.remoting.connection import Connection, Processor, Processors

_FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."


class ClientRequests:
    """Answers as the original's ClientRequestProcessor and the reading part of DefaultRequestProcessor."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._answers = Answers(state.routes)

    def bind(self, processors: Processors) -> None:
        for code, processor in {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self.get_route_info_by_topic,
            RequestCode.GET_BROKER_CLUSTER_INFO: self.get_broker_cluster_info,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.get_all_topic_list,
            RequestCode.GET_TOPICS_BY_CLUSTER: self.get_topics_by_cluster,
            RequestCode.LAKE_TIED_BROKERS: self._answer(route_queries.tied_brokers),
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._answer(route_queries.system_topics),
            RequestCode.GET_UNIT_TOPIC_LIST: self._answer(route_queries.unit_topics, limited=True),
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self._answer(
                route_queries.unit_sub_topics, limited=True
            ),
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self._answer(
                route_queries.unit_sub_un_unit_topics, limited=True
            ),
        }.items():
            processors.register(code, processor)

    def get_route_info_by_topic(self, _: Connection, request: Command) -> Command:
        options = self._state.config.namesrv
        fields = Fields(request.ext_fields)
        waited_ms = self._state.clock() - self._state.started_at
        if options.need_wait_for_service and waited_ms < options.wait_seconds_for_service * 1000:
            raise RequestError("name server not ready")
        topic = fields.text("topic")
        route = route_queries.topic_route(
            self._state.routes, topic, support_acting_master=options.support_acting_master
        )
        if route is None:
            raise RequestError(
                f"No topic route info in name server for the topic: {topic}{_FAQ}",
                ResponseCode.TOPIC_NOT_EXIST,
            )
        if options.order_message_enable:
            route = replace(route, order_topic_conf=self._state.kv.get(ORDER_TOPIC_CONFIG, topic))
        standard = request.version >= Version.V4_9_4 or fields.boolean("acceptStandardJsonOnly")
        zone = fields.optional_text(ZONE_NAME)
        if fields.boolean("__ZONE_MODE") and zone and not zone.isspace():
            # the original writes the route anew here, with bare keys
            route, standard = route_queries.in_zone(route, zone), fields.boolean("acceptStandardJsonOnly")
        return request.reply(body=route.encode(standard=standard))

    def get_broker_cluster_info(self, _: Connection, request: Command) -> Command:
        return request.reply(body=self._body(route_queries.cluster_info))

    def get_all_topic_list(self, _: Connection, request: Command) -> Command:
        if not self._state.config.namesrv.enable_all_topic_list:
            raise RequestError("disable")
        return request.reply(body=self._body(route_queries.all_topics))

    def get_topics_by_cluster(self, _: Connection, request: Command) -> Command:
        self._check_lists()
        cluster, routes = Fields(request.ext_fields).text("cluster"), self._state.routes

        def query() -> Encodable:
            return route_queries.topics_of_cluster(routes, cluster)

        if cluster not in routes.clusters:
            return request.reply(body=query().encode())  # at once, and in place of no other
        return request.reply(body=self._answers.body("topics_of_cluster", query, cluster))

    def _check_lists(self) -> None:
        if not self._state.config.namesrv.enable_topic_list:
            raise RequestError("disable")

    def _body(self, query: Callable[[RouteTable], Encodable]) -> bytes:
        return self._answers.body(query.__name__, lambda: query(self._state.routes))

    def _answer(self, query: Callable[[RouteTable], Encodable], *, limited: bool = False) -> Processor:
        """`limited` lists are there only while `enableTopicList` is on."""

        def processor(_: Connection, request: Command) -> Command:
            if limited:
                self._check_lists()
            return request.reply(body=self._body(query))

        return processor
