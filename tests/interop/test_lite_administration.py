"""RocketMQ's own `mqadmin` 5.5.0 about lite topics, on a real broker and on ours: both print the same.

Not compared, because it cannot be the same:

| what | why |
|---|---|
| addresses, times | each has its own; they are replaced by a word |
| `#OrderInfoCount` | there lite topics that a group received from since its last clean-up, here those that have messages with clients |
| `#CQTableSize`, `#OffsetTableSize` | topics with queues and offsets, those of the broker's own parts among them |
| `#eventMapSize` | there a client counts until it has not received for 10 s to 35 s, here for 35 s |
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from broker_gateway.protocol.codes import RequestCode
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.gateway import Gateway, NameServer
from tests.support.brokers.telemetry_client import TelemetryClient, consumer_settings
from tests.support.rocketmq.lite_brokers import (
    GROUP,
    TOPIC,
    WILDCARD,
    Consumer,
    Side,
    create,
    lite_topics_in,
    peer,
    texts,
)
from tests.support.rocketmq.mqadmin import MqAdmin
from tests.support.rocketmq.requests import ask
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(900)
PATIENT = {"liteSubscriptionCheckTimeoutMills": "3600000"}
_TIMES = (
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"), "TIME"),
    (re.compile(r"Min Unconsumed Timestamp: \d+ \(\d+ s ago\)"), "Min Unconsumed Timestamp"),
)


class Both:
    """A real broker and ours, an `mqadmin` for both, what their consumers are, and the store of the real one."""

    def __init__(
        self, sides: list[Side], admin: MqAdmin, consumers: list[list[Consumer]], store: Path
    ) -> None:
        self.sides = sides
        self.consumers = consumers
        self.store = store
        self._admin = admin

    def run(self, *arguments: str) -> tuple[str, str]:
        """What a command prints on the real one, and on ours."""
        real, ours = (_run(side, self._admin, *arguments) for side in self.sides)
        return real, ours

    def same(self, *arguments: str) -> str:
        """`run`, where both must print the same and something."""
        real, ours = self.run(*arguments)
        assert real.strip()
        assert ours == real
        return ours


def _run(side: Side, admin: MqAdmin, *arguments: str) -> str:
    asked = (side.broker if each == "BROKER" else each for each in arguments)
    printed = admin.run(side.name_server, *asked)
    printed = printed.replace(side.broker.ljust(30), "BROKER".ljust(30))
    for pattern, word in _TIMES:
        printed = pattern.sub(word, printed)
    return printed


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, mqadmin: MqAdmin) -> Iterator[Both]:
    folder = tmp_path_factory.mktemp("lite")
    with ExitStack() as stack:
        running = stack.enter_context(peer(folder / "peer", **PATIENT))
        running.start_cluster_proxy(running.name_server)
        name_server = stack.enter_context(NameServer(folder / "namesrv"))
        gateway = stack.enter_context(Gateway(folder / "ours", namesrvAddr=name_server.address, **PATIENT))
        create(gateway.address)
        sides = [
            Side(running.address, running.name_server, running.broker_address),
            Side(gateway.address, name_server.address, f"127.0.0.1:{gateway.remoting_port}"),
        ]
        consumers = []
        for side in sides:
            for client_id, group in (("lite-1", GROUP), ("lite-2", GROUP), ("w-1", WILDCARD)):
                settings = consumer_settings(group, TOPIC, pb.LITE_PUSH_CONSUMER)
                stack.enter_context(TelemetryClient(side.address, client_id, settings))
            one, two = Consumer(side.address, "lite-1"), Consumer(side.address, "lite-2")
            fill(one, two, Consumer(side.address, "w-1", WILDCARD))
            consumers.append([one, two])
        yield Both(sides, mqadmin, consumers, running.store)


def fill(one: Consumer, two: Consumer, wildcard: Consumer) -> None:
    """Of group `agents` lite topic `a` has one settled message and two with a client, `c` one settled, `e` one with a client and
    three behind it; nobody has received from `b`. The wildcard group has settled all."""

    def send(name: str, *bodies: str) -> None:
        for body in bodies:
            assert one.send(name, body) == pb.OK

    assert wildcard.heartbeat() == wildcard.sync(pb.COMPLETE_ADD) == pb.OK
    assert one.heartbeat() == two.heartbeat() == pb.OK
    for name in "ca":
        assert one.sync(pb.PARTIAL_ADD, name) == pb.OK
        send(name, "1")
        assert one.ack(*one.until(1)) == {pb.OK}
    send("a", "2", "3")
    assert texts(one.until(2)) == [("a", "2"), ("a", "3")]
    assert one.sync(pb.PARTIAL_ADD, "e") == pb.OK
    send("e", "1", "2", "3", "4")
    assert texts(one.until(1, batch=1)) == [("e", "1")]
    assert one.sync(pb.PARTIAL_ADD, "b") == two.sync(pb.PARTIAL_ADD, "a") == pb.OK
    send("b", "1", "2")
    assert wildcard.ack(*wildcard.until(10)) == {pb.OK}


def test_the_broker(both: Both) -> None:
    real, ours = both.run("getBrokerLiteInfo", "-b", "BROKER", "-d")
    assert ours.splitlines()[0] == real.splitlines()[0]
    row = ours.splitlines()[1].split()
    assert row[:5] == real.splitlines()[1].split()[:5]
    assert row[1:5] == ["default", "20000", "4", "6"]
    assert all(int(each) >= 0 for each in row[5:])
    assert len(row) == 9
    assert ours.splitlines()[2:] == real.splitlines()[2:]
    assert 'Topic Meta: {"chat":-1}' in ours
    of_cluster = both.run("getBrokerLiteInfo", "-c", "DefaultCluster")[1]
    assert of_cluster.splitlines()[1].split()[:5] == row[:5]


def test_a_parent_topic(both: Both) -> None:
    printed = both.same("getParentTopicInfo", "-p", TOPIC)
    assert re.search(r"broker-a +-1 +4 +4 +\[[a-z, ]{16}\]", printed)
    for side in both.sides:
        assert ask(side.broker, RequestCode.GET_PARENT_TOPIC_INFO, topic="nosuch").code == 17
        assert ask(side.broker, RequestCode.GET_PARENT_TOPIC_INFO, topic="broker-a").code == 29


def test_a_lite_topic(both: Both) -> None:
    printed = both.same("getLiteTopicInfo", "-p", TOPIC, "-l", "a", "-s")
    assert re.search(r"broker-a +0 +3 +TIME +true +3 ", printed)
    assert "lite-2@agents" in printed
    assert "*@all" in printed
    both.same("getLiteTopicInfo", "-p", TOPIC, "-l", "b", "-s")
    printed = both.same("getLiteTopicInfo", "-p", TOPIC, "-l", "nosuch")
    assert re.search(r"broker-a +0 +0 +- +true +1 ", printed)


def test_a_client(both: Both) -> None:
    searched = re.compile(r"(?:TIME|N/A) +N/A *")  # by the real broker at any time: nobody receives as lite-2
    real, ours = both.run("getLiteClientInfo", "-p", TOPIC, "-g", GROUP, "-c", "lite-2", "-s")
    assert searched.sub("", ours) == searched.sub("", real)
    assert searched.search(ours)
    assert "[%LMQ%$chat$a]" in ours
    assert "chat@all" in both.same("getLiteClientInfo", "-p", TOPIC, "-g", WILDCARD, "-c", "w-1", "-s")
    assert "N/A" in both.same("getLiteClientInfo", "-p", TOPIC, "-g", GROUP, "-c", "nobody", "-s")
    assert "error" in both.same("getLiteClientInfo", "-p", TOPIC, "-g", "nosuch", "-c", "lite-1")
    for one, _ in both.consumers:
        assert one.sync(pb.PARTIAL_REMOVE, "b") == pb.OK  # whose messages might come before
        assert one.send("c", "2") == pb.OK
        of_c = wait_until(
            lambda one=one: [each for each in one.until(1) if each.system_properties.lite_topic == "c"]
        )
        assert texts(of_c) == [("c", "2")]
        assert one.ack(*of_c) == {pb.OK}
        assert one.sync(pb.PARTIAL_ADD, "b") == pb.OK
    printed = both.same("getLiteClientInfo", "-p", TOPIC, "-g", GROUP, "-c", "lite-1", "-s")
    assert re.search(r"broker-a +4 +TIME +N/A", printed)


def _without_b(printed: str) -> str:
    """The real broker may give the group an offset on `b` before anybody received from it, and counts its 2 messages then."""
    printed = printed.replace("Total Lag Count: 8\n", "Total Lag Count: 6\n")
    return "".join(line for line in printed.splitlines(keepends=True) if not re.match(r"\d+ +b +2 ", line))


def test_a_group(both: Both) -> None:
    real, ours = both.run("getLiteGroupInfo", "-p", TOPIC, "-g", GROUP)
    assert _without_b(ours) == _without_b(real)
    assert "Total Lag Count: 6\n" in ours
    assert re.search(r"1 +e +4 +TIME *\n2 +a +2 +TIME", ours)
    real, ours = both.run("getLiteGroupInfo", "-p", TOPIC, "-g", GROUP, "-k", "1")
    assert _without_b(ours) == _without_b(real)
    assert re.search(r"1 +e +4 ", ours)
    assert " a " not in ours
    assert re.search(
        r"broker-a +- +- +- +-", both.run("getLiteGroupInfo", "-p", TOPIC, "-g", GROUP, "-l", "b")[1]
    )
    for name, row in (
        ("a", r"3 +1 +2 +TIME"),
        ("e", r"4 +0 +4 +-"),
        ("nosuch", r"- +- +- +-"),
    ):
        printed = both.same("getLiteGroupInfo", "-p", TOPIC, "-g", GROUP, "-l", name)
        assert re.search(rf"broker-a +{row}", printed), printed
    assert "error" in both.same("getLiteGroupInfo", "-p", TOPIC, "-g", "nosuch")


def test_the_dispatch_is_triggered(both: Both) -> None:
    assert "dispatched" in both.same("triggerLiteDispatch", "-p", TOPIC, "-g", GROUP)
    assert "dispatched" in both.same("triggerLiteDispatch", "-p", TOPIC, "-g", GROUP, "-c", "lite-1")
    assert "dispatched" in both.same("triggerLiteDispatch", "-p", TOPIC, "-g", WILDCARD, "-b", "broker-a")
    assert "error" in both.same("triggerLiteDispatch", "-p", TOPIC, "-g", "nosuch")


def test_the_log_of_the_real_broker_is_read_here(both: Both, tmp_path: Path) -> None:
    shutil.copytree(both.store / "commitlog", tmp_path / "store" / "commitlog")
    assert lite_topics_in(tmp_path / "store", "a", "b") == {"a": ["1", "2", "3"], "b": ["1", "2"]}
