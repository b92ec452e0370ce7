"""Receivers that drain a backlog leave room for sends and acks, and lose nothing by it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from broker_gateway.messaging.poll import Poll
from broker_gateway.messaging.take import Taker
from broker_gateway.runtime.tick import Stage
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.broker import InProcessBroker
from lakebroker_testing.calls import Call
from lakebroker_testing.messages import ack_request, message, receive_request, received, send_request

BACKLOG = 640


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker(mappedFileSizeCommitLog=str(8 << 20)) as broker:
        for topic in ("orders", "quiet"):
            broker.create_topic(topic)
        broker.create_group("billing")
        yield broker


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the calls in the order of their answers."""
    order: list[str] = []
    before = Call.answer

    def answer(call: Call, value: object) -> None:
        order.append(call.name)
        before(call, value)

    monkeypatch.setattr(Call, "answer", answer)
    return order


def fill(broker: InProcessBroker, size: int = 1024) -> None:
    for _ in range(BACKLOG // 32):
        broker.send("orders", *[b"x" * size] * 32)


def test_sends_and_acks_go_before_a_drain(broker: InProcessBroker, answered: list[str]) -> None:
    fill(broker)
    broker.send("quiet", b"one")
    _, (one,) = broker.receive("quiet", "billing")
    answered.clear()
    with broker.one_tick():
        drain = [broker.begin_receive("orders", "billing", wait_ms=5_000) for _ in range(16)]
        sends = [broker.begin("SendMessage", send_request(message("quiet", b"more"))) for _ in range(8)]
        ack = broker.begin("AckMessage", ack_request("quiet", "billing", one))
    last = max(at for at, name in enumerate(answered) if name in ("SendMessage", "AckMessage"))
    assert answered[: last + 1].count("ReceiveMessage") <= 2
    assert {call.response.status.code for call in (*sends, ack)} == {pb.OK}
    codes = [received(call.response) for call in drain]
    assert [(code, len(messages)) for code, messages in codes] == [(pb.OK, 32)] * 16
    offsets = [each.system_properties.queue_offset for _, messages in codes for each in messages]
    assert sorted(offsets) == list(range(16 * 32))
    assert offsets == sorted(offsets), "who came first is served first"


def test_a_send_that_comes_while_receives_wait_their_turn(
    broker: InProcessBroker, answered: list[str]
) -> None:
    fill(broker)
    answered.clear()
    with broker.one_tick():
        drain = [broker.begin_receive("orders", "billing", wait_ms=5_000) for _ in range(16)]
        more = send_request(message("quiet", b"more"))
        broker.loop.call_later(0, broker.begin, "SendMessage", more)
    assert all(call.done for call in drain)
    assert answered.index("SendMessage") < 6


def test_who_waits_too_long_for_a_turn_is_refused(broker: InProcessBroker) -> None:
    fill(broker)
    broker.broker.admission.check_waiting()
    with broker.one_tick():
        drain = [broker.begin_receive("orders", "billing", wait_ms=5_000) for _ in range(4)]
        broker.loop.call_soon(broker.clock.move, 5_100_000_000)
    codes = [received(call.response)[0] for call in drain]
    assert codes[0] == pb.OK
    assert codes[-1] == pb.TOO_MANY_REQUESTS
    assert broker.broker.admission.pull.under_way == 0


def test_a_drain_that_is_hung_up_or_ends(broker: InProcessBroker) -> None:
    fill(broker)
    with broker.one_tick():
        drain = [broker.begin_receive("orders", "billing", wait_ms=5_000) for _ in range(8)]
        broker.loop.call_soon(lambda: [call.cancel() for call in drain[4:]])
    assert [call.done for call in drain] == [True] * 4 + [False] * 4
    assert broker.broker.admission.pull.under_way == 0
    found = broker.receive("orders", "billing")[1]
    assert found[0].system_properties.queue_offset == 4 * 32
    with broker.one_tick():
        drain = [broker.begin_receive("orders", "billing", wait_ms=5_000) for _ in range(8)]
        broker.loop.call_soon(broker.broker.parts.long_polling.close)
    assert all(call.done for call in drain)
    assert broker.broker.admission.pull.under_way == 0


def test_large_messages_count_by_their_bytes(broker: InProcessBroker, answered: list[str]) -> None:
    broker.send("orders", *[b"x" * 100_000] * 8)
    answered.clear()
    with broker.one_tick():
        drain = [receive_request("orders", "billing", batch=1, wait_ms=0) for _ in range(8)]
        calls = [broker.begin("ReceiveMessage", each) for each in drain]
        broker.begin("SendMessage", send_request(message("quiet", b"more")))
    assert answered.index("SendMessage") <= 1
    assert all(len(call.messages) == 1 for call in calls)


def test_a_turn_that_brings_the_next_one_begins_anew(broker: InProcessBroker) -> None:
    """Else calls beside a long drain would count as having waited since it began."""
    tick = broker.broker.tick
    waited: list[float] = []

    def work() -> None:
        waited.append(broker.clock.monotonic_ns / 1e9 - tick.began)
        broker.clock.move(2_000_000_000)
        if len(waited) < 4:
            tick.add(Stage.SEARCH, work)

    broker.loop.call_soon(tick.add, Stage.SEARCH, work)
    broker.settle()
    assert waited == [0.0] * 4


COSTLY = pb.FilterExpression(
    type=pb.SQL, expression=" AND ".join([*["a CONTAINS 'x'"] * 31, *["b IS NULL"] * 31])
)
"""Some 2 ms for a text of 16 KiB."""


def costly(broker: InProcessBroker, count: int) -> None:
    broker.send("orders", *[b"m"] * count, properties={"a": "x"})


def test_what_a_filter_costs_counts_for_messages_that_it_lets_through(broker: InProcessBroker) -> None:
    costly(broker, 32)
    first = len(broker.receive("orders", "billing", filter=COSTLY)[1])
    assert 0 < first < 16
    rest = [len(broker.receive("orders", "billing", filter=COSTLY)[1]) for _ in range(8)]
    assert first + sum(rest) == 32


@pytest.mark.parametrize("waiting", [False, True])
def test_receives_with_costly_filters_search_one_in_a_tick(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch, waiting: bool
) -> None:
    ticks: list[int] = []
    take = Taker.take

    def counted(taker: Taker, poll: Poll) -> bool:
        ticks.append(broker.broker.tick.number)
        return take(taker, poll)

    def begin() -> list[Call]:
        return [
            broker.begin_receive("orders", f"group-{number}", wait_ms=60_000, filter=COSTLY)
            for number in range(6)
        ]

    for number in range(6):
        broker.create_group(f"group-{number}")
    if waiting:
        calls = begin()
        monkeypatch.setattr(Taker, "take", counted)
        costly(broker, 1)
    else:
        costly(broker, 1)
        monkeypatch.setattr(Taker, "take", counted)
        with broker.one_tick():
            calls = begin()
    assert [len(received(call.response)[1]) for call in calls] == [1] * 6
    assert len(ticks) == len(set(ticks)) == 6


@pytest.mark.parametrize("hangs_up", [True, False])
def test_who_was_woken_and_goes_before_it_searched_wakes_the_next(
    broker: InProcessBroker, hangs_up: bool
) -> None:
    others = ("audit", "mail")  # they search first, one in a tick
    for group in others:
        broker.create_group(group)
        broker.begin_receive("orders", group, wait_ms=90_000, filter=COSTLY)
    first, second = (
        broker.begin_receive("orders", "billing", wait_ms=wait_ms, filter=COSTLY)
        for wait_ms in (60_000, 90_000)
    )
    goes = first.cancel if hangs_up else partial(broker.clock.move, 60_000_000_000)
    with broker.one_tick():
        broker.begin("SendMessage", send_request(message("orders", b"m", properties={"a": "x"})))
        broker.loop.call_soon(broker.broker.tick.add, Stage.JOURNAL, goes)  # all were woken
    assert [first.done, second.done] == [not hangs_up, True]
    assert len(second.messages) == 1
