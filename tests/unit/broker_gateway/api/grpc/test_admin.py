"""PutTopic and PutGroup keep what is not named, and refuse or say what would surprise."""

from __future__ import annotations

import importlib.metadata
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


def test_what_is_updated_has_to_be_there(broker: InProcessBroker) -> None:
    for method, request in (
        ("PutTopic", pb.PutTopicRequest(topic=pb.Topic(name="orders", queues=4), update_only=True)),
        ("PutGroup", pb.PutGroupRequest(group=pb.Group(name="audit", fifo=True), update_only=True)),
    ):
        with pytest.raises(RpcError, match="does not exist") as refused:
            broker.call(method, request)
        assert refused.value.code == "NOT_FOUND"
    assert broker.broker.catalog.topic("orders") is None
    assert broker.broker.catalog.group("audit") is None
    put_topic(broker)
    request = pb.PutTopicRequest(topic=pb.Topic(name="orders", queues=9), update_only=True)
    assert of_topic(broker.call("PutTopic", request)) == (9, [])


def test_topics_and_groups_are_deleted_for_good(broker: InProcessBroker) -> None:
    put_topic(broker, queues=1)
    put_group(broker)
    broker.send("orders", b"x")
    broker.ack("orders", "audit", *broker.receive("orders", "audit")[1])
    assert broker.committed("orders", "audit") == 1
    kept = pb.DeleteGroupRequest(name="audit", keep_offsets=True)
    assert broker.call("DeleteGroup", kept).deleted
    assert not broker.call("DeleteGroup", kept).deleted
    assert broker.committed("orders", "audit") == 1
    put_group(broker)
    assert broker.call("DeleteGroup", pb.DeleteGroupRequest(name="audit")).deleted
    broker.crash()
    assert broker.broker.catalog.group("audit") is None
    assert broker.committed("orders", "audit") is None
    assert broker.call("DeleteTopic", pb.DeleteTopicRequest(name="orders")).deleted
    broker.crash()
    assert broker.broker.catalog.topic("orders") is None
    assert not broker.call("DeleteTopic", pb.DeleteTopicRequest(name="orders")).deleted


@pytest.mark.parametrize(
    ("method", "request_", "text"),
    [
        ("DeleteTopic", pb.DeleteTopicRequest(), "is blank"),
        ("DeleteTopic", pb.DeleteTopicRequest(name="TBW102"), "conflict with system topic"),
        ("DeleteGroup", pb.DeleteGroupRequest(), "is empty"),
        ("DeleteGroup", pb.DeleteGroupRequest(name="CID_RMQ_SYS_TRANS"), "system consumer group"),
        ("ListOffsets", pb.ListOffsetsRequest(), "is empty"),
        ("ListOffsets", pb.ListOffsetsRequest(group="nobody"), "does not exist"),
        (
            "ListOffsets",
            pb.ListOffsetsRequest(group="audit", topics=["nobody"]),
            "topic 'nobody' does not exist",
        ),
    ],
)
def test_deletions_and_lists_that_are_wrong(
    broker: InProcessBroker, method: str, request_: Any, text: str
) -> None:
    put_group(broker)
    with pytest.raises(RpcError, match=text) as refused:
        broker.call(method, request_)
    assert refused.value.code in ("INVALID_ARGUMENT", "NOT_FOUND")


def test_offsets_of_a_group(broker: InProcessBroker) -> None:
    put_topic(broker, queues=1)
    put_group(broker)
    listed = pb.ListOffsetsRequest(group="audit")
    assert not broker.call("ListOffsets", listed).queues
    (row,) = broker.call("ListOffsets", pb.ListOffsetsRequest(group="audit", topics=["orders"])).queues
    assert not row.HasField("committed")
    for body in (b"1", b"2", b"3"):
        broker.send("orders", body)
    broker.ack("orders", "audit", *broker.receive("orders", "audit", batch=1)[1])
    broker.receive("orders", "audit", batch=1)
    (row,) = broker.call("ListOffsets", listed).queues
    assert (row.topic, row.queue, row.begin, row.end, row.committed, row.position) == (
        "orders",
        0,
        0,
        3,
        1,
        2,
    )
    assert row.settled_ms > 0


def test_what_a_broker_says_of_itself_is_looked_up_in_no_files(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def looked_up(*_: Any) -> Any:
        raise AssertionError("it takes milliseconds, in which the broker does nothing else")

    monkeypatch.setattr(importlib.metadata.Distribution, "from_name", looked_up)
    answer = broker.call("DescribeBroker", pb.DescribeBrokerRequest())
    assert answer.version
    assert answer.disk_total > answer.disk_free > 0
