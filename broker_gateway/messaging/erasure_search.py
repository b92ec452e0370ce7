"""Finds what an erasure is about in pieces of the log, in their order: by topic and key, by message id, and all copies
(`store/log/copies.py` says what counts).

Copies stand behind what they are copies of, so that one look is enough. Only what has the last bytes of a key or id is compared
in Python. A search that has found as much as a call answers is full: it says where it stopped, and another one goes on there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broker_gateway.metadata.names import JOURNAL_TOPIC
from store.errors import RecordError
from store.log.copies import ID, KEYS, ORIGIN_IDS, Meant
from store.log.record import Record, decode_record, offset_msg_id

_TAIL = 8
MOST_FOUND, MOST_BYTES = 20_000, 1 << 20
"""What a call finds: records, and bytes of their texts, but for what it names by place."""
Longs = NDArray[np.int64]


class Found(NamedTuple):
    """A record that is to be erased, and where it stands."""

    physical_offset: int
    size: int
    topic: str
    stored_ms: int
    message_id: str
    keys: tuple[str, ...]
    """Of those that were asked for."""


class ErasureSearch:
    """One search. `look` may be called on any thread, by one at a time."""

    def __init__(
        self,
        topic: str,
        keys: Collection[str],
        message_ids: Collection[str],
        start: int = 0,
        traced: Collection[str] = (),
    ) -> None:
        """`start`: records below are not found again, of those that are named by their place. `traced`: as for `Meant`."""
        self._meant = Meant(topic, keys, message_ids, traced)
        self._start = start
        self.found: dict[int, Found] = {}
        """By physical offset."""
        self._key_tails, self._id_tails = _tails(keys), _tails({*message_ids, *traced})
        self._counted = 0
        self._looked = self._bytes = 0
        """What `look` found."""

    @property
    def is_needed(self) -> bool:
        """Whether anything may be found by looking."""
        return bool(self._meant.keys or self._meant.asked or self._meant.known or self._meant.traced)

    @property
    def is_full(self) -> bool:
        """Whether it has found as much as a call answers."""
        return self._looked >= MOST_FOUND or self._bytes >= MOST_BYTES

    def add(self, record: Record) -> None:
        """One that was named by its place: all of its id count from here on."""
        message_id = _id_of(record, record.properties_map())
        self._meant.known.add(message_id)
        if record.physical_offset >= self._start:
            self._take(record, message_id)

    def add_of_topic(self, record: Record) -> None:
        """The same, where it is of the topic that was asked for, if one was."""
        if record.topic != JOURNAL_TOPIC and self._meant.is_of_topic(record.topic, record.properties_map()):
            self.add(record)

    def look(self, start: int, piece: memoryview, segment_size: int) -> int | None:
        """Looks through whole records, whose first byte has physical offset `start`. Where it stopped, when it is full before the end."""
        from store.scan import find_properties, scan, split_words

        records = scan(piece, start, verify_crc=False, segment_size=segment_size)
        if not len(records):
            return None
        *ids, keys = find_properties(records, [name.encode() for name in (ID, *ORIGIN_IDS, KEYS)])
        data = np.frombuffer(piece, np.uint8)
        rows, starts_of_words, lengths_of_words = split_words(records.buffer, *keys)
        row_of_word = np.repeat(np.arange(len(records)), np.diff(rows))
        known, end = self._meant.known, len(records)
        again = True
        while again:
            if self._counted != len(known):
                self._counted = len(known)
                self._id_tails = _tails(known | self._meant.asked | self._meant.traced)
            some = np.zeros(len(records), np.bool_)
            tails = np.concatenate([self._key_tails, self._id_tails])  # of traces ids are keys
            some[row_of_word[_may_be(data, starts_of_words, lengths_of_words, tails)]] = True
            for starts, lengths in ids:
                some |= _may_be(data, starts, lengths, self._id_tails)
            for row in np.flatnonzero(some[:end]).tolist():
                offset = int(records.physical_offset[row])
                if offset in self.found:
                    continue
                if self.is_full:
                    end = row
                    break
                self._judge(piece, offset - start, offset)
            again = self._counted != len(known)  # what was found may have copies in the same piece
        return int(records.physical_offset[end]) if end < len(records) else None

    def _judge(self, piece: memoryview, position: int, offset: int) -> None:
        try:
            record = decode_record(piece, position, offset, verify=False)
        except RecordError:  # nothing can be read of it, by anybody
            return
        if record.topic == JOURNAL_TOPIC:
            return
        properties = record.properties_map()
        message_id = _id_of(record, properties)
        if self._meant.counts(record.topic, message_id, properties):
            found = self._take(record, message_id)
            self._looked += 1
            self._bytes += sum(map(len, (found.topic, found.message_id, *found.keys)))

    def _take(self, record: Record, message_id: str) -> Found:
        keys = record.properties_map().get(KEYS, "").split(" ")
        found = Found(
            record.physical_offset,
            record.size,
            record.topic,
            record.store_timestamp,
            message_id,
            tuple(dict.fromkeys(key for key in keys if key in self._meant.keys)),
        )
        self.found[record.physical_offset] = found
        return found


def _id_of(record: Record, properties: dict[str, str]) -> str:
    return properties.get(ID) or offset_msg_id(record.store_host.packed, record.physical_offset)


def _tails(texts: Iterable[str]) -> NDArray[np.uint64]:
    """The last bytes of each."""
    tails = [each.encode("utf-8", "replace")[-_TAIL:].rjust(_TAIL, b"\0") for each in texts]
    return np.frombuffer(b"".join(tails), "<u8")


def _may_be(
    data: NDArray[np.uint8], starts: Longs, lengths: Longs, tails: NDArray[np.uint64]
) -> NDArray[np.bool_]:
    """Which texts end as one of those. Negative starts: none."""
    if not len(tails) or not len(starts):
        return np.zeros(len(starts), np.bool_)
    places = (starts + lengths)[:, None] + np.arange(-_TAIL, 0)
    inside = (places >= starts[:, None]) & (starts[:, None] >= 0)
    found = np.where(inside, data[np.where(inside, places, 0)], 0).astype(np.uint8)
    ends = np.ascontiguousarray(found).view("<u8").ravel()
    return np.isin(ends, tails)
