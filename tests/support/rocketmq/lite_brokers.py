"""A real RocketMQ and a gateway with the same lite topics, each behind a name server, and a lite consumer of plain gRPC."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_pb.lakebroker.admin.v1 import admin_pb2
from lakebroker_testing.client import LEASE_MS, Client
from lakebroker_testing.gateway import Gateway, NameServer
from lakebroker_testing.messages import message, receive_request, send_request
from lakebroker_testing.real_rocketmq import RocketMQ
from store.log.record import Host
from store.message_store import MessageStore
from store.opening import StoreOptions
from tests.support.waiting import LIMIT_S, wait_until

TOPIC = "chat"
GROUP = "agents"
WILDCARD = "all"
FEW = "few"
SEGMENT = 1 << 24
GROUPS: Mapping[str, Mapping[str, str]] = {
    GROUP: {},
    WILDCARD: {"lite.sub.wildcard": "true"},
    FEW: {"lite.sub.client.quota": "3"},
}
"""Consumer groups of the topic, and their attributes beside `lite.bind.topic`."""


class Side(NamedTuple):
    """Where clients of one of the two connect, its name server, and its broker's remoting address."""

    address: str
    name_server: str
    broker: str


Made = Callable[[Path], contextlib.AbstractContextManager[Side]]


def peer(folder: Path, heap: str = "1g", other_name_servers: Sequence[str] = (), **options: str) -> RocketMQ:
    """A real broker with the topic and the groups, which is not started yet."""
    config = folder / "store" / "config"
    config.mkdir(parents=True)
    topic = {"topicName": TOPIC, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
    table: dict[str, Any] = {TOPIC: {**topic, "attributes": {"message.type": "LITE"}}}
    (config / "topics.json").write_text(json.dumps({"topicConfigTable": table}))
    table = {}
    for name, attributes in GROUPS.items():
        group = {"groupName": name, "consumeEnable": True, "retryMaxTimes": 16, "retryQueueNums": 1}
        table[name] = {**group, "attributes": {"lite.bind.topic": TOPIC, **attributes}}
    (config / "subscriptionGroup.json").write_text(json.dumps({"subscriptionGroupTable": table}))
    own = {"enableLmq": "true", "enableMultiDispatch": "true", "mappedFileSizeCommitLog": str(SEGMENT)}
    options = {**own, **options}
    return RocketMQ(folder, {}, proxy=False, heap=heap, other_name_servers=other_name_servers, **options)


@contextlib.contextmanager
def real(folder: Path) -> Iterator[Side]:
    with peer(folder) as running:
        running.start_cluster_proxy(running.name_server)  # one in local mode has no lite subscriptions
        yield Side(running.address, running.name_server, f"127.0.0.1:{running.broker_port}")


def create(address: str) -> None:
    """Makes the topic and the groups at a gateway."""
    topic = admin_pb2.Topic(name=TOPIC, queues=4, accept_message_types=["LITE"])
    requests: list[tuple[str, Any]] = [("PutTopic", admin_pb2.PutTopicRequest(topic=topic))]
    for name, attributes in GROUPS.items():
        changes = {f"+{key}": value for key, value in {"lite.bind.topic": TOPIC, **attributes}.items()}
        group = admin_pb2.Group(name=name, configuration=json.dumps({"attributes": changes}))
        requests.append(("PutGroup", admin_pb2.PutGroupRequest(group=group)))
    with grpc.insecure_channel(address) as channel:
        for name, request in requests:
            channel.unary_unary(
                f"/lakebroker.admin.v1.AdminService/{name}",
                request_serializer=lambda each: each.SerializeToString(),
            )(request, timeout=LIMIT_S)


@contextlib.contextmanager
def real_pair(folder: Path) -> Iterator[Side]:
    """Two brokers, `broker-a` and `broker-b`, behind one proxy."""
    heap = "640m"
    with peer(folder / "a", heap) as first:
        name_server = first.name_server
        with peer(folder / "b", heap, (name_server,), brokerName="broker-b") as second:
            first.start_cluster_proxy(name_server)
            yield Side(first.address, name_server, f"127.0.0.1:{second.broker_port}")


@contextlib.contextmanager
def our_pair(folder: Path) -> Iterator[Side]:
    """Two brokers, `broker-a` and `broker-b`; clients connect to the first."""
    with contextlib.ExitStack() as stack:
        name_server = stack.enter_context(NameServer(folder / "namesrv"))
        gateways = []
        for name in ("broker-a", "broker-b"):
            known = {"namesrvAddr": name_server.address, "brokerName": name}
            gateways.append(stack.enter_context(Gateway(folder / name, **known)))
            create(gateways[-1].address)
        yield Side(gateways[0].address, name_server.address, f"127.0.0.1:{gateways[1].remoting_port}")


@contextlib.contextmanager
def ours(folder: Path) -> Iterator[Side]:
    with (
        NameServer(folder / "namesrv") as name_server,
        Gateway(folder / "broker", namesrvAddr=name_server.address) as gateway,
    ):
        create(gateway.address)
        yield Side(gateway.address, name_server.address, f"127.0.0.1:{gateway.remoting_port}")


class Consumer:
    """A lite push consumer, whose telemetry stream is another's."""

    def __init__(self, address: str, client_id: str = "lite-1", group: str = GROUP) -> None:
        self._address = address
        self._client = Client(address, client_id)
        self._client.metadata += (("x-mq-language", "JAVA"), ("x-mq-client-version", "5.2.0"))
        self._group = pb.Resource(name=group)

    def send(self, name: str, body: str, kind: int = pb.LITE) -> int:
        sent = message(TOPIC, body.encode(), message_type=kind, lite_topic=name)
        return int(self._client.call("SendMessage", send_request(sent)).status.code)

    def sync(self, action: int, *names: str, **more: Any) -> int:
        return int(self.synced(action, *names, **more).code)

    def synced(self, action: int, *names: str, **more: Any) -> pb.Status:
        request = rpc.SyncLiteSubscriptionRequest(
            action=action,  # type: ignore[arg-type]
            topic=pb.Resource(name=TOPIC),
            group=self._group,
            lite_topic_set=names,
            **more,
        )
        status: pb.Status = self._client.call("SyncLiteSubscription", request).status
        return status

    def heartbeat(self) -> int:
        return int(self._client.call("Heartbeat", rpc.HeartbeatRequest(group=self._group)).status.code)

    def brokers(self) -> dict[str, str]:
        """Where clients reach each broker of the topic."""
        endpoints = pb.Endpoints(scheme=pb.IPv4)
        host, _, port = self._address.rpartition(":")
        endpoints.addresses.add(host=host, port=int(port))
        request = rpc.QueryRouteRequest(topic=pb.Resource(name=TOPIC), endpoints=endpoints)
        queues = self._client.call("QueryRoute", request).message_queues
        found = {each.broker.name: each.broker.endpoints.addresses[0] for each in queues}
        return {name: f"{each.host}:{each.port}" for name, each in found.items()}

    def receive(self, batch: int = 32, wait_ms: int = 5000, broker: str = "") -> list[pb.Message]:
        request = receive_request(
            TOPIC, self._group.name, batch=batch, invisible_ms=LEASE_MS, wait_ms=wait_ms
        )
        request.message_queue.broker.name = broker
        answers = self._client.call("ReceiveMessage", request, 60.0)
        return [each.message for each in answers if each.HasField("message")]

    def until(self, count: int, batch: int = 32) -> list[pb.Message]:
        """So many messages, of as many receives as it takes."""
        found: list[pb.Message] = []

        def all_there() -> bool:
            found.extend(self.receive(batch))
            return len(found) >= count

        wait_until(all_there, lambda: f"{count} messages; those that came: {texts(found)};")
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
        request = rpc.AckMessageRequest(group=self._group, topic=pb.Resource(name=TOPIC), entries=entries)
        return {entry.status.code for entry in self._client.call("AckMessage", request).entries}


def texts(messages: list[pb.Message]) -> list[tuple[str, str]]:
    """Lite topic and body of each."""
    return [(each.system_properties.lite_topic, each.body.decode()) for each in messages]


def lite_topics_in(folder: Path, *names: str) -> dict[str, list[str]]:
    """The bodies of each lite topic, found in the log of a real broker's store."""
    options = StoreOptions(
        broker="broker-a",
        cluster="DefaultCluster",
        store_host=Host("127.0.0.1", 10911),
        segment_size=SEGMENT,
    )
    store = MessageStore.open(folder, options)
    try:
        found = {}
        for name in names:
            queue = f"%LMQ%${TOPIC}${name}"
            physical, sizes, _ = store.index.entries(queue, 0, 0, 10)
            records = [store.record(*each) for each in zip(physical.tolist(), sizes.tolist(), strict=True)]
            found[name] = [bytes(each.body).decode() for each in records]
        return found
    finally:
        store.close()
