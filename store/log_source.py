"""One commit log, wherever it is: described, cut into ranges, read. Who reads a log needs to know no more of it.

| log | implementation |
|---|---|
| of the store that this process has open | `StoreLog` |
| of a folder on this machine, of ours or a real broker's, which may be running | `FolderLog` |
| of a broker elsewhere, by its log service | `structured_streaming/source/remote.py`, for it needs gRPC |

Only what is readable is read: flushed, until there are replicas. A range begins and ends where records do, or within
damage. Callers name the log by its id, so that a store put in another's place is not read for it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from store.errors import OffsetOutOfRangeError, OtherLogError
from store.index.queue_index import NO_LIMIT
from store.log.erased import Offsets, version_of
from store.log_reader import LogReader

if TYPE_CHECKING:
    from store.message_store import MessageStore

CHUNK_BYTES = 32 << 20
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class LogState:
    """What can be read of a log; offsets in bytes. `end` is the readable end.

    `delay_levels` are the broker's durations, ms, level 1 first; None where they are not known, as `segment_size`.
    `written` is the end of the last record, which may not be readable yet; None where only the broker knows.
    `erased_version` is another one whenever what `erased` answers changes; 0 where nothing is erased.
    """

    broker: str
    log_id: str
    start: int
    end: int
    delay_levels: tuple[int, ...] | None = None
    segment_size: int | None = None
    written: int | None = None
    erased_version: int = 0


class LogSource(Protocol):
    """One commit log. Calls raise StoreError; those of a remote log raise SourceError."""

    address: str

    def describe(self, wait_ms: int = 0, after: int = -1) -> LogState:
        """Its state; waits up to `wait_ms` for an end beyond `after`."""

    def split(self, log_id: str, start: int, end: int, max_bytes: int, limit_bytes: int = 0) -> list[int]:
        """Boundaries of ranges of at most `max_bytes`, or one record, from `start` on; at least one range.

        The last is `end`, or the one at which `limit_bytes` (0: no limit) are full.
        """

    def read(
        self, log_id: str, start: int, end: int, chunk_bytes: int = CHUNK_BYTES
    ) -> Iterator[tuple[int, bytes | memoryview]]:
        """Offset and bytes of whole records, one behind the other, or of damage; of at most `chunk_bytes`, or one record."""

    def erased(self, log_id: str) -> Offsets:
        """Where its erased records begin, ascending: readers leave these out, as if they were not there. Some may be before
        the log's start."""

    def report(self, log_id: str, offset: int) -> None:
        """A hint that what is below `offset` is in the lake; waits for nothing."""

    def close(self) -> None:
        """Gives back what it holds."""


class ServedLog(LogSource, Protocol):
    """A log that a log service answers over: what its descriptions have beside a `LogState`."""

    cluster: str

    @property
    def max_offset(self) -> int:
        """End of the last record, readable or not."""

    def request_flush(self) -> None:
        """A reader is at the end: what stands behind it is to become readable. Waits for nothing."""


