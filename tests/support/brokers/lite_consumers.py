"""A broker in this process with a parent of lite topics, `chat`, a group that reads it, and consumers of that group."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from broker_gateway.transport.context import CallContext
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_pb.lakebroker.admin.v1 import admin_pb2
from lakebroker_testing.broker import Call, InProcessBroker
from lakebroker_testing.messages import message, receive_request, send_request
from tests.support.waiting import LIMIT_S


async def _event() -> asyncio.Event:
    return asyncio.Event()


class LiteConsumer:
    """A connected client of group `agents` and topic `chat`."""

    def __init__(
        self,
        broker: InProcessBroker,
        client_id: str = "lite",
        kind: pb.ClientType = pb.LITE_PUSH_CONSUMER,
        group: str = "agents",
    ) -> None:
        self.broker, self.client_id, self.group, self._kind = broker, client_id, group, kind
        self.calls = broker.client(client_id)
        self.connect()

    def connect(self) -> None:
        self._ended = self.broker.run(_event())
        context = CallContext(
            {"x-mq-client-id": self.client_id}, "127.0.0.1:50000", None, ("127.0.0.1", 8081)
        )
        self._stream = self.broker.telemetry(self._commands(), context)
        self.settings = self.told()

    async def _commands(self) -> AsyncIterator[rpc.TelemetryCommand]:
        subscription = pb.Subscription(
            group=pb.Resource(name=self.group),
            subscriptions=[pb.SubscriptionEntry(topic=pb.Resource(name="chat"))],
        )
        yield rpc.TelemetryCommand(settings=pb.Settings(client_type=self._kind, subscription=subscription))
        await self._ended.wait()

    def told(self) -> rpc.TelemetryCommand:
        """The next command of the broker."""

        async def next_one() -> rpc.TelemetryCommand:
            return await asyncio.wait_for(anext(self._stream), LIMIT_S)

        return self.broker.run(next_one())

    def sync(self, action: pb.LiteSubscriptionAction, *names: str, **more: Any) -> int:
        request = rpc.SyncLiteSubscriptionRequest(
            action=action,
            topic=pb.Resource(name="chat"),
            group=pb.Resource(name=self.group),
            lite_topic_set=names,
            **more,
        )
        return int(self.calls.call("SyncLiteSubscription", request).status.code)

    def add(self, *names: str, **more: Any) -> None:
        assert self.sync(pb.PARTIAL_ADD, *names, **more) == pb.OK

    def receive(self, batch: int = 32, **asked: Any) -> list[pb.Message]:
        return self.calls.receive("chat", self.group, batch=batch, **asked)[1]

    def waits(self, **asked: Any) -> Call:
        return self.calls.begin(
            "ReceiveMessage", receive_request("chat", self.group, wait_ms=60_000, **asked)
        )

    def ack(self, *messages: pb.Message, named: bool = True) -> list[int]:
        request = rpc.AckMessageRequest(
            group=pb.Resource(name=self.group),
            topic=pb.Resource(name="chat"),
            entries=[
                rpc.AckMessageEntry(
                    message_id=each.system_properties.message_id,
                    receipt_handle=each.system_properties.receipt_handle,
                    lite_topic=each.system_properties.lite_topic if named else None,
                )
                for each in messages
            ],
        )
        reply = self.calls.call("AckMessage", request)
        return [entry.status.code for entry in reply.entries]

    def change(self, found: pb.Message, invisible_ms: int) -> Any:
        request = rpc.ChangeInvisibleDurationRequest(
            group=pb.Resource(name=self.group),
            topic=pb.Resource(name="chat"),
            receipt_handle=found.system_properties.receipt_handle,
            message_id=found.system_properties.message_id,
            lite_topic=found.system_properties.lite_topic,
        )
        request.invisible_duration.FromMilliseconds(invisible_ms)
        return self.calls.call("ChangeInvisibleDuration", request)

    def heartbeat(self) -> int:
        request = rpc.HeartbeatRequest(group=pb.Resource(name=self.group))
        return int(self.calls.call("Heartbeat", request).status.code)


def put_group(
    broker: InProcessBroker, name: str = "agents", retry_max_times: int = 16, **attributes: str
) -> None:
    changes = {f"+{key.replace('_', '.')}": value for key, value in attributes.items()}
    text = json.dumps({"attributes": {"+lite.bind.topic": "chat", **changes}})
    group = admin_pb2.Group(name=name, retry_max_times=retry_max_times, configuration=text)
    broker.call("PutGroup", admin_pb2.PutGroupRequest(group=group))


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        topic = admin_pb2.Topic(name="chat", queues=4, accept_message_types=["LITE"])
        broker.call("PutTopic", admin_pb2.PutTopicRequest(topic=topic))
        put_group(broker)
        yield broker


def send(broker: InProcessBroker, *texts: str) -> None:
    """`a1` is of the lite topic `a`."""
    for each in texts:
        name = each.rstrip("0123456789")
        sent = message("chat", each.encode(), message_type=pb.LITE, lite_topic=name)
        assert broker.call("SendMessage", send_request(sent)).status.code == pb.OK


def with_time_to_live(broker: InProcessBroker, minutes: int) -> None:
    from dataclasses import replace

    topic = broker.broker.catalog.topic("chat")
    assert topic is not None
    others = json.dumps({"attributes": {"lite.topic.expiration": str(minutes)}})
    broker.do(lambda: broker.broker.catalog.put_topic(replace(topic, others=others)))
