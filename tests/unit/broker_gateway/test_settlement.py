"""Acknowledgements and dead letters while the journal refuses: a message is settled once, or it is not."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from broker_gateway.delivery.queue_delivery import QueueKey
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.broker import InProcessBroker
from lakebroker_testing.messages import ack_request

FULL = 1024
"""Events in a record of the journal."""


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        broker.create_topic("orders")
        broker.create_group("billing")
        yield broker


def pending(broker: InProcessBroker, count: int) -> None:
    """Something else has the journal note so many events in this turn; the store's next append is theirs."""
    journal, state = broker.broker.journal, broker.broker.deliveries.queue(QueueKey("other", "orders", 0))

    def note() -> None:
        for _ in range(count):
            journal.moved(state)

    broker._loop.call_soon(note)


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
