"""Wildcard groups of lite consumers (`lite.sub.wildcard`): their clients receive from every lite topic of their topic."""

from __future__ import annotations

import json

import pytest

from broker_gateway.messaging import searched_queues
from lakebroker_pb.apache.rocketmq.v2 import admin_pb2 as public
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_pb.lakebroker.admin.v1 import admin_pb2
from lakebroker_testing.broker import InProcessBroker
from lakebroker_testing.messages import texts
from tests.support.brokers.lite_consumers import LiteConsumer, broker, put_group, send

__all__ = ["broker"]


def joined(broker: InProcessBroker, client_id: str = "w") -> LiteConsumer:
    put_group(broker, "all", lite_sub_wildcard="true")
    consumer = LiteConsumer(broker, client_id, group="all")
    assert consumer.settings.status.code == pb.OK
    assert consumer.sync(pb.COMPLETE_ADD) == pb.OK
    return consumer


def test_a_client_gets_what_every_lite_topic_has_and_gets(broker: InProcessBroker) -> None:
    send(broker, "a1", "b1", "a2")
    consumer = joined(broker)
    found = consumer.receive()
    assert sorted(texts(found)) == ["a1", "a2", "b1"]
    assert sorted(each.system_properties.lite_topic for each in found) == ["a", "a", "b"]
    assert consumer.ack(*found) == [pb.OK] * 3
    send(broker, "c1", "b2")
    assert sorted(texts(consumer.receive())) == ["b2", "c1"]


def test_administrators_see_the_clients_on_every_lite_topic(broker: InProcessBroker) -> None:
    put_group(broker, "all", lite_sub_wildcard="true")
    request = public.ListConsumerConnectionRequest(group=pb.Resource(name="all"), liteTopic="a")
    LiteConsumer(broker, "silent", group="all")
    assert not broker.call("ListConsumerConnection", request).client_info
    joined(broker, "one")
    joined(broker, "other")
    found = broker.call("ListConsumerConnection", request).client_info
    assert [each.client_id for each in found] == ["one", "other"]


def test_a_lite_topic_that_is_deleted_takes_no_offset_of_a_group(broker: InProcessBroker) -> None:
    """Else it would be known for ever."""
    send(broker, "a1", "b1")
    consumer = joined(broker)
    broker.do(lambda: broker.broker.parts.lite_subscriptions.delete(["%LMQ%$chat$a"]))
    assert texts(consumer.receive()) == ["b1"]
    assert not broker.broker.deliveries.keys_of_topic("%LMQ%$chat$a")
    send(broker, "a2")
    assert texts(consumer.receive()) == ["a2"]


def test_a_client_gets_nothing_before_it_says_that_it_receives(broker: InProcessBroker) -> None:
    put_group(broker, "all", lite_sub_wildcard="false")  # any value counts, as there
    consumer = LiteConsumer(broker, "w", group="all")
    send(broker, "a1")
    assert consumer.receive() == []
    waiting = consumer.waits()
    assert not waiting.done
    assert consumer.sync(pb.PARTIAL_ADD, "a") == pb.INTERNAL_SERVER_ERROR
    assert consumer.receive() == []
    assert consumer.sync(pb.COMPLETE_ADD, "x") == pb.OK
    assert waiting.done, "it asks again, and gets it"
    assert waiting.messages == []
    assert texts(consumer.receive()) == ["a1"]


def test_each_message_goes_to_one_client_and_each_lite_topic_in_its_order(broker: InProcessBroker) -> None:
    one, other = joined(broker, "one"), joined(broker, "other")
    send(broker, "a1", "a2", "b1")
    (first,) = one.receive(1)
    found = other.receive()
    held = first.system_properties.lite_topic
    assert held not in {each.system_properties.lite_topic for each in found}
    one.ack(first)
    other.ack(*found)
    rest = one.receive() + other.receive()
    assert sorted(texts([first, *found, *rest])) == ["a1", "a2", "b1"]


def test_a_message_wakes_one_receive_of_the_group(broker: InProcessBroker) -> None:
    one, other = joined(broker, "one"), joined(broker, "other")
    calls = one.waits(), other.waits()
    send(broker, "a1")
    assert sorted(call.done for call in calls) == [False, True]
    send(broker, "b1")
    assert sorted(texts(call.messages) for call in calls) == [["a1"], ["b1"]]


def test_a_wildcard_group_and_others_each_get_a_message(broker: InProcessBroker) -> None:
    everything, named = joined(broker), LiteConsumer(broker, "named")
    named.add("a")
    send(broker, "a1")
    assert texts(everything.receive()) == ["a1"]
    assert texts(named.receive()) == ["a1"]


