"""Looking into a store by path: what is in it, and single records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from store.errors import RecordError
from store.log.record import Record, decode_record, offset_msg_id
from store.log_source import FolderLog, LogSource, LogState
from store.scan import Scan, scan, topic_codes

CHUNK_BYTES = 64 << 20


@dataclass(slots=True)
class TopicSummary:
    """What a topic has in the log; `bytes` of whole records."""

    records: int = 0
    bytes: int = 0
    queues: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Summary:
    """A log between two physical offsets, the last one known to be on disk. Times in ms since the epoch, None for an
    empty log. `damaged` places hold no record, by their headers: CRCs are not checked. `unflushed` is what stands behind, up to `written_offset`: the page cache may be all that has it."""

    min_offset: int
    max_offset: int
    records: int = 0
    bytes: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    topics: dict[str, TopicSummary] = field(default_factory=dict)
    damaged: int = 0
    unflushed_records: int = 0
    unflushed_bytes: int = 0
    written_offset: int = 0

    @property
    def records_per_s(self) -> float:
        """Over the time between the first and the last record."""
        if self.first_ms is None or self.last_ms is None or self.last_ms <= self.first_ms:
            return 0.0
        return self.records / (self.last_ms - self.first_ms) * 1000


def summarize(log: FolderLog, progress: Callable[[int, int], None] = lambda done, total: None) -> Summary:
    """Reads the headers of the whole log. `progress(done, total)` in bytes."""
    state = log.describe()
    result = Summary(state.start, state.end)
    for found, stop in _scans(log, state):
        result.records += len(found)
        result.damaged += len(found.bad_offset)
        if len(found):
            result.bytes += int(found.size.sum())
            times = found.store_timestamp
            first, last = int(times.min()), int(times.max())
            result.first_ms = first if result.first_ms is None else min(first, result.first_ms)
            result.last_ms = last if result.last_ms is None else max(last, result.last_ms)
            _count_topics(found, result.topics)
        progress(stop - result.min_offset, result.max_offset - result.min_offset)
    result.written_offset = result.max_offset
    for found in log.reader.unflushed():
        if len(found):
            result.unflushed_records += len(found)
            result.unflushed_bytes += int(found.size.sum())
            result.written_offset = found.next_offset
    return result


def record_at(log: FolderLog, offset: int) -> Record:
    """The record that begins at a physical offset. Raises OffsetOutOfRangeError, RecordError."""
    state = log.describe()
    _, data = next(log.read(state.log_id, offset, state.end, 1), (0, b""))
    if not len(data):
        raise RecordError(f"no record at physical offset {offset}: the log ends at {state.end}")
    try:
        return decode_record(data, 0, offset)
    except RecordError as error:
        reason = _why_none(log, state, offset)
        raise error if reason is None else RecordError(reason) from error


def _why_none(log: FolderLog, state: LogState, offset: int) -> str | None:
    """Why no record begins at an offset of the log; None when one does. Walks the headers of its segment up to there."""
    start, size, _ = next(each for each in reversed(log.reader.segments()) if each[0] <= offset)
    before = None
    for begin, data in log.read(state.log_id, start, min(start + size, state.end), CHUNK_BYTES):
        found = scan(data, begin, verify_crc=False, segment_size=state.segment_size)
        number = int(np.searchsorted(found.physical_offset, offset, side="right")) - 1
        if number >= 0:
            before = int(found.physical_offset[number])
        if begin + len(data) <= offset:
            continue
        if before == offset:
            return None
        for bad, length in zip(found.bad_offset.tolist(), found.bad_length.tolist(), strict=True):
            if bad <= offset < bad + length:
                return f"no record begins at {offset}; from {bad} on {length} bytes are damaged"
        break
    return f"no record begins at {offset}; " + (
        f"the one before begins at {before}" if before is not None else f"its segment begins at {start}"
    )


def find_records(
    log: LogSource,
    *,
    topic: str | None = None,
    key: str | None = None,
    message_id: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[Record]:
    """Records by key or message id (the client's, or the one made of host and offset), in log order."""
    wanted = (key or message_id or "").encode()
    by_offset = _offset_of(message_id) if message_id is not None else None
    state = log.describe()
    for found, stop in _scans(log, state):
        for row in _rows_with(found, wanted, by_offset):
            start = int(found.rows[row, 0])
            record = decode_record(
                found.buffer.data[start : start + int(found.size[row])], 0, int(found.physical_offset[row])
            )
            properties = record.properties_map()
            if topic is not None and record.topic != topic:
                continue
            if key is not None and key not in properties.get("KEYS", "").split(" "):
                continue
            if message_id is not None and message_id not in (
                properties.get("UNIQ_KEY"),
                offset_msg_id(record.store_host.packed, record.physical_offset),
            ):
                continue
            yield record
        progress(stop - state.start, state.end - state.start)


def _scans(log: LogSource, state: LogState) -> Iterator[tuple[Scan, int]]:
    """Parts of the log, and where each ends."""
    for begin, data in log.read(state.log_id, state.start, state.end, CHUNK_BYTES):
        yield scan(data, begin, verify_crc=False, segment_size=state.segment_size), begin + len(data)


def _count_topics(found: Scan, topics: dict[str, TopicSummary]) -> None:
    codes, names = topic_codes(found)
    sizes = np.bincount(codes, weights=found.size, minlength=len(names))
    counts = np.bincount(codes, minlength=len(names))
    for code, name in enumerate(names):
        known = topics.setdefault(name, TopicSummary())
        known.records += int(counts[code])
        known.bytes += int(sizes[code])
        known.queues |= set(np.unique(found.queue_id[codes == code]).tolist())


def _rows_with(found: Scan, wanted: bytes, offset: int | None) -> list[int]:
    """Rows whose properties hold `wanted` somewhere, or that stand at `offset`; a superset of the matches."""
    starts, ends = found.properties_start, found.properties_start + found.properties_length
    rows: set[int] = set()
    if offset is not None:
        rows |= set(np.flatnonzero(found.physical_offset == offset).tolist())
    data = found.buffer.tobytes() if wanted else b""
    at = data.find(wanted) if wanted else -1
    while at >= 0:
        row = int(np.searchsorted(starts, at, side="right")) - 1
        if row >= 0 and at < ends[row]:
            rows.add(row)
        at = data.find(wanted, at + 1)
    return sorted(rows)


def _offset_of(message_id: str) -> int | None:
    """The physical offset in a 4.x message id (32 or 56 hex digits); None for other ids."""
    if len(message_id) not in (32, 56):
        return None
    try:
        return int(message_id[-16:], 16)
    except ValueError:
        return None
