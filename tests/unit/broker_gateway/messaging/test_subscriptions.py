"""Subscriptions of connected consumers, and what groups that are not connected left."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker_gateway.messaging import subscriptions as subscriptions_module
from broker_gateway.messaging.clients import Subscription
from broker_gateway.messaging.connections import Client, Consumer, Heartbeat
from broker_gateway.messaging.outcome import Reason, ServiceError
from broker_gateway.messaging.subscriptions import Subscribed, Subscriptions
from lakebroker_testing.broker import InProcessBroker
from store.errors import StoreError


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        for name in ("orders", "bills"):
            broker.create_topic(name)
        broker.create_group("audit")
        yield broker


def subscriptions(broker: InProcessBroker) -> Subscriptions:
    return broker.broker.parts.subscriptions


def connect(broker: InProcessBroker, group: str, client_id: str, **subscribed: str) -> None:
    how = Consumer(
        message_model="BROADCASTING",
        subscriptions=tuple(Subscription(topic, each, "TAG", 7) for topic, each in subscribed.items()),
    )
    client = Client(client_id, "10.0.0.1:5", "JAVA", 481)
    connections = broker.broker.parts.connections
    connections.heartbeat(client_id, Heartbeat(client_id, (), {group: how}), client)


def listed(broker: InProcessBroker, topic: str | None = None, group: str | None = None) -> list[Subscribed]:
    return broker.run(subscriptions(broker).all(topic, group))


def test_what_is_listed(broker: InProcessBroker) -> None:
    assert listed(broker) == []
    broker.send("orders", b"x")
    broker.receive("orders", "audit")
    left = Subscribed("audit", "orders")
    assert listed(broker) == listed(broker, "orders") == listed(broker, group="audit") == [left]
    assert listed(broker, "bills") == listed(broker, group="nobody") == []
    connect(broker, "billing", "c1", orders="a", bills="*")
    connect(broker, "billing", "c2", orders="a")
    of_orders = Subscribed("billing", "orders", "a", "TAG", True, 7, "BROADCASTING", True)
    of_bills = Subscribed("billing", "bills", "*", "TAG", True, 7, "BROADCASTING", False)
    assert listed(broker) == [left, of_bills, of_orders]
    assert listed(broker, "orders") == [left, of_orders]
    assert listed(broker, "orders", "billing") == [of_orders]
    found = broker.run(subscriptions(broker).of_clients("orders", None))
    assert [(member.client.client_id, each.expression, same) for member, each, same in found] == [
        ("c1", "a", True),
        ("c2", "a", True),
    ]
    assert len(broker.run(subscriptions(broker).of_clients(None, "billing"))) == 3
    assert broker.run(subscriptions(broker).of_clients(None, "audit")) == []


def test_more_than_an_answer_holds_is_refused(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions_module, "MAX_LISTED", 1)
    connect(broker, "billing", "c1", orders="a", bills="*")
    with pytest.raises(ServiceError, match="more than 1 subscriptions; name a topic or a group") as refused:
        listed(broker)
    assert refused.value.reason is Reason.PAYLOAD_TOO_LARGE
    with pytest.raises(ServiceError, match="more than 1 subscriptions"):
        broker.run(subscriptions(broker).of_clients(None, None))
    assert len(listed(broker, "bills")) == 1


def delete(broker: InProcessBroker, group: str, topic: str) -> None:
    broker.do(lambda: subscriptions(broker).delete(group, topic))


def test_a_deletion_outlives_a_crash_and_leaves_other_topics(broker: InProcessBroker) -> None:
    for topic in ("orders", "bills"):
        broker.send(topic, b"one", b"two")
        broker.ack(topic, "audit", *broker.receive(topic, "audit", batch=1)[1])
    delete(broker, "audit", "orders")
    broker.crash()
    assert broker.committed("orders", "audit") is None
    assert broker.committed("bills", "audit") == 1
    assert [each.body for each in broker.receive("orders", "audit")[1]] == [b"one", b"two"]
    delete(broker, "nobody", "orders")


def test_a_deletion_is_refused_while_a_consumer_subscribes(broker: InProcessBroker) -> None:
    broker.send("orders", b"x")
    broker.ack("orders", "audit", *broker.receive("orders", "audit")[1])
    connect(broker, "audit", "c1", orders="a")
    with pytest.raises(
        ServiceError, match="connected consumers of topic 'orders': 1, such as 'c1'"
    ) as refused:
        delete(broker, "audit", "orders")
    assert refused.value.reason is Reason.FORBIDDEN
    assert broker.committed("orders", "audit") == 1
    broker.broker.parts.connections.closed("c1")
    delete(broker, "audit", "orders")
    assert broker.committed("orders", "audit") is None


def test_a_deletion_that_the_log_does_not_take_is_not_done(broker: InProcessBroker) -> None:
    broker.send("orders", b"x")
    broker.ack("orders", "audit", *broker.receive("orders", "audit")[1])
    broker.store.inject("append", StoreError("no room"))
    with pytest.raises(ServiceError, match="is not done: no room") as refused:
        delete(broker, "audit", "orders")
    broker.store.heal()
    assert refused.value.reason is Reason.INTERNAL_SERVER_ERROR
    assert broker.committed("orders", "audit") == 1
