"""Every field of a send at its extremes: answered, beside innocent calls, the same by the plain path and the compiled one."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import pytest

from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.broker import InProcessBroker
from lakebroker_testing.clock import ManualClock
from lakebroker_testing.messages import message, send_request
from store.log.record import Record, decode_properties
from tests.support.logs.extreme_sends import Extreme, extreme_messages

EXTREMES = list(extreme_messages("orders"))
NOW = 1_700_000_000_123


class Outcome(NamedTuple):
    """What became of a send: its answer, and the fields of its record that it decides."""

    code: pb.Code
    text: str
    record: tuple[Any, ...]


def outcomes(*, compiled: bool) -> dict[str, Outcome]:
    with InProcessBroker(clock=ManualClock(NOW), log_level="critical", maxMessageSize=str(1 << 18)) as broker:
        broker.create_topic("orders")
        broker.create_group("billing")
        if compiled:
            assert broker.broker.load_compiled()
        return {extreme.name: outcome(broker, extreme) for extreme in EXTREMES}


def outcome(broker: InProcessBroker, extreme: Extreme) -> Outcome:
    """Sent between two innocent ones, in one tick, to somebody who waits."""
    waiting = broker.begin_receive("orders", "billing", wait_ms=60_000)
    with broker.one_tick():
        calls = [
            broker.begin("SendMessage", send_request(each))
            for each in (message("orders", b"one"), extreme.message, message("orders", b"two"))
        ]
    first, odd, last = (call.response for call in calls)
    assert first.status.code == last.status.code == pb.OK, extreme.name
    bodies = [each.body for each in waiting.messages]
    assert {b"one", b"two"} <= set(bodies), extreme.name
    stored = odd.status.code == pb.OK and extreme.message.topic.name == "orders"
    stored = stored and extreme.message.system_properties.message_type != pb.TRANSACTION
    assert len(bodies) == 2 + (stored and not extreme.message.topic.resource_namespace), extreme.name
    assert {bulkhead.under_way for bulkhead in broker.broker.admission.bulkheads()} == {0}, extreme.name
    broker.ack("orders", "billing", *waiting.messages)
    topic = extreme.message.topic
    full = f"{topic.resource_namespace}%{topic.name}" if topic.resource_namespace else topic.name
    if extreme.message.system_properties.message_type == pb.TRANSACTION:
        full = "RMQ_SYS_TRANS_HALF_TOPIC"
    found = decided(newest(broker, full)) if odd.status.code == pb.OK else ()
    return Outcome(odd.status.code, odd.status.message, found)


def newest(broker: InProcessBroker, topic: str) -> Record:
    """The newest record of an odd message; records of innocent ones of its turn, and of the journal, stand around it."""
    starts = [*broker.store.index.record_starts().tolist()[-12:], broker.store.max_offset]
    records = [broker.store.record(at, following - at) for at, following in itertools.pairwise(starts)]
    return [each for each in records if each.topic == topic and bytes(each.body) not in (b"one", b"two")][-1]


def decided(record: Record) -> tuple[Any, ...]:
    properties = decode_properties(record.properties)
    properties.pop("__CRC32#")
    return record.sys_flag, record.born_timestamp, bytes(record.body), sorted(properties.items())


def test_every_field() -> None:
    plain, compiled = outcomes(compiled=False), outcomes(compiled=True)
    assert len(plain) == len(EXTREMES) > 400
    for name, one in plain.items():
        assert compiled[name] == one, name
    codes = [each.code for each in plain.values()]
    assert codes.count(pb.OK) > 100
    assert pb.INTERNAL_SERVER_ERROR not in codes, [
        name for name, each in plain.items() if each.code == pb.INTERNAL_SERVER_ERROR
    ]


@pytest.mark.parametrize("compiled", [False, True])
def test_born_times(compiled: bool) -> None:
    with InProcessBroker(clock=ManualClock(NOW), log_level="critical") as broker:
        broker.create_topic("orders")
        broker.create_group("billing")
        if compiled:
            assert broker.broker.load_compiled()
        born = {
            (0, 0): NOW,
            (0, 999_999_999): NOW,
            (1, 999_999_999): 1_999,
            (253_402_300_799, 999_999_999): 253_402_300_799_999,
            (253_402_300_800, 0): NOW,
            (-1, 0): NOW,
            (5, -1): NOW,
            (5, 1_000_000_000): NOW,
            (5, 2**31 - 1): NOW,
            (2**63 - 1, 2**31 - 1): NOW,
        }
        for (seconds, nanos), expected in born.items():
            odd = message("orders", b"odd")
            odd.system_properties.born_timestamp.seconds = seconds
            odd.system_properties.born_timestamp.nanos = nanos
            assert broker.call("SendMessage", send_request(odd)).status.code == pb.OK
            assert newest(broker, "orders").born_timestamp == expected, (seconds, nanos)
            _, received = broker.receive("orders", "billing")
            assert received[0].system_properties.born_timestamp.ToMilliseconds() == expected
            broker.ack("orders", "billing", *received)