def test_what_is_not_acknowledged_goes_to_another_client(broker: InProcessBroker) -> None:
    one, other = joined(broker, "one"), joined(broker, "other")
    send(broker, "a1")
    assert texts(one.receive()) == ["a1"]
    assert other.receive() == []
    broker.advance(11)
    assert texts(other.receive()) == ["a1"]


def test_after_a_restart_it_goes_on_where_the_group_was(broker: InProcessBroker) -> None:
    consumer = joined(broker)
    send(broker, "a1", "b1", "a2")
    consumer.ack(*consumer.receive(1))
    broker.restart()
    send(broker, "c1")
    consumer = joined(broker)
    assert len(consumer.receive()) == 3


def test_a_client_that_leaves_gets_nothing_more(broker: InProcessBroker) -> None:
    consumer, other = joined(broker), joined(broker, "other")
    arrivals = broker.broker.deliveries.arrivals.lite
    assert arrivals is not None
    assert arrivals.subscriptions == 2
    waiting = consumer.waits()
    assert consumer.sync(pb.COMPLETE_REMOVE) == pb.OK
    assert waiting.done
    send(broker, "a1")
    assert consumer.receive() == []
    assert texts(other.receive()) == ["a1"]
    request = rpc.NotifyClientTerminationRequest(group=pb.Resource(name="all"))
    assert broker.client("other").call("NotifyClientTermination", request).status.code == pb.OK
    assert (arrivals.subscriptions, arrivals.wildcard_groups("chat")) == (0, [])


def test_a_client_that_says_nothing_for_long_receives_no_more(broker: InProcessBroker) -> None:
    consumer = joined(broker)
    broker.advance(190)
    broker.do(broker.broker.parts.lite_subscriptions.look)
    send(broker, "a1")
    assert consumer.receive() == []
    assert consumer.sync(pb.COMPLETE_ADD) == pb.OK
    assert texts(consumer.receive()) == ["a1"]


def test_a_group_that_becomes_a_wildcard_group_and_back(broker: InProcessBroker) -> None:
    consumer = LiteConsumer(broker)
    consumer.add("a")
    put_group(broker, lite_sub_wildcard="true")
    assert consumer.sync(pb.COMPLETE_ADD, "a") == pb.OK
    send(broker, "a1", "b1")
    assert sorted(texts(consumer.receive())) == ["a1", "b1"]
    drop_wildcard(broker)
    assert consumer.sync(pb.COMPLETE_ADD, "a") == pb.OK
    send(broker, "c1")
    assert consumer.receive() == []


def drop_wildcard(broker: InProcessBroker) -> None:
    text = json.dumps({"attributes": {"-lite.sub.wildcard": ""}})
    broker.call(
        "PutGroup", admin_pb2.PutGroupRequest(group=admin_pb2.Group(name="agents", configuration=text))
    )


def test_all_clients_together_have_a_quota(broker: InProcessBroker) -> None:
    broker.restart(maxLiteSubscriptionCount="1")
    joined(broker, "one")
    other = LiteConsumer(broker, "other", group="all")
    assert other.sync(pb.COMPLETE_ADD) == pb.LITE_SUBSCRIPTION_QUOTA_EXCEEDED


def test_a_search_has_some_of_the_lite_topics_in_memory(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searched_queues, "_LITE_TOPICS_AT_ONCE", 3)
    names = [chr(ord("a") + number) for number in range(20)]
    send(broker, *(f"{name}1" for name in names))
    consumer = joined(broker)
    (first,) = consumer.receive(1)
    assert consumer.ack(first) == [pb.OK]
    found = [each for _ in range(10) for each in consumer.receive(4)]
    assert sorted([*texts([first]), *texts(found)]) == [f"{name}1" for name in names]
    consumer.ack(*found)
    broker.restart()
    consumer = joined(broker)
    assert consumer.receive() == [], "every lite topic is searched, three at a time"
    send(broker, "t2")
    assert texts(consumer.receive()) == ["t2"]


def test_a_deleted_topic_ends_the_subscription(broker: InProcessBroker) -> None:
    consumer = joined(broker)
    send(broker, "a1")
    broker.do(lambda: broker.broker.administration.topics.delete("chat"))
    arrivals = broker.broker.deliveries.arrivals.lite
    assert arrivals is not None
    assert arrivals.subscriptions == 0
    assert consumer.sync(pb.COMPLETE_ADD) == pb.TOPIC_NOT_FOUND
