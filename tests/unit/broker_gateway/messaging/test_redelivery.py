"""What is due is looked after whether anybody receives or not: redelivered, renewed, or a dead letter."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial

import pytest

from broker_gateway.delivery.in_flight import Status
from broker_gateway.delivery.queue_delivery import QueueKey
from broker_gateway.messaging.clients import ClientSession
from lakebroker_pb.apache.rocketmq.v2.definition_pb2 import INVALID_RECEIPT_HANDLE
from lakebroker_pb.lakebroker.admin.v1 import admin_pb2 as pb
from lakebroker_testing.broker import InProcessBroker

KEY = QueueKey("g", "t", 0)


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        broker.create_topic("t")
        broker.create_group("g", retry_max_times=1)
        yield broker


def connected(broker: InProcessBroker) -> ClientSession:
    """The client that the calls below are of."""
    return broker.do(lambda: broker.broker.clients.seen("tester", "127.0.0.1:50000"))


def statuses(broker: InProcessBroker) -> list[Status]:
    state = broker.broker.deliveries.known(KEY)
    assert state is not None
    return [each.status for each in state.in_flight.values()]


def test_a_message_over_its_time_is_ready_and_who_waits_gets_it(broker: InProcessBroker) -> None:
    broker.send("t", b"1")
    broker.receive("t", "g", invisible_ms=10_000)
    assert statuses(broker) == [Status.INVISIBLE]
    waiting = broker.begin_receive("t", "g", wait_ms=60_000)
    broker.advance(9.9)
    assert not waiting.done
    broker.advance(1.1)
    assert waiting.done
    assert statuses(broker) == [Status.INVISIBLE], "it is the second delivery"


def test_nobody_has_to_receive_for_a_message_to_be_a_dead_letter(broker: InProcessBroker) -> None:
    broker.send("t", b"poison")
    for _ in range(2):
        broker.receive("t", "g")
        broker.advance(11)
    assert statuses(broker) == []
    assert broker.committed("t", "g") == 1
    assert [each.body for each in broker.receive("%DLQ%g", "h")[1]] == [b"poison"]


def test_more_than_a_sweep_handles_is_done_in_several_ticks(broker: InProcessBroker) -> None:
    for _ in range(100):
        broker.send("t", *[b"x"] * 32)
    while broker.receive("t", "g")[1]:
        pass
    assert len(statuses(broker)) == 3200
    broker.advance(12)
    assert set(statuses(broker)) == {Status.READY}


def test_a_client_that_lives_has_its_messages_renewed(broker: InProcessBroker) -> None:
    session = connected(broker)
    broker.send("t", b"1")
    (message,) = broker.receive("t", "g", auto_renew=True)[1]
    for _ in range(12):
        broker.advance(10)
        broker.broker.clients.touch(session)
    assert statuses(broker) == [Status.INVISIBLE]
    assert broker.ack("t", "g", message).entries[0].status.code == 20000
    assert statuses(broker) == []


def test_a_client_that_is_silent_keeps_nothing(broker: InProcessBroker) -> None:
    connected(broker)
    broker.send("t", b"1")
    broker.receive("t", "g", auto_renew=True)
    broker.jump(200)
    assert statuses(broker) == [Status.READY]


def test_a_client_that_says_that_it_goes_gives_its_messages_free(broker: InProcessBroker) -> None:
    session = connected(broker)
    broker.send("t", b"1")
    broker.receive("t", "g", auto_renew=True)
    broker.broker.clients.forget(session)
    broker.do(lambda: broker.broker.parts.redelivery.release("tester", "g"))
    broker.advance(2)
    assert [each.body for each in broker.receive("t", "g")[1]] == [b"1"]


def stay(broker: InProcessBroker, seconds: int) -> None:
    """The client lives on for so long."""
    while seconds > 0:
        session = connected(broker)
        broker.do(partial(broker.broker.clients.touch, session))
        broker.jump(min(30, seconds))
        seconds -= 30


@pytest.mark.parametrize("how", ["", "crash", "restart"])
def test_behind_the_longest_renewal_the_groups_policy_says_when_it_comes_again(
    broker: InProcessBroker, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the number of deliveries before; the wait is journaled, and the handle is void."""
    longest_s = 200
    monkeypatch.setattr("broker_gateway.messaging.redelivery.RENEW_AT_MOST_MS", longest_s * 1000)
    exponential = {"initial": 150_000, "max": 3_600_000, "multiplier": 2}
    policy = {"groupRetryPolicy": {"type": "EXPONENTIAL", "exponentialRetryPolicy": exponential}}
    group = pb.Group(name="g", retry_max_times=2, configuration=json.dumps(policy))
    broker.call("PutGroup", pb.PutGroupRequest(group=group))
    stay(broker, 30)
    broker.send("t", b"1")
    for wait_s in (150, 300):
        (message,) = broker.receive("t", "g", auto_renew=True)[1]
        began = broker.clock.now_ms
        stay(broker, longest_s - 60)
        state = broker.broker.deliveries.known(KEY)
        assert state is not None
        assert state.in_flight[0].auto_renew
        stay(broker, 180)
        state = broker.broker.deliveries.known(KEY)
        assert state is not None
        waiting = state.in_flight[0]
        assert (waiting.auto_renew, waiting.status) == (False, Status.INVISIBLE)
        ended = waiting.invisible_until_ms - wait_s * 1000
        assert longest_s * 1000 <= ended - began <= longest_s * 1000 + 61_000
        assert broker.ack("t", "g", message).entries[0].status.code == INVALID_RECEIPT_HANDLE
        if how:
            getattr(broker, how)()
            assert broker.receive("t", "g")[1] == []
        stay(broker, (waiting.invisible_until_ms - broker.clock.now_ms) // 1000 - 10)
        assert broker.receive("t", "g")[1] == []
        stay(broker, 90)
        assert statuses(broker) == [Status.READY]
    assert [each.body for each in broker.receive("t", "g", invisible_ms=10_000)[1]] == [b"1"]
    broker.advance(12)
    assert [each.body for each in broker.receive("%DLQ%g", "h")[1]] == [b"1"]


@pytest.mark.parametrize("how", ["crash", "restart"])
def test_renewal_goes_on_after_a_restart(broker: InProcessBroker, how: str) -> None:
    """Also of what was delivered long ago, and twice; the client has some time to come back."""
    session = connected(broker)
    broker.send("t", b"1")
    (message,) = broker.receive("t", "g", auto_renew=True)[1]
    for _ in range(3):
        for _ in range(12):
            broker.advance(10)
            broker.broker.clients.touch(session)
        getattr(broker, how)()
        broker.advance(50)
        assert statuses(broker) == [Status.INVISIBLE]
        session = connected(broker)
    broker.advance(30)
    assert broker.ack("t", "g", message).entries[0].status.code == 20000


def test_a_client_that_does_not_come_back_keeps_nothing(broker: InProcessBroker) -> None:
    connected(broker)
    broker.send("t", b"1")
    broker.receive("t", "g", auto_renew=True)
    broker.restart()
    broker.advance(62)
    assert statuses(broker) == [Status.READY]
