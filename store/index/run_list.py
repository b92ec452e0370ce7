"""Which run of the queue index holds what: the runs of the log in order, as they are at one time.

The directory of a run names every queue that the log knew, with the offset that its next record gets. That offset never
falls from one run to the next, so the run that holds a queue offset is found by bisection, whatever the number of runs.
It falls only where a topic was deleted and made again by a broker that begins at a lower offset. `falls` has those
places, in order: from that run on, what the queue has from that offset on is what counts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from store.index.file_run import Run
from store.index.live_run import LiveRun
from store.index.run_file import Key


class Piece(NamedTuple):
    """Queue offsets [start, end) of a queue: those of one run, whose first is `base`, or none that can be read."""

    start: int
    end: int
    base: int
    run: Run | None


class Fall(NamedTuple):
    """Where a queue was made again: the start of the run, and the queue offset."""

    run_start: int
    offset: int


class RunList:
    """`older` ended, in log order, `live` grows. Another thread may look, and read single entries of the runs."""

    __slots__ = ("_falls", "_live", "_older")

    def __init__(self, older: Sequence[Run], live: LiveRun, falls: Mapping[Key, Sequence[Fall]]) -> None:
        self._older = older
        self._live = live
        self._falls = falls

    def __iter__(self) -> Iterator[Run]:
        yield from self._older
        yield self._live

    def piece(self, key: Key, start: int, end: int) -> Piece:
        """What stands at queue offset `start`, up to `end` at most, which is not above the queue's next offset."""
        low, high = 0, len(self._older) + 1
        if key in self._falls:
            low, high, end = self._stretch(key, start, end)
        number = self._first_above(key, start, low, high)
        if number == high:
            return Piece(start, end, start, None)
        run = self._at(number)
        found = run.find(key)
        if found is not None:
            base, count = found
            if start < base:
                return Piece(start, min(base, end), start, None)
            if start < base + count:
                return Piece(start, min(base + count, end), base, run)
        if run is not self._live:
            end = min(end, max(run.following(key), start + 1))
        return Piece(start, end, start, None)

    def pieces(self, key: Key, start: int, end: int) -> Iterator[Piece]:
        """All of [start, end), ascending."""
        while start < end:
            found = self.piece(key, start, end)
            yield found
            start = found.end

    def lowest(self, key: Key, following: int, offset: int = 0) -> int:
        """The first queue offset that a run holds, of those with something at or behind a physical offset; `following`, the
        queue's next one, when none does."""
        first = max(self._number(offset), 0)
        falls = [self._number(fall.run_start) for fall in self._falls.get(key, ())]
        cuts = [first, *(number for number in falls if number > first), len(self._older) + 1]
        return min((self._lowest(key, low, high, following) for low, high in pairwise(cuts)))

    def count_from(self, offset: int) -> int:
        """How many records start at or behind a physical offset: one run is looked into."""
        number = max(self._number(offset), 0)
        behind = sum(len(self._at(later)) for later in range(number + 1, len(self._older) + 1))
        return self._at(number).count_from(offset) + behind

    def floor(self, offset: int) -> int | None:
        """The last record at or before a physical offset."""
        for number in range(self._number(offset), -1, -1):
            found = self._at(number).floor(offset)
            if found is not None:
                return found
        return None

    def above(self, offset: int) -> int | None:
        """The first record behind a physical offset."""
        for number in range(max(self._number(offset), 0), len(self._older) + 1):
            found = self._at(number).above(offset)
            if found is not None:
                return found
        return None

    def _at(self, number: int) -> Run:
        return self._older[number] if number < len(self._older) else self._live

    def _number(self, offset: int) -> int:
        """Of the run that a physical offset belongs to; -1 before the first."""
        if offset >= self._live.start:
            return len(self._older)
        return bisect_right(self._older, offset, key=lambda run: run.start) - 1

    def _lowest(self, key: Key, low: int, high: int, following: int) -> int:
        """`lowest` of the runs of these numbers."""
        number = max(low, 0)
        while number < high:
            run = self._at(number)
            found = run.find(key)
            if found is not None:
                return min(found[0], following)
            if run is self._live:
                break
            number = self._first_above(key, run.following(key), number + 1, high)
        return following

    def _stretch(self, key: Key, start: int, end: int) -> tuple[int, int, int]:
        """Numbers of the runs, [low, high), that have what counts at `start`, and up to where they do, `end` at most."""
        high = len(self._older) + 1
        for fall in reversed(self._falls[key]):
            number = max(self._number(fall.run_start), 0)
            if fall.offset <= start:
                return number, high, end
            high, end = number, min(end, fall.offset)
        return 0, high, end

    def _first_above(self, key: Key, offset: int, low: int, high: int) -> int:
        """The number of the first run of [low, high) that ended with the queue above `offset`; `high` for none.

        The live run, the last, is above all that was appended.
        """
        ended = min(high, len(self._older))
        if low >= ended:
            return min(low, high)
        return bisect_right(self._older, offset, lo=low, hi=ended, key=lambda run: run.following(key))
