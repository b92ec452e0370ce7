"""The commit log: segments one behind the other; append, read, roll. One writer."""

from __future__ import annotations

import bisect
import logging
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from store.columns import PendingColumns
from store.errors import OffsetOutOfRangeError, RecordError, RecordTooLargeError, StoreDamagedError
from store.log.allocator import Allocator
from store.log.record import (
    BLANK_BYTES,
    BLANK_MAGIC,
    CRC_BYTES,
    FIXED_BYTES,
    SYS_BORN_HOST_V6,
    SYS_STORE_HOST_V6,
    PendingRecord,
    encode_record,
    encode_topic,
)
from store.log.segment import Segment

log = logging.getLogger(__name__)
_PREPARE_AGAIN_BYTES = 1 << 20
_BLANK = struct.Struct(">iI")


class Placed(NamedTuple):
    """Where a record went."""

    physical_offset: int
    size: int


class CommitLog:
    """Appends at `max_offset`, reads below it. `segments` are contiguous and ascending."""

    def __init__(
        self,
        allocator: Allocator,
        segments: list[Segment],
        max_offset: int,
        *,
        segment_size: int,
        store_host: bytes,
        append_crc: bool,
    ) -> None:
        self._allocator = allocator
        self._prepare_at = -1
        self._prepared = -1
        self.segments = segments
        self._starts = [segment.start for segment in segments]
        self.max_offset = max_offset
        self.segment_size = segment_size
        self._store_host = store_host
        self._append_crc = append_crc
        self._writing: tuple[Segment, NDArray[np.uint8]] | None = None
        self._reading: Segment | None = None  # the one that was read last
        self.encode: Callable[..., int] | None = None
        """`store/kernels/encode.py`'s, once the compiler is loaded; until then columns go the plain path."""

    @property
    def min_offset(self) -> int:
        return self._starts[0] if self._starts else self.max_offset

    def append(
        self, records: Sequence[PendingRecord], queue_offsets: Sequence[int], store_timestamp: int
    ) -> list[Placed]:
        """Writes the records one behind the other; the first one's size, which makes them visible, last.

        Raises RecordTooLargeError, RecordError or OSError (no room for a new segment); then nothing of the
        call is visible and the log is as before.
        """
        placed: list[Placed] = []
        offset = self.max_offset
        end = self._end_of(offset)
        chunks: list[bytes | memoryview] = []
        runs = [(offset, chunks)]
        host, crc = self._store_host, self._append_crc
        for record, queue_offset in zip(records, queue_offsets, strict=True):
            encoded = encode_record(record, queue_offset, offset, store_timestamp, host, crc)
            size = len(encoded[0]) + len(encoded[1]) + len(encoded[2])
            if offset + size + BLANK_BYTES > end:
                if size + BLANK_BYTES > self.segment_size:
                    raise RecordTooLargeError(
                        f"record of {size} bytes does not fit a segment of {self.segment_size} "
                        "(mappedFileSizeCommitLog)"
                    )
                if offset < end:
                    chunks.append(_BLANK.pack(end - offset, BLANK_MAGIC))
                offset, end = end, end + self.segment_size
                chunks = []
                runs.append((offset, chunks))
                encoded = encode_record(record, queue_offset, offset, store_timestamp, host, crc)
            placed.append(Placed(offset, size))
            chunks += encoded
            offset += size
        while not self.segments or self.segments[-1].end < offset:
            self._add_segment()
        runs = [run for run in runs if run[1]]
        for first, others in reversed(runs):  # the foremost last, and its size at the very end
            self._put(first, others, hold_size=first == runs[0][0])
        self.max_offset = offset
        if self.max_offset > self._prepare_at:
            self._look_ahead()
        return placed

    def append_columns(
        self, batches: Sequence[PendingColumns], queue_offsets: Sequence[int], store_timestamp: int
    ) -> list[NDArray[np.int64]] | None:
        """Writes batches of records, each from its first queue offset on; the sizes of their records.

        As `append`, but None, with nothing done, when the plain path has to do it: at the end of a segment, or
        when something of it will be refused.
        """
        encode, offset = self.encode, self.max_offset
        if encode is None or not self.segments:
            return None
        segment = self.segments[-1]
        room = segment.end - offset - BLANK_BYTES
        if offset < segment.start:
            return None
        for batch in batches:
            head = FIXED_BYTES + len(batch.born_host) + len(self._store_host) + 4 * len(batch.topic) + 2
            room -= batch.size + batch.count * (head + len(batch.tail) + CRC_BYTES + 1)
            if room < 0:
                return None
        out = self._bytes_of(segment)
        position = first = offset - segment.start
        sizes = []
        for batch, queue_offset in zip(batches, queue_offsets, strict=True):
            batch.compute_long_crcs()
            some = np.empty(batch.count, dtype=np.int64)
            position = self._encode(
                encode, out, position, first, segment, batch, queue_offset, store_timestamp, some
            )
            if position < 0:
                return None
            sizes.append(some)
        segment.view[first : first + 4] = int(sizes[0][0]).to_bytes(4, "big")  # makes all of it visible
        self.max_offset = segment.start + position
        if self.max_offset > self._prepare_at:
            self._look_ahead()
        return sizes

    def _encode(
        self,
        encode: Callable[..., int],
        out: NDArray[np.uint8],
        position: int,
        first: int,
        segment: Segment,
        batch: PendingColumns,
        queue_offset: int,
        store_timestamp: int,
        sizes: NDArray[np.int64],
    ) -> int:
        magic, topic = encode_topic(batch.topic)
        flags = SYS_STORE_HOST_V6 if len(self._store_host) > 8 else 0
        if len(batch.born_host) > 8:
            flags |= SYS_BORN_HOST_V6
        return encode(
            out,
            position,
            segment.start,
            position == first,
            magic,
            topic,
            batch.queue_id,
            queue_offset,
            store_timestamp,
            batch.born_host,
            self._store_host,
            flags,
            self._append_crc,
            batch.bodies,
            batch.properties,
            batch.tail,
            batch.rows,
            sizes,
        )

    @property
    def next_start(self) -> int:
        """Where a segment begins, at the end of the log or behind it."""
        return -(-self.max_offset // self.segment_size) * self.segment_size

    def fill_up(self, start: int) -> None:
        """Ends the log's last segment with a blank, so that the next record begins the one at `start`. Raises
        StoreDamagedError when more than the rest of a segment is missing."""
        if start != self.next_start:
            raise StoreDamagedError(
                f"the log is to go on at {start}, but ends at {self.max_offset}: segments are missing; restore them"
            )
        if self.segments and self.max_offset < start:
            blank = _BLANK.pack(start - self.max_offset, BLANK_MAGIC)
            self._put(self.max_offset, [blank], hold_size=True)
        self.max_offset = start

    def _bytes_of(self, segment: Segment) -> NDArray[np.uint8]:
        """The segment's bytes, to be written to."""
        if self._writing is None or self._writing[0] is not segment:
            self._writing = segment, np.frombuffer(segment.view, dtype=np.uint8)
        return self._writing[1]

    def close(self) -> None:
        """Closes the segments."""
        self._writing = self._reading = None
        for segment in self.segments:
            segment.close()

    def read(self, offset: int, size: int) -> memoryview:
        """A view of `size` bytes at `offset`, within one segment. Raises OffsetOutOfRangeError."""
        segment = self._reading
        if segment is None or not 0 <= offset - segment.start < segment.size:
            segment = self._reading = self.segment_at(offset)
        position = offset - segment.start
        if size < 0 or offset + size > self.max_offset or position + size > segment.size:
            raise OffsetOutOfRangeError(
                f"{size} bytes at physical offset {offset}: the log ends at {self.max_offset}"
            )
        return segment.view[position : position + size]

    def segment_at(self, offset: int) -> Segment:
        """The segment that holds `offset`. Raises OffsetOutOfRangeError."""
        position = bisect.bisect_right(self._starts, offset) - 1
        if position < 0 or offset >= self.segments[position].end:
            raise OffsetOutOfRangeError(
                f"physical offset {offset} is outside of the log, {self.min_offset} to {self.max_offset}"
            )
        return self.segments[position]

    def take_out(self, count: int) -> list[Segment]:
        """Forgets the first segments and gives them; views of them stay good."""
        gone = self.segments[:count]
        self._reading = None
        if self._writing is not None and self._writing[0] in gone:
            self._writing = None  # it would keep the segment mapped
        self.segments = self.segments[count:]
        self._starts = self._starts[count:]
        return gone

    def prepare(self) -> None:
        """Tries again to make the next segment ahead, if that failed."""
        if self._allocator.error is not None:
            self._allocator.prepare(self.segments[-1].end)

    def _end_of(self, offset: int) -> int:
        """The end of the segment that takes the record at `offset`."""
        if self.segments:
            last = self.segments[-1]
            if last.start <= offset < last.start + last.size:
                return last.start + last.size
            if offset < last.start:
                return self.segment_at(offset).end  # the disk was full when a batch had rolled twice
        return offset + self.segment_size

    def _add_segment(self) -> None:
        start = self.segments[-1].end if self.segments else self.max_offset
        self.segments.append(self._allocator.take(start))
        self._starts.append(start)

    def _look_ahead(self) -> None:
        """Prepares what comes next. What is appended stays so when that fails."""
        try:
            self._prepare()
        except Exception:
            self._prepare_at = self.max_offset + _PREPARE_AGAIN_BYTES
            log.exception("the next segment, or pages of this one, could not be prepared; tried again later")

    def _prepare(self) -> None:
        """Has the next segment made when the newest is half full, and the next pages brought in."""
        newest = self.segments[-1]
        half = newest.start + newest.size // 2
        if self.max_offset > half and self._prepared != newest.end:
            self._prepared = newest.end
            self._allocator.prepare(newest.end)
        following = self._allocator.ahead(newest, self.max_offset)
        self._prepare_at = min(following, half if self.max_offset <= half else newest.end)

    def _put(self, offset: int, chunks: Sequence[bytes | memoryview], hold_size: bool) -> None:
        """Writes chunks one behind the other; with `hold_size` the first four bytes after all others."""
        segment = self.segments[-1]
        if offset < segment.start:
            segment = self.segment_at(offset)
        view, position = segment.view, offset - segment.start
        data = b"".join(chunks)
        end = position + len(data)
        if hold_size:
            view[position + 4 : end] = memoryview(data)[4:]
            view[position : position + 4] = data[:4]
        else:
            view[position:end] = data


__all__ = ["CommitLog", "Placed", "RecordError"]
