"""Queue entries of the local log: for each queue the (offset, size, tags code) of every record, by queue offset.

What the consume queue is to the original, in memory; rebuilt from the scan at start. Records prepared or
rolled back have no entry. Also keeps where every record of the log begins. One writer, the same thread as
the readers.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from store.record import SYS_COMMIT, SYS_TRANSACTION_MASK
from store.scan import Longs, Scan, topic_codes

Ints = NDArray[np.int32]
LARGEST_GAP = 1 << 20
"""A queue whose offsets jump further ahead starts anew behind the jump."""


class _Entries:
    """Entries of one queue from `base` on; a size of 0 stands for a record that cannot be read."""

    __slots__ = ("base", "codes", "count", "offsets", "sizes")

    def __init__(self, base: int) -> None:
        self.base = base
        self.count = 0
        self.offsets: Longs = np.zeros(16, dtype=np.int64)
        self.sizes: Ints = np.zeros(16, dtype=np.int32)
        self.codes: Longs = np.zeros(16, dtype=np.int64)

    def reserve(self, count: int) -> None:
        if count <= len(self.offsets):
            return
        room = max(count, 2 * len(self.offsets))
        for name in ("offsets", "sizes", "codes"):
            old = getattr(self, name)
            new = np.zeros(room, dtype=old.dtype)
            new[: self.count] = old[: self.count]
            setattr(self, name, new)

    def put(self, queue_offset: int, offset: int, size: int, code: int) -> None:
        position = queue_offset - self.base
        if self.count == 0 or position < self.count or position > self.count + LARGEST_GAP:
            if self.count and position >= 0 and position < self.count:
                self.count = position  # the queue was made again at lower offsets: the later record counts
            else:
                self.base, self.count, position = queue_offset, 0, 0
        self.reserve(position + 1)
        if position > self.count:
            self.offsets[self.count : position] = offset
            self.sizes[self.count : position] = 0
            self.codes[self.count : position] = 0
        self.offsets[position] = offset
        self.sizes[position] = size
        self.codes[position] = code
        self.count = position + 1


class QueueIndex:
    """Entries by (topic, queue id), and the starts of all records."""

    def __init__(self) -> None:
        self._queues: dict[tuple[str, int], _Entries] = {}
        self._starts: Longs = np.empty(1024, dtype=np.int64)
        self._records = 0

    def __len__(self) -> int:
        return self._records

    def queues(self) -> Iterable[tuple[str, int]]:
        """Every (topic, queue id) that has, or had, an entry."""
        return list(self._queues)

    def min_offset(self, topic: str, queue_id: int) -> int:
        entries = self._queues.get((topic, queue_id))
        return entries.base if entries is not None else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        """The queue offset that the next record gets."""
        entries = self._queues.get((topic, queue_id))
        return entries.base + entries.count if entries is not None else 0

    next_queue_offset = max_offset

    def raise_next(self, topic: str, queue_id: int, queue_offset: int) -> None:
        """Makes sure that the next record gets at least `queue_offset`."""
        entries = self._queues.get((topic, queue_id))
        if entries is None:
            if queue_offset > 0:
                self._queues[(topic, queue_id)] = _Entries(queue_offset)
        elif entries.base + entries.count < queue_offset:
            if entries.count == 0:
                entries.base = queue_offset
            else:
                last = int(entries.offsets[entries.count - 1])
                entries.put(queue_offset - 1, last, 0, 0)

    def entries(self, topic: str, queue_id: int, start: int, count: int) -> tuple[Longs, Ints, Longs]:
        """Physical offsets, sizes (0: cannot be read) and tags codes from queue offset `start` on."""
        entries = self._queues.get((topic, queue_id))
        if entries is None or start < entries.base:
            return _NO_LONGS, _NO_INTS, _NO_LONGS
        low = start - entries.base
        high = min(low + count, entries.count)
        return entries.offsets[low:high], entries.sizes[low:high], entries.codes[low:high]

    def put(
        self, topic: str, queue_id: int, queue_offset: int, offset: int, size: int, code: int, sys_flag: int
    ) -> None:
        """Adds the record that was just appended."""
        records = self._records
        if records == len(self._starts):
            self._add_starts(np.array((offset,), dtype=np.int64))
        else:
            self._starts[records] = offset
            self._records = records + 1
        if (sys_flag & SYS_TRANSACTION_MASK) in (0, SYS_COMMIT):
            key = (topic, queue_id)
            entries = self._queues.get(key)
            if entries is None:
                entries = self._queues[key] = _Entries(queue_offset)
            count = entries.count
            if queue_offset == entries.base + count and count < len(entries.offsets):
                entries.offsets[count] = offset
                entries.sizes[count] = size
                entries.codes[count] = code
                entries.count = count + 1
            else:
                entries.put(queue_offset, offset, size, code)

    def add(self, scan: Scan) -> None:
        """Adds the records of a scan, in bulk; scans come in the order of the log."""
        if not len(scan):
            return
        offsets = scan.physical_offset
        self._add_starts(offsets)
        kinds = scan.sys_flag & SYS_TRANSACTION_MASK
        listed = np.flatnonzero((kinds == 0) | (kinds == SYS_COMMIT))
        if not len(listed):
            return
        codes, names = topic_codes(scan)
        topics, queues = codes[listed], scan.queue_id[listed]
        order = np.lexsort((listed, queues, topics))
        topics, queues, rows = topics[order], queues[order], listed[order]
        cuts = np.flatnonzero((np.diff(topics) != 0) | (np.diff(queues) != 0)) + 1
        sizes, tags, positions = scan.size, scan.tags_code, scan.queue_offset
        for begin, end in zip([0, *cuts.tolist()], [*cuts.tolist(), len(rows)], strict=True):
            some = rows[begin:end]
            key = (names[topics[begin]], int(queues[begin]))
            self._extend(key, positions[some], offsets[some], sizes[some], tags[some])

    def is_record_start(self, offset: int) -> bool:
        position = np.searchsorted(self._starts[: self._records], offset)
        return bool(position < self._records and self._starts[position] == offset)

    def align(self, offset: int) -> int | None:
        """The first record at or behind `offset`; None when there is none."""
        position = np.searchsorted(self._starts[: self._records], offset)
        return int(self._starts[position]) if position < self._records else None

    def split(self, start: int, end: int, max_bytes: int) -> list[int]:
        """Boundaries of record-aligned ranges of about `max_bytes`; the first is `start`, the last `end`."""
        starts = self._starts[: self._records]
        cuts = [start]
        while cuts[-1] + max_bytes < end:
            position = int(np.searchsorted(starts, cuts[-1] + max_bytes, side="right")) - 1
            if position < 0 or starts[position] <= cuts[-1]:
                position = int(np.searchsorted(starts, cuts[-1], side="right"))
            if position >= self._records or starts[position] >= end:
                break
            cuts.append(int(starts[position]))
        return [*cuts, end] if end > start else [start]

    def record_starts(self) -> Longs:
        """Physical offsets of all records, ascending."""
        return self._starts[: self._records]

    def _extend(
        self, key: tuple[str, int], positions: Longs, offsets: Longs, sizes: Longs, tags: Longs
    ) -> None:
        entries = self._queues.get(key)
        if entries is None:
            entries = self._queues[key] = _Entries(int(positions[0]))
        first = entries.base + entries.count
        if positions[0] == first and (len(positions) == 1 or (np.diff(positions) == 1).all()):
            count = entries.count + len(positions)
            entries.reserve(count)
            entries.offsets[entries.count : count] = offsets
            entries.sizes[entries.count : count] = sizes
            entries.codes[entries.count : count] = tags
            entries.count = count
            return
        for row in zip(positions.tolist(), offsets.tolist(), sizes.tolist(), tags.tolist(), strict=True):
            entries.put(*row)

    def _add_starts(self, offsets: Longs) -> None:
        count = self._records + len(offsets)
        if count > len(self._starts):
            grown = np.empty(max(count, 2 * len(self._starts)), dtype=np.int64)
            grown[: self._records] = self._starts[: self._records]
            self._starts = grown
        self._starts[self._records : count] = offsets
        self._records = count


_NO_LONGS: Longs = np.empty(0, dtype=np.int64)
_NO_INTS: Ints = np.empty(0, dtype=np.int32)
