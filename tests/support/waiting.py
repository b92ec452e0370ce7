"""The one way in which tests wait for what another process or thread brings about: the condition is looked at again and again;
and the clock of an event loop in the test's hand.

There is no telling how long a busy machine takes: limits end what hangs, and say nothing about the time that is right.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tests.suite.patience import FACTOR

T = TypeVar("T")
LIMIT_S = 300.0 * FACTOR
"""Far longer than anything takes, and shorter than pytest's limit for a test, so that the failure names the condition."""
_EVERY_S = 0.02
_SELDOM_S = 0.1
"""The longest pause between looks: a look may cost both sides milliseconds of a processor that the condition needs."""


def wait_until(
    holds: Callable[[], T],
    what: object = "the condition",
    limit_s: float = LIMIT_S,
    every_s: float = _EVERY_S,
) -> T:
    """The first true value of `holds`. Fails with `what` (looked at then, where it can be called) when the limit is over."""
    deadline = time.monotonic() + limit_s
    while not (found := holds()):
        assert time.monotonic() < deadline, (
            f"{what() if callable(what) else what} did not come in {limit_s} s"
        )
        time.sleep(every_s)
        every_s = _later(every_s)
    return found


def in_time(ask: Callable[[], T], late: Callable[[T], object], limit_s: float = LIMIT_S) -> T:
    """The first answer that is not late, where another program gives up by its own clock. Fails with the last late one when the limit is over."""
    deadline = time.monotonic() + limit_s
    while late(answer := ask()):
        assert time.monotonic() < deadline, f"late for {limit_s} s: {answer}"
    return answer


async def until(
    holds: Callable[[], T | Awaitable[T]],
    what: object = "the condition",
    limit_s: float = LIMIT_S,
    every_s: float = _EVERY_S,
) -> T:
    """`wait_until` for a test on an event loop; `holds` may be a coroutine function."""
    deadline = time.monotonic() + limit_s
    while True:
        found = holds()
        if isinstance(found, Awaitable):
            found = await found
        if found:
            return found
        assert time.monotonic() < deadline, (
            f"{what() if callable(what) else what} did not come in {limit_s} s"
        )
        await asyncio.sleep(every_s)
        every_s = _later(every_s)


def _later(every_s: float) -> float:
    return max(every_s, min(1.4 * every_s, _SELDOM_S))


class LoopClock:
    """The clock of the running event loop of asyncio: it stands still until the test moves it. Sockets go on as they are."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._now = loop.time()
        loop.time = lambda: self._now  # type: ignore[method-assign]

    async def move(self, seconds: float) -> None:
        """What is due by then has run, and what it made ready."""
        self._now += seconds
        for _ in range(10):
            await asyncio.sleep(0)

    async def until(self, holds: Callable[[], object], what: object = "the condition") -> None:
        """`until` while the clock stands still: what is waited for comes over sockets."""
        await until(holds, what, every_s=0)
