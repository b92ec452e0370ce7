"""The route table: registration, expiry, masters and slaves, permissions. Time is a number that the test moves."""

from __future__ import annotations

from typing import Any

import pytest

from broker_gateway.nameserver import route_queries
from broker_gateway.nameserver.brokers import MinBrokerIdChange, Registered
from broker_gateway.nameserver.quotas import Limits
from broker_gateway.nameserver.route_table import MAX_TIMEOUT_MS, RouteTable
from broker_gateway.protocol.body.route import BrokerData, ClusterInfo, QueueData, TopicRouteData
from broker_gateway.protocol.body.topic_config import DataVersion, TopicConfig
from broker_gateway.protocol.errors import RequestError
from tests.support.brokers.registrations import (
    LATER_SLAVE,
    MASTER,
    SLAVE,
    Clock,
    addresses,
    gone,
    mapping_of,
    nothing_is_left,
    registration,
    route,
)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def table(clock: Clock) -> RouteTable:
    return RouteTable(clock)


def perm(table: RouteTable, topic: str = "orders") -> int:
    return table.topics.queues[topic]["b"].perm


def test_route_of_a_registered_broker(table: RouteTable) -> None:
    assert table.register(registration(), "conn") == Registered()
    assert route(table) == TopicRouteData((QueueData("b", 4, 4),), (BrokerData("c", "b", {0: MASTER}),))
    assert route(table, "unknown") is None
    assert route_queries.cluster_info(table) == ClusterInfo(
        {"b": BrokerData("c", "b", {0: MASTER})}, {"c": ["b"]}
    )


def test_a_single_topic_of_an_unknown_broker_is_refused_and_leaves_nothing(table: RouteTable) -> None:
    with pytest.raises(RequestError, match="register broker failed"):
        table.register(registration(0, MASTER, "orders"), "conn")
    assert nothing_is_left(table)
    table.register(registration(), "conn")
    table.register(registration(0, MASTER, "new", version=2), "conn")
    assert sorted(table.topics.queues) == ["new", "orders", "other"]


def test_topics_change_only_with_the_data_version(table: RouteTable) -> None:
    table.register(registration(), "conn")
    changed = TopicConfig("orders", 16, 16)
    table.register(registration(0, MASTER, changed, "other", "new"), "conn")
    assert table.topics.queues["orders"]["b"].read_queue_nums == 4, "same data version: passed over"
    assert "new" in table.topics.queues, "but a topic that is not there yet is taken"
    table.register(registration(0, MASTER, changed, "other", version=2), "conn")
    assert table.topics.queues["orders"]["b"].read_queue_nums == 16


def test_topics_that_are_not_named_go_only_when_asked(table: RouteTable) -> None:
    table.register(registration(0, MASTER, "a", "b", "d"), "conn")
    table.register(registration(0, MASTER, "a", "b", version=2), "conn")
    assert sorted(table.topics.queues) == ["a", "b", "d"]
    table.register(registration(0, MASTER, "a", "e", version=3), "conn", delete_missing_topics=True)
    assert sorted(table.topics.queues) == ["a", "e"]


def test_two_brokers_share_a_topic(table: RouteTable) -> None:
    table.register(registration(), "one")
    table.register(registration(0, "h:9", name="b2"), "two")
    found = route(table)
    assert found is not None
    assert [each.broker_name for each in found.queue_datas] == ["b", "b2"]
    assert gone(table, "one") == []
    found = route(table)
    assert found is not None
    assert [each.broker_name for each in found.broker_datas] == ["b2"]


# life


def test_connection_closed(table: RouteTable) -> None:
    table.register(registration(filter_server_list=("f:1",)), "conn")
    gone(table, "another")
    assert addresses(table) == {0: MASTER}
    gone(table, "conn")
    assert route(table) is None
    assert nothing_is_left(table)


def test_a_broker_that_came_back_survives_its_old_connection(table: RouteTable) -> None:
    table.register(registration(), "old")
    table.register(registration(), "new")
    gone(table, "old")
    assert addresses(table) == {0: MASTER}
    gone(table, "new")
    assert nothing_is_left(table)


