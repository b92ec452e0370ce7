"""Acknowledgements and dead letters: a message is settled once, or it is not, while the journal refuses too; large calls of
them cost little, and are answered within what clients take."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from broker_gateway.delivery.handles import encode_handle
from broker_gateway.delivery.queue_delivery import QueueKey
from broker_gateway.messaging.settlement import MAX_ACKS_A_CALL
from broker_gateway.transport.request_limits import limits_of
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_testing.broker import InProcessBroker
from lakebroker_testing.messages import ack_request, change_invisible_request, dead_letter_request

FULL = 1024
"""Events in a record of the journal."""


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        broker.create_topic("orders")
        broker.create_group("billing")
        yield broker


def pending(broker: InProcessBroker, count: int) -> None:
    """Something else has the journal note so many events in this tick; the store's next append is theirs."""
    journal = broker.broker.journaled.deliveries
    state = broker.broker.deliveries.queue(QueueKey("other", "orders", 0))

    def note() -> None:
        for _ in range(count):
            journal.offsets_changed(state)

    broker.loop.call_soon(note)


def test_a_stored_dead_letter_is_the_only_one(broker: InProcessBroker) -> None:
    """The dead-letter topic is new, and noted itself: the journal's record is full when its message is settled."""
    broker.send("orders", b"poison")
    (message,) = broker.receive("orders", "billing")[1]
    for attempt in range(2):
        if attempt == 0:
            broker.store.inject("append", OSError(errno.ENOSPC, "No space left on device"), after=1)
            pending(broker, FULL - 1)
        broker.dead_letter("orders", "billing", message)
    assert broker.store.index.max_offset("%DLQ%billing", 0) == 1
    assert broker.committed("orders", "billing") == 1


def test_an_acknowledgement_of_several_queues_is_whole_or_refused(broker: InProcessBroker) -> None:
    broker.create_topic("orders", 4)
    for number in range(8):
        broker.send("orders", b"%d" % number)
    held = broker.receive("orders", "billing")[1]
    assert len({each.system_properties.queue_id for each in held}) > 1
    broker.store.inject("append", OSError(errno.ENOSPC, "No space left on device"))
    pending(broker, FULL - 2)  # room for the first queue's
    request = ack_request("orders", "billing", *held)
    assert broker.call("AckMessage", request).status.code == pb.INTERNAL_SERVER_ERROR
    broker.advance(1)  # the journal is not tried again at once
    answer = broker.call("AckMessage", request)
    assert [each.status.code for each in answer.entries] == [pb.OK] * 8


ACK_LIMITS = limits_of("/apache.rocketmq.v2.MessagingService/AckMessage")
CLIENTS_TAKE = 4 << 20
"""gRPC's default, bytes of a reply."""
REFUSED = {
    "void": [encode_handle(0, number, number) for number in range(MAX_ACKS_A_CALL)],
    "other queues": [encode_handle(number << 20, 0, 0) for number in range(MAX_ACKS_A_CALL)],
    "no handle": [f"{number:028}" for number in range(MAX_ACKS_A_CALL)],
    "empty": [""] * MAX_ACKS_A_CALL,
}


def acks(*handles: str) -> rpc.AckMessageRequest:
    request = ack_request("orders", "billing")
    request.entries.extend(
        [
            rpc.AckMessageEntry(message_id=f"{number:034}", receipt_handle=each)
            for number, each in enumerate(handles)
        ]
    )
    return request


def calls_of(broker: InProcessBroker, request: rpc.AckMessageRequest) -> tuple[int, Any]:
    """How many functions written in Python an AckMessage calls; and its response."""
    called = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal called
        called += event == "call"

    sys.setprofile(count)
    try:
        answer = broker.call("AckMessage", request)
    finally:
        sys.setprofile(None)
    return called, answer


@pytest.mark.parametrize("kind", REFUSED)
def test_entries_that_are_refused_cost_next_to_nothing(broker: InProcessBroker, kind: str) -> None:
    broker.send("orders", b"one")
    (message,) = broker.receive("orders", "billing")[1]
    called, answer = calls_of(broker, acks(*REFUSED[kind]))
    assert {each.status.code for each in answer.entries} == {pb.INVALID_RECEIPT_HANDLE}
    assert len(answer.entries) == MAX_ACKS_A_CALL
    assert called < 4 * MAX_ACKS_A_CALL
    assert broker.ack("orders", "billing", message).status.code == pb.OK


def test_each_entry_has_its_own_status(broker: InProcessBroker) -> None:
    for number in range(3):
        broker.send("orders", b"%d" % number)
    held = [each.system_properties.receipt_handle for each in broker.receive("orders", "billing")[1]]
    answer = broker.call("AckMessage", acks(held[0], "é", held[1], held[1], encode_handle(7, 0, 0)))
    assert answer.status.code == pb.MULTIPLE_RESULTS
    assert [each.receipt_handle for each in answer.entries] == [
        held[0],
        "é",
        held[1],
        held[1],
        encode_handle(7, 0, 0),
    ]
    foreign, void = "the receipt handle was not handed out", "the receipt handle is void"
    for entry, begin in zip(answer.entries, ("OK", foreign, "OK", void, foreign), strict=True):
        assert entry.status.message.startswith(begin)
    broker.advance(10)
    assert "is expired" in broker.call("AckMessage", acks(held[2])).entries[0].status.message
    assert len(broker.receive("orders", "billing")[1]) == 1


@pytest.mark.parametrize("entries", [1, MAX_ACKS_A_CALL])
def test_the_reply_to_the_largest_call_is_one_that_clients_take(
    broker: InProcessBroker, entries: int
) -> None:
    size = ACK_LIMITS.size // entries
    request = acks(*["h" * (size - 90)] * entries)
    request.entries[0].receipt_handle += "h" * (ACK_LIMITS.size - request.ByteSize() - 20)
    assert ACK_LIMITS.size - 100 < request.ByteSize() <= ACK_LIMITS.size
    answer = broker.call("AckMessage", request)
    assert len(answer.entries) == entries
    assert answer.ByteSize() < CLIENTS_TAKE


@pytest.mark.parametrize("how", ["restart", "crash"])
def test_a_delivery_that_is_suspended_twice_counts_once_less(broker: InProcessBroker, how: str) -> None:
    """Over a restart in between, too."""
    broker.send("orders", b"one")
    broker.receive("orders", "billing", invisible_ms=100)
    broker.advance(0.2)
    (message,) = broker.receive("orders", "billing")[1]
    for _ in range(2):
        request = change_invisible_request("orders", "billing", message, 1000)
        request.suspend = True
        answer = broker.call("ChangeInvisibleDuration", request)
        message.system_properties.receipt_handle = answer.receipt_handle
        getattr(broker, how)()
    broker.advance(1)
    (message,) = broker.receive("orders", "billing")[1]
    assert message.system_properties.delivery_attempt == 2


def test_a_client_keeps_what_it_could_not_give_up(broker: InProcessBroker) -> None:
    """For all its time, which is longer than what a move waits, and no longer."""
    broker.send("orders", b"mine")
    (message,) = broker.receive("orders", "billing", invisible_ms=60_000)[1]
    broker.store.inject("append", OSError(errno.ENOSPC, "No space left on device"))
    request = dead_letter_request("orders", "billing", message)
    answer = broker.call("ForwardMessageToDeadLetterQueue", request)
    assert answer.status.code == pb.INTERNAL_SERVER_ERROR
    broker.advance(59)
    assert broker.receive("orders", "billing")[1] == []
    broker.advance(2)
    assert [each.body for each in broker.receive("orders", "billing")[1]] == [b"mine"]
