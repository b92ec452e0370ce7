"""Looking for damage while the store is in use: the files of the log, and the newest entries of queues.

| looked at | what must hold |
|---|---|
| files of segments | each is there, of the segment size, and begins where the one before it ends |
| newest entries of a queue | a record of that topic, queue, queue offset and size begins there |

The original's `checkSelf` looks at the former, for the log and for `consumequeue/`; our entries are columns of
runs, so that is what is looked at instead. What retention takes away meanwhile is no damage. Nothing is repaired.
"""

from __future__ import annotations

import itertools
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from store.errors import RecordError
from store.index.run_file import Key
from store.index.run_list import RunList
from store.lite_queues import lite_entry_of, lite_topic_of
from store.log.record import decode_record
from store.message_store import MessageStore

NEWEST = 3
"""Entries of a queue that are looked at."""
MAX_QUEUES = 10_000
"""In one look; the next one goes on behind them."""
MAX_DAMAGE = 100
"""Damaged places that are described; all are counted."""


def self_check(store: MessageStore, begin: int, most: int) -> SelfCheck:
    """A check of an open store: of its segments, and at most so many queues from the `begin`-th on."""
    queues = list(store.index.queues())
    return SelfCheck(
        [SegmentFile(each.start, each.path, each.view[:]) for each in store.segments],
        store.segment_size,
        store.index.runs(),
        [(key, store.index.max_offset(*key)) for key in queues[begin : begin + most]],
        lambda: store.min_offset,
    )


class SegmentFile(NamedTuple):
    """A segment as it was when the look began; the view stays good when it is deleted."""

    start: int
    path: Path
    view: memoryview


@dataclass(slots=True)
class Found:
    """What a look found: how many segments and how many entries (`places`) are damaged; `damage` describes
    the first of them, `unsaid` are the others."""

    segments: int = 0
    queues: int = 0
    entries: int = 0
    segment_places: int = 0
    places: int = 0
    unsaid: int = 0
    damage: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def segment(self, text: str) -> None:
        self.segment_places += 1
        self._say(text)

    def entry(self, text: str) -> None:
        self.places += 1
        self._say(text)

    def _say(self, text: str) -> None:
        if len(self.damage) < MAX_DAMAGE:
            self.damage.append(text)
        else:
            self.unsaid += 1


class SelfCheck:
    """One look, over what the store was when this was made. `run` may be called on any thread.

    `queues` are keys with the offset that their next record gets, `min_offset` the log's, which may rise.
    """

    def __init__(
        self,
        segments: Sequence[SegmentFile],
        segment_size: int,
        runs: RunList,
        queues: Sequence[tuple[Key, int]],
        min_offset: Callable[[], int],
    ) -> None:
        self._segments = segments
        self._starts = [segment.start for segment in segments]
        self._size = segment_size
        self._runs = runs
        self._queues = queues
        self._min_offset = min_offset

    def run(self) -> Found:
        """Looks. Reads a page of the log for each entry, and the inode of each segment."""
        began = time.monotonic()
        found = Found()
        self._check_segments(found)
        for key, following in self._queues:
            found.queues += 1
            self._check_queue(key, following, found)
        found.seconds = time.monotonic() - began
        return found

    def _check_segments(self, found: Found) -> None:
        for segment in self._segments:
            found.segments += 1
            try:
                size = segment.path.stat().st_size
            except OSError as error:
                if segment.start >= self._min_offset():
                    found.segment(f"segment {segment.path} cannot be looked at ({error}); restore the file")
                continue
            if size != self._size:
                found.segment(
                    f"segment {segment.path} has {size} bytes, expected {self._size}; restore the file"
                )
        for before, behind in itertools.pairwise(self._segments):
            if before.start + self._size != behind.start:
                found.segment(
                    f"behind segment {before.path} comes {behind.path}, expected offset {before.start + self._size}"
                )

    def _check_queue(self, key: Key, following: int, found: Found) -> None:
        for piece in self._runs.pieces(key, max(following - NEWEST, 0), following):
            if piece.run is None:
                continue
            for queue_offset in range(piece.start, piece.end):
                position = queue_offset - piece.base
                try:
                    entry = piece.run.entries(key, position, position + 1)  # one: the newest run still grows
                except FileNotFoundError:
                    return  # deleted meanwhile
                if not len(entry.sizes) or not entry.sizes[0]:
                    continue
                found.entries += 1
                offset, size = int(entry.offsets[0]), int(entry.sizes[0])
                reason = self._wrong(key, queue_offset, offset, size)
                if reason is not None and piece.run.start >= self._min_offset():
                    found.entry(
                        f"entry {queue_offset} of queue {key[1]} of topic {key[0]!r} points at physical offset "
                        f"{offset}, {size} bytes: {reason}"
                    )

    def _wrong(self, key: Key, queue_offset: int, offset: int, size: int) -> str | None:
        """What is wrong with an entry; None when nothing is."""
        number = bisect_right(self._starts, offset) - 1
        if number < 0 or offset >= self._starts[number] + self._size:
            return "outside of the log"
        position = offset - self._segments[number].start
        try:
            record = decode_record(
                self._segments[number].view[position : position + size], 0, offset, verify=False
            )
        except RecordError as error:
            return str(error)
        if record.size != size:
            return f"there is a record of {record.size} bytes"
        there = (record.topic, record.queue_id, record.queue_offset)
        if lite_topic_of(key[0]) is not None:
            if lite_entry_of(record) != (key[0], queue_offset):
                return f"there is record {there[2]} of queue {there[1]} of topic {there[0]!r}, which is not of that lite topic"
            return None
        if there != (*key, queue_offset):
            return f"there is record {there[2]} of queue {there[1]} of topic {there[0]!r}"
        return None
