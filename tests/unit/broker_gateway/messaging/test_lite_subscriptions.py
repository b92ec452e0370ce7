"""Lite consumers: what they subscribe to, what they receive, and when it ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker_gateway.delivery import retry_topics, table
from broker_gateway.messaging import lite_subscriptions
from broker_gateway.messaging.lite_subscriptions import Action, Said
from broker_gateway.messaging.outcome import ServiceError
from lakebroker_pb.apache.rocketmq.v2 import admin_pb2 as public
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_pb.lakebroker.admin.v1 import admin_pb2
from lakebroker_testing.broker import InProcessBroker
from lakebroker_testing.messages import message, send_request, texts
from tests.support.brokers.lite_consumers import (
    LiteConsumer,
    broker,
    put_group,
    send,
    with_time_to_live,
)

__all__ = ["broker"]
MINUTE = 60


def test_settings_name_the_quotas(broker: InProcessBroker) -> None:
    consumer = LiteConsumer(broker)
    told = consumer.settings.settings.subscription
    assert (told.lite_subscription_quota, told.max_lite_topic_size) == (2000, 64)
    put_group(broker, "few", lite_sub_client_quota="2")
    told = LiteConsumer(broker, "other", group="few").settings.settings.subscription
    assert told.lite_subscription_quota == 2


@pytest.mark.parametrize("kind", [pb.LITE_PUSH_CONSUMER, pb.LITE_SIMPLE_CONSUMER])
def test_a_consumer_gets_the_lite_topics_that_it_subscribes_to(
    broker: InProcessBroker, kind: pb.ClientType
) -> None:
    consumer = LiteConsumer(broker, kind=kind)
    assert consumer.heartbeat() == pb.OK
    send(broker, "a1", "b1", "c1", "a2")
    assert consumer.receive() == []
    consumer.add("a", "c")
    found = consumer.receive()
    assert sorted(texts(found)) == ["a1", "a2", "c1"]
    assert {each.topic.name for each in found} == {"chat"}
    assert sorted(each.system_properties.lite_topic for each in found) == ["a", "a", "c"]
    assert consumer.ack(*found) == [pb.OK] * 3
    broker.advance(60)
    assert consumer.receive() == []
    send(broker, "c2", "b2")
    assert texts(consumer.receive()) == ["c2"]


def test_a_lite_topic_is_consumed_in_its_order(broker: InProcessBroker) -> None:
    consumer = LiteConsumer(broker)
    consumer.add("a", "b")
    send(broker, "a1", "a2", "b1")
    (first,) = consumer.receive(1)
    beside = consumer.receive()
    assert first.system_properties.lite_topic not in {each.system_properties.lite_topic for each in beside}
    consumer.ack(first, *beside)
    if texts([first]) == ["a1"]:
        assert texts(consumer.receive()) == ["a2"]


def test_a_message_that_is_not_acknowledged_comes_again_before_those_behind_it(
    broker: InProcessBroker,
) -> None:
    consumer = LiteConsumer(broker)
    consumer.add("a")
    send(broker, "a1", "a2")
    (first,) = consumer.receive(1)
    assert consumer.receive() == []
    broker.advance(11)
    found = consumer.receive()
    assert texts(found) == ["a1", "a2"]
    assert [each.system_properties.delivery_attempt for each in found] == [2, 1]
    assert consumer.ack(first) == [pb.INVALID_RECEIPT_HANDLE], "another delivery has it"


def test_handles_are_good_for_the_lite_topic_that_is_named(broker: InProcessBroker) -> None:
    consumer = LiteConsumer(broker)
    consumer.add("a")
    send(broker, "a1")
    (found,) = consumer.receive()
    wrong = pb.Message()
    wrong.CopyFrom(found)
    wrong.system_properties.lite_topic = "b"
    assert consumer.ack(wrong) == [pb.INVALID_RECEIPT_HANDLE]
    assert consumer.change(found, 5000).status.code == pb.OK
    broker.advance(6)
    assert texts(consumer.receive()) == ["a1"]


def test_a_handle_says_its_lite_topic_where_the_call_does_not(broker: InProcessBroker) -> None:
    """The Java client 5.2.0 names none when it changes an invisible duration."""
    consumer = LiteConsumer(broker)
    consumer.add("a", "b")
    send(broker, "a1", "b1", "b2")
    found = {each.body.decode(): each for each in consumer.receive()}
    for each in found.values():
        each.system_properties.lite_topic = ""
    assert consumer.ack(found["b1"], found["b2"]) == [pb.OK] * 2
    assert consumer.change(found["a1"], 1000).status.code == pb.OK
    broker.restart()
    consumer = LiteConsumer(broker)
    consumer.add("a", "b")
    broker.advance(2)
    (again,) = consumer.receive()
    assert again.body == b"a1"
    again.system_properties.lite_topic = ""
    assert consumer.ack(again, again) == [pb.OK, pb.INVALID_RECEIPT_HANDLE]
    assert consumer.ack(found["a1"]) == [pb.INVALID_RECEIPT_HANDLE]


def test_a_handle_without_its_lite_topic_counts_beside_others_that_do_not(broker: InProcessBroker) -> None:
    """A call that is repeated with one message more names what is settled by now."""
    consumer = LiteConsumer(broker)
    consumer.add("a")
    send(broker, "a1", "a2")
    one, two = consumer.receive()
    assert consumer.ack(one, named=False) == [pb.OK]
    assert consumer.ack(one, two, named=False) == [pb.INVALID_RECEIPT_HANDLE, pb.OK]
    broker.advance(40)
    assert consumer.receive() == []


def test_handles_of_lite_topics_with_one_number_are_told_apart(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (retry_topics, table):
        monkeypatch.setattr(module, "lite_number", lambda queue: 7)
    consumer = LiteConsumer(broker)
    consumer.add("a", "b")
    send(broker, "a1", "b1", "b2")
    found = {each.body.decode(): each for each in consumer.receive()}
    assert consumer.ack(found["b1"]) == [pb.OK]
    assert consumer.ack(found["a1"], found["b2"], named=False) == [pb.OK] * 2


def test_the_last_attempt_is_followed_by_a_dead_letter(broker: InProcessBroker) -> None:
    put_group(broker, retry_max_times=1)
    consumer = LiteConsumer(broker)
    consumer.add("a")
    send(broker, "a1")
    for _ in range(2):
        assert texts(consumer.receive()) == ["a1"]
        broker.advance(11)
    assert consumer.receive() == []
    assert list(broker.broker.parts.lite_topics.of("chat")) == ["a"]
    broker.create_group("undertaker")
    _, (dead,) = broker.receive("%DLQ%agents", "undertaker")
    assert dead.system_properties.lite_topic == "a"
    assert dead.system_properties.dead_letter_queue.topic == "chat"
    offset = broker.store.index.max_offset("%LMQ%$chat$a", 0)
    broker.crash()
    assert broker.store.index.max_offset("%LMQ%$chat$a", 0) == offset, "the copy is in no lite topic"


def test_a_waiting_receive_is_served_by_its_own_lite_topics_alone(broker: InProcessBroker) -> None:
    one, other = LiteConsumer(broker, "one"), LiteConsumer(broker, "other")
    one.add("a")
    other.add("b")
    calls = one.waits(), other.waits()
    send(broker, "b1")
    assert (calls[0].done, calls[1].done) == (False, True)
    send(broker, "c1")
    assert not calls[0].done
    send(broker, "a1")
    assert calls[0].done


def test_an_ack_lets_a_waiting_receive_go_on(broker: InProcessBroker) -> None:
    consumer = LiteConsumer(broker)
    consumer.add("a")
    send(broker, "a1", "a2")
    (first,) = consumer.receive(1)
    call = consumer.waits()
    assert not call.done
    consumer.ack(first)
    assert call.done


def test_what_was_answered_survives_a_crash(broker: InProcessBroker) -> None:
    consumer = LiteConsumer(broker)
    consumer.add("a", "b")
    send(broker, "a1", "a2", "b1")
    found = {each.body.decode(): each for each in consumer.receive()}
    consumer.ack(found["a1"], found["b1"])
    broker.crash()
    consumer = LiteConsumer(broker)
    consumer.add("a", "b")
    assert consumer.receive() == [], "a2 is with the client"
    assert consumer.ack(found["a2"]) == [pb.OK]
    broker.advance(60)
    assert consumer.receive() == []
    send(broker, "a3")
    assert texts(consumer.receive()) == ["a3"]


def test_after_a_restart_a_consumer_gets_nothing_of_the_parent_topics_queues(broker: InProcessBroker) -> None:
    LiteConsumer(broker).add("a")
    send(broker, "a1")
    broker.restart()
    status, found = broker.client("lite").receive("chat", "agents")
    assert (status, found) == (pb.UNRECOGNIZED_CLIENT_TYPE, [])


def test_subscriptions_are_added_removed_and_said_as_a_whole(broker: InProcessBroker) -> None:
    consumer = LiteConsumer(broker)
    consumer.add("a", "b")
    assert consumer.sync(pb.PARTIAL_REMOVE, "a") == pb.OK
    send(broker, "a1", "b1", "c1")
    assert texts(consumer.receive()) == ["b1"]
    assert consumer.sync(pb.COMPLETE_ADD, "a", "c", version=5) == pb.OK
    send(broker, "b2")
    assert sorted(texts(consumer.receive())) == ["a1", "c1"]
    assert consumer.sync(pb.COMPLETE_ADD, "d", version=4) == pb.OK
    send(broker, "d1")
    assert consumer.receive() == [], "an older version is passed over"
    assert consumer.sync(pb.COMPLETE_REMOVE) == pb.OK
    send(broker, "e1")
    assert consumer.receive() == []


@pytest.mark.parametrize(
    ("option", "wanted"),
    [
        ({"policy": pb.OffsetOption.LAST}, ["a3"]),
        ({"policy": pb.OffsetOption.MIN}, ["a1", "a2", "a3"]),
        ({"policy": pb.OffsetOption.MAX}, []),
        ({"offset": 1}, ["a2", "a3"]),
        ({"offset": 9}, []),
        ({"tail_n": 1}, ["a2", "a3"]),
        ({"tail_n": 9}, ["a1", "a2", "a3"]),
        ({"timestamp": 1}, ["a3"]),
    ],
)
def test_offset_options(broker: InProcessBroker, option: dict[str, int], wanted: list[str]) -> None:
    consumer = LiteConsumer(broker)
    consumer.add("a")
    send(broker, "a1", "a2")
    consumer.ack(*consumer.receive())
    send(broker, "a3")
    consumer.add("a", offset_option=pb.OffsetOption(**option))
    assert texts(consumer.receive()) == wanted


def test_quotas(broker: InProcessBroker) -> None:
    put_group(broker, lite_sub_client_quota="2")
    consumer = LiteConsumer(broker)
    consumer.add("a", "b")
    assert consumer.sync(pb.PARTIAL_ADD, "c") == pb.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
    assert consumer.sync(pb.COMPLETE_ADD, "x", "y", "z") == pb.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
    consumer.add("a")
    send(broker, "a1", "c1")
    assert texts(consumer.receive()) == ["a1"], "what was refused has changed nothing"


def test_all_clients_together_have_a_quota(broker: InProcessBroker) -> None:
    broker.restart(maxLiteSubscriptionCount="3")
    LiteConsumer(broker, "one").add("a", "b")
    other = LiteConsumer(broker, "other")
    assert other.sync(pb.PARTIAL_ADD, "a", "c") == pb.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
    other.add("c")


def test_what_is_refused(broker: InProcessBroker) -> None:
    broker.create_group("plain")
    assert LiteConsumer(broker, "p", group="plain").settings.status.code == pb.BAD_REQUEST
    consumer = LiteConsumer(broker)
    assert consumer.sync(pb.PARTIAL_ADD, "a$b") == pb.ILLEGAL_LITE_TOPIC
    assert consumer.sync(pb.PARTIAL_ADD, "x" * 65) == pb.ILLEGAL_LITE_TOPIC
    consumer.group = "plain"
    assert consumer.sync(pb.PARTIAL_ADD, "a") == pb.BAD_REQUEST
    consumer.group = "nobody"
    assert consumer.sync(pb.PARTIAL_ADD, "a") == pb.CONSUMER_GROUP_NOT_FOUND
    consumer.group, consumer.calls = "agents", broker.client("stranger")
    assert consumer.sync(pb.PARTIAL_ADD, "a") == pb.UNRECOGNIZED_CLIENT_TYPE


def test_of_an_exclusive_group_the_last_subscriber_has_a_lite_topic(broker: InProcessBroker) -> None:
    put_group(broker, lite_sub_model="Exclusive")
    one, other = LiteConsumer(broker, "one"), LiteConsumer(broker, "other")
    one.add("a", "b")
    other.add("a")
    assert one.told().notify_unsubscribe_lite_command.lite_topic == "a"
    send(broker, "a1", "b1")
    assert texts(one.receive()) == ["b1"]
    assert texts(other.receive()) == ["a1"]


def test_a_client_that_leaves_has_no_subscription(broker: InProcessBroker) -> None:
    consumer = LiteConsumer(broker)
    consumer.add("a")
    request = rpc.NotifyClientTerminationRequest(group=pb.Resource(name="agents"))
    assert broker.client("lite").call("NotifyClientTermination", request).status.code == pb.OK
    arrivals = broker.broker.deliveries.arrivals.lite
    assert arrivals is not None
    assert (arrivals.subscriptions, arrivals.subscribers("%LMQ%$chat$a")) == (0, [])


def test_a_client_that_says_nothing_for_long_has_no_subscription(broker: InProcessBroker) -> None:
    consumer = LiteConsumer(broker)
    consumer.add("a")
    subscriptions = broker.broker.parts.lite_subscriptions
    broker.advance(170)
    broker.do(subscriptions.look)
    send(broker, "a1")
    assert len(consumer.receive()) == 1
    broker.advance(20)
    broker.do(subscriptions.look)
    assert broker.broker.deliveries.arrivals.lite.subscriptions == 0  # type: ignore[union-attr]


def test_a_lite_topic_lives_so_long_after_its_last_message(broker: InProcessBroker) -> None:
    with_time_to_live(broker, 30)
    consumer = LiteConsumer(broker)
    consumer.add("a", "b")
    send(broker, "a1", "b1")
    consumer.ack(*consumer.receive())
    subscriptions = broker.broker.parts.lite_subscriptions
    broker.jump(29 * MINUTE)
    send(broker, "b2")
    consumer.add("a", "b")
    broker.run(subscriptions.expire())
    assert broker.broker.deliveries.keys_of_topic("%LMQ%$chat$a")
    broker.advance(2 * MINUTE)
    broker.run(subscriptions.expire())
    assert consumer.told().notify_unsubscribe_lite_command.lite_topic == "a"
    assert not broker.broker.deliveries.keys_of_topic("%LMQ%$chat$a")
    assert list(broker.broker.parts.lite_topics.of("chat")) == ["b"]
    consumer.add("a", offset_option=pb.OffsetOption(policy=pb.OffsetOption.MIN))
    assert texts(consumer.receive()) == ["b2"]
    send(broker, "a2")
    assert texts(consumer.receive()) == ["a2"]


def test_what_is_deleted_stays_so_after_a_crash(broker: InProcessBroker) -> None:
    with_time_to_live(broker, 30)
    send(broker, "a1", "b1")
    broker.jump(33 * MINUTE)
    assert list(broker.broker.parts.lite_topics.of("chat")) == []
    send(broker, "a2")
    broker.crash()
    assert list(broker.broker.parts.lite_topics.of("chat")) == ["a"]
    consumer = LiteConsumer(broker)
    consumer.add("a", "b")
    assert texts(consumer.receive()) == ["a2"]


def test_a_deleted_lite_topic_is_forgotten_with_its_part_of_the_log(broker: InProcessBroker) -> None:
    with_time_to_live(broker, 30)
    send(broker, "a1")
    broker.jump(33 * MINUTE)
    index, topics = broker.store.index, broker.broker.parts.lite_topics
    broker.do(topics.forget_deleted)
    assert index.max_offset("%LMQ%$chat$a", 0) == 1, "the log has its message still"
    assert not index.forget("%LMQ%$chat$a", 0)


def test_lite_topics_go_with_their_topic(broker: InProcessBroker) -> None:
    consumer = LiteConsumer(broker)
    consumer.add("a")
    send(broker, "a1")
    consumer.ack(*consumer.receive())
    broker.do(lambda: broker.broker.administration.topics.delete("chat"))
    assert list(broker.broker.parts.lite_topics.of("chat")) == []
    assert not broker.broker.deliveries.keys_of_topic("%LMQ%$chat$a")
    topic = admin_pb2.Topic(name="chat", queues=1, accept_message_types=["LITE"])
    broker.call("PutTopic", admin_pb2.PutTopicRequest(topic=topic))
    assert consumer.sync(pb.PARTIAL_ADD, "a") == pb.UNRECOGNIZED_CLIENT_TYPE
    consumer = LiteConsumer(broker, "new")
    send(broker, "a2")
    consumer.add("a")
    assert texts(consumer.receive()) == ["a2"]


def test_the_time_to_live_is_at_least_the_brokers(broker: InProcessBroker) -> None:
    with_time_to_live(broker, 1)
    send(broker, "a1")
    subscriptions = broker.broker.parts.lite_subscriptions
    broker.jump(14 * MINUTE)
    broker.run(subscriptions.expire())
    assert list(broker.broker.parts.lite_topics.of("chat")) == ["a"]
    broker.advance(2 * MINUTE)
    broker.run(subscriptions.expire())
    assert list(broker.broker.parts.lite_topics.of("chat")) == []


def test_without_a_time_to_live_lite_topics_stay(broker: InProcessBroker) -> None:
    send(broker, "a1")
    broker.jump(100 * 24 * 3600)
    broker.run(broker.broker.parts.lite_subscriptions.expire())
    assert list(broker.broker.parts.lite_topics.of("chat")) == ["a"]


@pytest.mark.parametrize(
    "option",
    [
        pb.OffsetOption(policy=pb.OffsetOption.MIN),
        pb.OffsetOption(policy=pb.OffsetOption.MAX),
        pb.OffsetOption(offset=(1 << 63) - 1),
    ],
)
def test_lite_topics_that_have_nothing_take_no_offset(
    broker: InProcessBroker, option: pb.OffsetOption
) -> None:
    """Else a client that names ever other ones would fill memory and log."""
    consumer = LiteConsumer(broker)
    end = broker.store.max_offset
    consumer.add("a", "b", offset_option=option)
    assert consumer.sync(pb.COMPLETE_REMOVE) == pb.OK
    assert broker.store.max_offset == end
    assert broker.broker.administration.offsets.topics_of("agents") == []
    consumer.add("a", offset_option=option)
    send(broker, "a1")
    assert texts(consumer.receive()) == ["a1"]


def test_others_are_served_while_lite_topics_are_looked_at(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lite_subscriptions, "_LOOKED_AT", 2)
    with_time_to_live(broker, 30)
    send(broker, *(f"{name}1" for name in "abcdefgh"))
    broker.jump(29 * MINUTE)
    turns = 0

    async def look() -> None:
        nonlocal turns
        looking = asyncio.create_task(broker.broker.parts.lite_subscriptions.expire())
        while not looking.done():
            turns += 1
            await asyncio.sleep(0)
        await looking

    broker.run(look())
    assert turns >= 4
    assert len(broker.broker.parts.lite_topics) == 8
    broker.jump(2 * MINUTE)
    broker.run(look())
    assert len(broker.broker.parts.lite_topics) == 0


@pytest.mark.parametrize("goes", ["unsubscribed", "deleted"])
def test_a_lite_topic_that_goes_while_a_receive_searches_is_not_received_from(
    broker: InProcessBroker, goes: str
) -> None:
    names = [f"room-{chr(97 + number // 26)}{chr(97 + number % 26)}-" for number in range(200)]
    consumer = LiteConsumer(broker)
    consumer.add(*names, "z")
    send(broker, *(f"{name}1" for name in names))
    sent = message("chat", b"z1", message_type=pb.LITE, lite_topic="z", tag="wanted")
    assert broker.call("SendMessage", send_request(sent)).status.code == pb.OK
    subscriptions = broker.broker.parts.lite_subscriptions
    said = Said(Action.PARTIAL_REMOVE, ["z"], None)
    session = broker.broker.parts.clients.own("lite", "127.0.0.1:1")

    def go() -> None:
        if goes == "deleted":
            subscriptions.delete(["%LMQ%$chat$z"])
        else:
            subscriptions.sync(session, "agents", "chat", said)

    with broker.one_tick():
        call = consumer.waits(filter="wanted")
        broker.loop.call_soon(go)
    assert not call.done
    assert not broker.broker.deliveries.keys_of_topic("%LMQ%$chat$z")


def test_who_subscribes_to_a_lite_topic_that_went_takes_it_from_nobody(broker: InProcessBroker) -> None:
    put_group(broker, "others")
    with_time_to_live(broker, 30)
    send(broker, "a1")
    broker.jump(33 * MINUTE)
    assert list(broker.broker.parts.lite_topics.of("chat")) == []
    one, other = LiteConsumer(broker, "one"), LiteConsumer(broker, "other", group="others")
    one.add("a")
    end = broker.store.max_offset
    other.add("a")
    assert broker.store.max_offset == end, "it was deleted before"
    assert broker.broker.parts.lite_subscriptions.count == 2
    send(broker, "a2")
    assert texts(one.receive()) == texts(other.receive()) == ["a2"]


def test_a_subscription_that_the_log_does_not_take_changes_nothing(broker: InProcessBroker) -> None:
    with_time_to_live(broker, 30)
    send(broker, "a1")
    consumer = LiteConsumer(broker)
    assert consumer.sync(pb.COMPLETE_ADD, "b", version=1) == pb.OK
    subscriptions = broker.broker.parts.lite_subscriptions
    session = broker.broker.parts.clients.own("lite", "127.0.0.1:1")
    said = Said(Action.COMPLETE_ADD, ["a"], 2)

    def subscribe() -> None:
        for after in (0, 1):
            broker.store.inject("append", OSError(28, "No space left on device"), after=after)
        with pytest.raises(ServiceError, match="No space left"):
            subscriptions.sync(session, "agents", "chat", said)
        with pytest.raises(ServiceError, match="No space left"):
            subscriptions.told("other", "10.0.0.1:1", "agents", "chat", said)
        assert subscriptions.count == 1
        lite = subscriptions.of_client("lite")
        assert lite is not None
        assert list(lite.queues) == ["%LMQ%$chat$b"]
        assert subscriptions.of_client("other") is None

    broker.clock.move(31 * MINUTE * 1_000_000_000)  # nobody looked for what is over
    broker.do(subscribe)
    assert consumer.sync(pb.COMPLETE_ADD, "c", version=1) == pb.OK
    assert subscriptions.clients_of("%LMQ%$chat$c") == [("lite", "agents")], "no later version is known"


def test_a_lite_topic_whose_last_message_cannot_be_read_keeps_no_other_one(broker: InProcessBroker) -> None:
    with_time_to_live(broker, 30)
    send(broker, "a1", "b1")
    (at,) = broker.store.index.entries("%LMQ%$chat$a", 0, 0, 1)[0]
    broker.flush()
    broker.flip_byte("commitlog/*", int(at) + 4)
    broker.jump(33 * MINUTE)
    broker.run(broker.broker.parts.lite_subscriptions.expire())
    assert list(broker.broker.parts.lite_topics.of("chat")) == ["a"], "it may be young"
    LiteConsumer(broker).add("a")


def accumulation(broker: InProcessBroker, lite_topic: str | None = None) -> Any:
    group = pb.Resource(name="agents")
    request = public.DescribeGroupAccumulationRequest(group=group, lite_topic=lite_topic)
    return broker.call("DescribeGroupAccumulation", request)


def test_administrators_see_how_far_a_group_is_on_a_lite_topic(broker: InProcessBroker) -> None:
    consumer = LiteConsumer(broker)
    consumer.add("a")
    send(broker, "a1", "a2", "a3", "b1", "c1", "c2")
    consumer.ack(*consumer.receive(1))
    consumer.receive(1)
    found = accumulation(broker, "a")
    assert (found.status.code, list(found.lite_topic_accumulation)) == (pb.OK, ["a"])
    assert found.lite_topic_accumulation["a"] == found.accumulation
    assert (found.accumulation.inflight_messages, found.accumulation.ready_messages) == (1, 1)
    assert accumulation(broker, "c").accumulation.ready_messages == 2, "it would get both"
    assert accumulation(broker).topic_accumulation["chat"].accumulation == 2, "of those that it was on"
    missing = accumulation(broker, "d").status
    assert (missing.code, missing.message) == (pb.TOPIC_NOT_FOUND, "topic 'chat' has no lite topic 'd'")
    for name in ("", "a$b", "x" * 129):
        assert accumulation(broker, name).status.code == pb.ILLEGAL_LITE_TOPIC


def test_administrators_see_who_subscribes_to_a_lite_topic(broker: InProcessBroker) -> None:
    first, second = LiteConsumer(broker, "first"), LiteConsumer(broker, "second")
    first.add("a", "b")
    second.add("b")

    def connected(name: str) -> list[str]:
        group = pb.Resource(name="agents")
        request = public.ListConsumerConnectionRequest(group=group, liteTopic=name)
        return [each.client_id for each in broker.call("ListConsumerConnection", request).client_info]

    assert [connected(name) for name in ("a", "b", "c")] == [["first"], ["first", "second"], []]
