"""Lite topics over several brokers: a lite topic is at one of them, and a subscription that one broker is told counts at all."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from broker_gateway.protocol import java_json
from broker_gateway.protocol.codes import RequestCode
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_pb.lakebroker.admin.v1 import admin_pb2
from lakebroker_testing.client import Client
from lakebroker_testing.gateway import Gateway
from lakebroker_testing.messages import message, send_request
from tests.support.brokers.clusters import NAMES, QUEUES, place, three_brokers, wait_until_known
from tests.support.brokers.telemetry_client import TelemetryClient, consumer_settings
from tests.support.rocketmq.requests import ask
from tests.support.waiting import LIMIT_S, wait_until


class Cluster:
    """Three brokers, known to one name server; for each test a topic of two queues, two groups of it, and a consumer."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.brokers = three_brokers(folder, stack)
        self.clients: dict[str, Client] = {}
        self.topic = ""
        self._stack = stack

    def begin(self, topic: str) -> None:
        """What is sent, received and subscribed to from now on is the topic's."""
        self.topic = topic
        for name, each in self.brokers.items():
            self._create(each)
            self.call(self._stack, name)
        wait_until_known(self.brokers, topic)

    @property
    def client_id(self) -> str:
        return f"lite-{self.topic}"

    def group(self, kind: str) -> str:
        """Of the topic: `agents`, or `all` with wildcards."""
        return f"{kind}-{self.topic}"

    def _create(self, gateway: Gateway) -> None:
        topic = admin_pb2.Topic(name=self.topic, queues=QUEUES, accept_message_types=["LITE"])
        requests: list[tuple[str, Any]] = [("PutTopic", admin_pb2.PutTopicRequest(topic=topic))]
        for name, more in (("agents", {}), ("all", {"+lite.sub.wildcard": "true"})):
            text = json.dumps({"attributes": {"+lite.bind.topic": self.topic, **more}})
            group = admin_pb2.Group(name=self.group(name), configuration=text)
            requests.append(("PutGroup", admin_pb2.PutGroupRequest(group=group)))
        with grpc.insecure_channel(gateway.address) as channel:
            for name, request in requests:
                channel.unary_unary(
                    f"/lakebroker.admin.v1.AdminService/{name}",
                    request_serializer=lambda each: each.SerializeToString(),
                )(request, timeout=LIMIT_S)

    def call(self, stack: ExitStack, name: str) -> None:
        """Calls of the client go to a broker where it is now."""
        client = self.clients[name] = Client(self.brokers[name].address, self.client_id)
        client.metadata += (("x-mq-language", "JAVA"), ("x-mq-client-version", "5.2.0"))
        stack.callback(client.channel.close)

    def connect(self, stack: ExitStack, name: str, group: str = "agents") -> None:
        """The client's telemetry at a broker."""
        settings = consumer_settings(self.group(group), self.topic, pb.LITE_PUSH_CONSUMER)
        stack.enter_context(TelemetryClient(self.brokers[name].address, self.client_id, settings))

    def sync(self, name: str, action: int, *names: str, group: str = "agents") -> pb.Status:
        request = rpc.SyncLiteSubscriptionRequest(
            action=action,  # type: ignore[arg-type]
            topic=pb.Resource(name=self.topic),
            group=pb.Resource(name=self.group(group)),
            lite_topic_set=names,
        )
        status: pb.Status = self.clients[name].call("SyncLiteSubscription", request).status
        return status

    def synced(self, name: str, action: int, *names: str, group: str = "agents") -> None:
        """It answers OK, which every broker must have said to it in time."""
        wait_until(lambda: self.sync(name, action, *names, group=group).code == pb.OK)

    def send(self, name: str, lite_topic: str, body: str) -> int:
        sent = message(self.topic, body.encode(), message_type=pb.LITE, lite_topic=lite_topic)
        return int(self.clients[name].call("SendMessage", send_request(sent)).status.code)

    def receive(self, name: str, group: str = "agents") -> list[Any]:
        """All that a broker has for the client."""
        found: list[Any] = []
        while messages := self.clients[name].receive(self.topic, self.group(group), wait_ms=100)[1]:
            found += messages
        return found


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(tmp_path_factory.mktemp("lite"), stack)


