"""Says where the event loop hangs: its stack in the log, once it has not moved for a second.

A thread looks, with the interpreter's lock; `faulthandler`'s timer, which looks without it, was seen to crash the
process when the loop was busy and not stuck. While a call holds the lock, the look comes right behind it.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback

import structlog

log = structlog.get_logger(__name__)
LIMIT_S = 1.0
_PERIOD_S = 0.25
_AGAIN_S = 60.0
"""A hang that goes on, or the next one, is logged no more often than this."""


async def watch(limit_s: float = LIMIT_S) -> None:
    """Watches the running loop until it is cancelled."""
    watched = Watched(threading.get_ident(), limit_s, time.monotonic())
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(_PERIOD_S):
            watched.look(time.monotonic())

    threading.Thread(target=look, name="watchdog", daemon=True).start()
    try:
        while True:
            watched.moved_at = time.monotonic()
            await asyncio.sleep(_PERIOD_S)
    finally:
        ended.set()


class Watched:
    """When the loop of a thread last moved, and whether a hang is to be logged. Times are s of the monotonic clock."""

    def __init__(self, thread_id: int, limit_s: float, now_s: float) -> None:
        self._thread_id = thread_id
        self._limit_s = limit_s
        self._said_at = float("-inf")
        self.moved_at = now_s

    def look(self, now_s: float) -> None:
        """Logs the thread's stack where the loop has stood still for too long."""
        still_s = now_s - self.moved_at - _PERIOD_S
        if still_s > self._limit_s and now_s - self._said_at > _AGAIN_S:
            self._said_at = now_s
            stack = "".join(traceback.format_stack(sys._current_frames().get(self._thread_id)))
            log.warning("the event loop hangs", seconds=round(still_s, 1), stack=stack)
