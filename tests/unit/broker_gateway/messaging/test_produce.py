"""Sends: what is judged first, and how long one may wait."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from broker_gateway.metadata.catalog import Topic
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.broker import InProcessBroker
from lakebroker_testing.calls import Call
from lakebroker_testing.messages import message, send_request


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker(waitTimeMillsInSendQueue="100") as broker:
        broker.create_topic("orders")
        for name in ("NORMAL", "FIFO", "DELAY"):
            put_topic(broker, Topic(name, 1, 1, accept_message_types=(name,)))
        yield broker


def put_topic(broker: InProcessBroker, topic: Topic) -> None:
    async def put() -> None:
        broker.broker.catalog.put_topic(topic)

    broker.run(put())


CONFLICT = pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("topic", "kind", "expected"),
    [
        ("NORMAL", pb.FIFO, CONFLICT),
        ("NORMAL", pb.DELAY, CONFLICT),
        ("NORMAL", pb.TRANSACTION, CONFLICT),
        ("NORMAL", pb.LITE, CONFLICT),
        ("NORMAL", pb.PRIORITY, CONFLICT),
        ("NORMAL", pb.NORMAL, pb.OK),
        ("NORMAL", pb.MESSAGE_TYPE_UNSPECIFIED, pb.OK),
        ("FIFO", pb.NORMAL, CONFLICT),
        ("FIFO", pb.MESSAGE_TYPE_UNSPECIFIED, CONFLICT),
        ("FIFO", pb.DELAY, CONFLICT),
        ("FIFO", pb.FIFO, pb.ILLEGAL_MESSAGE_GROUP),
        ("DELAY", pb.DELAY, CONFLICT),
        ("orders", pb.FIFO, pb.ILLEGAL_MESSAGE_GROUP),
        ("orders", 99, pb.BAD_REQUEST),
        ("NORMAL", 99, pb.BAD_REQUEST),
    ],
)
def test_a_type_that_the_topic_does_not_take(
    broker: InProcessBroker, topic: str, kind: pb.MessageType, expected: pb.Code, compiled: bool
) -> None:
    if compiled:
        assert broker.broker.load_compiled()
    answer = broker.send(topic, b"one", message_type=kind)
    assert answer.status.code == expected, answer.status.message


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        ("g", pb.OK),
        ("ü" * 31 + "u", pb.OK),
        ("u" * 64, pb.ILLEGAL_MESSAGE_GROUP),
        ("ü" * 32, pb.ILLEGAL_MESSAGE_GROUP),
        (" \t", pb.ILLEGAL_MESSAGE_GROUP),
        ("a\x01b", pb.ILLEGAL_MESSAGE_GROUP),
        ("", pb.ILLEGAL_MESSAGE_GROUP),
    ],
)
def test_message_groups(broker: InProcessBroker, group: str, expected: pb.Code) -> None:
    answer = broker.send("FIFO", b"one", message_type=pb.FIFO, message_group=group)
    assert answer.status.code == expected, answer.status.message
    if expected == pb.OK:
        broker.create_group("readers", fifo=True)
        (message,) = broker.receive("FIFO", "readers")[1]
        assert message.system_properties.message_group == group
        assert message.system_properties.message_type == pb.FIFO


def test_a_group_without_a_type_is_ordered(broker: InProcessBroker) -> None:
    sent = broker.send("FIFO", b"one", message_type=pb.MESSAGE_TYPE_UNSPECIFIED, message_group="g")
    assert sent.status.code == pb.OK
    assert broker.send("NORMAL", b"one", message_type=0, message_group="g").status.code == CONFLICT


@pytest.mark.parametrize(
    "others",
    [
        {"message_type": pb.FIFO, "message_group": "other"},
        {"message_type": pb.NORMAL},
    ],
)
def test_a_call_has_messages_of_one_type_and_group(broker: InProcessBroker, others: dict[str, Any]) -> None:
    first = message("orders", b"1", message_type=pb.FIFO, message_group="g")
    request = send_request(first, message("orders", b"2", **others))
    answer = broker.call("SendMessage", request)
    assert answer.status.code == pb.MESSAGE_CORRUPTED
    assert "in one call" in answer.status.message
    alone = send_request(first, message("orders", b"2", message_type=pb.FIFO, message_group="g"))
    assert broker.call("SendMessage", alone).status.code == pb.OK
    assert broker.store.index.max_offset("orders", 0) == 2, "nothing of the other call"


@pytest.mark.parametrize(
    "wrong",
    [
        {"message_id": ""},
        {"tag": "a|b"},
        {"body_encoding": 99},
        {"message_group": "g"},
        {"body_digest": pb.Digest(type=pb.CRC32, checksum="1")},
    ],
)
def test_the_type_comes_before_anything_else(broker: InProcessBroker, wrong: dict[str, object]) -> None:
    odd = message("NORMAL", b"", message_type=pb.FIFO, **wrong)
    assert broker.call("SendMessage", send_request(odd)).status.code == CONFLICT
    put_topic(broker, Topic("NORMAL", 1, 1, permission=4, accept_message_types=("NORMAL",)))
    assert broker.call("SendMessage", send_request(odd)).status.code == CONFLICT


@pytest.mark.parametrize("compiled", [False, True])
def test_waiting_begins_when_a_send_is_there_whole(broker: InProcessBroker, compiled: bool) -> None:
    """What the tick read of others before it is no time that it waited."""
    if compiled:
        assert broker.broker.load_compiled()
    broker.broker.admission.check_waiting()

    def others_are_read() -> None:
        broker.clock.move(150_000_000)

    def send(body: bytes) -> Call:
        return broker.begin("SendMessage", send_request(message("orders", body)))

    with broker.one_tick():
        first = send(b"before")
        broker.loop.call_soon(others_are_read)
        calls = [send(b"behind"), send(b"behind too")]
    assert [call.response.status.code for call in calls] == [pb.OK] * 2
    assert first.response.status.code == pb.TOO_MANY_REQUESTS
    assert "waited 150 ms (waitTimeMillsInSendQueue=100)" in first.response.status.message
    assert broker.broker.admission.send.refused == 1
    assert broker.broker.admission.send.under_way == 0


def test_a_turn_that_reads_for_long_is_appended_meanwhile(broker: InProcessBroker) -> None:
    broker.broker.admission.check_waiting()
    with broker.one_tick():
        calls = []
        for number in range(30):
            calls.append(broker.begin("SendMessage", send_request(message("orders", b"%d" % number))))
            broker.loop.call_soon(broker.clock.move, 15_000_000)
    assert [call.response.status.code for call in calls] == [pb.OK] * 30
