"""Messages looked up in the local log: by physical offset, by queue offset, by key.

There is no index of keys in the local log, only in the lake: a search by key reads the log, newest messages first, on a
thread, within the part that the time range leaves of it.

| bound | of a search by key |
|---|---|
| `MAX_SCANNED` | bytes of log read, from the newest on |
| `MAX_FOUND`, `MAX_ANSWER` | messages, and bytes of them, in an answer |
| `MAX_SEARCHES` | at a time; more are refused with SYSTEM_BUSY |
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from broker_gateway.api.remoting.administration.shown_records import shown_record
from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.delivery.filters.message_filter import MessageFilter
from broker_gateway.delivery.filters.tags import EVERYTHING
from broker_gateway.messaging.poll import MAX_BATCH
from broker_gateway.metadata.catalog import Topic
from broker_gateway.protocol.codes import ResponseCode
from broker_gateway.protocol.errors import RequestError
from store.errors import OffsetOutOfRangeError, RecordError
from store.index.time_search import BoundaryType
from store.log.record import decode_properties
from store.log.record_view import RecordView
from store.message_store import MessageStore

MAX_SCANNED = 4 << 30
MAX_FOUND = 64
MAX_ANSWER = 12 << 20
MAX_SEARCHES = 2
MAX_LOOKED_AT = 4096
"""Entries of a queue in a pull that filters."""
_CHUNK = 4 << 20
_LATEST_MS = (1 << 62) - 1


class Pulled(NamedTuple):
    """Records of a queue, and where it goes on, begins and ends."""

    code: ResponseCode
    records: bytes
    next_offset: int
    min_offset: int
    max_offset: int


class MessageQueries:
    """Answers with records as `shown_record` gives them; creates nothing and moves no group.

    `searchable`: whether messages are found by key; else `by_key` finds none.
    """

    def __init__(self, config: GatewayConfig, store: MessageStore) -> None:
        self._store = store
        self._searches = 0
        self.configure(config)

    def configure(self, config: GatewayConfig) -> None:
        """Takes what may change while the broker runs."""
        self.searchable = config.store.message_index_enable

    def load_compiled(self) -> None:
        """Loads what a search by key runs on. To be called on a thread; a search before that does it itself."""
        from store import scan

        scan.warm()

    def by_physical_offset(self, offset: int) -> bytes:
        """The record that begins there, as tools are given it. SYSTEM_ERROR without one."""
        return shown_record(self.record_at(offset))

    def record_at(self, offset: int) -> memoryview:
        """The record that begins there. SYSTEM_ERROR without one."""
        store = self._store
        if not store.min_offset <= offset < store.max_offset or not store.index.is_record_start(offset):
            raise RequestError(f"can not find message by the offset, {offset}")
        size = int.from_bytes(store.read(offset, 4), "big")
        return store.read(offset, size)

    def pull(
        self, topic: Topic, queue_id: int, offset: int, most: int, wanted: MessageFilter = EVERYTHING
    ) -> Pulled:
        """At most `most` messages of a queue from an offset on. Of a filter by tag, those whose tags code fits: the reader
        looks at the tag, as at the original.

        PULL_RETRY_IMMEDIATELY when none of those looked at fits: it goes on behind them. INVALID_PARAMETER.
        """
        index = self._store.index
        if not 0 <= queue_id < topic.read_queues:
            raise RequestError(
                f"queueId[{queue_id}] is illegal, topic:[{topic.name}] topicConfig.readQueueNums:[{topic.read_queues}]",
                ResponseCode.INVALID_PARAMETER,
            )
        low, high = index.min_offset(topic.name, queue_id), index.max_offset(topic.name, queue_id)
        if low == high or offset == high:
            return Pulled(ResponseCode.PULL_NOT_FOUND, b"", high, low, high)
        if not low <= offset < high:
            return Pulled(ResponseCode.PULL_OFFSET_MOVED, b"", low if offset < low else high, low, high)
        behind = index.behind_absence(topic.name, queue_id, offset)
        if behind != offset:
            return Pulled(ResponseCode.PULL_RETRY_IMMEDIATELY, b"", behind, low, high)
        most = min(max(most, 1), MAX_BATCH)
        found: list[bytes] = []
        starts, lengths, codes = index.entries(
            topic.name, queue_id, offset, most if wanted.everything else MAX_LOOKED_AT
        )
        size, following = 0, offset + len(starts)
        for position in np.flatnonzero(wanted.mask(codes)).tolist():
            length = int(lengths[position])
            if len(found) == most or (found and size + length > MAX_ANSWER):
                following = offset + position
                break
            if not length:
                continue
            record = self._store.read(int(starts[position]), length)
            if wanted.by_tag is not None or _fits(wanted, record):
                found.append(shown_record(record))
                size += length
        code = ResponseCode.SUCCESS if found else ResponseCode.PULL_RETRY_IMMEDIATELY
        return Pulled(code, b"".join(found), max(following, offset + 1), low, high)

    async def by_key(self, topic: Topic, key: str, most: int, begin_ms: int, end_ms: int) -> list[bytes]:
        """Records of a topic with this key or message id, stored within the time range, ascending.

        Those found are the newest, `most` or `MAX_FOUND`. SYSTEM_BUSY.
        """
        if not self.searchable:
            return []
        if self._searches >= MAX_SEARCHES:
            raise RequestError(
                f"{MAX_SEARCHES} searches by key run already; try again later", ResponseCode.SYSTEM_BUSY
            )
        self._searches += 1
        try:
            bounds = await self._physical_range(topic, begin_ms, end_ms)
            if bounds is None:
                return []
            chunks = self._chunks(*bounds)
            wanted = topic.name, key.encode("utf-8", "replace"), max(0, min(most, MAX_FOUND))
            return await asyncio.to_thread(_search, chunks, *wanted, begin_ms, end_ms)
        finally:
            self._searches -= 1

    async def _physical_range(self, topic: Topic, begin_ms: int, end_ms: int) -> tuple[int, int] | None:
        """Where in the log the topic's messages of a time range are: first record, end of the last."""
        end_ms = min(end_ms, _LATEST_MS)
        queues = range(topic.queues)
        index = self._store.index
        searches = [
            (each, self._store.at_time(topic.name, each))
            for each in queues
            if index.min_offset(topic.name, each) < index.max_offset(topic.name, each)
        ]

        def find() -> list[tuple[int, int, int]]:
            return [
                (each, search(begin_ms, BoundaryType.LOWER), search(end_ms, BoundaryType.UPPER))
                for each, search in searches
            ]

        low, high = None, 0
        for queue_id, first, last in await asyncio.to_thread(find):
            first = max(first, index.min_offset(topic.name, queue_id))
            if first > last:
                continue
            starts, sizes = self._entries(topic.name, queue_id, first, 1)
            ends, lengths = self._entries(topic.name, queue_id, last, 1)
            if starts and ends and sizes[0] and lengths[0]:
                low = starts[0] if low is None else min(low, starts[0])
                high = max(high, ends[0] + lengths[0])
        return None if low is None else (low, high)

    def _chunks(self, low: int, high: int) -> list[tuple[int, memoryview]]:
        """Record-aligned pieces of the log, ascending; the newest `MAX_SCANNED` bytes."""
        if high - low > MAX_SCANNED:
            low = self._store.index.align(high - MAX_SCANNED) or high
        try:
            return [(start, view) for start, view, _ in self._store.read_chunks(low, high, _CHUNK)]
        except OffsetOutOfRangeError as error:
            raise RequestError(f"the log was cut meanwhile: {error}; ask again") from error

    def _entries(self, topic: str, queue_id: int, start: int, count: int) -> tuple[list[int], list[int]]:
        offsets, sizes, _ = self._store.index.entries(topic, queue_id, start, count)
        return offsets.tolist(), sizes.tolist()


