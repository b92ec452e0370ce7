"""Finding the queue offset of a time: a binary search over a queue's entries, reading store times from the log.

| time asked for | LOWER | UPPER |
|---|---|---|
| of one or several entries | the first of them | the last of them |
| between two entries | the one behind it | the one before it |
| before the first entry | the first | the first |
| behind the last entry | one behind the last | the last |

As the original's `getOffsetInQueueByTime` with its BoundaryType, kept within the queue as its
`ConsumeQueueStore` does. A clock that was set back makes it find one of the places that fit.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import NamedTuple

from store.index_run import LARGEST_GAP, Key, Run

TimeOf = Callable[[int, int], int | None]
"""Store time, ms, of the record at a physical offset and of a size; None when it cannot be read, 0 when it was deleted."""
_MOST_HOLES = 2 * LARGEST_GAP
"""Entries in a row that cannot be read and are passed over; behind damage that is longer the search is left out."""


class BoundaryType(enum.Enum):
    """Which entry a time stands for when it is not that of exactly one."""

    LOWER = "LOWER"
    UPPER = "UPPER"


class Piece(NamedTuple):
    """Queue offsets [start, end) of a queue that one run holds; `base` is the run's first."""

    start: int
    end: int
    base: int
    run: Run


def pieces(key: Key, runs: Iterable[Run], start: int, end: int) -> list[Piece]:
    """Who holds a queue's entries within [start, end), ascending; `runs` in log order. A later run counts."""
    found: list[Piece] = []
    for run in reversed(list(runs)):
        held = run.find(key)
        if held is not None:
            low, high = max(held[0], start), min(held[0] + held[1], end)
            if low < high:
                found.append(Piece(low, high, held[0], run))
            end = min(end, held[0])
        if end <= start:
            break
    return found[::-1]


class TimeSearch:
    """Over the entries of one queue. May be used on another thread than the index's: it reads them one at a time."""

    def __init__(self, key: Key, held: list[Piece], time_of: TimeOf) -> None:
        self._key = key
        self._held = held
        self._ends = list(accumulate(piece.end - piece.start for piece in held))
        self._time_of = time_of

    def find(self, timestamp_ms: int, boundary: BoundaryType) -> int | None:
        """The queue offset of a time; None when no entry can be read."""
        later = timestamp_ms + (boundary is BoundaryType.UPPER)
        behind: int | None = None  # the first entry at or behind `later`
        before: int | None = None  # the last entry before it
        low, high = 0, self._ends[-1] if self._ends else 0
        while low < high:
            middle = (low + high) // 2
            at, seen = self._readable(middle, high)
            if seen is None:
                high = middle
            elif seen >= later:
                behind, high = self._offset(at), middle
            else:
                before, low = self._offset(at), at + 1
        if boundary is BoundaryType.UPPER:
            return before if before is not None else behind
        return behind if behind is not None or before is None else before + 1

    def _readable(self, position: int, end: int) -> tuple[int, int | None]:
        """The first entry from `position` on whose record can be read, and its store time."""
        for at in range(position, min(end, position + _MOST_HOLES)):
            piece, offset = self._entry(at)
            entries = piece.run.entries(self._key, offset - piece.base, offset - piece.base + 1)
            if len(entries.sizes) and entries.sizes[0]:
                seen = self._time_of(int(entries.offsets[0]), int(entries.sizes[0]))
                if seen is not None:
                    return at, seen
        return end, None

    def _entry(self, position: int) -> tuple[Piece, int]:
        """The piece of an entry, counted over all pieces, and its queue offset."""
        number = bisect_right(self._ends, position)
        piece = self._held[number]
        return piece, piece.end - (self._ends[number] - position)

    def _offset(self, position: int) -> int:
        return self._entry(position)[1]
