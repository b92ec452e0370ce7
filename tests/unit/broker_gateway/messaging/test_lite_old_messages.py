"""Lite topics whose older messages only the lake has: received from there, in their order, as if the log had them still."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.lakebroker.admin.v1 import admin_pb2
from lakebroker_testing.messages import texts
from tests.support.brokers.lite_consumers import LiteConsumer, put_group, send, with_time_to_live
from tests.support.brokers.with_lake import LakeBroker

QUEUE = "%LMQ%$chat$a"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LakeBroker]:
    with LakeBroker(tmp_path) as made:
        topic = admin_pb2.Topic(name="chat", queues=4, accept_message_types=["LITE"])
        made.call("PutTopic", admin_pb2.PutTopicRequest(topic=topic))
        made.create_topic("filler")
        put_group(made)
        yield made


def drain(consumer: LiteConsumer) -> list[str]:
    """Bodies of everything that is there, in the order that it comes; all of it is acknowledged."""
    found: list[str] = []
    while True:
        waiting = consumer.waits()
        if not waiting.done:
            consumer.broker.hang_up(waiting)
            return found
        found += texts(waiting.messages)
        assert set(consumer.ack(*waiting.messages)) == {pb.OK}


def behind(broker: LakeBroker, consumer: LiteConsumer) -> None:
    """The group has settled `a1` and no more of `a1` to `a9`, which only the lake has, and those of `b` beside them."""
    consumer.add("a", "b")
    for number in range(1, 10):
        send(broker, f"a{number}", f"b{number}")
        if number == 1:
            consumer.ack(*consumer.receive())
    assert broker.retire() > 0
    assert broker.min_offset(QUEUE) == 9


def test_a_group_below_the_log_receives_from_the_lake_and_goes_on_in_the_log(broker: LakeBroker) -> None:
    consumer = LiteConsumer(broker)
    behind(broker, consumer)
    send(broker, "a10")
    found = drain(consumer)
    assert [each for each in found if each.startswith("a")] == [f"a{number}" for number in range(2, 11)]
    assert [each for each in found if each.startswith("b")] == [f"b{number}" for number in range(2, 10)]


def test_what_comes_from_the_lake_has_what_the_log_gave(broker: LakeBroker) -> None:
    consumer = LiteConsumer(broker)
    behind(broker, consumer)
    (found,) = consumer.waits(batch=1).messages
    system = found.system_properties
    assert (found.topic.name, system.lite_topic, system.message_type) == (
        "chat",
        found.body.decode()[0],
        pb.LITE,
    )
    assert consumer.receive(1)[0].system_properties.lite_topic != system.lite_topic, "in its order"
    broker.advance(11)
    assert found.body.decode() in texts(consumer.receive()), "what is not acknowledged comes again"


def test_it_goes_on_there_after_a_restart(broker: LakeBroker) -> None:
    consumer = LiteConsumer(broker)
    behind(broker, consumer)
    broker.restart()
    consumer = LiteConsumer(broker)
    consumer.add("a")
    assert drain(consumer) == [f"a{number}" for number in range(2, 10)]


def test_an_offset_option_reaches_what_only_the_lake_has(broker: LakeBroker) -> None:
    consumer = LiteConsumer(broker)
    behind(broker, consumer)
    drain(consumer)
    consumer.add("a", offset_option=pb.OffsetOption(policy=pb.OffsetOption.MIN))
    assert drain(consumer) == [f"a{number}" for number in range(1, 10)]
    consumer.add("a", offset_option=pb.OffsetOption(offset=7))
    assert drain(consumer) == ["a8", "a9"]


def test_a_wildcard_group_receives_from_the_lake(broker: LakeBroker) -> None:
    put_group(broker, "all", lite_sub_wildcard="true")
    consumer = LiteConsumer(broker, "w", group="all")
    assert consumer.sync(pb.COMPLETE_ADD) == pb.OK
    send(broker, "a1", "b1")
    consumer.ack(*consumer.receive())
    send(broker, "a2", "b2", "a3", "d1")
    broker.retire()
    send(broker, "c1", "d2")
    found = drain(consumer)
    assert [each for each in found if each.startswith("a")] == ["a2", "a3"]
    assert sorted(found) == ["a2", "a3", "b2", "c1", "d2"], (
        "a group new to a lite topic begins where the log does"
    )


def test_a_lite_topic_that_expired_and_began_anew_has_only_its_present_life(broker: LakeBroker) -> None:
    with_time_to_live(broker, 30)
    consumer = LiteConsumer(broker)
    send(broker, "a1", "a2", "a3", "b1")
    broker.jump(33 * 60)
    assert list(broker.broker.parts.lite_topics.of("chat")) == []
    broker.retire()
    broker.do(broker.broker.parts.lite_topics.forget_deleted)
    assert broker.store.index.max_offset(QUEUE, 0) == 0, "it begins anew"
    with_time_to_live(broker, -1)
    consumer.add("a")
    send(broker, "a4")
    consumer.ack(*consumer.receive())
    send(broker, "a5", "a6")
    broker.retire()
    assert broker.min_offset(QUEUE) == 3
    assert drain(consumer) == ["a5", "a6"]
    consumer.add("a", offset_option=pb.OffsetOption(policy=pb.OffsetOption.MIN))
    assert drain(consumer) == ["a4", "a5", "a6"]
