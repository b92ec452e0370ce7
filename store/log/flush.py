"""Getting the log to disk: by interval (ASYNC_FLUSH) and by group commit (SYNC_FLUSH).

One thread fdatasyncs; whoever waits for an offset is called once it is on disk, all waiters of one
fdatasync together. A failed fdatasync is never tried again as if nothing had happened: the store turns
read-only. After each one the flushed offset is published in the side file `flushed`.

`flushed`, 16 bytes, written in place: the offset (8, big-endian), then its CRC-32 (8, big-endian).
"""

from __future__ import annotations

import enum
import heapq
import itertools
import logging
import mmap
import os
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

from zlib_ng import zlib_ng

from store.errors import StoreReadOnlyError
from store.log.commit_log import CommitLog
from store.log.permissions import open_new

FLUSHED_FILE = "flushed"
_FLUSHED = struct.Struct(">QQ")
assert _FLUSHED.size == 16
_OFFSET = struct.Struct(">Q")
log = logging.getLogger(__name__)
PAGE_BYTES = 4096
REQUEST_INTERVAL_S = 0.02
"""A reader's wish to flush is granted no more often than this."""


class FlushMode(enum.Enum):
    """RocketMQ's flushDiskType."""

    ASYNC_FLUSH = "ASYNC_FLUSH"
    SYNC_FLUSH = "SYNC_FLUSH"


def encode_flushed(offset: int) -> bytes:
    """The contents of the side file."""
    packed = _OFFSET.pack(offset)
    return packed + _OFFSET.pack(zlib_ng.crc32(packed))


def read_flushed(path: Path) -> int | None:
    """The published offset; None when the file is missing. A torn read is tried again for 50 ms, then None."""
    for _ in range(50):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        if len(data) >= 16:
            offset, check = _FLUSHED.unpack_from(data)
            if zlib_ng.crc32(data[:8]) == check:
                return int(offset)
        time.sleep(0.001)
    return None


class Flusher:
    """The flushing thread of a log. `flushed_offset` never runs ahead of the disk.

    When nobody waits it flushes every `interval_ms`, if at least `least_pages` of 4 KiB were written, or
    `thorough_ms` have gone by.
    """

    def __init__(
        self,
        log: CommitLog,
        side_file: Path,
        interval_ms: int,
        flushed_offset: int,
        *,
        least_pages: int = 0,
        thorough_ms: int = 10_000,
    ) -> None:
        self._log = log
        self._interval_s = interval_ms / 1000
        self._least_bytes = least_pages * PAGE_BYTES
        self._thorough_s = thorough_ms / 1000
        self._flushed_at = time.monotonic()
        self.flushed_offset = flushed_offset
        self.error: StoreReadOnlyError | None = None
        self._listeners: list[Callable[[int], None]] = []
        self._condition = threading.Condition()
        self._waiters: list[tuple[int, int, Callable[[BaseException | None], None]]] = []
        self._sequence = itertools.count()
        self._wanted = False
        self._closing = False
        self._side = _SideFile(side_file)
        self._side.publish(flushed_offset)
        self._thread = threading.Thread(target=self._run, name="flush", daemon=True)
        self._thread.start()

    def on_flushed(self, listener: Callable[[int], None]) -> None:
        """Has a listener told, on the flushing thread, up to where each flush came."""
        self._listeners.append(listener)

    def wait(self, offset: int, callback: Callable[[BaseException | None], None]) -> None:
        """Calls `callback` (on the flushing thread) when everything below `offset` is on disk, or failed."""
        with self._condition:
            if self.error is None and self.flushed_offset < offset:
                heapq.heappush(self._waiters, (offset, next(self._sequence), callback))
                self._condition.notify()
                return
        callback(self.error)

    def request(self) -> None:
        """Asks for a flush soon (within `REQUEST_INTERVAL_S`), without waiting."""
        with self._condition:
            if not self._wanted and self.flushed_offset < self._log.max_offset:
                self._wanted = True
                self._condition.notify()

    def close(self) -> None:
        """Flushes what is left and ends the thread; raises StoreReadOnlyError when that failed."""
        with self._condition:
            self._closing = True
            self._condition.notify()
        self._thread.join()
        self._side.close()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        while True:
            with self._condition:
                if not self._waiters and not self._closing and not self._wanted:
                    self._condition.wait(self._interval_s)
                only_wanted = self._wanted and not self._waiters and not self._closing
                closing = self._closing
                by_interval = not self._wanted and not self._waiters and not closing
            if by_interval and not self._worth_it():
                continue
            if only_wanted:
                time.sleep(REQUEST_INTERVAL_S)
            with self._condition:
                self._wanted = False
            self._flush()
            if closing:
                return

    def _worth_it(self) -> bool:
        """Whether enough was written, or it is long ago."""
        return (
            self._log.max_offset - self.flushed_offset >= self._least_bytes
            or time.monotonic() - self._flushed_at >= self._thorough_s
        )

    def _flush(self) -> None:
        self._flushed_at = time.monotonic()
        target = self._log.max_offset
        if self.error is None and target > self.flushed_offset:
            try:
                for segment in list(self._log.segments):
                    if segment.end > self.flushed_offset and segment.start < target:
                        segment.sync()
            except OSError as error:
                self.error = StoreReadOnlyError(
                    f"the log could not be flushed ({error}); the store is read-only: check the disk, then restart"
                )
            else:
                self.flushed_offset = target
                self._side.publish(target)
                for listener in self._listeners:
                    try:
                        listener(target)
                    except Exception:  # one listener's error must not end the flushing for all
                        log.exception("a listener failed that was told of a flush")
        self._release()

    def _release(self) -> None:
        ready = []
        with self._condition:
            while self._waiters and (self.error is not None or self._waiters[0][0] <= self.flushed_offset):
                ready.append(heapq.heappop(self._waiters)[2])
        for callback in ready:
            try:
                callback(self.error)
            except Exception:  # one caller's error must not end the flushing for all
                log.exception("a callback of a flush failed")


class _SideFile:
    """The published flushed offset, written through a mapping."""

    def __init__(self, path: Path) -> None:
        if not path.exists() or path.stat().st_size != 16:
            staged = path.with_suffix(".tmp")
            with open_new(staged, "wb") as file:
                file.write(encode_flushed(0))
            staged.rename(path)
        fd = os.open(path, os.O_RDWR)
        try:
            self._map = mmap.mmap(fd, 16)
        finally:
            os.close(fd)

    def publish(self, offset: int) -> None:
        self._map[0:16] = encode_flushed(offset)

    def close(self) -> None:
        self._map.close()
