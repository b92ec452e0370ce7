"""PutTopic and PutGroup keep what is not named, and refuse or say what would surprise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from broker_gateway.metadata.catalog import Group, Topic
from broker_gateway.transport.context import RpcError
from lakebroker_pb.lakebroker.admin.v1 import admin_pb2 as pb
from lakebroker_testing.broker import InProcessBroker


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker(defaultTopicQueueNums="8") as broker:
        yield broker


def put_topic(broker: InProcessBroker, **named: Any) -> Any:
    return broker.call("PutTopic", pb.PutTopicRequest(topic=pb.Topic(name="orders", **named)))


def put_group(broker: InProcessBroker, **named: Any) -> Any:
    return broker.call("PutGroup", pb.PutGroupRequest(group=pb.Group(name="audit", **named)))


def set_topic(broker: InProcessBroker, topic: Topic) -> None:
    broker.do(lambda: broker.broker.catalog.put_topic(topic))


def of_topic(answer: Any) -> tuple[int, list[str]]:
    return answer.topic.queues, list(answer.topic.accept_message_types)


def of_group(answer: Any) -> tuple[int, bool]:
    return answer.group.retry_max_times, answer.group.fifo


def test_a_topic_keeps_what_is_not_named(broker: InProcessBroker) -> None:
    assert of_topic(put_topic(broker, queues=4)) == (4, [])
    assert of_topic(put_topic(broker, accept_message_types=["NORMAL"])) == (4, ["NORMAL"])
    assert of_topic(put_topic(broker)) == (4, ["NORMAL"])
    assert of_topic(put_topic(broker, queues=6)) == (6, ["NORMAL"])
    assert of_topic(put_topic(broker, accept_message_types=["MIXED"])) == (6, [])


def test_a_topic_of_two_numbers_of_queues_keeps_both(broker: InProcessBroker) -> None:
    set_topic(broker, Topic("orders", 2, 5, 6, ("NORMAL",), order=True))
    put_topic(broker)
    topic = broker.broker.catalog.topic("orders")
    assert topic is not None
    assert (topic.read_queues, topic.write_queues, topic.order) == (2, 5, True)


def test_a_new_topic_has_the_defaults(broker: InProcessBroker) -> None:
    assert of_topic(put_topic(broker)) == (8, [])


def test_fewer_queues_are_refused(broker: InProcessBroker) -> None:
    put_topic(broker, queues=4)
    with pytest.raises(RpcError, match="orders has 4 queues; queues cannot be removed"):
        put_topic(broker, queues=2, accept_message_types=["NORMAL"])
    assert of_topic(put_topic(broker)) == (4, []), "nothing of a refused change is done"


@pytest.mark.parametrize("types", [["MIXED", "NORMAL"], ["normal"]])
def test_types_that_are_none(broker: InProcessBroker, types: list[str]) -> None:
    with pytest.raises(RpcError, match="is unknown; use NORMAL, FIFO"):
        put_topic(broker, accept_message_types=types)


def test_types_that_cannot_be_sent_yet_are_named(broker: InProcessBroker) -> None:
    (warning,) = put_topic(broker, accept_message_types=["NORMAL", "DELAY", "LITE"]).warnings
    assert "LITE messages cannot be sent yet" in warning
    assert put_topic(broker, queues=9).warnings, "as long as it is so"
    assert not put_topic(broker, accept_message_types=["NORMAL"]).warnings


def test_a_group_keeps_what_is_not_named(broker: InProcessBroker) -> None:
    assert of_group(put_group(broker)) == (16, False)
    assert of_group(put_group(broker, retry_max_times=2)) == (2, False)
    assert of_group(put_group(broker, fifo=True)) == (2, True)
    assert of_group(put_group(broker)) == (2, True)
    assert of_group(put_group(broker, fifo=False)) == (2, False)
    assert of_group(put_group(broker, retry_max_times=0)) == (0, False)
    assert of_group(put_group(broker)) == (0, False)


def test_a_group_keeps_what_only_other_programs_set(broker: InProcessBroker) -> None:
    broker.do(lambda: broker.broker.catalog.put_group(Group("audit", -1, consume_enabled=False)))
    assert of_group(put_group(broker, fifo=True)) == (-1, True)
    group = broker.broker.catalog.group("audit")
    assert group is not None
    assert not group.consume_enabled


def test_an_answer_tells_what_was_changed_from_what_was_so_already(broker: InProcessBroker) -> None:
    def made(answer: Any) -> tuple[bool, bool]:
        return answer.created, answer.changed

    assert made(put_topic(broker, queues=4)) == (True, False)
    assert made(put_topic(broker, queues=4)) == (False, False)
    assert made(put_topic(broker)) == (False, False)
    assert made(put_topic(broker, queues=5)) == (False, True)
    assert made(put_group(broker, fifo=False)) == (True, False)
    assert made(put_group(broker, fifo=False)) == (False, False)
    assert made(put_group(broker, fifo=True)) == (False, True)
