"""Ordered delivery: to a FIFO group, messages of one message group come one receive after the other, others beside them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from broker_gateway.journal.replay import records_from
from broker_gateway.metadata.names import JOURNAL_TOPIC
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.lakebroker.journal.v1.journal_pb2 import Batch, EventKind
from lakebroker_testing.broker import Call, InProcessBroker
from lakebroker_testing.messages import change_invisible_request, receive_request, received, texts
from tests.suite.evidence import rounds


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        broker.create_topic("orders")
        broker.create_group("billing", retry_max_times=3, fifo=True)
        yield broker


def send(broker: InProcessBroker, *messages: str) -> None:
    """`a1` is of the group `a`; `1` is of none."""
    for each in messages:
        group = each.rstrip("0123456789")
        kind: dict[str, Any] = {"message_type": pb.FIFO, "message_group": group} if group else {}
        assert broker.send("orders", each.encode(), **kind).status.code == pb.OK


def receive(broker: InProcessBroker, batch: int = 32, **asked: Any) -> list[pb.Message]:
    return broker.receive("orders", "billing", batch=batch, **asked)[1]


def nack(broker: InProcessBroker, message: pb.Message, ms: int = 0) -> None:
    request = change_invisible_request("orders", "billing", message, ms)
    assert broker.call("ChangeInvisibleDuration", request).status.code == pb.OK


def test_of_a_group_nothing_is_handed_out_while_a_client_has_some(broker: InProcessBroker) -> None:
    send(broker, "a1", "a2", "a3", "b1", "1", "b2", "2")
    first = receive(broker, 2)
    assert texts(first) == ["a1", "a2"], "a receive may have several, in order"
    second = receive(broker)
    assert texts(second) == ["b1", "1", "b2", "2"], "other groups, and messages of none, go on"
    assert receive(broker) == []
    broker.ack("orders", "billing", first[1])
    assert receive(broker) == [], "a1 is out"
    broker.ack("orders", "billing", first[0])
    assert texts(receive(broker)) == ["a3"]


def test_messages_without_a_group_are_one(broker: InProcessBroker) -> None:
    send(broker, "1", "2", "a1")
    first = receive(broker, 1)
    assert (texts(first), texts(receive(broker))) == (["1"], ["a1"])
    broker.ack("orders", "billing", *first)
    assert texts(receive(broker)) == ["2"]


def test_what_expires_comes_again_in_order_and_what_was_acknowledged_does_not(
    broker: InProcessBroker,
) -> None:
    send(broker, "a1", "a2", "a3", "a4")
    first = receive(broker, 3)
    broker.ack("orders", "billing", first[1])
    broker.advance(10.5)
    again = receive(broker)
    assert texts(again) == ["a1", "a3", "a4"]
    assert [each.system_properties.delivery_attempt for each in again] == [2, 2, 1]


def test_a_message_that_is_given_back_is_waited_for(broker: InProcessBroker) -> None:
    send(broker, "a1", "a2", "b1")
    first = receive(broker, 1)
    nack(broker, first[0], 5000)
    assert texts(receive(broker)) == ["b1"], "a2 waits for a1, which nobody has"
    broker.advance(5.1)
    assert texts(receive(broker)) == ["a1", "a2"]


def test_a_waiting_receive_gets_what_an_acknowledgement_opens(broker: InProcessBroker) -> None:
    send(broker, "a1", "a2")
    first = receive(broker, 1)
    waiting = broker.begin_receive("orders", "billing", wait_ms=20_000)
    broker.settle()
    assert not waiting.done
    broker.ack("orders", "billing", *first)
    broker.settle()
    assert texts(received(waiting.response)[1]) == ["a2"]


def test_a_waiting_receive_gets_what_the_end_of_a_later_delivery_opens(broker: InProcessBroker) -> None:
    """The first one's time is over already; the group opens when the second is given back."""
    send(broker, "a1", "a2")
    first = receive(broker, 1)
    nack(broker, first[0])
    both = receive(broker, 2, invisible_ms=30_000)
    assert texts(both) == ["a1", "a2"]
    nack(broker, both[0])
    waiting = broker.begin_receive("orders", "billing", wait_ms=20_000)
    broker.settle()
    assert not waiting.done, "a client has a2"
    nack(broker, both[1], 20_000)
    broker.settle()
    assert texts(received(waiting.response)[1]) == ["a1"]


def test_a_dead_letter_lets_the_next_one_go_on(broker: InProcessBroker) -> None:
    broker.create_group("billing", retry_max_times=0, fifo=True)
    send(broker, "a1", "a2")
    assert texts(receive(broker, 1)) == ["a1"]
    broker.advance(10.5)
    assert texts(receive(broker)) == ["a2"]
    assert broker.store.index.max_offset("%DLQ%billing", 0) == 1