def test_every_broker_of_a_connection_goes(table: RouteTable) -> None:
    table.register(registration(), "conn")
    table.register(registration(0, "h:9", name="b2"), "conn")
    gone(table, "conn")
    assert nothing_is_left(table)


def test_an_address_under_a_new_name_leaves_nothing_of_either(table: RouteTable) -> None:
    table.register(registration(), "conn")
    table.register(registration(name="renamed"), "conn")
    gone(table, "conn")
    assert nothing_is_left(table)


def test_expiry_after_120_s(table: RouteTable, clock: Clock) -> None:
    table.register(registration(), "conn")
    clock.now += 120_000
    assert table.live.expired() == []
    clock.now += 1
    assert table.live.expired() == [(("c", MASTER), "conn")]
    table.live.touch("c", MASTER)
    assert table.live.expired() == []
    clock.now += 120_001
    table.unregister_address("c", MASTER)
    assert nothing_is_left(table)


def test_expiry_as_the_broker_asked(table: RouteTable, clock: Clock) -> None:
    table.register(registration(timeout_ms=10_000), "quick")
    table.register(registration(0, "h:9", name="b2", timeout_ms=1 << 60), "slow")
    clock.now += 10_001
    assert [key for key, _ in table.live.expired()] == [("c", MASTER)]
    clock.now += MAX_TIMEOUT_MS
    assert len(table.live.expired()) == 2, "nobody is kept for ever"


def test_registering_again_and_signs_of_life_of_unknown_brokers(table: RouteTable, clock: Clock) -> None:
    table.live.touch("c", MASTER)
    assert nothing_is_left(table)
    table.register(registration(), "conn")
    clock.now += 100_000
    table.register(registration(), "conn")
    clock.now += 100_000
    assert table.live.expired() == []


def test_data_version(table: RouteTable) -> None:
    assert table.live.data_version("c", MASTER) is None
    table.register(registration(version=7, state=3), "conn")
    assert table.live.data_version("c", MASTER) == DataVersion(3, 0, 7)
    assert table.live.data_version("other", MASTER) is None


def test_unregister(table: RouteTable) -> None:
    table.register(registration(), "conn")
    assert table.unregister("c", "h:9", "unknown", 0) is None
    assert addresses(table) == {0: MASTER}
    table.unregister("c", MASTER, "b", 0)
    assert nothing_is_left(table)


# masters and slaves


def test_a_slave_is_told_its_master_and_serves_its_topics_no_more(table: RouteTable) -> None:
    table.register(registration(), "master")
    answer = table.register(registration(1, SLAVE, "orders", "of-slave"), "slave")
    assert answer == Registered(f"ha-{MASTER}", MASTER)
    assert addresses(table) == {0: MASTER, 1: SLAVE}
    assert "of-slave" not in table.topics.queues


def test_a_slave_alone_brings_topics_only_since_5_0(table: RouteTable) -> None:
    table.register(registration(1, SLAVE, acting=None), "slave")
    assert route(table) is None
    table.register(registration(1, SLAVE, acting=False, version=2), "slave")
    assert addresses(table) == {1: SLAVE}
    assert perm(table) == 6


def test_slave_becomes_master(table: RouteTable) -> None:
    table.register(registration(), "master")
    table.register(registration(1, SLAVE), "slave")
    gone(table, "master")
    assert addresses(table) == {1: SLAVE}
    table.register(registration(0, SLAVE, version=2), "slave")
    assert addresses(table) == {0: SLAVE}, "an address has one id"


def test_an_old_master_with_an_older_state_is_passed_over(table: RouteTable) -> None:
    table.register(registration(0, SLAVE, state=5), "new")
    assert table.register(registration(0, MASTER, state=4), "old") == Registered()
    assert addresses(table) == {0: SLAVE}
    assert ("c", MASTER) not in table.live
    table.register(registration(0, MASTER, state=5), "old")
    assert addresses(table) == {0: MASTER}, "not older: it takes the place"


