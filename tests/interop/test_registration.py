"""Our gateways with the real name server 5.5.0, and beside a real broker: what is registered, and when it goes.

Tools and requests ask the real name server; nothing here looks into the gateway, except for sentences of its log.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_gateway.protocol.body.route import ClusterInfo, QueueData, TopicRouteData
from broker_gateway.protocol.body.tables import TopicList
from broker_gateway.protocol.body.topic_config import DataVersion
from broker_gateway.protocol.codes import RequestCode, ResponseCode
from broker_gateway.protocol.command import Command
from lakebroker_testing.gateway import Gateway, NameServer
from lakebroker_testing.ports import free_ports
from lakebroker_testing.real_rocketmq import RocketMQ
from tests.suite.evidence import LONG
from tests.support.brokers.gateways import goodbye_was_late
from tests.support.machines.partition import Partition
from tests.support.rocketmq.mqadmin import MqAdmin
from tests.support.rocketmq.requests import create, invoke
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMQ]:
    """A real name server, and a real broker, `broker-a`, that registers with it."""
    with RocketMQ(
        tmp_path_factory.mktemp("peer"), {"theirs": (4, "NORMAL")}, proxy=False, heap="512m"
    ) as peer:
        wait_until(lambda: "broker-a" in queues(peer.name_server, "theirs"))
        yield peer


def gateway(folder: Path, name_servers: str, name: str = "lake", **options: str) -> Gateway:
    return Gateway(folder / name, brokerName=name, namesrvAddr=name_servers, listenPort="0", **options)


def topic(gateway: Gateway, name: str, queues: int) -> None:
    """Makes it, or changes it."""
    create(f"127.0.0.1:{gateway.remoting_port}", {name: (queues, "NORMAL")})


def queues(name_server: str, topic: str) -> dict[str, QueueData]:
    """Of every broker's name."""
    answer = invoke(name_server, Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}))
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        return {}
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return {each.broker_name: each for each in TopicRouteData.decode(answer.body).queue_datas}


def brokers(name_server: str) -> dict[str, str]:
    """The master's address of every broker's name; one that expires loses its address first."""
    answer = invoke(name_server, Command(RequestCode.GET_BROKER_CLUSTER_INFO))
    table = ClusterInfo.decode(answer.body).broker_addr_table
    return {name: each.broker_addrs[0] for name, each in table.items() if 0 in each.broker_addrs}


def is_registered(name_server: str, name: str = "lake") -> bool:
    return name in brokers(name_server)


def test_a_broker_as_a_real_one(peer: RocketMQ, mqadmin: MqAdmin, tmp_path: Path) -> None:
    """System topics have the queues and permissions of the real broker's; both stand in `mqadmin clusterList`."""
    with gateway(
        tmp_path, peer.name_server, autoCreateTopicEnable="false", lakeAutoCreateTopics="false"
    ) as ours:
        wait_until(lambda: is_registered(peer.name_server))
        assert brokers(peer.name_server)["lake"] == f"127.0.0.1:{ours.remoting_port}"
        listed = invoke(peer.name_server, Command(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))
        compared = 0
        for each in TopicList.decode(listed.body).topic_list:
            at = queues(peer.name_server, each)
            if "broker-a" in each:
                at |= queues(peer.name_server, each.replace("broker-a", "lake"))
            if each in ("theirs",) or "lake" in each:
                continue
            assert {"lake", "broker-a"} <= at.keys(), each
            mine, theirs = at["lake"], at["broker-a"]
            assert (mine.read_queue_nums, mine.write_queue_nums, mine.perm) == (
                theirs.read_queue_nums,
                theirs.write_queue_nums,
                theirs.perm,
            ), each
            compared += 1
        assert compared >= 13
        rows = [line.split()[:4] for line in mqadmin.run(peer.name_server, "clusterList").splitlines()]
        assert ["DefaultCluster", "lake", "0", f"127.0.0.1:{ours.remoting_port}"] in rows


