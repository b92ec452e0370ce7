"""Real RocketMQ 5.5.0 with our name server: one broker registers with ours and with the real one at the same time.

`mqadmin` runs every command on both; what it prints must be the same. A real proxy in cluster mode finds the broker
through ours, and the official client sends and receives through it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from broker_gateway.protocol.body.route import ClusterInfo, TopicRouteData
from broker_gateway.protocol.body.tables import KVTable, TopicList
from broker_gateway.protocol.codes import RequestCode, ResponseCode
from broker_gateway.protocol.command import Command, SerializeType
from lakebroker_testing.gateway import NameServer
from lakebroker_testing.official_client import OfficialClient
from lakebroker_testing.real_rocketmq import RocketMQ
from tests.support.rocketmq.mqadmin import MqAdmin
from tests.support.rocketmq.receiving import receive_all
from tests.support.rocketmq.requests import invoke
from tests.support.waiting import wait_until

TOPICS = {"orders": (4, "NORMAL"), "ordered": (2, "FIFO")}


class Both:
    """The real name server and ours, a broker that both know, and an `mqadmin` for both."""

    def __init__(self, peer: RocketMQ, ours: NameServer, admin: MqAdmin) -> None:
        self.peer = peer
        self.ours = ours
        self.real_address = peer.name_server
        self._admin = admin

    def mqadmin(self, *arguments: str) -> tuple[str, str]:
        """What the command prints on the real one, and on ours."""
        return self._admin.run(self.real_address, *arguments), self.our_mqadmin(*arguments)

    def our_mqadmin(self, *arguments: str) -> str:
        """What the command prints on ours."""
        return self._admin.run(self.ours.address, *arguments)

    def ask(self, code: RequestCode, **fields: str) -> tuple[Command, Command]:
        """The answers of the real one and of ours to a request."""
        found = [invoke(address, Command(code, fields)) for address in (self.real_address, self.ours.address)]
        return found[0], found[1]


def has_route(address: str, topic: str) -> bool:
    return invoke(address, Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})).code == 0


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, mqadmin: MqAdmin) -> Iterator[Both]:
    folder = tmp_path_factory.mktemp("nameservers")
    # not when scans find a silent broker, but when its connection closes, a route goes here
    with NameServer(folder / "ours", scanNotActiveBrokerInterval="3600000") as ours:
        peer = RocketMQ(
            folder / "peer", TOPICS, ["readers"], proxy=False, heap="512m", other_name_servers=[ours.address]
        )
        with peer:
            wait_until(lambda: has_route(ours.address, "orders") and has_route(peer.name_server, "orders"))
            yield Both(peer, ours, mqadmin)


def lines(text: str) -> list[str]:
    """Lines without their order, which the original leaves to hash tables."""
    return sorted(line.rstrip() for line in text.splitlines() if line.strip())


@pytest.mark.parametrize("topic", TOPICS)
def test_route_is_the_same_text(both: Both, topic: str) -> None:
    real, ours = both.mqadmin("topicRoute", "-t", topic)
    assert "brokerDatas" in real
    assert ours == real


def test_topic_list_is_the_same(both: Both) -> None:
    real, ours = both.mqadmin("topicList")
    assert "orders" in lines(real)
    assert lines(ours) == lines(real)


def test_cluster_list_is_the_same(both: Both) -> None:
    """Rates and times of the broker change between the calls: the columns up to its version are compared."""
    real, ours = both.mqadmin("clusterList")
    assert "broker-a" in real
    assert [line.split()[:5] for line in lines(ours)] == [line.split()[:5] for line in lines(real)]


def test_kv_config(both: Both) -> None:
    """The ordered topic is none of the broker's.

    It would mark a topic of its own as ordered when it registers next, and the registration after that, with a new data
    version, would undo `wipeWritePerm` in both name servers.
    """
    for arguments in (
        ("updateKvConfig", "-s", "ORDER_TOPIC_CONFIG", "-k", "elsewhere", "-v", "broker-b:2"),
        ("updateKvConfig", "-s", "notes", "-k", "a", "-v", 'grün {"x":1}'),
        ("updateKvConfig", "-s", "notes", "-k", "b", "-v", "2"),
        ("deleteKvConfig", "-s", "notes", "-k", "b"),
        ("deleteKvConfig", "-s", "unknown", "-k", "b"),
    ):
        real, ours = both.mqadmin(*arguments)
        assert "success" in real
        assert ours == real
    for key in ("a", "b"):
        real, ours = both.ask(RequestCode.GET_KV_CONFIG, namespace="notes", key=key)
        assert (ours.code, ours.remark, ours.ext_fields) == (real.code, real.remark, real.ext_fields)
    real, ours = both.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="ORDER_TOPIC_CONFIG")
    assert KVTable.decode(ours.body) == KVTable.decode(real.body) == KVTable({"elsewhere": "broker-b:2"})
    written = [both.peer.folder / "namesrv" / "kvConfig.json", both.ours.folder / "kvConfig.json"]
    assert json.loads(written[0].read_text()) == json.loads(written[1].read_text())


def test_permissions_of_a_broker(both: Both) -> None:
    for command in ("wipeWritePerm", "addWritePerm"):
        real, ours = both.mqadmin(command, "-b", "broker-a")
        assert "broker-a" in real
        assert ours.replace(both.ours.address, both.real_address) == real
        routes = [
            TopicRouteData.decode(each.body)
            for each in both.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="orders")
        ]
        assert routes[0] == routes[1]
        assert routes[0].queue_datas[0].perm == (4 if command == "wipeWritePerm" else 6)


def options(text: str) -> dict[str, str]:
    return {
        found[1]: found[2].strip()
        for line in text.splitlines()
        if (found := re.fullmatch(r"(\w+)\s+=\s*(.*)", line))
    }


def test_options_of_the_name_server(both: Both) -> None:
    differ = {"listenPort", "kvConfigPath", "configStorePath", "rocketmqHome", "scanNotActiveBrokerInterval"}

    def compare() -> dict[str, str]:
        real, ours = (options(each) for each in both.mqadmin("getNamesrvConfig"))
        assert {name for name in ours if not name.startswith("lake")} == set(real)
        for name in set(real) - differ:
            assert ours[name] == real[name], name
        return ours

    assert compare()["orderMessageEnable"] == "false"
    for key, value in (("orderMessageEnable", "true"), ("noSuchOption", "1")):
        real, ours = both.mqadmin("updateNamesrvConfig", "-k", key, "-v", value)
        assert "success" in real
        assert ours.replace(both.ours.address, both.real_address) == real
    assert compare()["orderMessageEnable"] == "true"
    for name in ("kvConfigPath", "configStorePath", "configBlackList"):
        request = Command(RequestCode.UPDATE_NAMESRV_CONFIG, body=f"{name}=/tmp/x\n".encode())
        real_answer, our_answer = (invoke(a, request) for a in (both.real_address, both.ours.address))
        assert (our_answer.code, our_answer.remark) == (real_answer.code, real_answer.remark)
        assert our_answer.code == ResponseCode.NO_PERMISSION
    assert "orderMessageEnable=true\n" in (both.ours.folder / "namesrv.properties").read_text()


REQUESTS = [
    (RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"}),
    (RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders", "acceptStandardJsonOnly": "true"}),
    (RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders", "__ZONE_MODE": "true", "__ZONE_NAME": "z"}),
    (RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "no-such-topic"}),
    (RequestCode.GET_BROKER_CLUSTER_INFO, {}),
    (RequestCode.GET_BROKER_MEMBER_GROUP, {"clusterName": "DefaultCluster", "brokerName": "broker-a"}),
    (RequestCode.GET_BROKER_MEMBER_GROUP, {"clusterName": "DefaultCluster", "brokerName": "unknown"}),
    (RequestCode.GET_KV_CONFIG, {"namespace": "unknown", "key": "k"}),
    (RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "unknown"}),
    (RequestCode.GET_UNIT_TOPIC_LIST, {}),
    (RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, {}),
    (RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, {}),
    (RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "unknown"}),
    (RequestCode.PULL_MESSAGE, {}),
]


@pytest.mark.parametrize(("code", "fields"), REQUESTS)
@pytest.mark.parametrize("version", [0, 400, 513])
@pytest.mark.parametrize("kind", list(SerializeType))
def test_answers_are_the_same_bytes(
    both: Both, code: RequestCode, fields: dict[str, str], version: int, kind: SerializeType
) -> None:
    request = Command(code, fields, version=version, serialize_type=kind)
    real, ours = (invoke(address, request) for address in (both.real_address, both.ours.address))
    assert (ours.code, ours.ext_fields) == (real.code, real.ext_fields)
    # the original leaves its initial remark in some answers that went well
    assert ours.remark == (None if real.remark == "not set any response code" else real.remark)
    assert ours.body == real.body
    assert (ours.flag, ours.serialize_type) == (real.flag, real.serialize_type)


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "DefaultCluster"}),
        (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}),
        (RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, {}),
    ],
)
def test_lists_hold_the_same_topics(both: Both, code: RequestCode, fields: dict[str, str]) -> None:
    real, ours = (TopicList.decode(each.body) for each in both.ask(code, **fields))
    assert sorted(ours.topic_list) == sorted(real.topic_list)
    assert len(real.topic_list) >= 2
    assert ours.broker_addr == real.broker_addr


def test_topic_is_deleted_and_made_again(both: Both) -> None:
    cluster = ClusterInfo.decode(invoke(both.ours.address, Command(RequestCode.GET_BROKER_CLUSTER_INFO)).body)
    address = cluster.broker_addr_table["broker-a"].broker_addrs[0]
    real, ours = both.mqadmin("updateTopic", "-b", address, "-t", "brief", "-r", "3", "-w", "3")
    assert "success" in real
    assert "success" in ours
    wait_until(lambda: has_route(both.ours.address, "brief"))
    deleted = both.our_mqadmin("deleteTopic", "-c", "DefaultCluster", "-t", "brief")
    assert "success" in deleted
    assert not has_route(both.ours.address, "brief")


def test_official_client_through_a_real_proxy(both: Both) -> None:
    both.peer.start_cluster_proxy(both.ours.address)
    with OfficialClient() as official:
        official.call("producer", endpoints=both.peer.address, topics=["orders"])
        sent = [official.call("send", topic="orders", bodies=[f"body {n}"], tag="a") for n in range(20)]
        ids = [each for answer in sent for each in answer["ids"]]
        official.call(
            "simple", endpoints=both.peer.address, group="readers", topics={"orders": "*"}, await_s=3
        )
        assert sorted(receive_all(official, len(ids))) == sorted(ids)


def test_route_goes_with_the_broker(both: Both) -> None:
    """The last of these tests: SIGKILL. The connection closes, and the route is gone long before the broker would have expired."""
    assert has_route(both.ours.address, "orders")
    both.peer.kill()
    wait_until(lambda: not has_route(both.ours.address, "orders"))
    info = ClusterInfo.decode(invoke(both.ours.address, Command(RequestCode.GET_BROKER_CLUSTER_INFO)).body)
    assert info == ClusterInfo({}, {})
    assert both.ours.terminate() == 0
