"""Messages looked up in the local log for RocketMQ's tools: by physical offset, by queue offset, by key.

| bound | of a search by key (`messaging/message_search.py`) |
|---|---|
| `MAX_SCANNED` | bytes of log read, from the newest on |
| `MAX_FOUND`, `MAX_ANSWER` | messages, and bytes of them, in an answer |
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from broker_gateway.api.remoting.administration.shown_records import shown_record
from broker_gateway.delivery.filters.message_filter import MessageFilter
from broker_gateway.delivery.filters.tags import EVERYTHING
from broker_gateway.messaging.message_search import MessageSearch, Wanted
from broker_gateway.messaging.poll import MAX_BATCH
from broker_gateway.metadata.catalog import Topic
from broker_gateway.protocol.codes import ResponseCode
from broker_gateway.protocol.errors import RequestError
from store.errors import RecordError
from store.log.record import decode_properties
from store.log.record_view import RecordView
from store.message_store import MessageStore

MAX_SCANNED = 4 << 30
MAX_FOUND = 64
MAX_ANSWER = 12 << 20
MAX_LOOKED_AT = 4096
"""Entries of a queue in a pull that filters."""


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

    def __init__(self, store: MessageStore, search: MessageSearch) -> None:
        self._store = store
        self._search = search

    @property
    def searchable(self) -> bool:
        return self._search.searchable

    def by_physical_offset(self, offset: int) -> bytes:
        """The record that begins there, as tools are given it. SYSTEM_ERROR without one."""
        return shown_record(self.record_at(offset))

    def record_at(self, offset: int) -> memoryview:
        """The record that begins there. SYSTEM_ERROR without one."""
        store = self._store
        present = store.min_offset <= offset < store.max_offset and offset not in store.erased.places
        if not present or not store.index.is_record_start(offset):
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

        Those found are the newest, `most` or `MAX_FOUND`. TOO_MANY_REQUESTS.
        """
        if not self.searchable:
            return []
        wanted = Wanted(begin_ms, end_ms, key=key)
        searched = await self._search.newest(topic, wanted, max(0, min(most, MAX_FOUND)), MAX_SCANNED)
        found: list[bytes] = []
        held = 0
        for match in searched.matches:
            record = shown_record(match.data)
            held += len(record)
            if found and held > MAX_ANSWER:
                break
            found.append(record)
        return found[::-1]


def _fits(wanted: MessageFilter, record: memoryview) -> bool:
    """The second stage of a filter. A record that cannot be read fits: its reader says what is wrong with it."""
    try:
        return wanted.wants(decode_properties(RecordView(record).properties))
    except RecordError:
        return True
