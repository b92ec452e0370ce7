"""The log's pages ahead of where it is written: brought in by a thread, so that an append does not wait for them.

The first touch of a page of a preallocated file takes a page, fills it and has the file system turn the block from
preallocated to written; some of these take milliseconds, and the kernel makes a writer wait there when much is dirty.

| when | the next pages are |
|---|---|
| ASYNC_FLUSH, and two steps are written in half a flush interval | populated for writing (MADV_POPULATE_WRITE): an append finds them without a fault |
| the same on a kernel without it (before 5.14) | asked for (MADV_WILLNEED) |
| ASYNC_FLUSH at lower rates, SYNC_FLUSH | left alone |

Pages populated for writing are dirty. Those of a busy log are overwritten before they are flushed; for others each
flush would write zeros first, and in SYNC_FLUSH clients would wait for that; and what was flushed before it is used
takes a fault for each page again. So steps are small. Populating for reading dirties nothing, but then each page takes
a fault where the kernel maps several at the first write: measured, three times the faults. At most two steps are ahead:
that much of the page cache is held back from other uses.

No step changes a byte, so it may run beside appends. Writing one byte back to each page would do as well on any kernel,
but it loses what is appended between its read and its write.

Warming (RocketMQ's warmMapedFileEnable) populates whole new segments for writing, flushes them by
flushLeastPagesWhenWarmMapedFile, and locks them in memory until the log is behind them.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import mmap
import os
import resource
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from store.log.segment import Segment

log = logging.getLogger(__name__)
WILLNEED, POPULATE_WRITE = 3, 23
"""Of madvise(2); Python's mmap has no name for the latter, and its madvise keeps the interpreter's lock."""
LOCKED_SEGMENTS = 2
"""At a time: the one that is written, and the next."""
LOCK_REMEDY = "raise it for two segments (ulimit -l, LimitMEMLOCK=), or set warmMapedFileEnable=false"
_WARN_S = 60.0
_LIBC = ctypes.CDLL(None, use_errno=True)
_LINUX = sys.platform == "linux"


def advise(segment: Segment, position: int, length: int, advice: int) -> None:
    """madvise of a part of a segment; `position` is that of a page. Raises OSError; ValueError when it is closed."""
    _call("madvise", segment, position, length, advice)


def lock(segment: Segment) -> None:
    """Keeps a segment in memory. Raises OSError; ValueError when it is closed."""
    _call("mlock", segment, 0, segment.size)


def unlock(segment: Segment) -> None:
    """The contrary of `lock`."""
    _call("munlock", segment, 0, segment.size)


def _pages(length: int) -> int:
    """The same in whole pages, rounded down."""
    return length - length % mmap.PAGESIZE


def _call(name: str, segment: Segment, position: int, length: int, *arguments: int) -> None:
    held = ctypes.c_char.from_buffer(segment.view)  # the mapping stays while this is there
    address = ctypes.c_void_p(ctypes.addressof(held) + position)
    if getattr(_LIBC, name)(address, ctypes.c_size_t(length), *map(ctypes.c_int, arguments)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class PageCache:
    """One thread, at most one step and the warming of new segments under way. Sizes in bytes.

    `step` 0 brings nothing in. `busy_s`: a step is made while one is written in that time; 0: never.
    `warm_bytes`: warms new segments, flushed by so much; 0: does not.
    """

    def __init__(
        self,
        step: int = 0,
        busy_s: float = 0.0,
        warm_bytes: int = 0,
        *,
        advise: Callable[[Segment, int, int, int], None] = advise,
        lock: Callable[[Segment], None] = lock,
    ) -> None:
        self._step = _pages(max(step, 16 * mmap.PAGESIZE)) if step and _LINUX else 0
        self._busy_s = busy_s
        self._warm_bytes = _pages(warm_bytes + mmap.PAGESIZE - 1) if _LINUX else 0
        self._advise_call = advise
        self._lock_call = lock
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prefault")
        self._under_way: Future[None] | None = None
        self._done = 0
        self._written = 0
        self._looked = 0, float("-inf")
        self._warned_at = -1e9
        self._supported = True
        self._locked: list[Segment] = []
        self._closing = False
        self.steps = {WILLNEED: 0, POPULATE_WRITE: 0}
        """How many were made of each kind."""

    def reached(self, newest: Segment, following: Segment | None, offset: int) -> int:
        """The log is written up to `offset`, in `newest`; returns the offset at which to call again.

        `following` is the next segment when it is made already.
        """
        self._written = offset
        for segment in [each for each in self._locked if each.end <= offset]:
            self._locked.remove(segment)
            self._submit(self._unlock, segment)
        if not self._step or not self._busy_s:
            return newest.end
        again = offset + self._step // 4
        if self._under_way is not None and not self._under_way.done():
            return again
        now = time.monotonic()
        busy = (offset - self._looked[0]) * self._busy_s >= self._step * (now - self._looked[1])
        self._looked = offset, now
        if not busy:
            return again
        begin = max(self._done, _pages(offset))
        end = _pages(offset) + 2 * self._step
        if end - begin < self._step:
            return max(self._done - self._step, again)
        parts = []
        for segment in [newest] if following is None else [newest, following]:
            if segment.start <= begin < segment.end:
                stop = min(end, segment.end)
                parts.append((segment, begin - segment.start, stop - begin))
                begin = self._done = stop
        if parts:
            self._under_way = self._submit(self._populate, parts)
        return max(self._done - self._step, again)

    def made(self, segment: Segment) -> None:
        """A segment was made: warms it, if that is wanted."""
        if self._warm_bytes:
            self._submit(self._warm, segment)

    def close(self) -> None:
        """Ends the thread; what is under way is ended at its next part."""
        self._closing = True
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _submit(self, work: Callable[..., None], *arguments: object) -> Future[None]:
        future = self._thread.submit(work, *arguments)
        future.add_done_callback(self._ended)
        return future

    def _ended(self, future: Future[None]) -> None:
        if future.cancelled() or (error := future.exception()) is None:
            return
        if isinstance(error, ValueError):
            return  # the segment was closed, or deleted, meanwhile
        if time.monotonic() - self._warned_at >= _WARN_S:
            self._warned_at = time.monotonic()
            log.warning("pages of the log could not be brought in ahead of their use: %s", error)

    def _populate(self, parts: list[tuple[Segment, int, int]]) -> None:
        for segment, position, length in parts:
            self._advise(segment, position, length)

    def _advise(self, segment: Segment, position: int, length: int) -> None:
        advice = POPULATE_WRITE if self._supported else WILLNEED
        try:
            self._advise_call(segment, position, length, advice)
        except OSError as error:
            if error.errno != errno.EINVAL or advice == WILLNEED:
                raise
            self._supported = False
            log.info("the kernel cannot populate pages (MADV_POPULATE_WRITE, Linux 5.14); it is given hints")
            self._advise(segment, position, length)
        else:
            self.steps[advice] += 1

    def _warm(self, segment: Segment) -> None:
        began = time.monotonic()
        for position in range(0, segment.size, self._warm_bytes):
            if self._closing or segment.end <= self._written:
                return
            length = min(self._warm_bytes, segment.size - position)
            self._advise(segment, position, length)
            segment.sync()  # also in ASYNC_FLUSH: the first flush of the log in it would write all the zeros
        try:
            self._lock_call(segment)
        except OSError as error:
            soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
            limit = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft} bytes"
            log.warning(
                "segment %s of %d bytes is not locked in memory (%s): RLIMIT_MEMLOCK is %s; " + LOCK_REMEDY,
                segment.path,
                segment.size,
                error.strerror,
                limit,
            )
        else:
            self._locked.append(segment)
        log.info("segment %s was warmed in %.1f s", segment.path, time.monotonic() - began)

    def _unlock(self, segment: Segment) -> None:
        unlock(segment)