def test_acting_master(table: RouteTable) -> None:
    for number, address in ((0, MASTER), (1, SLAVE), (2, LATER_SLAVE)):
        table.register(registration(number, address, acting=True), address)
    assert perm(table) == 6
    assert gone(table, MASTER) == [MinBrokerIdChange("b", 1, SLAVE, MASTER, None, (SLAVE, LATER_SLAVE))]
    assert perm(table) == 4, "read only while there is no master"
    assert addresses(table) == {1: SLAVE, 2: LATER_SLAVE}
    assert addresses(table, acting=True) == {0: SLAVE, 2: LATER_SLAVE}
    answer = table.register(registration(0, MASTER, acting=True), MASTER)
    assert answer.change == MinBrokerIdChange("b", 0, MASTER, None, f"ha-{MASTER}", (SLAVE, LATER_SLAVE))
    assert perm(table) == 6
    assert addresses(table, acting=True) == {0: MASTER, 1: SLAVE, 2: LATER_SLAVE}


def test_prime_slave_registers_read_only(table: RouteTable) -> None:
    table.register(registration(1, SLAVE, acting=True), "slave")
    assert perm(table) == 4
    assert addresses(table, acting=True) == {0: SLAVE}
    table.register(registration(1, SLAVE, "orders", "rmq_sys_SYNC_BROKER_MEMBER_b", acting=True), "slave")
    assert addresses(table, "rmq_sys_SYNC_BROKER_MEMBER_b", acting=True) == {1: SLAVE}, "as it is"


def test_a_later_slave_that_goes_changes_no_least_id(table: RouteTable) -> None:
    for number, address in ((0, MASTER), (1, SLAVE)):
        table.register(registration(number, address, acting=True), address)
    assert gone(table, SLAVE) == []
    assert perm(table) == 6
    assert addresses(table) == {0: MASTER}


def test_without_acting_masters_nobody_is_told(table: RouteTable) -> None:
    for number, address in ((0, MASTER), (1, SLAVE)):
        table.register(registration(number, address), address)
    assert gone(table, MASTER) == []
    assert perm(table) == 6


def test_broker_member_group(table: RouteTable) -> None:
    table.register(registration(), "m")
    table.register(registration(3, SLAVE), "s")
    assert route_queries.broker_member_group(table, "c", "b").broker_addrs == {0: MASTER, 3: SLAVE}
    assert route_queries.broker_member_group(table, "c", "unknown").broker_addrs == {}


# topics


def test_write_permission(table: RouteTable) -> None:
    table.register(registration(0, MASTER, "a", "b", TopicConfig("d", perm=1)), "conn")
    table.register(registration(0, "h:9", "a", "b", name="b2"), "other")
    assert table.topics.wipe_write_perm("b") == 3
    assert [table.topics.queues[name]["b"].perm for name in "abd"] == [4, 4, 1]
    assert table.topics.queues["a"]["b2"].perm == 6
    table.register(registration(0, MASTER, "a", "b", TopicConfig("d", perm=1)), "conn")
    assert table.topics.queues["a"]["b"].perm == 4, (
        "a registration that changed nothing does not bring it back"
    )
    assert table.topics.add_write_perm("b") == 3
    assert [table.topics.queues[name]["b"].perm for name in "abd"] == [6, 6, 6]
    assert table.topics.wipe_write_perm("unknown") == 0


def test_topic_registered_apart(table: RouteTable) -> None:
    table.register(registration(), "conn")
    table.register_topic("new", [QueueData("b", 1, 1), QueueData("unknown", 1, 1)])
    assert "new" not in table.topics.queues
    table.register_topic("new", [QueueData("b", 1, 2)])
    table.register_topic("new", [QueueData("b", 3, 4)])
    assert table.topics.queues["new"] == {"b": QueueData("b", 3, 4)}
    gone(table, "conn")
    assert nothing_is_left(table)


def test_topic_deleted(table: RouteTable) -> None:
    table.register(registration(), "one")
    table.register(registration(0, "h:9", name="b2", cluster="c2"), "two")
    table.delete_topic("orders", "c2")
    assert list(table.topics.queues["orders"]) == ["b"]
    table.delete_topic("orders", "unknown")
    table.delete_topic("unknown")
    assert "orders" in table.topics.queues
    table.delete_topic("orders")
    assert "orders" not in table.topics.queues


