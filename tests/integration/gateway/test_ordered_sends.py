"""FIFO messages over several brokers: whichever a client chose, a message group's messages are in one queue, in order."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from broker_gateway.messaging.placed_brokers import FILE
from broker_gateway.protocol.codes import RequestCode
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.client import Client
from tests.support.brokers.clusters import (
    NAMES,
    QUEUES,
    place,
    routes,
    three_brokers,
    wait_until_known,
)
from tests.support.brokers.gateways import create
from tests.support.rocketmq.requests import ask
from tests.support.waiting import wait_until


class Cluster:
    """Three brokers with two queues each, known to one name server."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.brokers = three_brokers(folder, stack)
        self._stack = stack
        self.clients: dict[str, Client] = {}
        for name in NAMES:
            self.connect(name)
        self.topic = ""

    def begin(self, topic: str) -> None:
        """What is sent and read from now on is the topic's."""
        self.topic = topic
        for each in self.brokers.values():
            create(each, topic, QUEUES)
        wait_until_known(self.brokers, topic)

    def connect(self, name: str) -> None:
        client = self.clients[name] = Client(self.brokers[name].address)
        self._stack.callback(client.channel.close)

    def send(self, name: str, group: str, body: str) -> Any:
        return self.clients[name].send(self.topic, body.encode(), message_type=pb.FIFO, message_group=group)

    def stored(self, name: str) -> list[pb.Message]:
        """All of a broker's messages, by queue and offset."""
        found: list[pb.Message] = []
        while messages := self.clients[name].receive(self.topic, "readers", wait_ms=100)[1]:
            found += messages
        return sorted(
            found, key=lambda each: (each.system_properties.queue_id, each.system_properties.queue_offset)
        )


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(tmp_path_factory.mktemp("ordered"), stack)


@pytest.fixture
def cluster(started: Cluster, name: str) -> Cluster:
    """With a topic of the test's own."""
    started.begin(name)
    return started


def test_every_group_is_in_its_queue_whatever_hash_its_producers_choose_by(cluster: Cluster) -> None:
    groups = [f"g{number}" for number in range(20)]
    assert len({place(group) for group in groups}) == 6, "some of each queue"
    chosen = itertools.cycle(NAMES)
    for number in range(6):
        for group in groups:
            assert cluster.send(next(chosen), group, f"{group}:{number}").status.code == pb.OK
        next(chosen)
    found: dict[str, list[tuple[str, int, str]]] = {}
    for name in NAMES:
        for each in cluster.stored(name):
            system = each.system_properties
            assert system.message_type == pb.FIFO
            assert system.born_host == "127.0.0.1"
            found.setdefault(system.message_group, []).append((name, system.queue_id, each.body.decode()))
    assert found == {group: [(*place(group), f"{group}:{number}") for number in range(6)] for group in groups}


def test_what_is_handed_over_is_checked_there(cluster: Cluster) -> None:
    group = next(each for each in map(str, range(100)) if place(each)[0] == "b")
    body = b"x" * (4 << 20) + b"y"
    answer = cluster.clients["a"].send(cluster.topic, body, message_type=pb.FIFO, message_group=group)
    assert answer.status.code == pb.MESSAGE_BODY_TOO_LARGE
    assert "maxMessageSize" in answer.status.message
    many = [b"x" * (4 << 20)] * 5
    answer = cluster.clients["a"].send(cluster.topic, *many, message_type=pb.FIFO, message_group=group)
    assert answer.status.code == pb.PAYLOAD_TOO_LARGE
    assert cluster.stored("b") == []


def test_with_its_broker_away_a_group_waits_for_it(cluster: Cluster) -> None:
    """The last that the brokers are there for: one is left with another permission."""
    group = next(each for each in map(str, range(100)) if place(each)[0] == "b")
    a, b = cluster.brokers["a"], cluster.brokers["b"]
    assert cluster.send("a", group, "0").status.code == pb.OK
    file = a.store / FILE
    wait_until(lambda: file.exists() and "b" in json.loads(file.read_text()).get(cluster.topic, ()))
    b.kill()
    for _ in range(2):
        answer = cluster.send("a", group, "lost")
        assert answer.status.code == pb.INTERNAL_SERVER_ERROR, answer
        assert "broker 'b'" in answer.status.message
        assert "send it again" in answer.status.message
        wait_until(lambda: set(routes(a.grpc_port, cluster.topic)) == {"a", "c"})
    a.kill()
    a.start()
    cluster.connect("a")
    wait_until(lambda: set(routes(a.grpc_port, cluster.topic)) == {"a", "c"})
    answer = cluster.send("a", group, "lost")
    assert answer.status.code == pb.INTERNAL_SERVER_ERROR, "a broker that starts knows who is away"
    b.start()
    wait_until(lambda: cluster.send("a", group, "1").status.code == pb.OK)
    cluster.connect("b")
    assert [each.body for each in cluster.stored("b")] == [b"0", b"1"]
    ask(b.remoting_address, RequestCode.UPDATE_BROKER_CONFIG, b"brokerPermission=4")
    wait_until(lambda: cluster.send("a", group, "2").status.code == pb.OK)
    elsewhere = [each.body for name in ("a", "c") for each in cluster.stored(name)]
    assert elsewhere == [b"2"], "a broker that runs and must not be written to is not waited for"
