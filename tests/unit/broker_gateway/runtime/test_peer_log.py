"""Lines that peers cause: bounded for each address, counted in full, and in bounded memory."""

from __future__ import annotations

import gc
import weakref

import pytest
from structlog.testing import capture_logs

from broker_gateway.runtime.peer_log import EVERY_S, MOST_APART, PeerLog


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_the_first_of_an_address_is_told_and_then_a_count_a_minute(clock: Clock) -> None:
    log = PeerLog(clock)
    with capture_logs() as lines:
        for number in range(121):
            for _ in range(10):
                log.warning("10.0.0.66", "broken", error=f"at {number} s")
            clock.now += 1
    assert [(each["error"], each.get("times")) for each in lines] == [
        ("at 0 s", None),
        ("at 60 s", 600),
        ("at 120 s", 600),
    ]
    assert {(each["event"], each["log_level"]) for each in lines} == {("broken", "warning")}


def test_addresses_and_events_hide_nothing_of_each_other(clock: Clock) -> None:
    log = PeerLog(clock)
    with capture_logs() as lines:
        for host in ("10.0.0.66", "10.0.0.1", "2001:db8::1", "2001:db8::2"):
            for _ in range(5):
                log.warning(host, "broken", host=host)
        log.error("10.0.0.66", "another", lines=2)
        log.error("10.0.0.66", "another", lines=2)
        log.error("10.0.0.66", "another", lines=2)
    assert [each.get("host") for each in lines] == ["10.0.0.66", "10.0.0.1", "2001:db8::1", None, None]


def test_what_was_counted_is_told_when_anybody_comes_later(clock: Clock) -> None:
    log = PeerLog(clock)
    with capture_logs() as lines:
        for number in range(7):
            log.warning("10.0.0.66", "broken", number=number)
        clock.now += EVERY_S
        log.info("10.0.0.1", "fine")
    assert [(each["event"], each.get("number"), each.get("times")) for each in lines] == [
        ("broken", 0, None),
        ("broken", 6, 6),
        ("fine", None, None),
    ]


def test_many_addresses_take_bounded_lines_and_memory(clock: Clock) -> None:
    log = PeerLog(clock)
    with capture_logs() as lines:
        for minute in range(2):
            for number in range(10 * MOST_APART):
                log.warning(f"10.{minute}.{number >> 8}.{number & 255}", "broken")
            clock.now += EVERY_S
        log.info("10.0.0.1", "fine")
    broken = [each for each in lines if each["event"] == "broken"]
    assert len(broken) <= 2 * (MOST_APART + 2)
    assert sum(each.get("times", 1) for each in broken) == 20 * MOST_APART


class Request:
    """What a processor has at hand when it fails."""


@pytest.mark.parametrize("before", [0, 1])
def test_nothing_of_what_was_at_work_is_kept(clock: Clock, before: int) -> None:
    """Neither of an error that was told at once nor of one that is counted."""
    log = PeerLog(clock)

    def fail() -> weakref.ref[Request]:
        request = Request()
        try:
            raise ValueError("x" * 5000, [request])
        except ValueError as error:
            log.error("10.0.0.66", "failed", code=11, exc_info=error)
        return weakref.ref(request)

    with capture_logs() as lines:
        for _ in range(before):
            fail()
        request = fail()
        lines.clear()
        gc.collect()
        assert request() is None
        clock.now += EVERY_S
        log.info("10.0.0.1", "fine")
    assert [(each["code"], each["error"][:14], len(each["error"])) for each in lines[:-1]] == (
        [(11, "ValueError: ('", 1000)] * before
    )
