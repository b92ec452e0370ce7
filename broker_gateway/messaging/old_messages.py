"""Messages that are in the lake alone: older than the local log, or of a log that was lost. Read ahead on threads of their
own, kept in memory.

Who receives looks here (`look`, `record`). What is not in memory is asked for, and who asked is told when it is there or when
it is time to try again: nobody waits for the lake on the event loop. One reading brings a `Stretch` of a queue, some
thousand messages or an eighth of the memory; the next one is read when half of it was looked at.

| limit | |
|---|---|
| memory | `lakeColdReadBytes`; what was not used for longest goes first |
| readings at once, in line | `_AT_ONCE`, `_MOST_ASKED`; groups and addresses take turns (`reading_line.py`) |
| a lake that cannot be read | each queue is tried again after 1 s, then twice as long each time, up to `_LONGEST_S`; nothing is passed over for it |
| queues that could not be read | `_MOST_FAILED` are known; who failed first is forgotten for another one, and tried again sooner |
"""

from __future__ import annotations

import asyncio
import bisect
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import structlog

from broker_gateway.delivery.queue_delivery import QueueKey
from broker_gateway.lake.messages import LakeMessages, Stretch
from broker_gateway.lake.reader import LakeReadStoppedError, LakeUnreachableError
from broker_gateway.messaging.lake_look_ups import LakeLookUps
from broker_gateway.messaging.reading_line import Queue, Reading, ReadingLine, Waiter
from broker_gateway.observability.metrics import Metrics
from broker_gateway.runtime.clock import monotonic_s
from broker_gateway.runtime.rate_limited_log import RateLimitedLog
from store.index.queue_index import QueueIndex

log = structlog.get_logger(__name__)
_AT_ONCE = 2
_MOST_ASKED = 10_000
_MOST_FAILED = 10_000
_NEAR = 1024
"""Queue offsets behind the beginning of a reading under way that it is expected to bring."""
_SHARE = 8
_KEPT_S = 300.0
"""What is in memory is read again after this: rows may have been erased."""
_FIRST_KEPT_S = 10.0
_LONGEST_S = 30.0
_AFTER_FULL_S = 1.0


class InLakeError(Exception):
    """The message is in the lake, and not in memory yet. It was asked for."""


@dataclass(slots=True)
class _Failure:
    """Of a queue whose messages could not be read: until when nobody tries."""

    reason: str
    times: int = 0
    waits: bool = True
    waiters: set[Waiter] = field(default_factory=set)
    timer: asyncio.TimerHandle | None = None


class _Kept(NamedTuple):
    stretch: Stretch
    until_s: float


