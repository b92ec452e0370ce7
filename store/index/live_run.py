"""The run that grows: queue entries of the end of the log, in memory."""

from __future__ import annotations

import bisect
import logging
from array import array
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from store.index.run_file import (
    HOLE,
    Key,
    Longs,
)

log = logging.getLogger(__name__)
Ints = NDArray[np.int32]
LARGEST_GAP = 4096
"""A run whose queue offsets jump further ahead ends before the jump."""
_FEW = 8
"""Entries that are faster one by one than as arrays."""


class Entries(NamedTuple):
    """Columns of consecutive queue entries: physical offsets, sizes (0: cannot be read), tags codes."""

    offsets: Longs
    sizes: Ints
    codes: Longs


class QueueRows:
    """Rows of a queue's entries in a run, from queue offset `base` on."""

    __slots__ = ("base", "rows")

    def __init__(self, base: int, row: int) -> None:
        self.base = base
        self.rows = array("I", (row,))


class LiveRun:
    """A run in memory: columns of all its records in log order, and for each queue which rows are its entries."""

    __slots__ = ("codes", "end", "next_offsets", "offsets", "queues", "sizes", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        self.end = start
        self.queues: dict[Key, QueueRows] = {}
        self.next_offsets: Mapping[Key, int] = {}
        """Of every queue of the log, once the run has ended."""
        self.offsets = array("q")
        self.sizes = array("i")
        self.codes = array("q")

    def __len__(self) -> int:
        return len(self.offsets)

    def put(self, offset: int, size: int, code: int) -> int:
        """Adds a record; returns its row."""
        row = len(self.offsets)
        self.offsets.append(offset)
        self.sizes.append(size)
        self.codes.append(code)
        self.end = offset + size
        return row

    def drop(self, row: int) -> None:
        """Takes out the last record, whose row this is."""
        del self.offsets[row:], self.sizes[row:], self.codes[row:]

    def extend(self, offsets: Longs, sizes: Longs, codes: Longs) -> int:
        """Adds records in bulk; returns the row of the first."""
        row = len(self.offsets)
        self.offsets.frombytes(np.ascontiguousarray(offsets, dtype=np.int64).tobytes())
        self.sizes.frombytes(np.ascontiguousarray(sizes, dtype=np.int32).tobytes())
        self.codes.frombytes(np.ascontiguousarray(codes, dtype=np.int64).tobytes())
        self.end = int(offsets[-1] + sizes[-1])
        return row

    def goes_on(self, key: Key, queue_offset: int) -> bool:
        """Whether `queue_offset` is the one behind the queue's last entry here."""
        queue = self.queues.get(key)
        return queue is not None and queue_offset == queue.base + len(queue.rows)

    def put_columns(self, key: Key, offsets: Longs, sizes: Longs, codes: Longs) -> None:
        """Adds records that are the queue's next entries."""
        row = self.extend(offsets, sizes, codes)
        self.queues[key].rows.extend(range(row, row + len(offsets)))

    def entry(self, key: Key, queue_offset: int, row: int) -> bool:
        """Makes a row the entry at `queue_offset`; False when the offset jumps too far ahead for this run.

        An offset that is taken already means that the queue was made again: the later record counts.
        """
        queue = self.queues.get(key)
        if queue is None:
            self.queues[key] = QueueRows(queue_offset, row)
            return True
        rows = queue.rows
        position = queue_offset - queue.base
        gap = position - len(rows)
        if gap == 0:
            rows.append(row)
        elif gap > LARGEST_GAP:
            return False
        elif gap > 0:
            rows.extend([HOLE] * gap)
            rows.append(row)
        elif position < 0:
            self.queues[key] = QueueRows(queue_offset, row)
        else:
            del rows[position:]
            rows.append(row)
        return True

    def entries_in_bulk(self, key: Key, queue_offsets: Longs, rows: Longs) -> bool:
        """`entry` for consecutive offsets behind the queue's last; False when they are not that."""
        queue = self.queues.get(key)
        first = int(queue_offsets[0])
        if len(queue_offsets) > 1 and (np.diff(queue_offsets) != 1).any():
            return False
        if queue is None:
            queue = self.queues[key] = QueueRows(first, int(rows[0]))
            rows = rows[1:]
        elif first != queue.base + len(queue.rows):
            return False
        queue.rows.frombytes(rows.astype(np.uint32).tobytes())
        return True

    def shape(self, key: Key, base: int, count: int) -> None:
        """Gives a queue as many entries from `base` on; those that are missing are holes."""
        queue = self.queues.get(key)
        if queue is not None and (queue.base, len(queue.rows)) == (base, count):
            return
        shaped = self.queues[key] = QueueRows(base, HOLE)
        shaped.rows *= count
        for offset, row in enumerate(queue.rows, queue.base) if queue is not None else ():
            if 0 <= offset - base < count:
                shaped.rows[offset - base] = row

    def find(self, key: Key) -> tuple[int, int] | None:
        """First queue offset and number of the queue's entries; None when it has none here."""
        queue = self.queues.get(key)
        return (queue.base, len(queue.rows)) if queue is not None else None

    def following(self, key: Key) -> int:
        """The offset that the queue's next record got when the run ended; 0 for one that was not known."""
        return self.next_offsets.get(key, 0)

    def entries(self, key: Key, low: int, high: int) -> Entries:
        """Entries by position in the queue, [low, high)."""
        some = self.queues[key].rows[low:high]
        if len(some) <= _FEW and HOLE not in some:
            offsets, sizes, codes = self.offsets, self.sizes, self.codes
            return Entries(
                np.array([offsets[row] for row in some], dtype=np.int64),
                np.array([sizes[row] for row in some], dtype=np.int32),
                np.array([codes[row] for row in some], dtype=np.int64),
            )
        if len(some) <= _FEW:  # no array is looked into as a whole: it could not grow meanwhile
            few = Entries(
                np.zeros(len(some), dtype=np.int64),
                np.zeros(len(some), dtype=np.int32),
                np.zeros(len(some), dtype=np.int64),
            )
            for position, row in enumerate(some):
                if row != HOLE:
                    few.offsets[position], few.sizes[position] = self.offsets[row], self.sizes[row]
                    few.codes[position] = self.codes[row]
            return few
        rows = np.frombuffer(some, dtype=np.uint32) if some else np.empty(0, dtype=np.uint32)
        if HOLE in some:
            held = np.flatnonzero(rows != HOLE)
            found = Entries(
                np.zeros(len(rows), dtype=np.int64),
                np.zeros(len(rows), dtype=np.int32),
                np.zeros(len(rows), dtype=np.int64),
            )
            found.offsets[held] = np.asarray(self.offsets)[rows[held]]
            found.sizes[held] = np.asarray(self.sizes)[rows[held]]
            found.codes[held] = np.asarray(self.codes)[rows[held]]
            return found
        return Entries(
            np.asarray(self.offsets)[rows], np.asarray(self.sizes)[rows], np.asarray(self.codes)[rows]
        )

    def starts(self) -> Longs:
        """Physical offsets of all records, ascending; a copy."""
        return np.array(self.offsets, dtype=np.int64)

    def count_from(self, offset: int) -> int:
        """How many records start at or behind `offset`."""
        return len(self.offsets) - bisect.bisect_left(self.offsets, offset)

    def floor(self, offset: int) -> int | None:
        """The last record at or before `offset`."""
        position = bisect.bisect_right(self.offsets, offset)
        return self.offsets[position - 1] if position else None

    def above(self, offset: int) -> int | None:
        """The first record behind `offset`."""
        position = bisect.bisect_right(self.offsets, offset)
        return self.offsets[position] if position < len(self.offsets) else None
