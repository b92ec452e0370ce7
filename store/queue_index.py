"""Queue entries of the local log: for each queue the (offset, size, tags code) of every record, by queue offset.

What the consume queue is to the original. The log is cut into runs (`store/index_run.py`): the newest grows in
memory, the older ones are files, so that memory and the time to start do not grow with the log. Records
prepared or rolled back have no entry. Also knows where every record of the log begins. One writer, the
same thread as the readers of entries; `replace` may be called by another.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from store.index_run import LARGEST_GAP, Entries, FileRun, Ints, Key, LiveRun, Longs, Run
from store.record import SYS_COMMIT, SYS_TRANSACTION_MASK
from store.scan import Scan, by_queue
from store.time_search import BoundaryType, TimeOf, TimeSearch, pieces

RUN_BYTES = 256 << 20
"""Of log that a run covers, about; what a start after a crash scans at most."""
NO_LIMIT = 1 << 62
_ENTRY_BYTES = 28
"""Of memory that a record costs."""
_BULK = 6
"""Records that are faster as columns than one by one."""


class QueueIndex:
    """Entries by (topic, queue id), and the starts of all records.

    A run ends at a segment's end, after `run_bytes` of log, or when it takes half of `max_bytes` of memory;
    `on_run(run, next_offsets)` is told of it and may `replace` the run by its file.
    """

    def __init__(
        self, segment_size: int = 1 << 30, run_bytes: int = RUN_BYTES, max_bytes: int = 256 << 20
    ) -> None:
        self._segment_size = segment_size
        self._run_bytes = run_bytes
        self._run_records = max(max_bytes // 2 // _ENTRY_BYTES, 1024)
        self._next: dict[Key, int] = {}
        self._first: dict[Key, int] = {}
        self._begins: dict[Key, int] = {}
        self._older: list[Run] = []
        self._live = LiveRun(0)
        self._cut_at = 0
        self._lock = threading.Lock()
        self.on_run: Callable[[LiveRun, Mapping[Key, int]], None] = lambda run, next_offsets: None
        self._begin(0)

    def __len__(self) -> int:
        """Number of records."""
        return sum(len(run) for run in self._older) + len(self._live)

    # ----- queues -----

    def queues(self) -> Sequence[Key]:
        """Every (topic, queue id) that has, or had, an entry."""
        return list(self._next)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """The first queue offset that the local log holds; the next one when it holds none."""
        key = (topic, queue_id)
        first = self._first.get(key)
        if first is None:
            first = self._first[key] = max(self._lowest(key), self._begins.get(key, 0))
        return first

    def begin(self, topic: str, queue_id: int) -> int:
        """The queue offset at which the queue began: not 0 when its topic was deleted and made again."""
        return self._begins.get((topic, queue_id), 0)

    def begin_at(self, topic: str, queue_id: int, queue_offset: int) -> None:
        """Takes what is below `queue_offset` out of the queue: its topic was deleted."""
        key = (topic, queue_id)
        self._begins[key] = max(queue_offset, self._begins.get(key, 0))
        self._first.pop(key, None)
        self.raise_next(topic, queue_id, queue_offset)

    def max_offset(self, topic: str, queue_id: int) -> int:
        """The queue offset that the next record gets."""
        return self._next.get((topic, queue_id), 0)

    next_queue_offset = max_offset

    def raise_next(self, topic: str, queue_id: int, queue_offset: int) -> None:
        """Makes sure that the next record gets at least `queue_offset`."""
        key = (topic, queue_id)
        if queue_offset > self._next.get(key, 0):
            self._next[key] = queue_offset
            self._first.pop(key, None)

    def entries(self, topic: str, queue_id: int, start: int, count: int) -> Entries:
        """Entries from queue offset `start` on; a size of 0 where none can be read."""
        key = (topic, queue_id)
        queue = self._live.queues.get(key)
        if queue is not None and start >= queue.base:
            low = start - queue.base
            high = len(queue.rows)
            if low + count <= high or self._next[key] == queue.base + high:
                return self._live.entries(key, low, min(low + count, high))
        if start < self.min_offset(topic, queue_id):
            return _NOTHING
        parts: list[Entries] = []
        end = min(start + count, self._next.get(key, 0))
        while start < end:
            found = self._part(key, start, end)
            parts.append(found)
            start += len(found.offsets)
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return _NOTHING
        return Entries(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def at_time(self, topic: str, queue_id: int, time_of: TimeOf) -> Callable[[int, BoundaryType], int]:
        """A search for the queue offset of a time, ms: see `store/time_search.py`. It may run on another thread."""
        key = (topic, queue_id)
        least, most = self.min_offset(topic, queue_id), self.max_offset(topic, queue_id)
        runs = self.runs()

        def find(timestamp_ms: int, boundary: BoundaryType) -> int:
            search = TimeSearch(key, pieces(key, runs, least, most), time_of)
            found = search.find(timestamp_ms, boundary)
            return least if found is None else min(max(found, least), most)

        return find

    # ----- records -----

    def is_record_start(self, offset: int) -> bool:
        return self.floor(offset) == offset

    def align(self, offset: int) -> int | None:
        """The first record at or behind `offset`; None when there is none."""
        return self._above(offset - 1)

    def split(self, start: int, end: int, max_bytes: int, limit_bytes: int = NO_LIMIT) -> list[int]:
        """Boundaries of record-aligned ranges of about `max_bytes`; the first is `start`.

        The last is `end`, or the last one within `limit_bytes` of `start`; the first range may pass them.
        """
        cuts, most = [start], start + limit_bytes
        while cuts[-1] < end:
            begin = cuts[-1]
            target = min(begin + max_bytes, most, end)
            cut: int | None = target
            if target < end:
                cut = self.floor(target)
                if cut is None or cut <= begin:
                    if target == most and begin > start:
                        break
                    cut = self._above(begin)
            cuts.append(end if cut is None else min(cut, end))
        return cuts

    def record_starts(self) -> Longs:
        """Physical offsets of all records, ascending."""
        return np.concatenate([run.starts() for run in self.runs()])

    # ----- growing -----

    def put(
        self, topic: str, queue_id: int, queue_offset: int, offset: int, size: int, code: int, sys_flag: int
    ) -> None:
        """Adds the record that was just appended."""
        live = self._live
        if offset >= self._cut_at or len(live) >= self._run_records:
            live = self._cut(offset)
        row = live.put(offset, size, code)
        if (sys_flag & SYS_TRANSACTION_MASK) in (0, SYS_COMMIT):
            key = (topic, queue_id)
            if not live.entry(key, queue_offset, row):
                live = self._cut(offset, last=row)
                live.entry(key, queue_offset, live.put(offset, size, code))
            if key not in self._next or queue_offset < self._first.get(key, 0):
                self._first.pop(key, None)
            self._next[key] = queue_offset + 1

    def put_columns(
        self, topic: str, queue_id: int, queue_offset: int, offset: int, sizes: Longs, codes: Longs
    ) -> int:
        """`put` for records of one queue, one behind the other; returns the offset behind the last."""
        live, key, count = self._live, (topic, queue_id), len(sizes)
        if count == 1:  # most sends
            size = int(sizes[0])
            self.put(topic, queue_id, queue_offset, offset, size, int(codes[0]), 0)
            return offset + size
        if count >= _BULK and len(live) + count < self._run_records and live.goes_on(key, queue_offset):
            ends = np.cumsum(sizes) + offset
            end = int(ends[-1])
            if end <= self._cut_at:
                live.put_columns(key, ends - sizes, sizes, codes)
                self._next[key] = queue_offset + count
                return end
        for position, (size, code) in enumerate(zip(sizes.tolist(), codes.tolist(), strict=True)):
            self.put(topic, queue_id, queue_offset + position, offset, size, code, 0)
            offset += size
        return offset

    def add(self, scan: Scan) -> None:
        """Adds the records of a scan, in bulk; scans come in the order of the log, each within one segment."""
        if not len(scan):
            return
        offsets, codes = scan.physical_offset, scan.tags_code
        live = self._live
        if offsets[0] >= self._cut_at or len(live) >= self._run_records:
            live = self._cut(int(offsets[0]))
        row = live.extend(offsets, scan.size, codes)
        rows, queues = by_queue(scan)
        positions = scan.queue_offset
        for key, begin, end in queues:
            some = rows[begin:end]
            if not live.entries_in_bulk(key, positions[some], some + row):
                for position, number in zip(positions[some].tolist(), (some + row).tolist(), strict=True):
                    if not live.entry(key, position, number):
                        del live.queues[key]  # the log jumps: what is before cannot be read by queue offset
                        live.entry(key, position, number)
            self._next[key] = int(positions[some[-1]]) + 1
            self._first.pop(key, None)

    # ----- runs -----

    def load(self, run: FileRun) -> None:
        """Takes the next run of the log from its file."""
        self._end_live(run.start)
        self._older.append(run)
        for key, following in run.next_offsets():
            self._next[key] = following
        self._first.clear()
        self._begin(run.end)

    def grow(self) -> None:
        """Goes on with the newest run, if it has a file and is not complete."""
        if self._older and not len(self._live) and isinstance(self._older[-1], FileRun):
            run = self._older[-1]
            if run.end < self._bound(run.start) and len(run) < self._run_records // 2:
                self._older.pop()
                self._live = run.live()
                self._cut_at = self._bound(run.start)

    def live_run(self) -> tuple[LiveRun, Mapping[Key, int]]:
        """The newest run as it is, for a clean stop."""
        return self._live, self._next

    def replace(self, run: LiveRun, written: FileRun) -> bool:
        """Reads an older run from its file from here on; False when it was dropped meanwhile."""
        with self._lock:
            for number, each in enumerate(self._older):
                if each is run:
                    self._older[number] = written
                    return True
        return False

    def drop_below(self, offset: int) -> list[FileRun]:
        """Forgets runs that end at or below a physical offset; those that have files."""
        with self._lock:
            gone = [run for run in self._older if run.end <= offset]
            self._older = [run for run in self._older if run.end > offset]
        self._first.clear()
        return [run for run in gone if isinstance(run, FileRun)]

    def _cut(self, offset: int, last: int | None = None) -> LiveRun:
        """Ends the live run before the record at `offset`; that of row `last` goes into the next one."""
        if last is not None:
            self._live.drop(last)
        self._end_live(offset)
        self._begin(offset)
        return self._live

    def _end_live(self, offset: int) -> None:
        run = self._live
        if not len(run):
            return
        run.end = offset
        with self._lock:
            self._older = [*self._older, run]
        self.on_run(run, dict(self._next))

    def _begin(self, offset: int) -> None:
        self._live = LiveRun(offset)
        self._cut_at = self._bound(offset)

    def _bound(self, offset: int) -> int:
        segment_end = offset - offset % self._segment_size + self._segment_size
        return min(segment_end, offset + self._run_bytes)

    def runs(self) -> Sequence[Run]:
        """All runs in log order, the newest growing. Another thread may read single entries of them."""
        return [*self._older, self._live]

    def _part(self, key: Key, start: int, end: int) -> Entries:
        """Entries from `start` on, from one run; unreadable ones up to where the next run has some."""
        gap_end = end
        for run in reversed(self.runs()):
            found = run.find(key)
            if found is None:
                continue
            base, count = found
            if start < base:
                gap_end = min(gap_end, base)
            elif start < base + count:
                return run.entries(key, start - base, min(gap_end - base, count))
            else:
                break
        empty = np.zeros(gap_end - start, dtype=np.int64)
        return Entries(empty, empty.astype(np.int32), empty)

    def _lowest(self, key: Key) -> int:
        lowest = self._next.get(key, 0)
        for run in reversed(self.runs()):
            found = run.find(key)
            if found is not None:  # a higher one is of before the queue was made again
                lowest = min(lowest, found[0])
        return lowest

    def floor(self, offset: int) -> int | None:
        """The last record that begins at or before `offset`."""
        runs = self.runs()
        number = bisect_right([run.start for run in runs], offset) - 1
        while number >= 0:
            found = runs[number].floor(offset)
            if found is not None:
                return found
            number -= 1
        return None

    def _above(self, offset: int) -> int | None:
        runs = self.runs()
        number = max(bisect_right([run.start for run in runs], offset) - 1, 0)
        for run in runs[number:]:
            found = run.above(offset)
            if found is not None:
                return found
        return None


_NO_LONGS: Longs = np.empty(0, dtype=np.int64)
_NO_INTS: Ints = np.empty(0, dtype=np.int32)
_NOTHING = Entries(_NO_LONGS, _NO_INTS, _NO_LONGS)

__all__ = ["LARGEST_GAP", "NO_LIMIT", "RUN_BYTES", "QueueIndex"]
