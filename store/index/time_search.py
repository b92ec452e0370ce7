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
from collections.abc import Callable

from store.index.live_run import LARGEST_GAP
from store.index.run_file import Key
from store.index.run_list import Piece, RunList

TimeOf = Callable[[int, int], int | None]
"""Store time, ms, of the record at a physical offset and of a size; None when it cannot be read, 0 when it was deleted."""
_MOST_HOLES = 2 * LARGEST_GAP
"""Entries in a row that cannot be read and are passed over; behind damage that is longer the search is left out."""


class BoundaryType(enum.Enum):
    """Which entry a time stands for when it is not that of exactly one."""

    LOWER = "LOWER"
    UPPER = "UPPER"


class TimeSearch:
    """Over a queue's entries [least, most). May be used on another thread than the index's: it reads them one at a time."""

    def __init__(self, key: Key, runs: RunList, least: int, most: int, time_of: TimeOf) -> None:
        self._key = key
        self._runs = runs
        self._least, self._most = least, most
        self._time_of = time_of

    def find(self, timestamp_ms: int, boundary: BoundaryType) -> int | None:
        """The queue offset of a time; None when no entry can be read."""
        later = timestamp_ms + (boundary is BoundaryType.UPPER)
        behind: int | None = None  # the first entry at or behind `later`
        before: int | None = None  # the last entry before it
        low, high = self._least, self._most
        while low < high:
            middle = (low + high) // 2
            at, seen = self._readable(middle, high)
            if seen is None:
                high = middle
            elif seen >= later:
                behind, high = at, middle
            else:
                before, low = at, at + 1
        if boundary is BoundaryType.UPPER:
            return before if before is not None else behind
        return behind if behind is not None or before is None else before + 1

    def _readable(self, start: int, end: int) -> tuple[int, int | None]:
        """The first entry from `start` on whose record can be read, and its store time."""
        passed, at = 0, start
        while at < end and passed < _MOST_HOLES:
            piece = self._runs.piece(self._key, at, end)
            passed += 1
            if piece.run is None:
                at = piece.end
                continue
            while at < piece.end and passed < _MOST_HOLES:
                seen = self._time_at(piece, at)
                if seen is not None:
                    return at, seen
                passed, at = passed + 1, at + 1
        return end, None

    def _time_at(self, piece: Piece, offset: int) -> int | None:
        assert piece.run is not None
        position = offset - piece.base
        try:
            entry = piece.run.entries(self._key, position, position + 1)
        except FileNotFoundError:
            return 0  # deleted meanwhile, with its segment
        if not len(entry.sizes) or not entry.sizes[0]:
            return None
        return self._time_of(int(entry.offsets[0]), int(entry.sizes[0]))
