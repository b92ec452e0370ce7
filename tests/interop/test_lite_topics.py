"""Lite topics: one script against a real RocketMQ's proxy and against a gateway, and the real broker's store opened here."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_pb.lakebroker.admin.v1 import admin_pb2
from lakebroker_testing.client import Client
from lakebroker_testing.gateway import Gateway
from lakebroker_testing.messages import message, receive_request, send_request
from lakebroker_testing.real_rocketmq import RocketMQ
from store.log.record import Host
from store.message_store import MessageStore
from store.opening import StoreOptions
from tests.telemetry_client import TelemetryClient, consumer_settings

GROUP = "agents"


@contextlib.contextmanager
def real(folder: Path) -> Iterator[str]:
    config = folder / "store" / "config"
    config.mkdir(parents=True)
    topic = {"topicName": "chat", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
    table: dict[str, Any] = {"chat": {**topic, "attributes": {"message.type": "LITE"}}}
    (config / "topics.json").write_text(json.dumps({"topicConfigTable": table}))
    group = {"groupName": GROUP, "consumeEnable": True, "retryMaxTimes": 16, "retryQueueNums": 1}
    table = {GROUP: {**group, "attributes": {"lite.bind.topic": "chat"}}}
    (config / "subscriptionGroup.json").write_text(json.dumps({"subscriptionGroupTable": table}))
    options = {"enableLmq": "true", "enableMultiDispatch": "true"}
    with RocketMQ(folder, {}, proxy=False, heap="1g", **options) as peer:
        peer.start_cluster_proxy(peer.name_server)  # one in local mode has no lite subscriptions
        yield peer.address


@contextlib.contextmanager
def ours(folder: Path) -> Iterator[str]:
    with Gateway(folder) as gateway:
        with grpc.insecure_channel(gateway.address) as channel:
            topic = admin_pb2.Topic(name="chat", queues=4, accept_message_types=["LITE"])
            text = json.dumps({"attributes": {"+lite.bind.topic": "chat"}})
            group = admin_pb2.Group(name=GROUP, configuration=text)
            for name, request in (
                ("PutTopic", admin_pb2.PutTopicRequest(topic=topic)),
                ("PutGroup", admin_pb2.PutGroupRequest(group=group)),
            ):
                channel.unary_unary(
                    f"/lakebroker.admin.v1.AdminService/{name}",
                    request_serializer=lambda each: each.SerializeToString(),
                )(request, timeout=10)
        yield gateway.address


class Consumer:
    """A lite push consumer."""

    def __init__(self, address: str) -> None:
        self._client = Client(address, "lite-1")
        self._client.metadata += (("x-mq-language", "JAVA"), ("x-mq-client-version", "5.2.0"))

    def send(self, name: str, body: str, kind: int = pb.LITE) -> int:
        sent = message("chat", body.encode(), message_type=kind, lite_topic=name)
        return int(self._client.call("SendMessage", send_request(sent)).status.code)

    def sync(self, action: int, *names: str, **more: Any) -> int:
        request = rpc.SyncLiteSubscriptionRequest(
            action=action,  # type: ignore[arg-type]
            topic=pb.Resource(name="chat"),
            group=pb.Resource(name=GROUP),
            lite_topic_set=names,
            **more,
        )
        return int(self._client.call("SyncLiteSubscription", request).status.code)

    def heartbeat(self) -> int:
        request = rpc.HeartbeatRequest(group=pb.Resource(name=GROUP))
        return int(self._client.call("Heartbeat", request).status.code)

    def receive(self, batch: int = 32) -> list[pb.Message]:
        request = receive_request("chat", GROUP, batch=batch, invisible_ms=10_000, wait_ms=5000)
        answers = self._client.call("ReceiveMessage", request, 15.0)
        return [each.message for each in answers if each.HasField("message")]

    def until(self, count: int) -> list[pb.Message]:
        """So many messages, of as many receives as it takes."""
        found: list[pb.Message] = []
        deadline = time.monotonic() + 60
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} messages came"
            found += self.receive()
        return found

    def ack(self, *messages: pb.Message) -> set[int]:
        entries = [
            rpc.AckMessageEntry(
                message_id=each.system_properties.message_id,
                receipt_handle=each.system_properties.receipt_handle,
                lite_topic=each.system_properties.lite_topic,
            )
            for each in messages
        ]
        request = rpc.AckMessageRequest(
            group=pb.Resource(name=GROUP), topic=pb.Resource(name="chat"), entries=entries
        )
        return {entry.status.code for entry in self._client.call("AckMessage", request).entries}


def texts(messages: list[pb.Message]) -> list[tuple[str, str]]:
    return [(each.system_properties.lite_topic, each.body.decode()) for each in messages]


@pytest.mark.parametrize("broker", [real, ours], ids=["rocketmq", "lakebroker"])
def test_the_same_comes_of_the_same_calls(tmp_path: Path, broker: Any) -> None:
    with broker(tmp_path / "broker") as address:
        settings = consumer_settings(GROUP, "chat", pb.LITE_PUSH_CONSUMER)
        with TelemetryClient(address, "lite-1", settings):
            consumer = Consumer(address)
            assert consumer.heartbeat() == pb.OK
            assert consumer.sync(pb.PARTIAL_ADD, "a") == pb.OK
            for name, body in (("a", "1"), ("b", "2"), ("a", "3")):
                assert consumer.send(name, body) == pb.OK
            first = consumer.until(2)
            assert texts(first) == [("a", "1"), ("a", "3")]
            assert {each.system_properties.message_type for each in first} == {pb.LITE}
            assert {each.topic.name for each in first} == {"chat"}
            assert consumer.ack(*first) == {pb.OK}
            assert consumer.receive() == []

            assert consumer.sync(pb.COMPLETE_ADD, "a", "b", version=1) == pb.OK
            second = consumer.until(1)
            assert texts(second) == [("b", "2")]
            assert consumer.ack(*second) == {pb.OK}

            assert consumer.sync(pb.PARTIAL_REMOVE, "a") == pb.OK
            assert consumer.send("a", "4") == pb.OK
            assert consumer.receive() == []
            option = pb.OffsetOption(policy=pb.OffsetOption.MIN)
            assert consumer.sync(pb.PARTIAL_ADD, "a", offset_option=option) == pb.OK
            third = consumer.until(3)
            assert texts(third) == [("a", "1"), ("a", "3"), ("a", "4")]
            assert consumer.ack(*third) == {pb.OK}

            assert consumer.send("a.b", "x") == pb.ILLEGAL_LITE_TOPIC
            assert consumer.send("x" * 65, "x") == pb.ILLEGAL_LITE_TOPIC
            assert consumer.sync(pb.PARTIAL_ADD, "a.b") == pb.ILLEGAL_LITE_TOPIC


def test_a_real_brokers_lite_topics_are_found_in_its_log(tmp_path: Path) -> None:
    folder = tmp_path / "broker"
    with real(folder) as address:
        consumer = Consumer(address)
        for name, body in (("a", "1"), ("b", "2"), ("a", "3")):
            assert consumer.send(name, body) == pb.OK
    host = Host("127.0.0.1", 10911)
    store = MessageStore.open(
        folder / "store", StoreOptions(broker="broker-a", cluster="DefaultCluster", store_host=host)
    )
    try:
        found = {}
        for name in "ab":
            queue = f"%LMQ%$chat${name}"
            physical, sizes, _ = store.index.entries(queue, 0, 0, 10)
            records = [store.record(*each) for each in zip(physical.tolist(), sizes.tolist(), strict=True)]
            found[name] = [bytes(each.body).decode() for each in records]
        assert found == {"a": ["1", "3"], "b": ["2"]}
    finally:
        store.close()
