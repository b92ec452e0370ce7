"""Which message a receipt handle means, and why it means none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker_gateway.delivery.handles import decode_handle, encode_handle
from broker_gateway.messaging.outcome import OK, Reason, ServiceError
from broker_gateway.messaging.receipts import Receipts
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.broker import InProcessBroker


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        broker.create_topic("t", 2)
        broker.send("t", b"1", b"2", b"3")
        yield broker


@pytest.fixture
def receipts(broker: InProcessBroker) -> Receipts:
    return Receipts(broker.broker.deliveries, broker.broker.clients)


def handles(messages: list[pb.Message]) -> list[str]:
    return [each.system_properties.receipt_handle for each in messages]


def test_every_handle_of_a_call_is_found_in_its_queue(broker: InProcessBroker, receipts: Receipts) -> None:
    broker.send("t", b"4")
    taken = broker.receive("t", "g")[1]
    found = receipts.all("g", "t", handles(taken))
    assert list(found.outcomes) == [OK] * 4
    assert sum(len(messages) for _, messages in found.messages) == 4
    state, message = receipts.one("g", "t", handles(taken)[0])
    assert state.find(message.queue_offset, message.delivery_id) is message


def test_the_second_of_two_equal_handles_is_void(broker: InProcessBroker, receipts: Receipts) -> None:
    (handle, *_) = handles(broker.receive("t", "g")[1])
    first, second = receipts.all("g", "t", [handle, handle]).outcomes
    assert first is OK
    assert "void" in second.message


def test_a_handle_is_of_one_group_and_topic(broker: InProcessBroker, receipts: Receipts) -> None:
    (handle, *_) = handles(broker.receive("t", "g")[1])
    broker.create_topic("u")
    for group, topic in (("h", "t"), ("g", "u"), ("g", "none")):
        (outcome,) = receipts.all(group, topic, [handle]).outcomes
        assert "was not handed out for this topic and group" in outcome.message


@pytest.mark.parametrize("handle", ["", "x", "A" * 28, "é" * 28, "A" * 5000])
def test_what_is_no_handle_is_shown(receipts: Receipts, handle: str) -> None:
    with pytest.raises(ServiceError, match="was not handed out") as refused:
        receipts.one("g", "t", handle)
    assert refused.value.reason is Reason.INVALID_RECEIPT_HANDLE
    assert len(refused.value.message) < 300


def test_a_guessed_delivery_is_void(broker: InProcessBroker, receipts: Receipts) -> None:
    real = decode_handle(handles(broker.receive("t", "g")[1])[0])
    assert real is not None
    with pytest.raises(ServiceError, match="is void"):
        receipts.one("g", "t", encode_handle(real.queue_id, real.queue_offset, real.delivery_id ^ 1))


def test_a_settled_message_has_no_handle_any_more(broker: InProcessBroker, receipts: Receipts) -> None:
    taken = broker.receive("t", "g")[1]
    broker.ack("t", "g", taken[0])
    with pytest.raises(ServiceError, match="is void"):
        receipts.one("g", "t", handles(taken)[0])


def test_a_handle_lives_as_long_as_the_message_is_invisible(
    broker: InProcessBroker, receipts: Receipts
) -> None:
    taken = broker.receive("t", "g", invisible_ms=10_000)[1]
    broker.advance(9.9)
    receipts.one("g", "t", handles(taken)[0])
    broker.advance(0.2)
    with pytest.raises(ServiceError, match=r"expired|void"):
        receipts.one("g", "t", handles(taken)[0])