def test_what_is_held_back_counts_towards_the_limit_of_the_queue(broker: InProcessBroker) -> None:
    broker.restart(lakeMaxInFlightPerQueue="16")
    send(broker, *(f"a{number}" for number in range(20)), "b1")
    first = receive(broker, 1)
    assert receive(broker) == [], "15 are held back, and b1 is behind the limit"
    broker.ack("orders", "billing", *first)
    assert texts(receive(broker, 10)) == [f"a{number}" for number in range(1, 11)]


@pytest.mark.parametrize("how", ["crash", "restart"])
def test_a_restart_keeps_the_order_and_a_repeated_attempt(broker: InProcessBroker, how: str) -> None:
    send(broker, "a1", "a2", "a3", "b1")
    first = receive(broker, 2, attempt_id="one", invisible_ms=60_000)
    assert texts(receive(broker, attempt_id="two")) == ["b1"]
    getattr(broker, how)()
    assert receive(broker) == []
    again = receive(broker, 2, attempt_id="one", invisible_ms=60_000)
    assert texts(again) == ["a1", "a2"], "the same messages"
    handles = [each.system_properties.receipt_handle for each in first]
    assert [each.system_properties.receipt_handle for each in again] == handles
    nack(broker, again[1])
    assert texts(receive(broker, attempt_id="one")) == ["a1"]
    getattr(broker, how)()
    assert texts(receive(broker, attempt_id="one")) == ["a1"], "a2 is with that attempt no more"
    broker.ack("orders", "billing", first[0])
    assert texts(receive(broker)) == ["a2", "a3"]
    assert broker.committed("orders", "billing") == 1


def test_a_group_may_become_ordered_and_unordered(broker: InProcessBroker) -> None:
    broker.create_group("billing")
    send(broker, "a1", "a2", "a3")
    assert texts(receive(broker, 1)) == ["a1"]
    broker.create_group("billing", fifo=True)
    assert receive(broker) == [], "a1, handed out before, is waited for"
    broker.crash()
    assert receive(broker) == []
    broker.create_group("billing", fifo=False)
    found = receive(broker)
    assert texts(found) == ["a2", "a3"]
    assert [each.system_properties.delivery_attempt for each in found] == [1, 1]


@pytest.mark.parametrize("how", ["crash", "restart"])
def test_what_was_held_back_is_not_lost_when_its_group_is_not_ordered_any_more(
    broker: InProcessBroker, how: str
) -> None:
    send(broker, "a1", "a2", "a3", "a4")
    first = receive(broker, 1)
    assert receive(broker) == []
    broker.create_group("billing", fifo=False)
    broker.ack("orders", "billing", *first, *receive(broker, 1))
    getattr(broker, how)()
    assert texts(receive(broker)) == ["a3", "a4"]


def test_a_receive_that_fills_the_queue_with_what_it_holds_back_is_woken_by_room(
    broker: InProcessBroker,
) -> None:
    broker.restart(lakeMaxInFlightPerQueue="16")
    send(broker, *(f"a{number}" for number in range(16)), "b1")
    first = receive(broker, 2)
    waiting = broker.begin_receive("orders", "billing", wait_ms=20_000)
    broker.settle()
    broker.ack("orders", "billing", first[1])
    broker.settle()
    assert texts(received(waiting.response)[1]) == ["b1"]


def test_nothing_expires_that_nobody_had(broker: InProcessBroker) -> None:
    send(broker, "a1", "a2")
    first = receive(broker, 1)
    assert receive(broker) == []
    broker.ack("orders", "billing", *first)
    assert texts(receive(broker)) == ["a2"]
    batches = [
        Batch.FromString(bytes(record.body)) for _, record in records_from(broker.store, JOURNAL_TOPIC, 0, 0)
    ]
    noted = [
        (events.kind, list(events.queue_offset))
        for batch in batches
        for change in batch.queues
        for events in change.events
    ]
    for batch in batches:
        events = [each.kind for change in batch.queues for each in change.events]
        assert batch.version == (2 if EventKind.HELD in events else 1), (
            "who does not know of it must not read it"
        )
    assert noted == [(pb_kind, [offset]) for pb_kind, offset in ((1, 0), (9, 1), (2, 0), (1, 1))]


def test_what_is_held_back_has_no_handle(broker: InProcessBroker) -> None:
    send(broker, "a1", "a2")
    receive(broker, 1)
    receive(broker, 1)
    state = next(iter(broker.broker.deliveries.queues()))
    assert list(state.in_flight) == [0, 1]
    assert state.find(1, state.in_flight[1].delivery_id) is None


def test_a_client_that_goes_away_leaves_the_order_as_it_was(broker: InProcessBroker) -> None:
    send(broker, "a1", "a2", "a3")
    request = receive_request("orders", "billing", batch=2, wait_ms=0)
    assert not broker.begin("ReceiveMessage", request, gone=True).done
    found = receive(broker)
    assert texts(found) == ["a1", "a2", "a3"]
    assert {each.system_properties.delivery_attempt for each in found} == {1}


