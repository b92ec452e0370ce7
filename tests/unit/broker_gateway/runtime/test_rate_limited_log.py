"""Events in masses: few lines, and every event counted in one of them though nothing more happens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

import pytest
import structlog
from structlog.testing import capture_logs
from structlog.typing import EventDict

from broker_gateway.runtime import peer_log, rate_limited_log
from broker_gateway.runtime.delayed_report import tell_now, waiting
from broker_gateway.runtime.peer_log import PeerLog
from broker_gateway.runtime.rate_limited_log import RateLimitedLog
from tests.support.waiting import LoopClock

log = structlog.get_logger(__name__)


@pytest.fixture(autouse=True)
def of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of a loop, which stands still until the test moves it."""
    now = SimpleNamespace(monotonic=lambda: asyncio.get_running_loop().time())
    monkeypatch.setattr(rate_limited_log, "time", now)


def run(test: Callable[[LoopClock], Awaitable[None]]) -> list[EventDict]:
    async def with_clock() -> None:
        await test(LoopClock())

    with capture_logs() as lines:
        asyncio.run(with_clock())
    return list(lines)


def seldom_happens(times: int) -> Callable[[], None]:
    events = RateLimitedLog("times")

    def happens() -> None:
        for number in range(times):
            events.happened(log.warning, "broken", number=number)

    return happens


def peers_cause(times: int) -> Callable[[], None]:
    events = PeerLog(asyncio.get_running_loop().time)

    def happens() -> None:
        for number in range(times):
            events.warning("10.0.0.66", "broken", number=number)

    return happens


@pytest.mark.parametrize("kind", [seldom_happens, peers_cause])
def test_what_is_held_back_is_told_when_the_time_is_over(
    kind: Callable[[int], Callable[[], None]],
) -> None:
    async def test(clock: LoopClock) -> None:
        happens = kind(3)
        happens()
        assert len(waiting()) == 1
        await clock.move(peer_log.EVERY_S)
        assert not waiting()
        happens()
        await clock.move(peer_log.EVERY_S)

    lines = run(test)
    assert sum(each.get("times", 1) for each in lines) == 6
    assert [each["number"] for each in lines[:2]] == [0, 2]
    assert [each.get("times", 1) for each in lines[:2]] == [1, 2]


@pytest.mark.parametrize("kind", [seldom_happens, peers_cause])
def test_nothing_waits_while_nothing_is_held_back(kind: Callable[[int], Callable[[], None]]) -> None:
    async def test(_: LoopClock) -> None:
        kind(1)()
        assert not waiting()

    assert len(run(test)) == 1


@pytest.mark.parametrize("kind", [seldom_happens, peers_cause])
def test_what_is_held_back_is_told_at_the_stop(kind: Callable[[int], Callable[[], None]]) -> None:
    async def test(_: LoopClock) -> None:
        kind(3)()
        tell_now()
        assert not waiting()
        tell_now()

    assert [each.get("times", 1) for each in run(test)] == [1, 2]


def test_without_a_loop_the_next_event_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limited_log, "time", SimpleNamespace(monotonic=lambda: 1.0))
    with capture_logs() as lines:
        happens = seldom_happens(3)
        happens()
        monkeypatch.setattr(rate_limited_log, "LOG_EVERY_S", 0.0)
        happens()
    assert [each["times"] for each in lines] == [1, 3, 1, 1]


def test_windows_of_several_peers_end_each_in_its_time() -> None:
    async def test() -> None:
        clock, events = LoopClock(), PeerLog(asyncio.get_running_loop().time)
        for host in ("10.0.0.1", "10.0.0.2", "10.0.0.3"):
            for _ in range(4):
                events.error(host, "broken", host=host)
            await clock.move(1.0)
        for seconds, told in ((0.0, 3), (peer_log.EVERY_S - 3.0, 4), (1.0, 5), (1.0, 6)):
            await clock.move(seconds)
            assert len(lines) == told

    with capture_logs() as lines:
        asyncio.run(test())
    for host in ("10.0.0.1", "10.0.0.2", "10.0.0.3"):
        assert [each.get("times", 1) for each in lines if each["host"] == host] == [1, 3]


def test_a_line_that_waits_keeps_no_exception() -> None:
    async def test(clock: LoopClock) -> None:
        events = RateLimitedLog("times")
        for number in range(2):
            events.happened(log.error, "broken", exc_info=ValueError(number))
        await clock.move(rate_limited_log.LOG_EVERY_S)

    first, rest = run(test)
    assert isinstance(first["exc_info"], ValueError)
    assert rest["error"] == "ValueError: 1"
    assert "exc_info" not in rest