@pytest.fixture
def cluster(started: Cluster, name: str) -> Cluster:
    """With a topic of the test's own."""
    started.begin(name)
    return started


TOPICS = [f"t{number}" for number in range(24)]


def test_a_lite_topic_is_at_one_broker_whoever_it_is_sent_to(cluster: Cluster) -> None:
    assert len({place(name) for name in TOPICS}) == 6, "some of each queue"
    chosen = itertools.cycle(NAMES)
    with ExitStack() as stack:
        for name in NAMES:
            cluster.connect(stack, name)
        cluster.synced("a", pb.PARTIAL_ADD, *TOPICS)
        for number in range(4):
            for name in TOPICS:
                assert cluster.send(next(chosen), name, f"{name}:{number}") == pb.OK
            next(chosen)
        found: dict[str, list[tuple[str, str]]] = {}
        for name in NAMES:
            for each in cluster.receive(name):
                found.setdefault(each.system_properties.lite_topic, []).append((name, each.body.decode()))
    assert found == {name: [(place(name)[0], f"{name}:{number}") for number in range(4)] for name in TOPICS}


def test_a_subscription_counts_at_every_broker(cluster: Cluster) -> None:
    at = {broker: next(name for name in TOPICS if place(name)[0] == broker) for broker in NAMES}
    with ExitStack() as stack:
        cluster.connect(stack, "a")
        cluster.connect(stack, "b")
        cluster.synced("a", pb.PARTIAL_ADD, *at.values())
        for broker, name in at.items():
            assert cluster.send("a", name, broker) == pb.OK
        assert [each.body for each in cluster.receive("b")] == [b"b"]
        cluster.connect(stack, "c")  # which was told before it knew the client
        assert [each.body for each in cluster.receive("c")] == [b"c"]
        cluster.synced("a", pb.PARTIAL_REMOVE, at["b"])
        assert cluster.send("c", at["b"], "later") == pb.OK
        assert cluster.receive("b") == []
        for broker in NAMES:
            answer = ask(
                f"127.0.0.1:{cluster.brokers[broker].remoting_port}",
                RequestCode.GET_LITE_TOPIC_INFO,
                parentTopic=cluster.topic,
                liteTopic=at["c"],
            )
            told: Any = java_json.loads(answer.body)
            own = broker == "c"
            assert told["shardingToBroker"] is own
            assert told["subscriber"] == (
                [{"clientId": cluster.client_id, "group": cluster.group("agents")}] if own else []
            )
            assert told["topicOffset"]["maxOffset"] == int(own)


def test_a_wildcard_group_receives_at_every_broker(cluster: Cluster) -> None:
    with ExitStack() as stack:
        for name in NAMES:
            cluster.connect(stack, name, "all")
        cluster.synced("b", pb.COMPLETE_ADD, group="all")
        for name in TOPICS:
            assert cluster.send("a", name, name) == pb.OK
        found = {name: {each.body.decode() for each in cluster.receive(name, "all")} for name in NAMES}
    assert found == {broker: {name for name in TOPICS if place(name)[0] == broker} for broker in NAMES}


def test_a_lite_topic_waits_for_its_broker(cluster: Cluster) -> None:
    name = next(each for each in TOPICS if place(each)[0] == "b")
    with ExitStack() as stack:
        cluster.connect(stack, "a")
        cluster.synced("a", pb.PARTIAL_ADD, name)
        cluster.brokers["b"].kill()
        assert cluster.send("a", name, "lost") == pb.INTERNAL_SERVER_ERROR
        cluster.synced("a", pb.PARTIAL_ADD, name)
        cluster.brokers["b"].start()
        wait_until(lambda: cluster.send("a", name, "kept") == pb.OK)
        cluster.call(stack, "b")
        cluster.connect(stack, "b")
        cluster.synced("a", pb.COMPLETE_ADD, name)
        assert [each.body for each in cluster.receive("b")] == [b"kept"]
