"""Messages of a topic searched in the local log, the newest first.

There is no index of keys in the local log, only in the lake: a search reads the log backwards, on a thread, within the
part that the time range leaves of it. What ends a search before it has all says where the next one goes on.

| bound | of a search |
|---|---|
| `scanned` | bytes of log read |
| `within_s` | seconds |
| `MAX_SEARCHES` | at a time; more are refused with TOO_MANY_REQUESTS |
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Sequence, Set
from typing import NamedTuple

from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.delivery.filters.message_filter import MessageFilter
from broker_gateway.delivery.filters.tags import EVERYTHING
from broker_gateway.messaging.outcome import Reason, ServiceError
from broker_gateway.metadata.catalog import Topic
from broker_gateway.runtime.clock import monotonic_s
from store.index.time_search import BoundaryType
from store.message_store import MessageStore

MAX_SEARCHES = 2
LATEST_MS = (1 << 62) - 1
_CHUNK = 4 << 20
_PROPERTIES = (b"UNIQ_KEY", b"KEYS", b"TAGS", b"__LITE_TOPIC")


class Wanted(NamedTuple):
    """Which messages of a topic; store times are inclusive, what is None is not asked about.

    `key`: one of the message's keys, or its message id, as RocketMQ's index has both. `tags`: by the tag alone.
    """

    begin_ms: int = 0
    end_ms: int = LATEST_MS
    message_id: str | None = None
    key: str | None = None
    tags: MessageFilter = EVERYTHING
    lite_topic: str | None = None
    queue_id: int | None = None


class Match(NamedTuple):
    """A record that was found: where it stands, and its bytes."""

    physical_offset: int
    data: memoryview


class Searched(NamedTuple):
    """What was found, the newest first. What is wanted and stands at or above `searched_to` was found; None: all was that
    stands at or above `floor`, where the log began."""

    matches: list[Match]
    searched_to: int | None
    floor: int = 0


class MessageSearch:
    """Creates nothing and moves no group. `searchable`: whether messages are found by key or id."""

    def __init__(self, config: GatewayConfig, store: MessageStore) -> None:
        self._store = store
        self._searches = 0
        self.configure(config)

    def configure(self, config: GatewayConfig) -> None:
        """Takes what may change while the broker runs."""
        self.searchable = config.store.message_index_enable

    def load_compiled(self) -> None:
        """Loads what a search runs on. To be called on a thread; a search before that does it itself."""
        from store import scan

        scan.warm()

    async def newest(
        self,
        topic: Topic,
        wanted: Wanted,
        most: int,
        scanned: int,
        below: int | None = None,
        within_s: float = math.inf,
    ) -> Searched:
        """At most `most`, of those that begin below a physical offset. TOO_MANY_REQUESTS."""
        if self._searches >= MAX_SEARCHES:
            raise ServiceError(
                Reason.TOO_MANY_REQUESTS, f"{MAX_SEARCHES} searches run already; try again later"
            )
        self._searches += 1
        try:
            bounds = await self._physical_range(topic, wanted)
            floor = self._store.min_offset  # segments may have gone meanwhile
            if bounds is None:
                return Searched([], None, floor)
            low = max(bounds[0], floor)
            high = bounds[1] if below is None else min(bounds[1], below)
            if low >= high or most <= 0:
                return Searched([], None if low >= high else high, floor)
            chunks, cut = self._chunks(low, high, scanned)
            erased = self._store.erased.places
            found = await asyncio.to_thread(_search, chunks, topic.name, wanted, most, within_s, erased)
            erased = self._store.erased.places  # some since
            matches = [match for match in found.matches if match.physical_offset not in erased]
            return Searched(matches, cut if found.searched_to is None else found.searched_to, floor)
        finally:
            self._searches -= 1

    async def _physical_range(self, topic: Topic, wanted: Wanted) -> tuple[int, int] | None:
        """Where in the log what is wanted may be: first record, end of the last."""
        begin_ms, end_ms = wanted.begin_ms, min(wanted.end_ms, LATEST_MS)
        index = self._store.index
        queues = range(topic.queues) if wanted.queue_id is None else [wanted.queue_id]
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
            starts, sizes, _ = index.every_entry(topic.name, queue_id, first, 1)
            ends, lengths, _ = index.every_entry(topic.name, queue_id, last, 1)
            if len(starts) and len(ends) and sizes[0] and lengths[0]:
                low = int(starts[0]) if low is None else min(low, int(starts[0]))
                high = max(high, int(ends[0] + lengths[0]))
        return None if low is None else (low, high)

    def _chunks(self, low: int, high: int, scanned: int) -> tuple[list[tuple[int, memoryview]], int | None]:
        """Record-aligned pieces of the log, ascending; the newest `scanned` bytes, and where those begin if that is not all."""
        cut = None
        if high - low > scanned:
            low = cut = self._store.index.align(high - scanned) or high
        return [(start, view) for start, view, _ in self._store.read_chunks(low, high, _CHUNK)], cut


def _search(
    chunks: Sequence[tuple[int, memoryview]],
    topic: str,
    wanted: Wanted,
    most: int,
    within_s: float,
    erased: Set[int],
) -> Searched:
    """The newest records that fit. Compiled code is loaded here if it was not before, beside the event loop."""
    found: list[Match] = []
    deadline = monotonic_s() + within_s
    for start, view in reversed(chunks):
        for match in _matches(start, view, topic, wanted):
            if match.physical_offset in erased:
                continue
            found.append(match)
            if len(found) >= most:
                return Searched(found, match.physical_offset)
        if monotonic_s() > deadline:
            return Searched(found, start)
    return Searched(found, None)


def _matches(start: int, view: memoryview, topic: str, wanted: Wanted) -> Iterator[Match]:
    """Those of a piece of the log, the newest first."""
    from store.scan import find_properties, scan, topic_codes

    records = scan(view, start, verify_crc=False)
    if not len(records):
        return
    codes, names = topic_codes(records)
    if topic not in names:
        return
    times = records.store_timestamp
    fits = (codes == names.index(topic)) & (times >= wanted.begin_ms) & (times <= wanted.end_ms)
    if wanted.queue_id is not None:
        fits &= records.queue_id == wanted.queue_id
    places = find_properties(records, _PROPERTIES)
    (id_starts, id_lengths), (key_starts, key_lengths) = places[:2]
    message_id, key, lite_topic = (
        None if each is None else each.encode("utf-8", "replace")
        for each in (wanted.message_id, wanted.key, wanted.lite_topic)
    )
    if message_id is not None:
        fits &= (id_lengths == len(message_id)) & (id_starts >= 0)
    if key is not None:
        fits &= ((key_lengths >= len(key)) & (key_starts >= 0)) | (
            (id_lengths == len(key)) & (id_starts >= 0)
        )
    by_tag = None if wanted.tags.everything else wanted.tags.by_tag
    for row in reversed(fits.nonzero()[0].tolist()):
        own_id, keys, tag, lite = (
            _value(view, int(starts[row]), int(lengths[row])) for starts, lengths in places
        )
        if (
            (message_id is not None and own_id != message_id)
            or (key is not None and key != own_id and (keys is None or key not in keys.split(b" ")))
            or (lite_topic is not None and lite != lite_topic)
            or (by_tag is not None and not by_tag(None if tag is None else tag.decode("utf-8", "replace")))
        ):
            continue
        offset = int(records.physical_offset[row])
        position = offset - start
        yield Match(offset, view[position : position + int(records.size[row])])


def _value(view: memoryview, start: int, length: int) -> bytes | None:
    return bytes(view[start : start + length]) if start >= 0 else None