class OldMessages:
    """Of one broker with a lake. `came_back` has the receives of a group on a queue search again. `percent`: what who asks may have
    of the line, beyond its first half."""

    def __init__(
        self,
        lake: LakeMessages,
        index: QueueIndex,
        most_bytes: int,
        came_back: Callable[[QueueKey], None],
        metrics: Metrics,
        percent: int = 100,
    ) -> None:
        self._lake = lake
        self._look_ups = LakeLookUps(lake)
        self._threads = ThreadPoolExecutor(_AT_ONCE, "lake-read")
        self._index = index
        self._most_bytes = most_bytes
        self._came_back = came_back
        self._metrics = metrics
        self._kept: OrderedDict[tuple[Queue, int], _Kept] = OrderedDict()
        self._begins: dict[Queue, list[int]] = {}
        self._asked: dict[Queue, list[Reading]] = {}
        self._line = ReadingLine(_MOST_ASKED, percent)
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures: OrderedDict[Queue, _Failure] = OrderedDict()
        """Who failed last is last."""
        self._firsts: dict[Queue, tuple[int, float]] = {}
        self._unread = RateLimitedLog("readings")
        self._stopped = False
        self._erasures = 0
        self.bytes = 0
        """Of messages in memory."""

    # ----- what is in the lake -----

    def end(self, topic: str, queue_id: int, offset: int) -> int:
        """Where the messages end that only the lake has, from a queue offset on; the offset itself where the log has it, or
        nobody."""
        index = self._index
        if offset < index.min_offset(topic, queue_id):
            return index.min_offset(topic, queue_id)
        return index.behind_absence(topic, queue_id, offset)

    @property
    def waiting(self) -> int:
        """Readings in line or under way."""
        return len(self._line) + len(self._tasks)

    @property
    def failing(self) -> int:
        """Queues whose messages could not be read when that was last tried."""
        return len(self._failures)

    # ----- what is in memory -----

    def look(
        self, topic: str, queue_id: int, offset: int, end: int, waiter: Waiter | None, host: str = ""
    ) -> Stretch | None:
        """What is in memory from an offset on, of the lake's part of a queue that goes to `end`; None when it is read first. `host`:
        the address of a call."""
        queue = (topic, queue_id)
        asker = waiter.group if isinstance(waiter, QueueKey) else host
        stretch = self._find(queue, offset)
        if stretch is None:
            self._want(queue, offset, end, waiter, asker)
        elif stretch.end < end and 2 * stretch.after(offset) >= len(stretch.offsets):
            if self._find(queue, stretch.end) is None:
                self._want(queue, stretch.end, end, None, asker)
        return stretch

    def record(self, topic: str, queue_id: int, offset: int, waiter: Waiter | None = None) -> bytes | None:
        """The record at a queue offset that is in the lake alone; None when there is none. Raises InLakeError."""
        stretch = self.look(topic, queue_id, offset, self.end(topic, queue_id, offset), waiter)
        if stretch is None:
            raise InLakeError(
                f"message {offset} of queue {queue_id} of {topic[:255]} is being read from the lake"
            )
        return stretch.record(offset)

    async def read(self, topic: str, queue_id: int, offset: int, end: int, host: str = "") -> Stretch:
        """As `look`, for a call of an address, waiting for it. Raises LakeUnreachableError with the reason, at once while nobody tries."""
        while True:
            told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            stretch = self.look(topic, queue_id, offset, end, told, host)
            if stretch is not None:
                return stretch
            failure = self._failures.get((topic, queue_id))
            if failure is not None and failure.waits:
                failure.waiters.discard(told)
                raise LakeUnreachableError(failure.reason)
            await told

    async def first(self, topic: str, queue_id: int) -> int:
        """The lowest queue offset that the lake or the log has. Raises LakeUnreachableError, LakeReadStoppedError."""
        queue, begin = (topic, queue_id), self._index.begin(topic, queue_id)
        end = self._index.min_offset(topic, queue_id)
        if begin >= end:
            return end
        known = self._firsts.get(queue)
        if known is not None and monotonic_s() < known[1] and known[0] >= begin:
            return known[0]
        found = await self._look_ups.first(topic, queue_id, begin, end)
        first = end if found is None else found
        if len(self._firsts) >= _MOST_ASKED:
            self._firsts.clear()
        self._firsts[queue] = (first, monotonic_s() + _FIRST_KEPT_S)
        return first

    async def at_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int | None:
        """The first message that the lake alone has, before the log, that was stored then or later; None without one. Raises
        LakeUnreachableError, LakeReadStoppedError."""
        begin, end = self._index.begin(topic, queue_id), self._index.min_offset(topic, queue_id)
        if begin >= end:
            return None
        return await self._look_ups.at_time(topic, queue_id, begin, end, timestamp_ms)

    def forget(self) -> None:
        """Lets go of all that is in memory, and of what is being read: messages were erased."""
        for key in list(self._kept):
            self._drop(key)
        self._erasures += 1

    async def stop(self) -> None:
        """Ends what is being read, where the lake says that it is to stop; nobody is told."""
        self._stopped = True
        self._look_ups.stop()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._threads.shutdown(wait=False)

    # ----- keeping -----

    def _find(self, queue: Queue, offset: int) -> Stretch | None:
        begins = self._begins.get(queue)
        if not begins:
            return None
        at = bisect.bisect_right(begins, offset) - 1
        if at < 0:
            return None
        key = queue, begins[at]
        kept = self._kept[key]
        if kept.until_s < monotonic_s():
            self._drop(key)
            return None
        if offset >= kept.stretch.end:
            return None
        self._kept.move_to_end(key)
        return kept.stretch

    def _keep(self, queue: Queue, stretch: Stretch) -> None:
        key = queue, stretch.begin
        if key in self._kept:
            self._drop(key)
        self._kept[key] = _Kept(stretch, monotonic_s() + _KEPT_S)
        bisect.insort(self._begins.setdefault(queue, []), stretch.begin)
        self.bytes += stretch.size
        while self.bytes > self._most_bytes and len(self._kept) > 1:
            self._drop(next(iter(self._kept)))
        while len(self._kept) > _MOST_ASKED:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: tuple[Queue, int]) -> None:
        queue, begin = key
        self.bytes -= self._kept.pop(key).stretch.size
        begins = self._begins[queue]
        begins.remove(begin)
        if not begins:
            del self._begins[queue]

    # ----- reading -----

    def _want(self, queue: Queue, begin: int, end: int, waiter: Waiter | None, asker: str) -> None:
        """Has a part of a queue read, unless it is about to be."""
        waiters = set() if waiter is None else {waiter}
        failure = self._failures.get(queue)
        if failure is not None and failure.waits:
            failure.waiters |= waiters
            return
        under_way = self._asked.get(queue, [])
        for reading in under_way:
            if reading.begin <= begin < min(reading.begin + _NEAR, reading.end):
                self._join(reading, waiter, asker)
                if reading.askers:  # not under way yet
                    self._line.add(asker, reading)
                return
        if self._stopped:
            return
        if not self._line.has_room(asker) or not self._may_fail(queue):
            asyncio.get_running_loop().call_later(_AFTER_FULL_S, self._tell, waiters)
            return
        reading = Reading(queue, begin, end)
        self._join(reading, waiter, asker)
        self._asked.setdefault(queue, under_way).append(reading)
        self._line.add(asker, reading)
        self._begin_next()

    def _join(self, reading: Reading, waiter: Waiter | None, asker: str) -> None:
        if waiter is None:
            reading.stays = True
            return
        reading.waiters.add(waiter)
        if not isinstance(waiter, QueueKey):
            waiter.add_done_callback(partial(self._call_ended, reading, asker))

    def _call_ended(self, reading: Reading, asker: str, told: asyncio.Future[None]) -> None:
        """A call waits no more: it was told, or its client is gone."""
        reading.waiters.discard(told)
        dropped = self._line.left(asker, reading)
        if dropped is not None:
            self._leave(dropped)

    def _leave(self, reading: Reading) -> None:
        under_way = self._asked[reading.queue]
        under_way.remove(reading)
        if not under_way:
            del self._asked[reading.queue]

    def _begin_next(self) -> None:
        while self._line and len(self._tasks) < _AT_ONCE and not self._stopped:
            task = asyncio.create_task(self._serve(self._line.pop()), name="lake-read")
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a reading of the lake failed", exc_info=error)
        self._begin_next()

    async def _serve(self, reading: Reading) -> None:
        topic, queue_id = queue = reading.queue
        try:
            most, known = self._most_bytes // _SHARE, -1
            while known != self._erasures:  # else it may have what was erased meanwhile
                known = self._erasures
                found = await asyncio.get_running_loop().run_in_executor(
                    self._threads, self._lake.read, topic, queue_id, reading.begin, reading.end, most
                )
        except LakeReadStoppedError:
            self._stopped = True
        except LakeUnreachableError as error:
            self._failed(reading, str(error))
        except Exception as error:
            log.error(
                "messages of the lake cannot be read", topic=topic[:255], queue_id=queue_id, exc_info=error
            )
            self._failed(reading, f"{type(error).__name__}: {error}")
        else:
            if self._failures.pop(queue, None) is not None:
                log.info(
                    "messages of a queue are read from the lake again", topic=topic[:255], queue_id=queue_id
                )
            self._keep(queue, found)
            self._metrics.lake_read(topic, len(found.offsets))
            self._tell(reading.waiters)
        finally:
            self._leave(reading)

    def _failed(self, reading: Reading, reason: str) -> None:
        topic, queue_id = reading.queue
        failure = self._failures.setdefault(reading.queue, _Failure(reason))
        self._failures.move_to_end(reading.queue)
        failure.reason, failure.waits = reason, True
        failure.waiters |= {each for each in reading.waiters if isinstance(each, QueueKey)}
        wait_s = min(1.0 * 2**failure.times, _LONGEST_S)
        failure.times = min(failure.times + 1, 16)
        self._metrics.lake_read_failed(topic)
        self._unread.happened(
            log.error,
            "messages that are in the lake alone cannot be read now: receives from their queues wait",
            topic=topic[:255],
            queue_id=queue_id,
            queue_offset=reading.begin,
            reason=reason,
            tried_again_in_s=wait_s,
        )
        if failure.timer is not None:
            failure.timer.cancel()
        loop = asyncio.get_running_loop()
        failure.timer = loop.call_later(wait_s, self._try_again, failure)
        self._tell([each for each in reading.waiters if not isinstance(each, QueueKey)])

    def _may_fail(self, queue: Queue) -> bool:
        """Whether it could be remembered of a queue that it cannot be read. Who failed first is forgotten for it, and tried again
        soon."""
        failures, asked = self._failures, self._asked
        if queue in failures or len(failures) + len(asked) < _MOST_FAILED:
            return True
        other = next((each for each in failures if each not in asked), None)
        if other is None:
            return False
        failure = failures.pop(other)
        if failure.timer is not None:
            failure.timer.cancel()
        asyncio.get_running_loop().call_later(_AFTER_FULL_S, self._tell, failure.waiters)
        return True

    def _try_again(self, failure: _Failure) -> None:
        """The time is over; it is read again when somebody asks."""
        failure.waits = False
        waiters, failure.waiters = failure.waiters, set()
        self._tell(waiters)

    def _tell(self, waiters: Iterable[Waiter]) -> None:
        for each in waiters:
            if isinstance(each, QueueKey):
                self._came_back(each)
            elif not each.done():
                each.set_result(None)