def test_lists(table: RouteTable) -> None:
    flagged = [TopicConfig(f"t{flag}", topic_sys_flag=flag) for flag in range(4)]
    table.register(registration(0, MASTER, *flagged), "one")
    table.register(registration(0, "h:9", "a", "b", name="b2", cluster="c2"), "two")
    assert list(route_queries.all_topics(table).topic_list) == ["t0", "t1", "t2", "t3", "a", "b"]
    assert list(route_queries.topics_of_cluster(table, "c2").topic_list) == ["a", "b"]
    assert list(route_queries.topics_of_cluster(table, "unknown").topic_list) == []
    assert list(route_queries.unit_topics(table).topic_list) == ["t1", "t3"]
    assert list(route_queries.unit_sub_topics(table).topic_list) == ["t2", "t3"]
    assert list(route_queries.unit_sub_un_unit_topics(table).topic_list) == ["t2"]
    system = route_queries.system_topics(table)
    assert (list(system.topic_list), system.broker_addr) == (["c", "b", "c2", "b2"], MASTER)


def test_filter_servers_and_static_topics_are_in_the_route(table: RouteTable) -> None:
    mapping = {"bname": "b", "currIdMap": {0: 0, 1: 1}, "topic": "orders", "totalQueues": 4}
    given = registration(filter_server_list=("f:1", "f:2"), topic_queue_mapping_info_map={"orders": mapping})
    table.register(given, "conn")
    found = route(table)
    assert found is not None
    assert found.filter_server_table == {MASTER: ["f:1", "f:2"]}
    assert found.topic_queue_mapping_by_broker == {"b": mapping}
    table.register(registration(), "conn")
    found = route(table)
    assert found is not None
    assert found.filter_server_table == {}
    gone(table, "conn")
    assert nothing_is_left(table)


def test_zones(table: RouteTable) -> None:
    table.register(registration(zone="Z1", filter_server_list=("f:1",)), "one")
    table.register(registration(0, "h:8", name="b2", zone="z2", filter_server_list=("f:2",)), "two")
    table.register(registration(1, "h:9", name="b3", zone="z3"), "slave without a master")
    found = route(table)
    assert found is not None
    near = route_queries.in_zone(found, "z1")
    assert [each.broker_name for each in near.broker_datas] == ["b", "b3"]
    assert [each.broker_name for each in near.queue_datas] == ["b", "b3"]
    assert near.filter_server_table == {MASTER: ["f:1"]}


# bounds


def test_bounds(clock: Clock) -> None:
    table = RouteTable(clock, Limits(brokers=1, queue_datas=3))
    table.register(registration(), "conn")
    with pytest.raises(RequestError, match="1 brokers are registered"):
        table.register(registration(0, "h:9", name="b2"), "other")
    with pytest.raises(RequestError, match="3 are allowed"):
        table.register(registration(0, MASTER, "orders", "x", "y", version=2), "conn")
    assert sorted(table.topics.queues) == ["orders", "other"], "refused whole"
    table.register(registration(0, MASTER, "orders", "x", version=2), "conn")
    with pytest.raises(RequestError, match="3 are allowed"):
        table.register_topic("z", [QueueData("b", 1, 1)])
    gone(table, "conn")
    assert nothing_is_left(table)


def test_queues_of_static_topics_are_bounded(clock: Clock) -> None:
    table = RouteTable(clock, Limits(mapped_queues=3))
    mapping = {"bname": "b", "currIdMap": {0: 0, 1: 1}, "topic": "orders"}
    with pytest.raises(RequestError, match="queues of static topics are registered, 3 are allowed"):
        table.register(
            registration(topic_queue_mapping_info_map={"orders": mapping, "other": mapping}), "conn"
        )
    assert nothing_is_left(table)
    table.register(registration(topic_queue_mapping_info_map={"orders": mapping}), "conn")
    assert table.topics.mappings == {"orders": {"b": mapping}}
    table.delete_topic("orders")
    assert len(table.held.mapped_queues) == 0


# what grows, and what a change costs