def test_topics_are_seen_as_they_change_and_go_with_the_broker(
    peer: RocketMQ, mqadmin: MqAdmin, tmp_path: Path
) -> None:
    with gateway(tmp_path, peer.name_server) as ours:
        assert queues(peer.name_server, "orders") == {}
        topic(ours, "orders", 3)
        wait_until(lambda: "lake" in queues(peer.name_server, "orders"))
        assert queues(peer.name_server, "orders")["lake"].read_queue_nums == 3
        topic(ours, "orders", 5)
        wait_until(lambda: queues(peer.name_server, "orders")["lake"].write_queue_nums == 5)
        assert '"brokerName":"lake"' in mqadmin.run(peer.name_server, "topicRoute", "-t", "orders")
        assert queues(peer.name_server, "TBW102")["lake"].perm == 7
        ours.kill()
        # without a goodbye the route is gone when the connection is, before 120 s are over
        wait_until(lambda: not is_registered(peer.name_server), limit_s=110)
        ours.start()
        wait_until(lambda: queues(peer.name_server, "orders").keys() == {"lake"})
        assert ours.terminate() == 0
        log = ours.log.read_text()
        assert "unregistered" in log or goodbye_was_late(log, peer.name_server)
        # the real one forgets a broker on another thread, after its answer
        wait_until(lambda: not is_registered(peer.name_server))
        wait_until(lambda: queues(peer.name_server, "orders") == {})


@pytest.mark.parametrize(
    "options",
    [
        {"compressedRegister": "true"},
        {"enableSplitRegistration": "true", "splitRegistrationSize": "2"},
        {"enableSingleTopicRegister": "true"},
        {"forceRegister": "false"},
    ],
    ids=lambda options: "-".join(options),
)
def test_ways_to_register(peer: RocketMQ, tmp_path: Path, options: dict[str, str]) -> None:
    """Each leaves the same topics at the name server, at first and when one is added."""
    with gateway(
        tmp_path, peer.name_server, autoCreateTopicEnable="false", lakeAutoCreateTopics="false", **options
    ) as ours:
        wait_until(lambda: "lake" in queues(peer.name_server, "rmq_sys_wheel_timer"))
        # where registrations are split, it is in another part
        wait_until(lambda: "lake" in queues(peer.name_server, "BenchmarkTest"))
        assert queues(peer.name_server, "BenchmarkTest")["lake"].read_queue_nums == 1024
        topic(ours, "added", 2)
        wait_until(lambda: "lake" in queues(peer.name_server, "added"))
        assert queues(peer.name_server, "added")["lake"] == QueueData("lake", 2, 2, 6)
        assert "lake" in queues(peer.name_server, "rmq_sys_wheel_timer")
        assert ours.terminate() == 0


def test_the_brokers_permission_limits_every_topic(peer: RocketMQ, tmp_path: Path) -> None:
    with gateway(tmp_path, peer.name_server, brokerPermission="4") as ours:
        topic(ours, "limited", 2)
        wait_until(lambda: "lake" in queues(peer.name_server, "limited"))
        assert queues(peer.name_server, "limited")["lake"].perm == 4
        assert queues(peer.name_server, "TBW102")["lake"].perm == 4
        assert queues(peer.name_server, "lake")["lake"].perm == 4
        assert ours.terminate() == 0


def test_one_of_two_name_servers_is_down(peer: RocketMQ, tmp_path: Path) -> None:
    """The other one has it at once; the one that was down when it comes, and again after it lost its memory."""
    (port,) = free_ports(1)
    down = f"127.0.0.1:{port}"
    with gateway(tmp_path, f"{down};{peer.name_server}") as ours:
        wait_until(lambda: is_registered(peer.name_server))
        wait_until(lambda: "does not take the registration" in ours.log.read_text())
        with NameServer(tmp_path / "late", listenPort=str(port)) as late:
            wait_until(lambda: is_registered(down))
            assert late.terminate() == 0
            late.start()
            wait_until(lambda: is_registered(down))
            log = ours.log.read_text()
            assert log.count("does not take the registration") <= 2, "once for each time it went down"
            assert ours.terminate() == 0
            assert not is_registered(down) or goodbye_was_late(ours.log.read_text(), down)