def _fits(wanted: MessageFilter, record: memoryview) -> bool:
    """The second stage of a filter. A record that cannot be read fits: its reader says what is wrong with it."""
    try:
        return wanted.wants(decode_properties(RecordView(record).properties))
    except RecordError:
        return True


def _search(
    chunks: Sequence[tuple[int, memoryview]], topic: str, key: bytes, most: int, begin_ms: int, end_ms: int
) -> list[bytes]:
    """The newest records that fit, ascending. Compiled code is loaded here if it was not before, beside the event loop."""
    from store.scan import find_properties, scan, topic_codes

    found: list[bytes] = []
    held = 0
    for start, view in reversed(chunks):
        records = scan(view, start, verify_crc=False)
        if not len(records):
            continue
        codes, names = topic_codes(records)
        if topic not in names:
            continue
        times = records.store_timestamp
        fits = (codes == names.index(topic)) & (times >= begin_ms) & (times <= end_ms)
        (key_starts, key_lengths), (id_starts, id_lengths) = find_properties(records, [b"KEYS", b"UNIQ_KEY"])
        fits &= (key_lengths >= len(key)) & (key_starts >= 0) | (id_lengths == len(key)) & (id_starts >= 0)
        for row in reversed(fits.nonzero()[0].tolist()):
            keys = _value(view, int(key_starts[row]), int(key_lengths[row]))
            if key not in keys.split(b" ") and key != _value(view, int(id_starts[row]), int(id_lengths[row])):
                continue
            position = int(records.physical_offset[row]) - start
            record = shown_record(view[position : position + int(records.size[row])])
            held += len(record)
            if len(found) >= most or (found and held > MAX_ANSWER):
                return found[::-1]
            found.append(record)
        if len(found) >= most:
            break
    return found[::-1]


def _value(view: memoryview, start: int, length: int) -> bytes:
    return bytes(view[start : start + length]) if start >= 0 else b""
