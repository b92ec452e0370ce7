"""A queue with as many messages in flight as may be: who waits is served once there is room, by whatever makes it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.broker import InProcessBroker
from lakebroker_testing.calls import Call
from lakebroker_testing.messages import change_invisible_request, dead_letter_request
from store.log.record import PendingRecord

LIMIT = 2


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker(lakeMaxInFlightPerQueue=str(LIMIT)) as broker:
        broker.create_topic("t")
        broker.create_group("g", retry_max_times=0)
        yield broker


def full(broker: InProcessBroker, invisible_ms: int = 60_000) -> list[pb.Message]:
    """As many of five messages as may be in flight."""
    broker.send("t", *(b"%d" % number for number in range(5)))
    found = broker.receive("t", "g", invisible_ms=invisible_ms)[1]
    assert [message.body for message in found] == [b"0", b"1"]
    return found


def waiting(broker: InProcessBroker) -> Call:
    call = broker.begin_receive("t", "g", batch=1, invisible_ms=60_000, wait_ms=20_000)
    assert not call.done
    return call


def waiting_at_once(broker: InProcessBroker) -> Call:
    return broker.begin_receive("t", "g", invisible_ms=60_000, wait_ms=0)


def bodies(*calls: Call) -> list[bytes]:
    return [message.body for call in calls if call.done for message in call.messages]


def test_an_ack_serves_one_who_waits_and_no_more_than_there_is_room_for(broker: InProcessBroker) -> None:
    first, second = full(broker)
    calls = [waiting(broker) for _ in range(3)]
    broker.ack("t", "g", first)
    assert bodies(*calls) == [b"2"]
    broker.ack("t", "g", second)
    assert bodies(*calls) == [b"2", b"3"]
    assert sum(call.done for call in calls) == 2


def test_a_message_forwarded_to_dead_letters_makes_room(broker: InProcessBroker) -> None:
    first, _ = full(broker)
    call = waiting(broker)
    broker.call("ForwardMessageToDeadLetterQueue", dead_letter_request("t", "g", first))
    assert bodies(call) == [b"2"]


def test_a_message_expired_for_the_last_time_makes_room(broker: InProcessBroker) -> None:
    full(broker, invisible_ms=10_000)
    call = waiting(broker)
    broker.advance(9.9)
    assert not call.done
    broker.advance(0.5)
    assert bodies(call) == [b"2"], "one delivery only: the two that expired are dead letters"


def test_a_message_given_back_is_delivered_to_one_who_waits(broker: InProcessBroker) -> None:
    broker.send("t", b"0")
    (message,) = broker.receive("t", "g", invisible_ms=60_000)[1]
    call = waiting(broker)
    request = change_invisible_request("t", "g", message, 0)
    request.suspend = True
    broker.call("ChangeInvisibleDuration", request)
    assert bodies(call) == [b"0"]


def test_a_limit_that_is_raised_serves_those_who_wait_for_a_real_brokers_retries() -> None:
    with InProcessBroker(lakeMaxInFlightPerQueue="1") as broker:
        broker.create_topic("t")
        broker.create_group("g")
        host = broker.store.store_host.packed
        broker.store.append([PendingRecord("%RETRY%g_t", 0, body, b"", 1, host) for body in (b"0", b"1")])
        assert bodies(waiting_at_once(broker)) == [b"0"]
        call = waiting(broker)
        broker.run(broker.broker.configuration.apply({"lakeMaxInFlightPerQueue": "2"}))
        broker.settle()
        assert bodies(call) == [b"1"]
