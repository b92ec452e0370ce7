"""What is due when, for millions: sorted arrays, 24 bytes an entry, without IO or clock.

An entry is a record of a queue of a system topic. New ones go to a heap; a full heap becomes a sorted run, and runs of like
sizes become one, up to a size, so that there are few. What is removed leaves a run when it comes to the run's head, when runs become one, or
when more is removed than there is.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Set
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Longs = NDArray[np.int64]
Marks = NDArray[np.uint32]
Sizes = NDArray[np.uint32]
HEAP_ENTRIES = 4096
_A_LOOK = 1 << 16
"""Entries of a run that are looked at in one go."""
_A_STEP = 1024
"""Entries of a run that are taken at a time."""
_MOST_IN_A_RUN = 1 << 18
"""Runs that would become longer stay apart: to join them would hold up the event loop."""
_OFFSET_BITS = 44
MAX_QUEUES = 1 << 62 - _OFFSET_BITS
"""Of all system topics together; a queue has a number below it."""


def key_of(queue: int, queue_offset: int) -> int:
    """The key of a record: the number of its queue, and its queue offset."""
    return queue << _OFFSET_BITS | queue_offset


def queue_of(key: int) -> int:
    return key >> _OFFSET_BITS


def offset_of(key: int) -> int:
    """The queue offset of a key."""
    return key & (1 << _OFFSET_BITS) - 1


class Entry(NamedTuple):
    """`due` is ms since the epoch, `mark` 32 bits of what it may be looked up by, `size` the record's bytes."""

    due: int
    key: int
    mark: int
    size: int


class Columns(NamedTuple):
    """Entries as arrays of equal length, by `due`."""

    due: Longs
    key: Longs
    mark: Marks
    size: Sizes

    def part(self, which: slice | NDArray[np.bool_] | NDArray[np.intp]) -> Columns:
        """Some of the entries."""
        return Columns(self.due[which], self.key[which], self.mark[which], self.size[which])

    def without(self, keys: Set[int]) -> Columns:
        """The entries that have none of these keys."""
        if not keys:
            return self
        return self.part(~np.isin(self.key, np.fromiter(keys, np.int64, len(keys))))


_NO_KEYS: Set[int] = frozenset()
_NONE = Columns(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint32), np.empty(0, np.uint32))


class _Run:
    """Sorted entries, of which those before `head` are gone."""

    __slots__ = ("columns", "head")

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.head = 0

    def __len__(self) -> int:
        return len(self.columns.due) - self.head

    def live(self) -> Columns:
        return self.columns.part(slice(self.head, None))


