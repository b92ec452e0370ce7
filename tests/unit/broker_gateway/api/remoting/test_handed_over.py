"""What lite consumers subscribe to, as other brokers pass it on: only of the group that they were checked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest
from structlog.testing import capture_logs

from broker_gateway.api.remoting.handed_over import HandedOverRequests
from broker_gateway.protocol.codes import RequestCode
from broker_gateway.protocol.command import Command
from broker_gateway.transport.remoting.connection import Connection
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_pb.lakebroker.admin.v1 import admin_pb2
from lakebroker_testing.broker import InProcessBroker
from tests.support.brokers.lite_consumers import put_group

NOWHERE = cast(Connection, None)


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        topic = admin_pb2.Topic(name="chat", queues=1, accept_message_types=["LITE"])
        broker.call("PutTopic", admin_pb2.PutTopicRequest(topic=topic))
        for group in ("agents", "others"):
            put_group(broker, group)
        yield broker


def subscribe(broker: InProcessBroker, group: str, request: bytes) -> pb.Status:
    messaging = broker.broker.messaging
    requests = HandedOverRequests(messaging.send_ordered, messaging.lite_subscription_told)
    fields = {"group": group, "clientId": "lite", "bornHost": "10.0.0.1:1"}
    asked = Command(RequestCode.LAKE_LITE_SUBSCRIPTION, fields, request)
    answer = broker.run(requests.subscribe(NOWHERE, asked))
    return rpc.SyncLiteSubscriptionResponse.FromString(answer.body).status


def test_a_subscription_is_of_the_group_that_its_sender_may_use(broker: InProcessBroker) -> None:
    request = rpc.SyncLiteSubscriptionRequest(
        action=pb.COMPLETE_ADD,
        topic=pb.Resource(name="chat"),
        group=pb.Resource(name="others"),
        lite_topic_set=["a"],
    ).SerializeToString()
    subscriptions = broker.broker.parts.lite_subscriptions
    status = subscribe(broker, "agents", request)
    assert (status.code, status.message) == (
        pb.BAD_REQUEST,
        "what is handed over for consumer group 'agents' is of 'others'",
    )
    assert subscriptions.count == 0
    assert subscribe(broker, "others", request).code == pb.OK
    assert subscriptions.count == 1


@pytest.mark.parametrize("request_bytes", [b"\xff" * 100, b"\x0a\x05ab"])
def test_bytes_that_are_no_subscription_leave_no_trace_in_the_log(
    broker: InProcessBroker, request_bytes: bytes
) -> None:
    """Whoever reaches the remoting port can send them as often as he likes."""
    with capture_logs() as lines:
        status = subscribe(broker, "agents", request_bytes)
    assert status.code == pb.BAD_REQUEST
    assert "the request is no SyncLiteSubscriptionRequest" in status.message
    assert [line for line in lines if line["log_level"] == "error"] == []
