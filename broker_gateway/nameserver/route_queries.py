"""What clients and tools ask the route table: routes, clusters, lists of topics."""

from __future__ import annotations

from collections.abc import Callable

from broker_gateway.nameserver.route_table import RouteTable
from broker_gateway.protocol.body.route import (
    MASTER_ID,
    BrokerData,
    BrokerMemberGroup,
    ClusterInfo,
    QueueData,
    TopicRouteData,
)
from broker_gateway.protocol.body.tables import TopicList
from broker_gateway.protocol.body.topic_config import PERM_WRITE

SYNC_BROKER_MEMBER_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"
UNIT_FLAG = 1
UNIT_SUB_FLAG = 2


def topic_route(table: RouteTable, topic: str, *, support_acting_master: bool) -> TopicRouteData | None:
    """The route of a topic; None when there is none."""
    queues = table.topics.queue_datas(topic)
    brokers = [table.brokers[name] for name in queues if name in table.brokers]
    if not brokers:
        return None
    servers = {
        address: table.live.filter_servers[(broker.cluster, address)]
        for broker in brokers
        for address in broker.broker_addrs.values()
        if (broker.cluster, address) in table.live.filter_servers
    }
    acts = support_acting_master and not topic.startswith(SYNC_BROKER_MEMBER_PREFIX)
    found = []
    for broker in brokers:
        addrs = dict(broker.broker_addrs)
        read_only = not queues[broker.broker_name].perm & PERM_WRITE
        if acts and addrs and MASTER_ID not in addrs and broker.enable_acting_master and read_only:
            addrs[MASTER_ID] = addrs.pop(min(addrs))
        found.append(
            BrokerData(
                broker.cluster, broker.broker_name, addrs, broker.enable_acting_master, broker.zone_name
            )
        )
    return TopicRouteData(
        tuple(queues.values()),
        tuple(found),
        servers,
        topic_queue_mapping_by_broker=table.topics.mappings_of(topic),
    )


def tied_brokers(table: RouteTable) -> TopicList:
    """Addresses of masters that lakebrokers may connect to."""
    tied = [
        broker.broker_addrs[MASTER_ID]
        for broker in table.brokers.values()
        if MASTER_ID in broker.broker_addrs and table.is_tied(broker, MASTER_ID)
    ]
    return TopicList(tuple(tied))


def in_zone(route: TopicRouteData, zone: str) -> TopicRouteData:
    """The route without brokers of other zones, except those that have lost their master."""
    kept: list[BrokerData] = []
    removed: list[BrokerData] = []
    for each in route.broker_datas:
        is_kept = MASTER_ID not in each.broker_addrs or (each.zone_name or "").lower() == zone.lower()
        (kept if is_kept else removed).append(each)
    names = {each.broker_name for each in removed}
    addresses = {address for each in removed for address in each.broker_addrs.values()}
    return TopicRouteData(
        tuple(each for each in route.queue_datas if each.broker_name not in names),
        tuple(kept),
        {addr: each for addr, each in route.filter_server_table.items() if addr not in addresses},
        route.order_topic_conf,
        route.topic_queue_mapping_by_broker,
    )


def cluster_info(table: RouteTable) -> ClusterInfo:
    """Every broker and cluster."""
    return ClusterInfo(
        {
            name: BrokerData(
                each.cluster, name, dict(each.broker_addrs), each.enable_acting_master, each.zone_name
            )
            for name, each in table.brokers.items()
        },
        {cluster: sorted(names) for cluster, names in table.clusters.items()},
    )


def broker_member_group(table: RouteTable, cluster: str, broker_name: str) -> BrokerMemberGroup:
    """Addresses under a broker name; empty when it is unknown."""
    broker = table.brokers.get(broker_name)
    return BrokerMemberGroup(cluster, broker_name, dict(broker.broker_addrs) if broker else {})


def all_topics(table: RouteTable) -> TopicList:
    return TopicList(list(table.topics.queues))


def topics_of_cluster(table: RouteTable, cluster: str) -> TopicList:
    names = table.clusters.get(cluster, set())
    return TopicList(list(dict.fromkeys(topic for name in sorted(names) for topic in table.topics.of(name))))


def system_topics(table: RouteTable) -> TopicList:
    """Clusters and brokers have topics of their names; and the address of some broker to ask for the rest."""
    listed = dict.fromkeys(
        each for cluster, names in table.clusters.items() for each in (cluster, *sorted(names))
    )
    addresses = [addr for each in table.brokers.values() for addr in each.broker_addrs.values()]
    return TopicList(list(listed), addresses[0] if addresses else None)


def unit_topics(table: RouteTable) -> TopicList:
    return _flagged(table, lambda flag: bool(flag & UNIT_FLAG))


def unit_sub_topics(table: RouteTable) -> TopicList:
    """Topics that units subscribe to."""
    return _flagged(table, lambda flag: bool(flag & UNIT_SUB_FLAG))


def unit_sub_un_unit_topics(table: RouteTable) -> TopicList:
    """Topics that units subscribe to and that are of no unit."""
    return _flagged(table, lambda flag: bool(flag & UNIT_SUB_FLAG) and not flag & UNIT_FLAG)


def _flagged(table: RouteTable, wanted: Callable[[int], bool]) -> TopicList:
    def first(queues: dict[str, QueueData]) -> QueueData:
        return next(iter(queues.values()))

    return TopicList(
        [name for name, each in table.topics.queues.items() if wanted(first(each).topic_sys_flag)]
    )