def test_a_name_under_many_clusters_leaves_none_behind(table: RouteTable) -> None:
    for number in range(50):
        table.register(registration(cluster=f"c{number}"), "conn")
    for number in range(50):
        table.unregister(f"c{number}", MASTER, "b", 0)
    gone(table, "conn")
    assert nothing_is_left(table)


def test_a_slave_that_changes_clusters_leaves_them_while_its_master_stays(table: RouteTable) -> None:
    table.register(registration(), "conn")
    for number in range(50):
        table.register(registration(1, SLAVE, cluster=f"c{number}"), "other")
        table.unregister(f"c{number}", SLAVE, "b", 1)
    assert table.clusters == {"c": {"b"}}
    gone(table, "other")
    gone(table, "conn")
    assert nothing_is_left(table)


def test_a_broker_that_moves_to_another_cluster(table: RouteTable, clock: Clock) -> None:
    table.register(registration(cluster="before"), "conn")
    table.register(registration(cluster="after"), "conn")
    assert route_queries.cluster_info(table) == ClusterInfo(
        {"b": BrokerData("after", "b", {0: MASTER})}, {"after": ["b"]}
    )
    assert list(route_queries.topics_of_cluster(table, "before").topic_list) == []
    clock.now += 100_000
    table.live.touch("after", MASTER)
    clock.now += 100_000
    assert [key for key, _ in table.live.expired()] == [("before", MASTER)]
    table.unregister_address("before", MASTER)
    assert addresses(table) == {0: MASTER}
    gone(table, "conn")
    assert nothing_is_left(table)


def test_an_address_under_many_names_is_bounded(clock: Clock) -> None:
    table = RouteTable(clock, Limits(brokers=3))
    for number in range(3):
        table.register(registration(name=f"b{number}"), "conn")
    with pytest.raises(RequestError, match="3 brokers are registered"):
        table.register(registration(name="b3"), "conn")
    table.register(registration(name="b2", version=2), "conn")
    table.unregister("c", MASTER, "b0", 0)
    assert list(table.live) == [("c", MASTER)], "it is there under two names yet"
    gone(table, "conn")
    assert nothing_is_left(table)


def test_addresses_that_replace_each_other_are_bounded(clock: Clock) -> None:
    table = RouteTable(clock, Limits(brokers=3))
    for number in range(3):
        table.register(registration(0, f"h:{number}"), "conn")
    with pytest.raises(RequestError, match="3 brokers are registered"):
        table.register(registration(0, "h:3"), "conn")
    gone(table, "conn")
    assert nothing_is_left(table)


def test_a_broker_that_is_refused_for_its_age_is_nowhere(table: RouteTable) -> None:
    table.register(registration(0, MASTER, state=2), "conn")
    table.register(registration(1, SLAVE, filter_server_list=("f:1",)), "other")
    table.register(registration(0, SLAVE, state=1), "other")
    assert addresses(table) == {0: MASTER}
    assert not table.live.filter_servers
    gone(table, "conn")
    assert nothing_is_left(table)


def test_filter_servers_are_bounded_and_go_with_their_broker(clock: Clock) -> None:
    table = RouteTable(clock, Limits(filter_servers=3))
    for servers in (("f:1", "f:2"), ("f:1", "f:3", "f:4")):
        table.register(registration(filter_server_list=servers), "conn")
    with pytest.raises(RequestError, match="3 are allowed"):
        table.register(registration(0, SLAVE, name="other", filter_server_list=("f:5",)), "conn")
    table.register(registration(), "conn")
    assert len(table.held.filter_servers) == 0
    gone(table, "conn")
    assert nothing_is_left(table)


def test_mappings_are_those_of_the_broker_itself_and_go_with_it(table: RouteTable) -> None:
    table.register(registration(), "conn")
    for number in range(20):
        name = f"b{number}"
        info = {"orders": mapping_of(name), "other": mapping_of("somebody")}
        table.register(registration(0, f"h:{number}", name=name, topic_queue_mapping_info_map=info), name)
        assert set(table.topics.mappings["orders"]) == {name}
        assert "other" not in table.topics.mappings
        gone(table, name)
    assert (table.topics.mappings, len(table.held.mapped_queues)) == ({}, 0)


