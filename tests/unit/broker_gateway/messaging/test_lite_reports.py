"""What administrators are told of lite topics."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest

from broker_gateway.delivery.queue_delivery import QueueKey
from broker_gateway.messaging.lite_reports import GroupOffset, LiteClient, LiteReports
from broker_gateway.messaging.outcome import Reason, ServiceError
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.broker import InProcessBroker
from lakebroker_testing.messages import texts
from tests.support.brokers.lite_consumers import LiteConsumer, broker, put_group, send

__all__ = ["broker"]


def reports(broker: InProcessBroker) -> LiteReports:
    return broker.broker.parts.lite_reports


def refusal(broker: InProcessBroker, asked: Coroutine[Any, Any, Any]) -> Reason:
    with pytest.raises(ServiceError) as refused:
        broker.run(asked)
    return refused.value.reason


def test_counts(broker: InProcessBroker) -> None:
    put_group(broker, "all", lite_sub_wildcard="true")
    consumer, everything = LiteConsumer(broker), LiteConsumer(broker, "w", group="all")
    consumer.add("a", "b")
    assert everything.sync(pb.COMPLETE_ADD) == pb.OK
    send(broker, "a1", "b1", "c1")
    assert broker.run(reports(broker).broker()).active_clients == 0
    consumer.ack(consumer.receive()[0])
    found = broker.run(reports(broker).broker())
    assert (found.lite_topics, found.subscriptions, found.with_clients, found.active_clients) == (3, 3, 1, 1)
    assert found.topics >= 4
    assert found.minutes == {"chat": -1}
    assert {name: sorted(groups) for name, groups in found.groups.items()} == {"chat": ["agents", "all"]}
    parent = reports(broker).parent("chat")
    assert (parent.minutes, sorted(parent.groups), parent.all_lite_topics, parent.lite_topics) == (
        -1,
        ["agents", "all"],
        3,
        3,
    )
    broker.advance(40)
    assert broker.run(reports(broker).broker()).active_clients == 0


def test_a_lite_topic(broker: InProcessBroker) -> None:
    consumer, other = LiteConsumer(broker), LiteConsumer(broker, "other")
    consumer.add("a")
    other.add("a")
    send(broker, "a1", "a2")
    found = broker.run(reports(broker).lite_topic("chat", "a"))
    assert (found.min_offset, found.max_offset, found.here) == (0, 2, True)
    assert sorted(found.clients) == [("lite", "agents"), ("other", "agents")]
    assert found.stored_ms > 0
    nothing = broker.run(reports(broker).lite_topic("chat", "nosuch"))
    assert nothing == (0, 0, 0, [], True)
    assert refusal(broker, reports(broker).lite_topic("nosuch", "a")) is Reason.TOPIC_NOT_FOUND
    broker.create_topic("plain")
    assert refusal(broker, reports(broker).lite_topic("plain", "a")) is Reason.BAD_REQUEST


def test_a_client(broker: InProcessBroker) -> None:
    asked = reports(broker)
    consumer = LiteConsumer(broker)
    assert broker.run(asked.client("chat", "agents", "lite", 10)) == LiteClient(-1, (), -1)
    consumer.add("a", "b")
    assert broker.run(asked.client("chat", "agents", "lite", 1)) == LiteClient(2, ["%LMQ%$chat$a"], -1)
    send(broker, "a1")
    consumer.receive()
    assert broker.run(asked.client("chat", "agents", "lite", 10)).searched_ms > 0
    for topic, group, most, reason in (
        ("nosuch", "agents", 1, Reason.TOPIC_NOT_FOUND),
        ("chat", "nosuch", 1, Reason.CONSUMER_GROUP_NOT_FOUND),
        ("chat", "agents", -1, Reason.BAD_REQUEST),
    ):
        assert refusal(broker, asked.client(topic, group, "lite", most)) is reason


def test_how_far_a_group_is(broker: InProcessBroker) -> None:
    consumer = LiteConsumer(broker)
    consumer.add("a", "b", "c")
    send(broker, "a1", "a2", "a3", "b1", "c1", "c2")
    found = {each.body.decode(): each for each in consumer.receive()}
    consumer.ack(found["a1"], found["b1"])
    parent, lag = broker.run(reports(broker).group("agents", 10))
    assert (parent, lag.messages) == ("chat", 4)
    assert {(each.lite_topic, each.messages) for each in lag.most} == {("a", 2), ("c", 2)}
    assert all(each.since_ms > 0 for each in lag.most)
    send(broker, "c3")
    _, lag = broker.run(reports(broker).group("agents", 1))
    assert [(each.lite_topic, each.messages) for each in lag.most] == [("c", 3)]
    assert lag.messages == 5
    parent, offset, there = reports(broker).group_on("agents", "a")
    assert offset is not None
    assert (parent, there) == ("chat", True)
    assert offset._replace(since_ms=1, settled_ms=1) == GroupOffset(3, 1, 1, 1)
    assert offset.settled_ms > 0
    assert reports(broker).group_on("agents", "nosuch") == ("chat", None, False)
    send(broker, "d1")
    assert reports(broker).group_on("agents", "d") == ("chat", None, True)
    for group, most, reason in (
        ("nosuch", 1, Reason.CONSUMER_GROUP_NOT_FOUND),
        ("agents", 0, Reason.BAD_REQUEST),
        ("agents", 10_001, Reason.BAD_REQUEST),
    ):
        assert refusal(broker, reports(broker).group(group, most)) is reason
    broker.create_group("plain")
    assert refusal(broker, reports(broker).group("plain", 1)) is Reason.BAD_REQUEST


@pytest.mark.parametrize("wildcard", [False, True])
@pytest.mark.parametrize("client_id", ["", "lite"])
def test_a_dispatch_has_clients_search_again(broker: InProcessBroker, client_id: str, wildcard: bool) -> None:
    if wildcard:
        put_group(broker, lite_sub_wildcard="true")
    consumer = LiteConsumer(broker)
    assert consumer.sync(pb.COMPLETE_ADD, "a") == pb.OK
    waiting = consumer.waits()
    arrivals = broker.broker.deliveries.arrivals.lite
    assert arrivals is not None
    send(broker, "a1", "a2")
    assert texts(waiting.messages) == ["a1"]
    arrivals.nothing_left(QueueKey("agents", "%LMQ%$chat$a", 0))
    consumer.ack(*waiting.messages)
    arrivals.nothing_left(QueueKey("agents", "%LMQ%$chat$a", 0))
    assert consumer.receive() == [], "nobody says that there is something"
    broker.run(reports(broker).dispatch("agents", client_id))
    assert texts(consumer.receive()) == ["a2"]
    assert refusal(broker, reports(broker).dispatch("nosuch", "")) is Reason.CONSUMER_GROUP_NOT_FOUND