class StoreLog:
    """The log of an open store: for its own process. A description does not wait."""

    def __init__(self, store: MessageStore, delay_levels: tuple[int, ...] | None = None) -> None:
        self._store = store
        self._delay_levels = delay_levels
        self.address = str(store.root)
        self.cluster = store.cluster

    @property
    def max_offset(self) -> int:
        return self._store.max_offset

    def request_flush(self) -> None:
        self._store.request_flush()

    def describe(self, wait_ms: int = 0, after: int = -1) -> LogState:
        store = self._store
        start = store.own_from
        end = max(start, store.readable_offset)  # a log that was just begun is not flushed
        levels, size, written = self._delay_levels, store.segment_size, store.max_offset
        version = store.erased.version
        return LogState(store.broker, store.log_id, start, end, levels, size, written, version)

    def split(self, log_id: str, start: int, end: int, max_bytes: int, limit_bytes: int = 0) -> list[int]:
        self._check(log_id, start, end)
        return self._store.split(start, end, max_bytes, limit_bytes or NO_LIMIT)

    def read(
        self, log_id: str, start: int, end: int, chunk_bytes: int = CHUNK_BYTES
    ) -> Iterator[tuple[int, bytes | memoryview]]:
        self._check(log_id, start, end)
        for offset, data, _ in self._store.read_chunks(start, end, chunk_bytes):
            yield offset, data

    def erased(self, log_id: str) -> Offsets:
        self._check_log(log_id)
        return self._store.erased.offsets

    def report(self, log_id: str, offset: int) -> None:
        """Nobody acts on the hint: the broker looks into the lake itself. Raises OtherLogError."""
        self._check_log(log_id)

    def close(self) -> None:
        """The store is its owner's to close."""

    def _check_log(self, log_id: str) -> None:
        store = self._store
        if log_id != store.log_id:
            raise OtherLogError(f"log {log_id[:64]!r} is not here; broker {store.broker} has {store.log_id}")

    def _check(self, log_id: str, start: int, end: int) -> None:
        self._check_log(log_id)
        store = self._store
        if not store.own_from <= start <= end <= max(store.own_from, store.readable_offset):
            raise OffsetOutOfRangeError(
                f"range {start} to {end} is outside of the readable log, {store.own_from} to {store.readable_offset}"
            )
        for offset in (start, end):
            if offset != store.readable_offset and not store.is_boundary(offset):
                raise OffsetOutOfRangeError(
                    f"physical offset {offset} is within a record; give where one begins"
                )


class FolderLog:
    """A store's folder on this machine; of a real broker's, give `broker` and `log_id`. With `whole` also what stands
    before the log, of former ones of the store. Raises StoreError, OSError."""

    def __init__(
        self,
        folder: str | Path,
        *,
        broker: str | None = None,
        log_id: str | None = None,
        whole: bool = False,
    ) -> None:
        from store.scan import warm

        self._whole = whole

        self.address = str(folder)
        # which says where compiled code is
        self.reader = LogReader(Path(folder), broker=broker, log_id=log_id)
        """What only a folder tells: its segments, and what stands behind the readable end."""
        warm()  # here, so that no later call takes the time

    def describe(self, wait_ms: int = 0, after: int = -1) -> LogState:
        reader, until = self.reader, time.monotonic() + wait_ms / 1000
        while reader.readable_offset <= after and time.monotonic() < until:
            time.sleep(_POLL_S)
        end, size = reader.readable_offset, reader.segment_size
        start, version = self._start(), version_of(reader.erased())
        return LogState(
            reader.broker,
            reader.log_id,
            start,
            max(start, end),
            segment_size=size or None,
            erased_version=version,
        )

    def split(self, log_id: str, start: int, end: int, max_bytes: int, limit_bytes: int = 0) -> list[int]:
        self._check(log_id, start)
        try:
            return self.reader.split(start, end, max_bytes, limit_bytes or NO_LIMIT)
        finally:
            self.reader.close()  # no segment stays mapped that the broker may delete

    def read(
        self, log_id: str, start: int, end: int, chunk_bytes: int = CHUNK_BYTES
    ) -> Iterator[tuple[int, bytes | memoryview]]:
        self._check(log_id, start)
        for offset, data, _ in self.reader.read_chunks(start, end, chunk_bytes):
            yield offset, data

    def erased(self, log_id: str) -> Offsets:
        self._check_log(log_id)
        return self.reader.erased()

    def report(self, log_id: str, offset: int) -> None:
        """Nobody to tell: the broker looks into the lake itself."""

    def close(self) -> None:
        self.reader.close()

    def _start(self) -> int:
        return self.reader.min_offset if self._whole else max(self.reader.min_offset, self.reader.own_from)

    def _check_log(self, log_id: str) -> None:
        self.reader.follow()
        if log_id != self.reader.log_id:
            raise OtherLogError(f"the folder holds log {self.reader.log_id}, not {log_id}")

    def _check(self, log_id: str, start: int) -> None:
        self._check_log(log_id)
        if start < self.reader.own_from and not self._whole:
            raise OffsetOutOfRangeError(
                f"physical offset {start} is before the log {log_id}, which begins at {self.reader.own_from}"
            )