class OrderedMachine(RuleBasedStateMachine):
    """Whatever clients do, and wherever the broker crashes: of each group the messages come in their order, to one client
    at a time, none is lost, and none comes after its acknowledgement."""

    @initialize()
    def start(self) -> None:
        self.broker = InProcessBroker(log_level="critical", lakeJournalSnapshotBytes="1048576").__enter__()
        self.broker.create_topic("orders", 2)
        self.broker.create_group("billing", retry_max_times=1000, fifo=True)
        self.sent: dict[str, list[str]] = {}
        self.settled: set[str] = set()
        self.out: dict[str, tuple[pb.Message, int, int]] = {}
        """By body: the message, its receive, and until when it is the client's."""
        self.waiting: list[Call] = []
        self.receives = 0

    @rule(groups=st.lists(st.sampled_from(("a", "b", "c")), min_size=1, max_size=5))
    def send(self, groups: list[str]) -> None:
        for group in groups:
            body = f"{group}{len(self.sent.setdefault(group, []))}"
            send(self.broker, body)
            self.sent[group].append(body)
        self._answered()

    @rule(batch=st.integers(1, 4), invisible_ms=st.sampled_from((10_000, 30_000)))
    def receive(self, batch: int, invisible_ms: int) -> None:
        now = self.broker.clock.now_ms
        self._take(receive(self.broker, batch, invisible_ms=invisible_ms), now, invisible_ms)

    @rule()
    def wait(self) -> None:
        self.waiting.append(self.broker.begin_receive("orders", "billing", batch=2, wait_ms=3_000_000))
        self._answered()

    @precondition(lambda self: self.out)
    @rule(number=st.integers(0, 50))
    def ack(self, number: int) -> None:
        message = self._any(number)
        answer = self.broker.ack("orders", "billing", message)
        if answer.entries[0].status.code == pb.OK:
            body = message.body.decode()
            self.settled.add(body)
            self.out.pop(body, None)
        self._answered()

    @precondition(lambda self: self.out)
    @rule(number=st.integers(0, 50), ms=st.sampled_from((0, 3000)))
    def nack(self, number: int, ms: int) -> None:
        message = self._any(number)
        request = change_invisible_request("orders", "billing", message, ms)
        if self.broker.call("ChangeInvisibleDuration", request).status.code == pb.OK:
            del self.out[message.body.decode()]
        self._answered()

    @rule(seconds=st.sampled_from((0.5, 4.0, 11.0)))
    def advance(self, seconds: float) -> None:
        for _ in range(int(seconds * 2)):  # a waiting receive is answered at a known time
            self.broker.advance(0.5)
            self._answered()

    @rule(crash=st.booleans())
    def restart(self, crash: bool) -> None:
        self.broker.settle()
        self._answered()
        for call in self.waiting:
            self.broker.hang_up(call)
        self.waiting.clear()
        (self.broker.crash if crash else self.broker.restart)()

    def teardown(self) -> None:
        if not hasattr(self, "broker"):
            return
        try:
            self.restart(crash=False)
            self.advance(11.0)
            self.broker.advance(30.0)
            for _ in range(sum(map(len, self.sent.values())) + 2):
                self.receive(4, 10_000)
                for message, _, _ in list(self.out.values()):
                    if self.broker.ack("orders", "billing", message).entries[0].status.code == pb.OK:
                        self.settled.add(message.body.decode())
                        del self.out[message.body.decode()]
            assert self.settled == {body for some in self.sent.values() for body in some}
        finally:
            self.broker.__exit__(AssertionError, None, None)

    def _any(self, number: int) -> pb.Message:
        return list(self.out.values())[number % len(self.out)][0]

    def _answered(self) -> None:
        self.broker.settle()
        for call in [each for each in self.waiting if each.done]:
            self.waiting.remove(call)
            self._take(received(call.response)[1], self.broker.clock.now_ms, 10_000)

    def _take(self, messages: list[pb.Message], now: int, invisible_ms: int) -> None:
        self.receives += 1
        for message in messages:
            body = message.body.decode()
            group = body[0]
            assert body not in self.settled, f"{body} was acknowledged"
            open_ones = [each for each in self.sent[group] if each not in self.settled]
            for other in open_ones:
                held = self.out.get(other)
                if held is not None and held[2] > now:
                    assert held[1] == self.receives, f"{body} is handed out while a client has {other}"
            mine = [each for each in open_ones if each in self.out and self.out[each][1] == self.receives]
            assert open_ones.index(body) == len(mine), f"{body} is not the next of {open_ones}"
            self.out[body] = (message, self.receives, now + invisible_ms)


TestOrderedMachine = OrderedMachine.TestCase
TestOrderedMachine.settings = settings(max_examples=rounds(3, 400), stateful_step_count=30, deadline=None)
