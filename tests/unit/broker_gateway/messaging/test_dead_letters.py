"""Copies in the dead letters: what cannot be stored stays in flight, and is told of seldom."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest
import structlog

from broker_gateway.metadata import catalog
from lakebroker_testing.broker import InProcessBroker
from store.log.record import CRC_BYTES, PROPERTIES_MAX_BYTES, Host, PendingRecord, encode_properties


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        broker.create_topic("orders")
        broker.create_group("billing")
        yield broker


def poison(broker: InProcessBroker, property_bytes: int, group: str = "once", messages: int = 1) -> None:
    """Records with so many bytes of properties, as other brokers' stores hold; delivered once, and not acknowledged."""
    known = encode_properties({"UNIQ_KEY": "0" * 32, "k": ""})
    properties = known[:-1] + b"v" * (property_bytes - len(known)) + b"\x02"
    host = Host("127.0.0.1", 10911).packed
    broker.create_group(group, retry_max_times=0)
    record = PendingRecord("orders", 0, b"poison", properties, broker.clock.now_ms, host)
    broker.store.append([record] * messages)
    assert len(broker.receive("orders", group, invisible_ms=1000)[1]) == messages


def test_a_dead_letter_without_room_for_what_is_told_tells_less(broker: InProcessBroker) -> None:
    poison(broker, PROPERTIES_MAX_BYTES - 150)
    broker.advance(2)
    (message,) = broker.receive("%DLQ%once", "billing")[1]
    assert message.body == b"poison"
    assert broker.committed("orders", "once") == 1
    broker.crash()
    assert broker.committed("orders", "once") == 1


def test_a_dead_letter_that_never_fits_is_kept_told_once_and_tried_seldom(broker: InProcessBroker) -> None:
    poison(broker, PROPERTIES_MAX_BYTES - CRC_BYTES)
    before = broker.store.calls["record"]
    with structlog.testing.capture_logs() as logs:
        for _ in range(180):
            broker.jump(10)
    assert [each["queue_offset"] for each in logs if each["log_level"] == "error"] == [0]
    assert 3 < broker.store.calls["record"] - before < 15
    assert broker.committed("orders", "once") == 0
    broker.send("orders", b"next")
    assert [each.body for each in broker.receive("orders", "once")[1]] == [b"next"]


def test_many_dead_letters_that_do_not_fit_have_few_lines(broker: InProcessBroker) -> None:
    poison(broker, PROPERTIES_MAX_BYTES - CRC_BYTES, messages=20)
    with structlog.testing.capture_logs() as logs:
        for _ in range(60):
            broker.jump(10)
    told = [each for each in logs if "dead-letter" in each["event"]]
    assert [each["times"] for each in told] == [1, 19]


def test_a_disk_that_stays_full_is_told_once(broker: InProcessBroker) -> None:
    broker.create_group("once", retry_max_times=0)
    for number in range(5):
        broker.send("orders", b"%d" % number)
    assert len(broker.receive("orders", "once", invisible_ms=1000)[1]) == 5
    for number in range(1000):
        broker.store.inject("append", OSError(errno.ENOSPC, "No space left on device"), after=number)
    with structlog.testing.capture_logs() as logs:
        broker.advance(60)
    assert len([each for each in logs if each["event"].startswith("dead letter")]) == 1
    broker.store.heal()
    broker.advance(20)
    assert broker.store.index.max_offset("%DLQ%once", 0) == 5


def test_without_room_for_the_topic_of_dead_letters_a_message_waits_for_it(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no fault of the message's: it is tried again as often as at first."""
    broker.create_group("once", retry_max_times=0)
    broker.send("orders", b"one")
    broker.receive("orders", "once", invisible_ms=1000)
    with monkeypatch.context() as patched:
        patched.setattr(catalog, "MAX_TOPICS", 1)
        broker.advance(60)
        assert broker.committed("orders", "once") == 0
    broker.advance(10)
    assert broker.store.index.max_offset("%DLQ%once", 0) == 1
    assert broker.committed("orders", "once") == 1


def test_who_waits_for_room_in_flight_is_served_when_a_message_becomes_a_dead_letter() -> None:
    with InProcessBroker(lakeMaxInFlightPerQueue="1") as broker:
        broker.create_topic("orders")
        broker.create_group("billing")
        broker.send("orders", b"poison", b"next")
        (poison,) = broker.receive("orders", "billing", invisible_ms=60_000)[1]
        waiting = broker.begin_receive("orders", "billing", wait_ms=30_000)
        assert not waiting.done
        broker.dead_letter("orders", "billing", poison)
        assert [each.body for each in waiting.messages] == [b"next"]