class DueTable:
    """Entries by when they are due; `bytes` of their records."""

    def __init__(self) -> None:
        self._heap: list[Entry] = []
        self._runs: list[_Run] = []
        self._removed: set[int] = set()
        """Keys of entries that stand in the heap or a run all the same."""
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._heap) + sum(map(len, self._runs)) - len(self._removed)

    def add(self, due: int, key: int, mark: int, size: int) -> None:
        """Adds an entry; a key that is there, or was removed, must not be added again."""
        self.bytes += size
        heapq.heappush(self._heap, Entry(due, key, mark, size))
        if len(self._heap) >= HEAP_ENTRIES:
            heap, self._heap = self._heap, []
            self._add_run(_columns(sorted(heap)))

    def add_columns(self, columns: Columns) -> None:
        """Adds many at once."""
        if len(columns.due):
            self.bytes += int(columns.size.sum(dtype=np.int64))
            self._add_run(_sorted(columns))

    def remove(self, keys: Iterable[int], size: int) -> None:
        """Removes entries that are there, whose records have so many bytes together."""
        self.bytes -= size
        self._removed.update(keys)
        self._trim()
        if self._runs and len(self._removed) > max(_MOST_IN_A_RUN, len(self)):
            self._add_run(self._without_removed(self._runs.pop(0).live()))

    def next_due(self) -> int | None:
        """When the first entry is due."""
        dues = [int(run.columns.due[run.head]) for run in self._runs]
        if self._heap:
            dues.append(self._heap[0].due)
        return min(dues, default=None)

    def due_until(self, now: int, most: int, leave_out: Set[int] = _NO_KEYS) -> list[int]:
        """Keys of the first entries that are due at `now`, at most so many, by when they are due, those of the same ms as they came.
        They stay."""
        found = [self._first(run, now, most, leave_out) for run in self._runs]
        if self._heap and self._heap[0].due <= now:
            due = _columns([entry for entry in self._heap if entry.due <= now])
            found.append(due.without(self._removed).without(leave_out))
        due_first = _joined([_NONE, *found])
        keys: list[int] = due_first.key[np.lexsort((due_first.key, due_first.due))].tolist()
        return keys[:most]

    def _first(self, run: _Run, now: int, most: int, leave_out: Set[int]) -> Columns:
        """The first entries of a run that are due, as many as may be among the first `most` of all."""
        stop = int(np.searchsorted(run.columns.due, now, "right"))
        found, count, at = [_NONE], 0, run.head
        while at < stop and count < most:
            some = run.columns.part(slice(at, min(at + _A_STEP, stop)))
            at += _A_STEP
            if self._removed or leave_out:
                keys = some.key.tolist()
                stays = [key not in self._removed and key not in leave_out for key in keys]
                some = some.part(np.array(stays))
            found.append(some)
            count += len(some.due)
        return _joined(found)

    def find(self, first: int, last: int, mark: int) -> list[int]:
        """Keys of the entries that are due from `first` to `last` and have that mark."""
        keys = [entry.key for entry in self._heap if first <= entry.due <= last and entry.mark == mark]
        for run in self._runs:
            start, stop = np.searchsorted(run.columns.due, (first, last + 1)).tolist()
            start = max(start, run.head)
            some = run.columns.mark[start:stop] == mark
            keys += run.columns.key[start:stop][some].tolist()
        return [key for key in keys if key not in self._removed]

    def below(self, limits: dict[int, int], most: int) -> list[int]:
        """Keys of at most so many entries whose queue offset is below the limit of their queue; `limits` by queue number."""
        spans = [(key_of(queue, 0), key_of(queue, limit)) for queue, limit in limits.items()]
        keys = [each.key for each in self._heap if any(first <= each.key < end for first, end in spans)]
        keys = [key for key in keys if key not in self._removed]
        for run in self._runs:
            for start in range(run.head, len(run.columns.key), _A_LOOK):
                if len(keys) >= most:
                    return keys[:most]
                some = run.columns.key[start : start + _A_LOOK]
                wanted = np.zeros(len(some), bool)
                for first, end in spans:
                    wanted |= (some >= first) & (some < end)
                keys += [key for key in some[wanted].tolist() if key not in self._removed]
        return keys[:most]

    def columns(self) -> Columns:
        """All entries, sorted, in arrays of their own."""
        return self.frozen()()

    def frozen(self) -> Callable[[], Columns]:
        """What `columns` would give now: to be called later, on any thread, since it takes long for millions."""
        parts = [*(run.live() for run in self._runs), _columns(sorted(self._heap))]
        removed = self._removed.copy()
        return lambda: _sorted(_joined(parts).without(removed))

    def _add_run(self, columns: Columns) -> None:
        """Runs become shorter to the end of the list, each at least twice as long as the next."""
        while self._runs and self._may_join(len(self._runs[-1]), len(columns.due)):
            columns = _sorted(self._without_removed(_joined([self._runs.pop().live(), columns])))
        if len(columns.due):
            self._runs.append(_Run(columns))

    def _without_removed(self, columns: Columns) -> Columns:
        """Those of these entries that are there; the others are known no more."""
        left = columns.without(self._removed)
        if len(left.due) < len(columns.due):
            self._removed.difference_update(np.setdiff1d(columns.key, left.key).tolist())
        return left

    @staticmethod
    def _may_join(older: int, newer: int) -> bool:
        return older < 2 * newer and older + newer <= _MOST_IN_A_RUN

    def _trim(self) -> None:
        """Drops what is removed from the heads."""
        removed, heap = self._removed, self._heap
        while heap and heap[0].key in removed:
            removed.discard(heapq.heappop(heap).key)
        for run in self._runs:
            keys = run.columns.key
            while run.head < len(keys) and removed and (key := int(keys[run.head])) in removed:
                removed.discard(key)
                run.head += 1
        self._runs = [run for run in self._runs if len(run)]


def _columns(entries: list[Entry]) -> Columns:
    if not entries:
        return _NONE
    due, key, mark, size = zip(*entries, strict=True)
    return Columns(
        np.array(due, np.int64), np.array(key, np.int64), np.array(mark, np.uint32), np.array(size, np.uint32)
    )


def _joined(columns: list[Columns]) -> Columns:
    return Columns(*(np.concatenate(each) for each in zip(*columns, strict=True)))


def _sorted(columns: Columns) -> Columns:
    """By due, those of the same ms as they came."""
    return columns.part(np.argsort(columns.due, kind="stable"))
