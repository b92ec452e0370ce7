"""Where a queue begins in the lake, and where it was at a time: for calls that wait. On threads of their own, so that nothing
else of the broker waits for a lake that is slow.

| | |
|---|---|
| at once | `_AT_ONCE`; the others wait in line, at most as many as their calls |
| equal ones | are one: each call has its result |
| what no call waits for any more | is not begun; one under way ends at the lake's own limit of time |
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from broker_gateway.lake.messages import LakeMessages
from broker_gateway.lake.reader import LakeReadStoppedError

_AT_ONCE = 2
_Key = tuple[object, ...]


@dataclass(slots=True, eq=False)
class _LookUp:
    """One in line or under way."""

    task: asyncio.Task[int | None]
    callers: int = 0


class LakeLookUps:
    """Of one broker. Calls raise LakeUnreachableError, LakeReadStoppedError."""

    def __init__(self, lake: LakeMessages) -> None:
        self._lake = lake
        self._threads = ThreadPoolExecutor(_AT_ONCE, "lake-look-up")
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._asked: dict[_Key, _LookUp] = {}
        self._begun: set[_Key] = set()
        self._stopped = False

    async def first(self, topic: str, queue_id: int, begin: int, end: int) -> int | None:
        """The lowest queue offset in [begin, end); None without one."""
        key = "first", topic, queue_id, begin, end
        return await self._joined(key, partial(self._lake.first, topic, queue_id, begin, end))

    async def at_time(self, topic: str, queue_id: int, begin: int, end: int, timestamp_ms: int) -> int | None:
        """The first queue offset in [begin, end) whose message was stored then or later; None without one."""
        key = "at_time", topic, queue_id, begin, end, timestamp_ms
        return await self._joined(key, partial(self._lake.at_time, topic, queue_id, begin, end, timestamp_ms))

    def stop(self) -> None:
        """None is begun any more; those under way end where the lake says that it is to stop."""
        self._stopped = True
        self._threads.shutdown(wait=False)

    async def _joined(self, key: _Key, work: Callable[[], int | None]) -> int | None:
        asked = self._asked.get(key)
        if asked is None:
            task = asyncio.create_task(self._run(key, work), name="lake-look-up")
            asked = self._asked[key] = _LookUp(task)
            task.add_done_callback(partial(self._ended, key))
        asked.callers += 1
        try:
            return await asyncio.shield(asked.task)
        finally:
            asked.callers -= 1
            if not asked.callers and self._asked.get(key) is asked and key not in self._begun:
                del self._asked[key]
                asked.task.cancel()

    async def _run(self, key: _Key, work: Callable[[], int | None]) -> int | None:
        async with self._turns:
            if self._stopped:
                raise LakeReadStoppedError
            self._begun.add(key)
            try:
                return await asyncio.get_running_loop().run_in_executor(self._threads, work)
            finally:
                self._begun.discard(key)

    def _ended(self, key: _Key, task: asyncio.Task[int | None]) -> None:
        asked = self._asked.get(key)
        if asked is not None and asked.task is task:
            del self._asked[key]
        if not task.cancelled():
            task.exception()  # whoever still waits has it