def test_topics_that_the_name_server_orders(peer: RocketMQ, mqadmin: MqAdmin, tmp_path: Path) -> None:
    """The list comes with the answer to a registration; it makes a new data version, which is registered."""

    def version() -> DataVersion:
        fields = {
            "clusterName": "DefaultCluster",
            "brokerName": "lake",
            "brokerAddr": brokers(peer.name_server)["lake"],
            "brokerId": "0",
        }
        body = DataVersion().encode()
        answer = invoke(peer.name_server, Command(RequestCode.QUERY_DATA_VERSION, fields, body))
        assert answer.ext_fields["changed"] == "true"
        return DataVersion.decode(answer.body)

    with gateway(tmp_path, peer.name_server, registerNameServerPeriod="1") as ours:
        topic(ours, "sequence", 2)
        topic(ours, "other", 2)
        wait_until(lambda: "lake" in queues(peer.name_server, "other"))
        before = version()
        ordered = ("-s", "ORDER_TOPIC_CONFIG", "-k", "sequence", "-v", "lake:2")
        mqadmin.run(peer.name_server, "updateKvConfig", *ordered)
        wait_until(lambda: "topics are ordered" in ours.log.read_text())
        assert "topics=['sequence']" in ours.log.read_text()
        wait_until(lambda: version().counter == before.counter + 1)
        assert version().timestamp > before.timestamp
        assert ours.terminate() == 0


SILENCES = pytest.mark.parametrize(
    "options",
    [
        {"enableSlaveActingMaster": "true", "brokerNotActiveTimeoutMillis": "3000"},
        pytest.param({}, marks=LONG),
    ],
    ids=["heartbeats", "120 s"],
)
"""With heartbeats a silent broker is dropped sooner than in 120 s."""


@SILENCES
def test_a_broker_that_hangs_expires_and_comes_back(
    peer: RocketMQ, tmp_path: Path, options: dict[str, str]
) -> None:
    """SIGSTOP keeps the connection open and silent."""
    with gateway(tmp_path, peer.name_server, **options) as ours:
        wait_until(lambda: is_registered(peer.name_server))
        assert ours.process is not None
        os.kill(ours.process.pid, signal.SIGSTOP)
        try:
            wait_until(lambda: not is_registered(peer.name_server))
        finally:
            os.kill(ours.process.pid, signal.SIGCONT)
        wait_until(lambda: is_registered(peer.name_server))
        assert ours.terminate() == 0


@SILENCES
@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces are root's")
def test_a_broker_whose_packets_are_lost_expires_and_comes_back(
    tmp_path: Path, options: dict[str, str]
) -> None:
    """Nothing arrives any more, either way, and neither end is told: no reset, no goodbye."""
    with (
        Partition() as link,
        RocketMQ(tmp_path / "peer", {}, broker=False, name_server_host=link.host) as peer,
        Gateway(
            tmp_path / "lake",
            wrapper=link.wrapper,
            brokerName="lake",
            namesrvAddr=peer.name_server,
            brokerIP1=link.guest,
            bindAddress=link.guest,
            **options,
        ) as ours,
    ):
        wait_until(lambda: is_registered(peer.name_server))
        assert brokers(peer.name_server)["lake"] == f"{link.guest}:{ours.remoting_port}"
        link.cut()
        wait_until(lambda: not is_registered(peer.name_server))
        assert ours.process is not None
        assert ours.process.poll() is None
        link.mend()
        wait_until(lambda: is_registered(peer.name_server))
        assert ours.terminate() == 0
        wait_until(lambda: not is_registered(peer.name_server))
