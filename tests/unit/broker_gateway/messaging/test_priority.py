"""PRIORITY messages: each priority has a queue, and a receive looks at the most urgent first."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from broker_gateway.metadata.catalog import Topic
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.google.protobuf.timestamp_pb2 import Timestamp
from lakebroker_pb.lakebroker.admin.v1 import admin_pb2
from lakebroker_testing.broker import InProcessBroker
from lakebroker_testing.messages import change_invisible_request, message, received, send_request, texts
from tests.suite.evidence import rounds

TOPIC, GROUP = "urgent", "readers"
CONFLICT = pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
LARGEST = (1 << 31) - 1


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        prepare(broker)
        yield broker


def prepare(broker: InProcessBroker, queues: int = 4) -> None:
    for name, kinds in ((TOPIC, ("PRIORITY",)), ("NORMAL", ("NORMAL",)), ("FIFO", ("FIFO",)), ("mixed", ())):
        broker.do(
            lambda name=name, kinds=kinds: broker.broker.catalog.put_topic(
                Topic(name, queues, queues, accept_message_types=kinds)
            )
        )
    broker.create_group(GROUP, retry_max_times=1000)


def send(broker: InProcessBroker, *priorities: int, topic: str = TOPIC) -> None:
    """Messages whose bodies are the priority and how many of it came before."""
    for number, each in enumerate(priorities):
        body = f"{each}.{priorities[:number].count(each)}".encode()
        sent = broker.send(topic, body, message_type=pb.PRIORITY, priority=each)
        assert sent.status.code == pb.OK, sent.status


def receive(broker: InProcessBroker, batch: int = 32, topic: str = TOPIC, **asked: Any) -> list[pb.Message]:
    return broker.receive(topic, GROUP, batch=batch, **asked)[1]


def test_the_most_urgent_come_first_and_those_of_a_priority_in_order(broker: InProcessBroker) -> None:
    send(broker, 1, 0, 3, 2, 3, 0, 1)
    assert texts(receive(broker, 3)) == ["3.0", "3.1", "2.0"]
    send(broker, 3)
    assert texts(receive(broker)) == ["3.0", "1.0", "1.1", "0.0", "0.1"]


def test_priorities_beyond_the_queues_share_the_last(broker: InProcessBroker) -> None:
    send(broker, 7, 3, LARGEST, 2)
    found = receive(broker)
    assert texts(found) == ["7.0", "3.0", f"{LARGEST}.0", "2.0"]
    for each, priority in zip(found, (7, 3, LARGEST, 2), strict=True):
        system = each.system_properties
        assert (system.message_type, system.priority) == (pb.PRIORITY, priority)
        assert system.queue_id == min(priority, 3)
        assert not each.user_properties


def test_a_lower_number_is_more_urgent_where_the_order_is_not_ascending(broker: InProcessBroker) -> None:
    send(broker, 1, 0, 3)
    broker.run(broker.broker.configuration.apply({"priorityOrderAsc": "false"}))
    assert texts(receive(broker)) == ["0.0", "1.0", "3.0"]


def put_factor(broker: InProcessBroker, change: str, value: str = "", fifo: bool = False) -> None:
    text = json.dumps({"attributes": {change: value}})
    group = admin_pb2.Group(name=GROUP, retry_max_times=1000, fifo=fifo, configuration=text)
    broker.call("PutGroup", admin_pb2.PutGroupRequest(group=group))


def most_urgent(broker: InProcessBroker, count: int) -> int:
    """How many of so many receives give a message of the highest priority; there are more of each."""
    found = [receive(broker, 1)[0].system_properties.priority for _ in range(count)]
    return found.count(3)


@pytest.mark.parametrize(("factor", "least", "most"), [(100, 200, 200), (50, 85, 165), (0, 50, 50)])
def test_a_groups_factor_says_how_many_receives_look_by_priority(
    broker: InProcessBroker, factor: int, least: int, most: int
) -> None:
    """The others begin at one queue after the other: each gives the most urgent once in four times."""
    put_factor(broker, "+priority.factor", str(factor))
    for priority in range(4):
        send(broker, *[priority] * 201)
    assert least <= most_urgent(broker, 200) <= most


def test_a_factor_may_change_goes_with_its_attribute_and_survives_a_crash(broker: InProcessBroker) -> None:
    for priority in range(4):
        send(broker, *[priority] * 41)
    put_factor(broker, "+priority.factor", "0")
    broker.crash()
    assert most_urgent(broker, 20) == 5
    put_factor(broker, "-priority.factor")
    assert most_urgent(broker, 20) == 20


def test_what_is_delivered_again_keeps_its_priority(broker: InProcessBroker) -> None:
    send(broker, 3, 1)
    (urgent,) = receive(broker, 1)
    nack(broker, urgent)
    send(broker, 2)
    found = receive(broker)
    assert texts(found) == ["3.0", "2.0", "1.0"]
    assert [each.system_properties.delivery_attempt for each in found] == [2, 1, 1]
    assert [each.system_properties.priority for each in found] == [3, 2, 1]
    broker.advance(10.5)
    broker.crash()
    assert texts(receive(broker)) == ["3.0", "2.0", "1.0"]


def test_a_dead_letter_keeps_its_priority(broker: InProcessBroker) -> None:
    broker.create_group(GROUP, retry_max_times=0)
    send(broker, 2)
    receive(broker)
    broker.advance(10.5)
    broker.create_group("dead")
    (dead,) = broker.receive(f"%DLQ%{GROUP}", "dead")[1]
    assert dead.system_properties.priority == 2


def test_waiting_receives_get_what_comes(broker: InProcessBroker) -> None:
    waiting = broker.begin_receive(TOPIC, GROUP, batch=1, wait_ms=20_000)
    send(broker, 0)
    assert texts(received(waiting.response)[1]) == ["0.0"]


def test_what_comes_in_one_tick_comes_by_priority(broker: InProcessBroker) -> None:
    waiting = broker.begin_receive(TOPIC, GROUP, batch=2, wait_ms=20_000)
    with broker.one_tick():
        for each in (0, 1, 3):
            urgent = message(TOPIC, str(each).encode(), message_type=pb.PRIORITY, priority=each)
            broker.begin("SendMessage", send_request(urgent))
    broker.settle()
    assert texts(received(waiting.response)[1]) == ["3", "1"]


def test_where_the_most_urgent_are_all_in_flight_others_come(broker: InProcessBroker) -> None:
    broker.restart(lakeMaxInFlightPerQueue="16")
    prepare(broker)
    send(broker, *([3] * 20), 0)
    assert texts(receive(broker)) == [*(f"3.{number}" for number in range(16)), "0.0"]


def test_other_topics_and_ordered_groups_begin_with_another_queue_each_time(broker: InProcessBroker) -> None:
    send(broker, *([0, 1, 2, 3] * 4), topic="mixed")
    first = {receive(broker, 1, "mixed")[0].system_properties.queue_id for _ in range(8)}
    assert len(first) > 1
    broker.create_group(GROUP, fifo=True)
    send(broker, *([0, 1, 2, 3] * 4))
    first = {receive(broker, 1)[0].system_properties.queue_id for _ in range(4)}
    assert len(first) > 1


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("topic", "fields", "expected"),
    [
        (TOPIC, {"message_type": pb.PRIORITY, "priority": 0}, pb.OK),
        (TOPIC, {"message_type": pb.PRIORITY, "priority": LARGEST}, pb.OK),
        (TOPIC, {"message_type": pb.NORMAL, "priority": 1}, pb.OK),
        (TOPIC, {"message_type": 0, "priority": 1}, pb.OK),
        (TOPIC, {"message_type": pb.PRIORITY}, CONFLICT),
        (TOPIC, {"message_type": pb.NORMAL}, CONFLICT),
        (TOPIC, {"message_type": pb.PRIORITY, "priority": -1}, pb.BAD_REQUEST),
        (TOPIC, {"message_type": pb.NORMAL, "priority": -1}, pb.BAD_REQUEST),
        (TOPIC, {"message_type": pb.PRIORITY, "priority": 1, "message_group": "g"}, CONFLICT),
        (TOPIC, {"message_type": pb.FIFO, "priority": 1, "message_group": "g"}, CONFLICT),
        (
            TOPIC,
            {"message_type": pb.PRIORITY, "priority": 1, "delivery_timestamp": Timestamp(seconds=1 << 31)},
            CONFLICT,
        ),
        ("NORMAL", {"message_type": pb.PRIORITY, "priority": 1}, CONFLICT),
        ("NORMAL", {"message_type": pb.NORMAL, "priority": 1}, CONFLICT),
        ("FIFO", {"message_type": pb.PRIORITY, "priority": 1}, CONFLICT),
        ("FIFO", {"message_type": pb.FIFO, "priority": 1, "message_group": "g"}, pb.OK),
        ("FIFO", {"message_type": pb.FIFO, "priority": -1, "message_group": "g"}, pb.BAD_REQUEST),
        ("mixed", {"message_type": pb.PRIORITY, "priority": 1}, pb.OK),
    ],
)
def test_what_a_priority_may_be(
    broker: InProcessBroker, topic: str, fields: dict[str, Any], expected: pb.Code, compiled: bool
) -> None:
    if compiled:
        assert broker.broker.load_compiled()
    answer = broker.send(topic, b"one", **fields)
    assert answer.status.code == expected, answer.status.message
    found = broker.receive(topic, GROUP)[1]
    assert len(found) == (expected == pb.OK), "what is refused is not stored"
    for each in found:
        system = each.system_properties
        ordered = fields["message_type"] == pb.FIFO
        assert (system.HasField("priority"), system.priority) == (
            (False, 0) if ordered else (True, fields["priority"])
        )
        assert system.message_type == (pb.FIFO if ordered else pb.PRIORITY)


def test_messages_of_one_call_have_one_priority(broker: InProcessBroker) -> None:
    def sent(*priorities: int) -> Any:
        messages = [message(TOPIC, b"x", message_type=pb.PRIORITY, priority=each) for each in priorities]
        return broker.call("SendMessage", send_request(*messages))

    assert sent(1, 1, 1).status.code == pb.OK
    refused = sent(2, 3).status
    assert refused.code == pb.MESSAGE_CORRUPTED
    assert "priorities 2 and 3 in one call" in refused.message
    mixed = [message(TOPIC, b"x", message_type=pb.PRIORITY, priority=1), message(TOPIC, b"x")]
    assert broker.call("SendMessage", send_request(*mixed)).status.code in (CONFLICT, pb.MESSAGE_CORRUPTED)
    found = receive(broker)
    assert [each.system_properties.queue_id for each in found] == [1, 1, 1]


def test_a_user_property_of_that_name_is_refused(broker: InProcessBroker) -> None:
    odd = message(TOPIC, b"x", {"_SYS_MSG_PRIORITY_": "1"})
    answer = broker.call("SendMessage", send_request(odd))
    assert answer.status.code in (CONFLICT, pb.ILLEGAL_MESSAGE_PROPERTY_KEY)
    odd = message("NORMAL", b"x", {"_SYS_MSG_PRIORITY_": "1"})
    answer = broker.call("SendMessage", send_request(odd))
    assert answer.status.code == pb.ILLEGAL_MESSAGE_PROPERTY_KEY


def test_a_topic_that_must_not_be_written_to_takes_none(broker: InProcessBroker) -> None:
    broker.do(
        lambda: broker.broker.catalog.put_topic(
            Topic(TOPIC, 4, 4, permission=4, accept_message_types=("PRIORITY",))
        )
    )
    sent = broker.send(TOPIC, b"x", message_type=pb.PRIORITY, priority=1)
    assert sent.status.code == pb.FORBIDDEN


def nack(broker: InProcessBroker, given: pb.Message, ms: int = 0) -> None:
    request = change_invisible_request(TOPIC, GROUP, given, ms)
    assert broker.call("ChangeInvisibleDuration", request).status.code == pb.OK


class PriorityMachine(RuleBasedStateMachine):
    """Whatever clients do, and wherever the broker crashes: a receive gets the most urgent of what there is, new ones of a
    priority in their order, as many as it asks for; each with the priority that it was sent with, and none is lost."""

    @initialize()
    def start(self) -> None:
        self.broker = InProcessBroker(log_level="critical").__enter__()
        prepare(self.broker, 3)
        self.sent: list[tuple[str, int]] = []
        self.new: list[str] = []
        self.out: dict[str, tuple[pb.Message | None, int]] = {}
        """By body: the message as its client has it (None: it gave it back), and when it is due."""
        self.settled: set[str] = set()
        self.attempts: dict[str, int] = {}

    @rule(priorities=st.lists(st.integers(0, 4), min_size=1, max_size=6))
    def send(self, priorities: list[int]) -> None:
        for priority in priorities:
            body = f"{len(self.sent)}"
            given = self.broker.send(TOPIC, body.encode(), message_type=pb.PRIORITY, priority=priority)
            assert given.status.code == pb.OK
            self.sent.append((body, priority))
            self.new.append(body)

    @rule(batch=st.integers(1, 6), invisible_ms=st.sampled_from((10_000, 30_000)))
    def receive(self, batch: int, invisible_ms: int) -> None:
        now = self.broker.clock.now_ms
        again = {body for body, (_, until) in self.out.items() if until <= now}
        there = sorted([*again, *self.new], key=self._queue, reverse=True)
        found = receive(self.broker, batch, invisible_ms=invisible_ms)
        got = texts(found)
        assert list(map(self._queue, got)) == list(map(self._queue, there[:batch]))
        assert set(got) <= set(there)
        for queue in range(3):
            new = [each for each in got if each in self.new and self._queue(each) == queue]
            assert new == [each for each in self.new if self._queue(each) == queue][: len(new)]
        for each in found:
            body = each.body.decode()
            self.attempts[body] = self.attempts.get(body, 0) + 1
            assert each.system_properties.delivery_attempt == self.attempts[body]
            assert each.system_properties.priority == self._priority(body)
            self.out[body] = each, now + invisible_ms
        self.new = [each for each in self.new if each not in got]

    @precondition(lambda self: self._given())
    @rule(number=st.integers(0, 50))
    def ack(self, number: int) -> None:
        given, until = self._any(number)
        answer = self.broker.ack(TOPIC, GROUP, given)
        if until > self.broker.clock.now_ms:
            assert answer.entries[0].status.code == pb.OK
        if answer.entries[0].status.code == pb.OK:
            self.settled.add(given.body.decode())
            del self.out[given.body.decode()]

    @precondition(lambda self: self._given())
    @rule(number=st.integers(0, 50), ms=st.sampled_from((0, 3000)))
    def nack(self, number: int, ms: int) -> None:
        given, until = self._any(number)
        if until <= self.broker.clock.now_ms:
            return
        nack(self.broker, given, ms)
        self.out[given.body.decode()] = None, self.broker.clock.now_ms + ms

    @rule(seconds=st.sampled_from((0.5, 4.0, 11.0)))
    def advance(self, seconds: float) -> None:
        self.broker.advance(seconds)

    @rule(crash=st.booleans())
    def restart(self, crash: bool) -> None:
        (self.broker.crash if crash else self.broker.restart)()

    def teardown(self) -> None:
        if not hasattr(self, "broker"):
            return
        try:
            self.broker.advance(31.0)
            for _ in range(len(self.sent) + 1):
                self.receive(6, 10_000)
                now = self.broker.clock.now_ms
                for given in [message for message, until in self._given() if until > now]:
                    assert self.broker.ack(TOPIC, GROUP, given).entries[0].status.code == pb.OK
                    self.settled.add(given.body.decode())
                    del self.out[given.body.decode()]
            assert self.settled == {body for body, _ in self.sent}
        finally:
            self.broker.__exit__(AssertionError, None, None)

    def _given(self) -> list[tuple[pb.Message, int]]:
        """What clients have, and until when."""
        return [(given, until) for given, until in self.out.values() if given is not None]

    def _any(self, number: int) -> tuple[pb.Message, int]:
        given = self._given()
        return given[number % len(given)]

    def _priority(self, body: str) -> int:
        return self.sent[int(body)][1]

    def _queue(self, body: str) -> int:
        return min(self._priority(body), 2)


TestPriorityMachine = PriorityMachine.TestCase
TestPriorityMachine.settings = settings(max_examples=rounds(3, 400), stateful_step_count=30, deadline=None)
