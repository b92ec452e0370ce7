"""LITE messages: what is stored of them, and which are refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker_gateway.messaging import lite_topics
from broker_gateway.messaging.ordered_sends import bucket
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.lakebroker.admin.v1 import admin_pb2
from lakebroker_testing.broker import InProcessBroker
from lakebroker_testing.messages import message, send_request
from store.lite_queues import LiteTopic, lite_topic_of


def create_lite_topic(broker: InProcessBroker, name: str = "chat", queues: int = 4) -> None:
    topic = admin_pb2.Topic(name=name, queues=queues, accept_message_types=["LITE"])
    reply = broker.call("PutTopic", admin_pb2.PutTopicRequest(topic=topic))
    assert list(reply.warnings) == []


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker(maxLmqConsumeQueueNum="3") as broker:
        create_lite_topic(broker)
        yield broker


def send(broker: InProcessBroker, name: str, *bodies: str, kind: int = pb.LITE, topic: str = "chat") -> int:
    messages = [message(topic, body.encode(), message_type=kind, lite_topic=name) for body in bodies]
    return int(broker.call("SendMessage", send_request(*messages)).status.code)


def test_a_message_is_stored_as_the_original_stores_it(broker: InProcessBroker) -> None:
    assert send(broker, "s-1", "one", "two") == pb.OK
    index, queue = broker.store.index, "%LMQ%$chat$s-1"
    physical, sizes, _ = index.entries(queue, 0, 0, 2)
    records = [
        broker.store.record(at, size) for at, size in zip(physical.tolist(), sizes.tolist(), strict=True)
    ]
    assert [bytes(each.body) for each in records] == [b"one", b"two"]
    assert {each.topic for each in records} == {"chat"}
    told = [each.properties_map() for each in records]
    for number, properties in enumerate(told):
        assert properties["__LITE_TOPIC"] == "s-1"
        assert properties["INNER_MULTI_DISPATCH"] == queue
        assert properties["INNER_MULTI_QUEUE_OFFSET"] == str(number)


def test_messages_of_a_lite_topic_go_to_one_queue_of_the_parent(broker: InProcessBroker) -> None:
    for _ in range(4):
        assert send(broker, "s-1", "x") == pb.OK
    counts = [broker.store.index.max_offset("chat", queue_id) for queue_id in range(4)]
    assert sorted(counts) == [0, 0, 0, 4]


def test_the_type_may_be_left_out(broker: InProcessBroker) -> None:
    assert send(broker, "s-1", "x", kind=pb.MESSAGE_TYPE_UNSPECIFIED) == pb.OK
    assert broker.store.index.max_offset("%LMQ%$chat$s-1", 0) == 1


@pytest.mark.parametrize(
    ("name", "kind", "code"),
    [
        ("", pb.LITE, pb.ILLEGAL_LITE_TOPIC),
        ("  ", pb.LITE, pb.ILLEGAL_LITE_TOPIC),
        ("a$b", pb.LITE, pb.ILLEGAL_LITE_TOPIC),
        ("ä", pb.LITE, pb.ILLEGAL_LITE_TOPIC),
        ("x" * 65, pb.LITE, pb.ILLEGAL_LITE_TOPIC),
        ("x" * 64, pb.LITE, pb.OK),
        ("a", pb.NORMAL, pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    ],
)
def test_names_and_types(broker: InProcessBroker, name: str, kind: int, code: int) -> None:
    end = broker.store.max_offset
    assert send(broker, name, "x", kind=kind) == code
    assert (broker.store.max_offset > end) == (code == pb.OK)


def test_a_name_that_no_lite_topic_may_have_is_not_kept(broker: InProcessBroker) -> None:
    """A client chooses it, of any length; the queues of 65,536 names are remembered."""
    before = bucket.cache_info().currsize
    for number in range(5):
        assert send(broker, f"{number}" * 100_000, "x") == pb.ILLEGAL_LITE_TOPIC
    assert bucket.cache_info().currsize == before


def test_a_topic_of_another_type_takes_none(broker: InProcessBroker) -> None:
    topic = admin_pb2.Topic(name="plain", queues=1, accept_message_types=["NORMAL"])
    broker.call("PutTopic", admin_pb2.PutTopicRequest(topic=topic))
    assert send(broker, "a", "x", topic="plain") == pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE


class _Counted(str):
    """A name that counts how often one of its kind is hashed."""

    hashed = 0

    def __hash__(self) -> int:
        _Counted.hashed += 1
        return super().__hash__()


def test_a_send_does_not_go_through_all_lite_topics(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def counted(queue: str) -> LiteTopic | None:
        lite = lite_topic_of(queue)
        return None if lite is None else LiteTopic(lite.parent, _Counted(lite.name))

    broker.restart(maxLmqConsumeQueueNum="2000")
    monkeypatch.setattr(lite_topics, "lite_topic_of", counted)
    for number in range(1000):
        broker.store.index.raise_next(f"%LMQ%$chat${number}", 0, 1)
    topics = broker.broker.parts.lite_topics
    assert len(topics) == 1000
    topic = broker.broker.catalog.topic("chat")
    assert topic is not None
    _Counted.hashed = 0
    topics.check_room(topic, ["7", "8", "new"])
    assert _Counted.hashed == 0


def test_there_are_at_most_so_many_lite_topics(broker: InProcessBroker) -> None:
    for name in "abc":
        assert send(broker, name, "x") == pb.OK
    assert send(broker, "d", "x") == pb.LITE_TOPIC_QUOTA_EXCEEDED
    assert broker.store.index.max_offset("%LMQ%$chat$d", 0) == 0
    assert send(broker, "a", "x") == pb.OK
    broker.crash()
    assert send(broker, "d", "x") == pb.LITE_TOPIC_QUOTA_EXCEEDED, "those of the log count after a start"
    assert send(broker, "a", "x") == pb.OK
    assert broker.store.index.max_offset("%LMQ%$chat$a", 0) == 3


def test_consumers_of_the_parent_topic_see_the_lite_topic(broker: InProcessBroker) -> None:
    broker.create_group("audit")
    assert send(broker, "s-1", "x") == pb.OK
    _, (found,) = broker.receive("chat", "audit")
    assert found.system_properties.lite_topic == "s-1"
    assert found.system_properties.message_type == pb.LITE
    assert dict(found.user_properties) == {}


def test_a_client_cannot_set_the_property_itself(broker: InProcessBroker) -> None:
    sent = message("chat", b"x", {"__LITE_TOPIC": "a"}, message_type=pb.LITE, lite_topic="a")
    reply = broker.call("SendMessage", send_request(sent))
    assert reply.status.code == pb.ILLEGAL_MESSAGE_PROPERTY_KEY
