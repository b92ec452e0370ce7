"""Registrations in a name server's table, and what it answers then."""

from __future__ import annotations

import sys
from collections.abc import Hashable
from typing import Any

from broker_gateway.nameserver import route_queries
from broker_gateway.nameserver.brokers import MinBrokerIdChange, Registration
from broker_gateway.nameserver.route_table import RouteTable
from broker_gateway.protocol.body.registration import RegisterBrokerBody
from broker_gateway.protocol.body.route import TopicRouteData
from broker_gateway.protocol.body.topic_config import DataVersion, TopicConfig

MASTER, SLAVE, LATER_SLAVE = "h:1", "h:2", "h:3"


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000

    def __call__(self) -> int:
        return self.now


def body(*topics: str | TopicConfig, version: int = 1, state: int = 0, **more: Any) -> RegisterBrokerBody:
    configs = [each if isinstance(each, TopicConfig) else TopicConfig(each, 4, 4) for each in topics]
    return RegisterBrokerBody(
        DataVersion(state, 0, version), {each.topic_name: each for each in configs}, **more
    )


def registration(
    broker_id: int = 0,
    address: str = MASTER,
    *topics: str | TopicConfig,
    name: str = "b",
    cluster: str = "c",
    acting: bool | None = False,
    timeout_ms: int | None = None,
    zone: str | None = None,
    **more: Any,
) -> Registration:
    return Registration(
        cluster_name=cluster,
        broker_addr=address,
        broker_name=name,
        broker_id=broker_id,
        ha_server_addr=f"ha-{address}",
        body=body(*(topics or ("orders", "other")), **more),
        zone_name=zone,
        heartbeat_timeout_ms=timeout_ms,
        enable_acting_master=acting,
    )


def route(table: RouteTable, topic: str = "orders", *, acting: bool = False) -> TopicRouteData | None:
    return route_queries.topic_route(table, topic, support_acting_master=acting)


def addresses(table: RouteTable, topic: str = "orders", *, acting: bool = False) -> dict[int, str]:
    found = route(table, topic, acting=acting)
    assert found is not None
    return dict(found.broker_datas[0].broker_addrs)


def gone(table: RouteTable, connection: Hashable) -> list[MinBrokerIdChange]:
    """Every broker of a connection goes, in as many steps as it takes, and what they leave is cleared."""
    changes = []
    while (key := table.live.first_of(connection)) is not None:
        changes.append(table.unregister_one(*key))
    table.topics.cleanup.clear(sys.maxsize)
    return [each for each in changes if each is not None]


def nothing_is_left(table: RouteTable) -> bool:
    table.topics.cleanup.clear(sys.maxsize)
    left = (
        table.topics.queues,
        table.brokers,
        table.clusters,
        table.live,
        table.live.filter_servers,
        table.topics.mappings,
    )
    kept = (table.live._by_connection, table._names, table.topics._by_name)
    held = table.held
    counts = [len(each) for each in (held.brokers, held.queue_datas, held.mapped_queues, held.filter_servers)]
    return not any(left) and not any(kept) and not any(counts)


def mapping_of(name: str) -> dict[str, Any]:
    return {"bname": name, "currIdMap": {}, "topic": "orders"}
