"""What receives took: given again to the attempt that is repeated, given back when its client went away."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from broker_gateway.messaging import attempts
from broker_gateway.metadata.catalog import Group
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.broker import InProcessBroker
from lakebroker_testing.messages import bodies, receive_request


@pytest.fixture(params=["plain", "compiled"])
def broker(request: pytest.FixtureRequest) -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        if request.param == "compiled":
            assert broker.broker.load_compiled()
        broker.create_topic("orders")
        broker.create_group("billing")
        yield broker


def test_what_is_given_back_waits_for_its_filter(broker: InProcessBroker) -> None:
    """Its client hangs up before the reply; a receive with another filter passes over it."""
    broker.send("orders", b"1", tag="a")
    hung_up(broker, filter="a")
    broker.send("orders", b"2", tag="b")
    assert bodies(broker.receive("orders", "billing", filter="b")[1]) == [b"2"]
    code, messages = broker.receive("orders", "billing", filter="a")
    assert (code, bodies(messages)) == (pb.OK, [b"1"])
    assert messages[0].system_properties.delivery_attempt == 1
    broker.ack("orders", "billing", *messages)
    assert broker.committed("orders", "billing") == 1


def test_what_is_given_back_and_wanted_by_nobody_is_due(broker: InProcessBroker) -> None:
    """At the end of its invisible time anybody gets it: the committed offset does not stand."""
    broker.send("orders", b"1", tag="a")
    hung_up(broker, filter="a")
    assert broker.receive("orders", "billing", filter="b")[1] == []
    broker.advance(10.5)
    messages = broker.receive("orders", "billing", filter="b")[1]
    assert bodies(messages) == [b"1"]
    broker.ack("orders", "billing", *messages)
    assert broker.committed("orders", "billing") == 1


def hung_up(broker: InProcessBroker, **asked: Any) -> None:
    """A receive whose client goes away when it has taken messages and before it is answered."""
    request = receive_request("orders", "billing", wait_ms=0, **asked)
    broker.loop.call_soon(broker.broker.catalog.put_group, Group("pending"))  # replies wait for the journal
    assert not broker.begin("ReceiveMessage", request, gone=True).done


def test_what_no_client_saw_goes_to_its_filter_after_a_restart_too(broker: InProcessBroker) -> None:
    """The journal does not say what tag a message in flight has."""
    broker.send("orders", b"1", tag="a")
    hung_up(broker, filter="a")
    broker.crash()
    broker.advance(10.5)
    hung_up(broker, filter="a")
    assert bodies(broker.receive("orders", "billing", filter="a")[1]) == [b"1"]


def test_a_repeated_attempt_that_hangs_up_gives_nothing_back(broker: InProcessBroker) -> None:
    """The first reply was given: its client may have it."""
    broker.send("orders", b"0")
    first = broker.receive("orders", "billing", attempt_id="one")[1]
    hung_up(broker, attempt_id="one")
    assert broker.receive("orders", "billing")[1] == []
    broker.advance(10.5)
    again = broker.receive("orders", "billing")[1]
    assert [each.system_properties.delivery_attempt for each in first + again] == [1, 2]


@pytest.mark.parametrize("how", ["restart", "crash"])
def test_what_a_client_never_got_is_there_for_others_at_once_after_a_restart(
    broker: InProcessBroker, how: str
) -> None:
    broker.send("orders", b"one", tag="a")
    asked = receive_request("orders", "billing", invisible_ms=3_600_000, filter="a", wait_ms=0)
    broker.begin("ReceiveMessage", asked, gone=True)
    getattr(broker, how)()
    assert broker.receive("orders", "billing", filter="b")[1] == []
    (message,) = broker.receive("orders", "billing", filter="a")[1]
    assert message.system_properties.delivery_attempt == 1
    broker.crash()
    assert broker.receive("orders", "billing", filter="a")[1] == [], "its client has it"


def test_what_a_client_had_before_is_due_to_all_when_it_is_given_back(broker: InProcessBroker) -> None:
    """Its second delivery did not happen: the next one is the second."""
    broker.send("orders", b"1", tag="a")
    broker.receive("orders", "billing", filter="a")
    broker.advance(10.5)
    hung_up(broker, filter="a")
    (message,) = broker.receive("orders", "billing", filter="b")[1]
    assert (message.body, message.system_properties.delivery_attempt) == (b"1", 2)


def test_a_repeated_attempt_gets_what_it_holds_for_the_time_that_is_left(broker: InProcessBroker) -> None:
    broker.send("orders", b"0", b"1", b"2")
    first, second = broker.receive("orders", "billing", batch=2, attempt_id="one")[1]
    broker.advance(4)
    broker.ack("orders", "billing", first)
    (again,) = broker.receive("orders", "billing", batch=2, attempt_id="one")[1]
    told = again.system_properties
    assert (again.body, told.receipt_handle) == (b"1", second.system_properties.receipt_handle)
    assert (told.delivery_attempt, told.invisible_duration.ToMilliseconds()) == (1, 6_000)
    broker.change_invisible("orders", "billing", second, 60_000)
    assert bodies(broker.receive("orders", "billing", attempt_id="one")[1]) == [b"2"], "it holds nothing"


def test_what_is_over_its_time_is_delivered_again_and_not_repeated(broker: InProcessBroker) -> None:
    broker.send("orders", b"0")
    broker.receive("orders", "billing", attempt_id="one")
    broker.clock.move(10_000_000_000)  # nobody has looked after what is due
    (message,) = broker.receive("orders", "billing", attempt_id="one")[1]
    assert message.system_properties.delivery_attempt == 2


def test_an_attempt_is_of_one_client_group_and_topic(broker: InProcessBroker) -> None:
    broker.create_topic("others")
    broker.send("orders", b"0", b"1")
    broker.send("others", b"2")
    asked: dict[str, Any] = {"batch": 1, "attempt_id": "one"}
    assert bodies(broker.receive("orders", "billing", **asked)[1]) == [b"0"]
    assert bodies(broker.client("other").receive("orders", "billing", **asked)[1]) == [b"1"]
    assert bodies(broker.receive("others", "billing", **asked)[1]) == [b"2"]
    (repeated,) = broker.receive("orders", "billing", **asked)[1]
    (of_another_group,) = broker.receive("orders", "audit", **asked)[1]
    assert repeated.body == of_another_group.body == b"0"
    assert repeated.system_properties.receipt_handle != of_another_group.system_properties.receipt_handle, (
        "it is a delivery of its own"
    )


def received_by(broker: InProcessBroker, *given: str) -> list[bytes]:
    """What attempts get, one message each; the first letter is the client, all of it the attempt."""
    taken: list[bytes] = []
    for attempt in given:
        client = broker.client(attempt[0])
        taken += bodies(client.receive("orders", "billing", batch=1, attempt_id=attempt)[1])
    return taken


def test_only_the_newest_attempt_of_a_client_is_repeated(broker: InProcessBroker) -> None:
    broker.send("orders", b"0", b"1", b"2")
    assert received_by(broker, "a1", "a2", "a2", "a1") == [b"0", b"1", b"1", b"2"]


def test_the_attempts_that_took_something_last_are_known(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "_ATTEMPTS_KEPT", 2)
    broker.send("orders", b"0", b"1", b"2", b"3", b"4")
    assert received_by(broker, "a1", "b1", "a2", "c1", "a2", "b1") == [b"0", b"1", b"2", b"3", b"2", b"4"]


def test_attempts_of_an_ordered_group_that_hold_nothing_keep_no_others_out(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "_ATTEMPTS_KEPT", 3)
    broker.create_group("steps", fifo=True)
    broker.create_topic("slow")
    broker.send("slow", b"slow")
    broker.send("orders", b"0", b"1", b"2", b"3")
    asked: dict[str, Any] = {"batch": 1, "attempt_id": "a", "invisible_ms": 60_000}
    (slow,) = broker.client("slow").receive("slow", "steps", **asked)[1]
    client = broker.client("fast")
    for number in range(4):
        (quick,) = client.receive("orders", "steps", batch=1, attempt_id=str(number))[1]
        broker.ack("orders", "steps", quick)
    (again,) = broker.client("slow").receive("slow", "steps", **asked)[1]
    assert again.system_properties.receipt_handle == slow.system_properties.receipt_handle


def test_a_repeated_attempt_waits_for_nothing_that_others_lost() -> None:
    with InProcessBroker() as broker:
        broker.create_topic("orders")
        for group in ("billing", "other"):
            broker.create_group(group)
        broker.send("orders", b"one")
        assert broker.receive("orders", "billing", attempt_id="a")[0] == pb.OK
        broker.store.inject("append", OSError(28, "No space left on device"))
        assert broker.receive("orders", "other")[0] == pb.INTERNAL_SERVER_ERROR
        assert broker.receive("orders", "billing", attempt_id="a")[0] == pb.OK