def test_a_mapping_without_queues_counts_and_one_again_does_not(clock: Clock) -> None:
    table = RouteTable(clock, Limits(mapped_queues=1))
    info = {"orders": mapping_of("b")}
    for version in (1, 2):
        table.register(registration(version=version, topic_queue_mapping_info_map=info), "conn")
    more = {**info, "other": mapping_of("b")}
    with pytest.raises(RequestError, match="1 are allowed"):
        table.register(registration(version=3, topic_queue_mapping_info_map=more), "conn")


class CountingTopics(dict[str, Any]):
    """Counts how often all of it is looked through."""

    looks = 0

    def items(self) -> Any:
        CountingTopics.looks += 1
        return super().items()

    def values(self) -> Any:
        CountingTopics.looks += 1
        return super().values()


def test_no_change_looks_through_all_topics_or_brokers(table: RouteTable) -> None:
    table.topics.queues = CountingTopics()
    table.brokers = CountingTopics()
    table.register(registration(name="large"), "large")
    CountingTopics.looks = 0
    table.register(registration(1, SLAVE, acting=True), "conn")
    table.register(registration(0, MASTER, acting=True), "conn")
    table.topics.wipe_write_perm("b")
    table.topics.add_write_perm("b")
    table.register(registration(0, MASTER, "orders", "new", version=2), "conn", delete_missing_topics=True)
    route_queries.topics_of_cluster(table, "c")
    route_queries.topics_of_cluster(table, "unknown")
    table.unregister("c", MASTER, "b", 0)
    gone(table, "conn")
    assert CountingTopics.looks == 0
    gone(table, "large")
    assert nothing_is_left(table)


def test_the_version_changes_with_what_lists_tell_and_not_with_signs_of_life(table: RouteTable) -> None:
    def changes(what: Any) -> bool:
        before = table.version
        what()
        return table.version != before

    assert changes(lambda: table.register(registration(), "conn"))
    assert not changes(lambda: table.register(registration(), "conn"))
    assert not changes(lambda: table.register(registration(version=2), "conn"))
    assert not changes(lambda: table.live.touch("c", MASTER))
    assert changes(lambda: table.register(registration(0, MASTER, "orders", "new", version=3), "conn"))
    assert changes(lambda: table.register(registration(zone="z", version=3), "conn"))
    assert changes(lambda: table.register(registration(1, SLAVE), "other"))
    assert changes(lambda: table.unregister("c", SLAVE, "b", 1))
    assert changes(lambda: table.register_topic("more", [QueueData("b", 1, 1)]))
    assert changes(lambda: table.delete_topic("more"))
    assert changes(lambda: gone(table, "conn"))


def test_time_is_given_to_every_broker_but_none_from_the_future(table: RouteTable, clock: Clock) -> None:
    table.register(registration(timeout_ms=10_000), "conn")
    clock.now += 13_000
    table.register(registration(0, SLAVE, name="other", timeout_ms=10_000), "conn")
    table.live.prolong(12_000)
    assert table.live.expired() == []
    clock.now += 9_500
    assert [key for key, _ in table.live.expired()] == [("c", MASTER)]
    clock.now += 600
    assert len(table.live.expired()) == 2


def test_brokers_of_other_zones_are_left_out_in_one_pass(table: RouteTable) -> None:
    for number in range(5):
        zone = "here" if number % 2 else "there"
        table.register(registration(0, f"h:{number}", name=f"b{number}", zone=zone), "conn")
    found = route(table)
    assert found is not None
    left = route_queries.in_zone(found, "HERE")
    assert [each.broker_name for each in left.broker_datas] == ["b1", "b3"]
    assert [each.broker_name for each in left.queue_datas] == ["b1", "b3"]


def test_topics_with_the_same_numbers_share_one_entry(table: RouteTable) -> None:
    topics = [f"t{number}" for number in range(100)]
    table.register(registration(0, MASTER, *topics, TopicConfig("wide", 16, 16)), "conn")
    assert len({id(each["b"]) for each in table.topics.queues.values()}) == 2
    table.topics.wipe_write_perm("b")
    assert len({id(each["b"]) for each in table.topics.queues.values()}) == 2
    assert {perm(table, topic) for topic in topics} == {4}
