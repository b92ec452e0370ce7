"""Queue entries of the local log: for each queue the (offset, size, tags code) of every record, by queue offset.

What the consume queue is to the original. The log is cut into runs (`store/index/live_run.py`): the newest grows in
memory, the older ones are files, so that memory and the time to start do not grow with the log. Records
prepared or rolled back have no entry. Also knows where every record of the log begins. One writer, the
same thread as the readers of entries; `replace` may be called by another.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from store.index.file_run import FileRun, Run
from store.index.live_run import LARGEST_GAP, Entries, Ints, LiveRun
from store.index.run_file import Key, Longs
from store.index.run_list import Fall, RunList
from store.index.time_search import BoundaryType, TimeOf, TimeSearch
from store.lite_queues import lite_entries
from store.log.erased import Erased
from store.log.record import SYS_COMMIT, SYS_TRANSACTION_MASK
from store.scan import Scan, by_queue

RUN_BYTES = 256 << 20
"""Of log that a run covers, about; what a start after a crash scans at most."""
NO_LIMIT = 1 << 62
_ENTRY_BYTES = 28
"""Of memory that a record costs."""
_MOST_RECENT = 8192
"""Queues whose last place is remembered."""
_BULK = 6
"""Records that are faster as columns than one by one."""


class Absence(NamedTuple):
    """Queue offsets [begin, end) that no record of the local log ever had: the log was begun anew between them. Only the
    lake has them."""

    begin: int
    end: int


class QueueIndex:
    """Entries by (topic, queue id), and the starts of all records.

    A run ends at a segment's end, after `run_bytes` of log, or when it takes half of `max_bytes` of memory.
    Listeners (`on_run`) are told of it and of the next offsets; one may `replace` the run by its file.
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
        self._falls: dict[Key, list[Fall]] = {}
        self._absent: dict[Key, list[Absence]] = {}
        self._recent: dict[Key, FileRun] = {}
        self._unread: FileRun | None = None
        self._older: list[Run] = []
        self._live = LiveRun(0)
        self._cut_at = 0
        self._lock = threading.Lock()
        self.erased = Erased()
        self._run_listeners: list[Callable[[LiveRun, Mapping[Key, int]], None]] = []
        self.remake: Callable[[FileRun], None] | None = None
        """Writes the damaged file of a run anew; on any thread."""
        self._begin(0)

    def on_run(self, listener: Callable[[LiveRun, Mapping[Key, int]], None]) -> None:
        """Has a listener told of each run that ends, and of the next offset of each queue behind it."""
        self._run_listeners.append(listener)

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
            lowest = self.runs().lowest(key, self._next.get(key, 0))
            first = self._first[key] = max(lowest, self._begins.get(key, 0))
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

    def forget(self, topic: str, queue_id: int) -> bool:
        """Forgets a queue of which the log has no entry any more: its next record begins it anew. Whether it did."""
        key = (topic, queue_id)
        following = self._next.get(key)
        if following is None or self.runs().lowest(key, following) < following:
            return False
        for known in (self._next, self._first, self._begins, self._falls, self._absent, self._recent):
            known.pop(key, None)
        return True

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

    def leave_out(self, topic: str, queue_id: int, begin: int, end: int) -> None:
        """Says that the queue offsets [begin, end) are an `Absence`; they come in ascending order. The next record gets `end`,
        or more."""
        found = self._absent.setdefault((topic, queue_id), [])
        if not found or begin > found[-1].end:
            found.append(Absence(begin, end))
        elif end > found[-1].end:
            found[-1] = Absence(found[-1].begin, end)
        self.raise_next(topic, queue_id, end)

    def absence(self, topic: str, queue_id: int, offset: int) -> Absence | None:
        """The one that a queue offset is in, else the next one; None when there is none any more."""
        found = self._absent.get((topic, queue_id))
        return next((each for each in found if offset < each.end), None) if found else None

    def absences(self, topic: str, queue_id: int) -> list[Absence]:
        """Those that have entries of the local log before them, ascending."""
        found = self._absent.get((topic, queue_id))
        if not found:
            return []
        least = self.min_offset(topic, queue_id)
        return [each for each in found if each.end > least]

    def behind_absence(self, topic: str, queue_id: int, offset: int) -> int:
        """A queue offset, or the end of the `Absence` that it is in."""
        found = self.absence(topic, queue_id, offset)
        return found.end if found is not None and found.begin <= offset else offset

    def count_from(self, topic: str, queue_id: int, offset: int) -> int:
        """How many queue offsets there are from one on, without those of an `Absence`."""
        absent = sum(
            each.end - max(each.begin, offset)
            for each in self._absent.get((topic, queue_id), ())
            if offset < each.end
        )
        return self.max_offset(topic, queue_id) - offset - absent

    def entries(self, topic: str, queue_id: int, start: int, count: int) -> Entries:
        """Entries from queue offset `start` on; a size of 0 where none can be read, since it is damaged or erased."""
        found = self.every_entry(topic, queue_id, start, count)
        return _without(found, self.erased) if self.erased.version else found

    def every_entry(self, topic: str, queue_id: int, start: int, count: int) -> Entries:
        """The same with those of erased records: for what needs their place and nothing that is in them."""
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
            if not len(found.offsets):
                break
            parts.append(found)
            start += len(found.offsets)
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return _NOTHING
        return Entries(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def at_time(self, topic: str, queue_id: int, time_of: TimeOf) -> Callable[[int, BoundaryType], int]:
        """A search for the queue offset of a time, ms: see `store/index/time_search.py`. It may run on another thread."""
        key = (topic, queue_id)
        least, most = self.min_offset(topic, queue_id), self.max_offset(topic, queue_id)
        runs, absences = self.runs(), self.absences(topic, queue_id)

        def find(timestamp_ms: int, boundary: BoundaryType) -> int:
            found = TimeSearch(key, runs, least, most, time_of).find(timestamp_ms, boundary)
            if found is None:
                return least
            found = next((each.end for each in absences if each.begin <= found < each.end), found)
            return min(max(found, least), most)

        return find

    def first_behind(self, topic: str, queue_id: int, offset: int) -> int:
        """A queue offset from which on the queue has all of its records that stand at or behind a physical offset."""
        key = (topic, queue_id)
        following = self._next.get(key, 0)
        return max(self.runs().lowest(key, following, offset), self._begins.get(key, 0))

    # ----- records -----

    def is_record_start(self, offset: int) -> bool:
        return self.floor(offset) == offset

    def floor(self, offset: int) -> int | None:
        """The last record at or before a physical offset."""
        return self.runs().floor(offset)

    def records_from(self, offset: int) -> int:
        """How many records start at or behind a physical offset."""
        return self.runs().count_from(offset)

    def align(self, offset: int) -> int | None:
        """The first record at or behind `offset`; None when there is none."""
        return self.runs().above(offset - 1)

    def split(self, start: int, end: int, max_bytes: int, limit_bytes: int = NO_LIMIT) -> list[int]:
        """Boundaries of record-aligned ranges of about `max_bytes`; the first is `start`.

        The last is `end`, or the last one within `limit_bytes` of `start`; the first range may pass them.
        """
        cuts, most, runs = [start], start + limit_bytes, self.runs()
        while cuts[-1] < end:
            begin = cuts[-1]
            target = min(begin + max_bytes, most, end)
            cut: int | None = target
            if target < end:
                cut = runs.floor(target)
                if cut is None or cut <= begin:
                    if target == most and begin > start:
                        break
                    cut = runs.above(begin)
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
            following = self._next.get(key)
            if following is None:
                self._first.pop(key, None)
            elif queue_offset < following and queue_offset == live.queues[key].base:
                self._begins_again(key, Fall(live.start, queue_offset))
            self._next[key] = queue_offset + 1

    def put_lite(self, queue: str, queue_offset: int) -> None:
        """Adds the record that was just put to the queue of its lite topic too."""
        live, key = self._live, (queue, 0)
        row = len(live) - 1
        if not live.entry(key, queue_offset, row):
            del live.queues[key]  # the log jumps: what is before cannot be read by queue offset
            live.entry(key, queue_offset, row)
        if key not in self._next:
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
            self._add_entries(live, key, positions[some], some + row)
        for key, some, offsets in lite_entries(scan, rows):
            self._add_entries(live, key, offsets, some + row)

    def _add_entries(self, live: LiveRun, key: Key, positions: Longs, rows: Longs) -> None:
        """The entries of a queue, in the order of the log: their offsets in it, and their rows in the run."""
        known = live.queues.get(key)
        least = int(positions.min())
        if least < (known.base if known is not None else self._next.get(key, 0)):
            self._begins_again(key, Fall(live.start, least))
        if not live.entries_in_bulk(key, positions, rows):
            for position, number in zip(positions.tolist(), rows.tolist(), strict=True):
                if not live.entry(key, position, number):
                    del live.queues[key]  # the log jumps: what is before cannot be read by queue offset
                    live.entry(key, position, number)
        self._next[key] = int(positions[-1]) + 1
        self._first.pop(key, None)

    # ----- runs -----

    def load(self, run: FileRun, *, followed: bool = False) -> None:
        """Takes the next run of the log from its file; `followed`: by another one, which knows what this one knew."""
        run.remake = self.remake
        self._end_live(run.start)
        if self._unread is not None:
            again, forgotten = run.changes_since(self._unread)
            self._next.update(forgotten)
        else:
            again = [(key, base) for key, base in run.bases() if base < self._next.get(key, 0)]
        for key, base in again:
            self._begins_again(key, Fall(run.start, base))
        self._older.append(run)
        self._unread = run if followed else None
        if not followed:
            self._next.update(run.next_offsets())
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

    def next_offsets_beside(self, run: FileRun) -> tuple[dict[Key, int], dict[Key, int]]:
        """Next offsets of queues that are known without a run's file: when the run began, and when it ended.

        The latter are those of the newest file, which a start learns all queues from. Any thread may ask.
        """
        older = list(self._older)
        number = next((number for number, each in enumerate(older) if each is run), len(older))
        if number == len(older):  # it is being loaded
            return dict(self._next), {}
        ended: dict[Key, int] = {}
        if number == len(older) - 1 and self._unread is None:
            ended = {key: following for key, following in dict(self._next).items() if not self._grows(key)}
        if not number:
            return {}, ended
        before = older[number - 1]
        return dict(before.next_offsets() if isinstance(before, FileRun) else before.next_offsets), ended

    def _grows(self, key: Key) -> bool:
        return key in self._live.queues

    def live_run(self) -> tuple[LiveRun, Mapping[Key, int]]:
        """The newest run as it is, for a clean stop."""
        return self._live, self._next

    def replace(self, run: LiveRun, written: FileRun) -> bool:
        """Reads an older run from its file from here on; False when it was dropped meanwhile."""
        written.remake = self.remake
        with self._lock:
            for number in range(len(self._older) - 1, -1, -1):
                if self._older[number] is run:
                    self._older[number] = written
                    return True
        return False

    def drop_below(self, offset: int) -> list[FileRun]:
        """Forgets runs that end at or below a physical offset; those that have files."""
        with self._lock:
            gone = [run for run in self._older if run.end <= offset]
            self._older = [run for run in self._older if run.end > offset]
        self._first.clear()
        self._recent.clear()
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
        run.next_offsets = dict(self._next)
        for listener in self._run_listeners:
            listener(run, run.next_offsets)

    def _begin(self, offset: int) -> None:
        self._live = LiveRun(offset)
        self._cut_at = self._bound(offset)

    def _bound(self, offset: int) -> int:
        segment_end = offset - offset % self._segment_size + self._segment_size
        return min(segment_end, offset + self._run_bytes)

    def runs(self) -> RunList:
        """All runs as they are now. Another thread may read single entries of them."""
        return RunList(self._older, self._live, self._falls)

    def _part(self, key: Key, start: int, end: int) -> Entries:
        """Entries from `start` on, from one run; unreadable ones up to where there are some again."""
        run = self._recent.get(key)
        if run is not None:  # who reads on
            found = run.find(key)
            if found is not None and found[0] <= start < found[0] + found[1]:
                return run.entries(key, start - found[0], min(end - found[0], found[1]))
        piece = self.runs().piece(key, start, end)
        if piece.run is None:
            empty = np.zeros(piece.end - start, dtype=np.int64)
            return Entries(empty, empty.astype(np.int32), empty)
        if isinstance(piece.run, FileRun) and key not in self._falls:
            if len(self._recent) >= _MOST_RECENT:
                self._recent.clear()
            self._recent[key] = piece.run
        return piece.run.entries(key, start - piece.base, piece.end - piece.base)

    def _begins_again(self, key: Key, fall: Fall) -> None:
        """The queue was made again, from a lower offset on."""
        self._falls[key] = [*self._falls.get(key, ()), fall]
        self._recent.pop(key, None)
        self._first.pop(key, None)


def _without(found: Entries, erased: Erased) -> Entries:
    """The entries with a size of 0 where a record is erased."""
    gone = erased.among(found.offsets) & (found.sizes > 0)
    if not gone.any():
        return found
    return Entries(found.offsets, np.where(gone, 0, found.sizes), np.where(gone, 0, found.codes))


_NO_LONGS: Longs = np.empty(0, dtype=np.int64)
_NO_INTS: Ints = np.empty(0, dtype=np.int32)
_NOTHING = Entries(_NO_LONGS, _NO_INTS, _NO_LONGS)

__all__ = ["LARGEST_GAP", "NO_LIMIT", "RUN_BYTES", "Absence", "QueueIndex"]
