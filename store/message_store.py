"""The store as the gateway holds it: log, queue index, flushing, identity; opened in order, closed in reverse."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from store.columns import TAGS_CODE, PendingColumns
from store.errors import ErasedError, OffsetOutOfRangeError, RecordError, StoreReadOnlyError
from store.index.file_run import FileRun
from store.index.queue_index import NO_LIMIT
from store.index.time_search import BoundaryType
from store.lite_queues import offset_property
from store.log import ranges
from store.log.erased import write_erased
from store.log.flush import FlushMode
from store.log.new_log import begun
from store.log.owner import mark_folders
from store.log.record import (
    STORE_TIME_BYTES,
    SYS_COMMIT,
    SYS_TRANSACTION_MASK,
    PendingRecord,
    Record,
    decode_record,
    store_time,
)
from store.log.recovery import (
    ABORT_FILE,
    commit_log_folders,
    write_identity,
)
from store.log.retention import Candidate, Rules, choose, least_full, refusal
from store.log.segment import Segment, sync_folder
from store.opening import StoreOptions, StoreParts, open_parts
from store.scan import Scan, scan

__all__ = ["Appended", "FlushMode", "MessageStore", "Removed"]


log = logging.getLogger(__name__)
AppendListener = Callable[[str, Set[int]], None]
"""Told of a topic, and the ids of its queues that have something new."""


class Appended(NamedTuple):
    """Where a record stands; `store_timestamp` in ms."""

    physical_offset: int
    size: int
    queue_offset: int
    store_timestamp: int


class Removed(NamedTuple):
    """What retention took out of the log: segments, ascending, and files of the index."""

    segments: list[Segment]
    runs: list[FileRun]

    def dispose(self) -> None:
        """Deletes the files, oldest first, so that a crash leaves no hole; may be done on another thread."""
        for run in self.runs:
            run.delete()
        for segment in self.segments:
            segment.close()
            segment.path.unlink(missing_ok=True)
            sync_folder(segment.path.parent)


class MessageStore:
    """One commit log with one writer: the thread that calls `append`."""

    def __init__(self, parts: StoreParts, time_ns: Callable[[], int]) -> None:
        self.root = parts.root
        self.identity = parts.identity
        self.store_host = parts.store_host
        self.index = parts.index
        self.recovered = parts.recovered
        self.erased = parts.index.erased
        self._log = parts.log
        self._allocator = parts.allocator
        self._writer = parts.writer
        self._flusher = parts.flusher
        self._checkpoint = checkpoint = parts.checkpoint
        self._lock_fds = parts.lock_fds
        self._time_ns = time_ns
        self._last_timestamp = 0
        self._closed = False
        self._disk_refusal: str | None = None
        self._unindexed: StoreReadOnlyError | None = None
        self._listeners: list[AppendListener] = []
        self._flusher.on_flushed(lambda offset: checkpoint.flushed(self._last_timestamp, offset))

    @classmethod
    def open(cls, root: Path, options: StoreOptions) -> Self:
        """Opens or makes the store in `root`.

        Raises ForeignFolderError, StoreLockedError, StoreDamagedError, OSError; RecoveryStoppedError, which
        `options.progress` raised: the store is left as it was.
        """
        return cls(open_parts(root, options), options.time_ns)

    @property
    def log_id(self) -> str:
        return self.identity.log_id

    @property
    def own_from(self) -> int:
        """Where the log of this id begins: what the store has below it was written under former ids."""
        return max(self.identity.own_from, self.min_offset)

    @property
    def broker(self) -> str:
        return self.identity.broker

    @property
    def cluster(self) -> str:
        return self.identity.cluster

    @property
    def segment_size(self) -> int:
        return self.identity.segment_size

    @property
    def min_offset(self) -> int:
        return self._log.min_offset

    @property
    def max_offset(self) -> int:
        return self._log.max_offset

    @property
    def flushed_offset(self) -> int:
        """What is below it survives the host."""
        return self._flusher.flushed_offset

    @property
    def readable_offset(self) -> int:
        """Where readers must stop: what is behind it may still be lost. It is `flushed_offset` until there are replicas."""
        return self.flushed_offset

    def begin_log(self) -> None:
        """Ends the log, and begins a new one behind it, with an id of its own: see `store/log/new_log.py`.

        Before anything is appended. The caller raises the queues' offsets, appends what says so, and calls
        `log_begun`. Raises OSError.
        """
        start = self._log.next_start
        identity = begun(self.identity, start)
        write_identity(self.root, identity)
        self.identity = identity
        self._writer.log_id = identity.log_id
        mark_folders(self.root, identity, commit_log_folders(self.root, identity))
        self._log.fill_up(start)

    def log_begun(self) -> None:
        """What the beginning of a log needs is appended: it is flushed, and need not be done again. Raises StoreReadOnlyError, OSError."""
        self.flush()
        identity = replace(self.identity, beginning=False)
        write_identity(self.root, identity)
        self.identity = identity

    def append(self, records: Sequence[PendingRecord]) -> list[Appended]:
        """Appends all of the records or none. Raises StoreReadOnlyError, RecordTooLargeError, RecordError, OSError."""
        self._check_writable()
        if not records:
            return []
        now = self._time_ns() // 1_000_000
        index = self.index
        if len(records) == 1:
            queue_offsets = [index.max_offset(records[0].topic, records[0].queue_id)]
        else:
            following: dict[tuple[str, int], int] = {}
            queue_offsets = []
            for record in records:
                key = (record.topic, record.queue_id)
                next_offset = following.get(key)
                if next_offset is None:
                    next_offset = index.max_offset(record.topic, record.queue_id)
                following[key] = next_offset + _listed(record)
                queue_offsets.append(next_offset)
        if any(record.lite_queue for record in records):
            return self._append_lite(records, queue_offsets, now)
        return self._append(records, queue_offsets, now)

    def _append_lite(
        self, records: Sequence[PendingRecord], queue_offsets: Sequence[int], now: int
    ) -> list[Appended]:
        """The same of records some of which are of lite topics: they say their offsets in those queues."""
        following: dict[str, int] = {}
        lite, told = [], []
        for record in records:
            queue = record.lite_queue
            if queue:
                offset = following.get(queue, self.index.max_offset(queue, 0))
                following[queue] = offset + 1
                lite.append((queue, offset))
                record = replace(record, properties=record.properties + offset_property(offset))
            else:
                lite.append(("", 0))
            told.append(record)
        appended = self._append(told, queue_offsets, now, lite)
        self._announce([(queue, 0) for queue in following])
        return appended

    def _append(
        self,
        records: Sequence[PendingRecord],
        queue_offsets: Sequence[int],
        now: int,
        lite: Sequence[tuple[str, int]] = (),
    ) -> list[Appended]:
        """Appends, indexes and announces. `lite`: for each record its lite topic's queue and its offset there, or ''."""
        index = self.index
        appended: list[Appended] = []
        placed = self._log.append(records, queue_offsets, now)
        self._last_timestamp = now
        try:
            for record, queue_offset, (offset, size) in zip(records, queue_offsets, placed, strict=True):
                index.put(
                    record.topic,
                    record.queue_id,
                    queue_offset,
                    offset,
                    size,
                    record.tags_code,
                    record.sys_flag,
                )
                if lite and lite[len(appended)][0]:
                    index.put_lite(*lite[len(appended)])
                appended.append(Appended(offset, size, queue_offset, now))
        except Exception as error:
            raise self._not_indexed(placed[0].physical_offset) from error
        self._announce((record.topic, record.queue_id) for record in records if _listed(record))
        return appended

    def append_columns(self, batches: Sequence[PendingColumns]) -> list[int]:
        """`append` for batches of records that are none of a transaction; the first queue offset of each batch."""
        self._check_writable()
        now = self._time_ns() // 1_000_000
        index = self.index
        following: dict[tuple[str, int], int] = {}
        queue_offsets = []
        for batch in batches:
            key = (batch.topic, batch.queue_id)
            first = following.get(key)
            if first is None:
                first = index.max_offset(*key)
            following[key] = first + batch.count
            queue_offsets.append(first)
        offset = self._log.max_offset
        sizes = self._log.append_columns(batches, queue_offsets, now)
        if sizes is None:
            self.append([record for batch in batches for record in batch.records()])
            return queue_offsets
        self._last_timestamp = now
        try:
            for batch, first, some in zip(batches, queue_offsets, sizes, strict=True):
                codes = batch.rows[:, TAGS_CODE]
                offset = index.put_columns(batch.topic, batch.queue_id, first, offset, some, codes)
        except Exception as error:
            raise self._not_indexed(offset) from error
        self._announce(following)
        return queue_offsets

    def on_appended(self, listener: AppendListener) -> None:
        """Registers a listener for what is appended from now on: called after the index, by the thread that appends.

        What it raises is logged, and changes nothing for the append or the other listeners.
        """
        self._listeners.append(listener)

    def _announce(self, queues: Iterable[tuple[str, int]]) -> None:
        appended: dict[str, set[int]] = {}
        for topic, queue_id in queues:
            appended.setdefault(topic, set()).add(queue_id)
        for topic, queue_ids in appended.items():
            for listener in self._listeners:
                try:
                    listener(topic, queue_ids)
                except Exception:  # the records are in the log: a listener's fault is not the sender's
                    log.exception("an append listener failed for topic %s", topic)

    def _not_indexed(self, offset: int) -> StoreReadOnlyError:
        """Records in the log that their queue does not have: what came behind them would get their queue offsets."""
        text = (
            f"records from about physical offset {offset} on could not be indexed; the store is read-only: restart "
            "the broker, which makes the index anew"
        )
        self._unindexed = StoreReadOnlyError(text)
        return StoreReadOnlyError(text)

    def load_compiled(self) -> None:
        """Loads what `append_columns` needs to be fast; takes a second, and several where none is kept.

        May be called by another thread. Raises StoreError for code that writes other bytes than the plain path.
        """
        from store.kernels import encode

        encode.warm()
        self._log.encode = encode.encode

    def _check_writable(self) -> None:
        if self._flusher.error is not None:
            raise StoreReadOnlyError(str(self._flusher.error))  # one raised again keeps every traceback
        if self._unindexed is not None:
            raise StoreReadOnlyError(str(self._unindexed))
        if self._closed:
            raise StoreReadOnlyError(f"the store {self.root} is closed; start the broker again")

    @property
    def folders(self) -> list[Path]:
        """Where new segments go."""
        return list(self._allocator.folders)

    @property
    def refusal(self) -> str | None:
        """Why messages of clients should be refused; None when they should not. The journal still has room."""
        if self._disk_refusal is not None:
            return self._disk_refusal
        error = self._allocator.error
        if error is None:
            return None
        return (
            f"the next segment of the log in {self._allocator.folders[0]} cannot be made ({error}): make room"
        )

    def retain(self, rules: Rules, hour: int, keep_from: int, *, by_hand: bool = False) -> Removed:
        """Looks at the disks, sets `refusal`, and takes out segments that may go; `dispose` of what it gives.

        `hour` is the local one. Raises OSError when a disk cannot be looked at.
        """
        disks = [least_full([folder]) for folder in self._allocator.folders]
        disk = min(disks, key=lambda each: each.used)
        self._allocator.full = frozenset(each.folder for each in disks if each.used > rules.force)
        self._disk_refusal = refusal(rules, disk)
        self._log.prepare()
        # readers have yet to see the rest; nor does a flush look below
        keep_from = min(keep_from, self.readable_offset)
        count = choose(rules, self._candidates(rules.at_a_time), disk.used, hour, keep_from, by_hand=by_hand)
        if not count:
            return Removed([], [])
        segments = self._log.take_out(count)
        return Removed(segments, self.index.drop_below(self.min_offset))

    def expired(self, rules: Rules, hour: int, *, by_hand: bool = False) -> int:
        """The physical offset up to which segments would go if nothing held them."""
        disk = least_full(self._allocator.folders)
        some = self._candidates(rules.at_a_time)
        count = choose(rules, some, disk.used, hour, self.max_offset, by_hand=by_hand)
        return some[count - 1].end if count else self.min_offset

    def _candidates(self, most: int) -> list[Candidate]:
        """The oldest segments, one more than may go at a time."""
        now = self._time_ns() / 1e9
        written = [each for each in self._log.segments if each.start < self.max_offset]
        return [
            Candidate(each.start, each.end, now - each.path.stat().st_mtime) for each in written[: most + 1]
        ]

    def is_boundary(self, offset: int) -> bool:
        """Whether a range of the log may begin or end at `offset`: not within a record or blank."""
        if offset in (self.min_offset, self.max_offset) or offset % self.segment_size == 0:
            return True
        return ranges.is_boundary(self._log, self.index, offset)

    def split(self, start: int, end: int, max_bytes: int, limit_bytes: int = NO_LIMIT) -> list[int]:
        """Boundaries of ranges for readers: see `store/log/ranges.py`."""
        return ranges.split(self._log, self.index, start, end, max_bytes, limit_bytes)

    def read(self, offset: int, size: int) -> memoryview:
        """A view of bytes of the log. Raises OffsetOutOfRangeError, ErasedError for those of an erased record."""
        if offset in self.erased.places:
            raise ErasedError(f"the record at physical offset {offset} is erased")
        return self._log.read(offset, size)

    def record(self, offset: int, size: int) -> Record:
        """The record at a physical offset. Raises OffsetOutOfRangeError, RecordError; ErasedError for one that is erased."""
        if offset in self.erased.places:
            raise ErasedError(f"the record at physical offset {offset} is erased")
        return self._record(offset, size)

    def _record(self, offset: int, size: int) -> Record:
        return decode_record(self._log.read(offset, size), 0, offset, verify=False)

    def record_to_erase(self, offset: int) -> Record | None:
        """The record that begins at a physical offset, erased or not; None where none does. Raises RecordError."""
        if not self.min_offset <= offset < self.max_offset or not self.index.is_record_start(offset):
            return None
        return self._record(offset, int.from_bytes(self._log.read(offset, 4), "big"))

    def first_stored_ms(self, offset: int) -> int | None:
        """When the first record at or behind a physical offset was stored, ms since the epoch; None where there is none, or it
        cannot be read."""
        start = self.index.align(offset)
        if start is None:
            return None
        try:
            return store_time(self._log.read(start, STORE_TIME_BYTES), start)
        except OffsetOutOfRangeError:
            return None

    def stored_ms(self, topic: str, queue_id: int, offset: int) -> int | None:
        """When a message of a queue was stored, ms since the epoch; None when the log has it no more, or it cannot be read, as who
        receives it is told."""
        places, sizes, _ = self.index.every_entry(topic, queue_id, offset, 1)
        if not len(places) or not sizes[0]:
            return None
        try:
            return self._record(int(places[0]), int(sizes[0])).store_timestamp
        except (RecordError, OffsetOutOfRangeError):
            return None

    def at_time(self, topic: str, queue_id: int) -> Callable[[int, BoundaryType], int]:
        """A search for the queue offset of a store time, ms. It reads the log: run it on another thread."""
        segments = self._log.segments  # replaced, never shortened, when the oldest go
        first = segments[0].start if segments else 0

        def time_of(offset: int, size: int) -> int | None:
            number = (offset - first) // self.segment_size
            if number < 0:
                return 0
            segment = segments[number]
            position = offset - segment.start
            try:
                return store_time(segment.view[position : position + size], offset)
            except ValueError:
                return 0  # closed: it was deleted meanwhile

        return self.index.at_time(topic, queue_id, time_of)

    def publish_erased(self) -> None:
        """Tells readers by path what is erased; on disk when it returns. Raises OSError."""
        write_erased(self.root, self.log_id, self.erased.offsets)

    @property
    def segments(self) -> Sequence[Segment]:
        """Of the log, ascending; a list that is replaced, never shortened, when the oldest go."""
        return self._log.segments

    def wait_flushed(self, offset: int, callback: Callable[[BaseException | None], None]) -> None:
        """Calls `callback(error or None)`, on another thread, when all below `offset` is on disk."""
        self._flusher.wait(offset, callback)

    def flush(self) -> None:
        """Waits until all that was appended is on disk. Raises what the flush failed with."""
        flushed: Future[None] = Future()
        self._flusher.wait(
            self.max_offset,
            lambda error: flushed.set_exception(error) if error else flushed.set_result(None),
        )
        flushed.result()

    def request_flush(self) -> None:
        """Asks for a flush soon; rate-limited."""
        self._flusher.request()

    def read_chunks(self, start: int, end: int, chunk_bytes: int) -> Iterator[tuple[int, memoryview, int]]:
        """Whole records of [start, end) as (offset, bytes, offset of the next chunk); each of one segment.

        `start` and `end` are where records begin or the log ends. Raises OffsetOutOfRangeError.
        """
        if not self.min_offset <= start <= end <= self.max_offset:
            raise OffsetOutOfRangeError(
                f"range {start} to {end} is outside of the log, {self.min_offset} to {self.max_offset}"
            )
        while start < end:
            segment = self._log.segment_at(start)
            stop = min(end, segment.end)
            cut = self.split(start, stop, chunk_bytes, chunk_bytes)[1]
            yield start, segment.view[start - segment.start : cut - segment.start], cut
            start = cut

    def scan_from(self, offset: int) -> Iterator[Scan]:
        """Scans of the records from a physical offset on, at most 64 MiB at a time."""
        for start, data, _ in self.read_chunks(offset, self.max_offset, 64 << 20):
            yield scan(data, start, segment_size=self.segment_size)

    def records_with(self, mark: bytes, start: int) -> Iterator[Record]:
        """Records at or behind a physical offset, where one begins, that have `mark` somewhere, in the order of the log: also
        erased ones, of which the mark still counts."""
        pattern = re.compile(re.escape(mark))
        for begin, data, _ in self.read_chunks(max(start, self.min_offset), self.max_offset, 64 << 20):
            at, records = 0, None
            while (found := pattern.search(data, at)) is not None:
                at = found.end()
                if records is None:
                    records = scan(data, begin, verify_crc=False, segment_size=self.segment_size)
                    offsets, sizes = records.physical_offset, records.size
                number = int(np.searchsorted(offsets, begin + found.start(), "right")) - 1
                if number < 0:
                    continue
                offset, size = int(offsets[number]), int(sizes[number])
                at = max(at, offset + size - begin)  # once for each record, whatever is in it
                try:
                    yield self._record(offset, size)
                except RecordError:  # it does not count: nothing reads it
                    log.warning("a record at physical offset %d cannot be read", offset)

    def close(self) -> None:
        """Flushes, closes and removes `abort`. Raises StoreReadOnlyError when the last flush failed."""
        if self._closed:
            return
        self._closed = True
        with contextlib.ExitStack() as last:  # each is run, whatever becomes of those before it
            for fd in self._lock_fds:
                last.callback(os.close, fd)
            last.callback(self._log.close)
            last.callback(self._writer.end)
            try:
                self._allocator.close()
            finally:
                self._flusher.close()
            self._writer.close()
            self._checkpoint.close()
            (self.root / ABORT_FILE).unlink(missing_ok=True)


def _listed(record: PendingRecord) -> bool:
    """Whether its queue has an entry of it: not of the half of a transaction."""
    return (record.sys_flag & SYS_TRANSACTION_MASK) in (0, SYS_COMMIT)
