"""The records of a scan that become rows, and those that go to quarantine.

A row depends on its record alone. What of a record no column can hold is null where the record still says it
elsewhere (a property), or where such a value counts as absent everywhere (the client's time of birth); else the
record has no rows but one in quarantine:

| in the record | then |
|---|---|
| born time outside of the years 1 to 9999 | null |
| due time, origin, delay level, priority that are no numbers or too large | null; the property has the text |
| text that is no UTF-8 in properties | replaced where it is bad, as RocketMQ's clients read it |
| a key that is repeated | its last value that is not empty, as RocketMQ's clients read it |
| store time outside of the years 1 to 9999, topic that is no UTF-8, more than `LARGEST_RECORD` bytes, a journal record that is none | quarantine |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store.log.erased import NOTHING, Offsets
from store.scan import (
    Longs,
    Scan,
    split_properties,
    split_words,
    topic_codes,
)
from structured_streaming.rows import due
from structured_streaming.rows.arrays import (
    constant,
    representable,
    text,
)
from structured_streaming.rows.journal import JournalRows
from structured_streaming.tables import JOURNAL_TOPIC

LARGEST_RECORD = 64 << 20
"""Bytes of a record that has rows."""
_FOUND = (
    b"UNIQ_KEY",
    b"KEYS",
    b"TAGS",
    b"__SHARDINGKEY",
    b"__LITE_TOPIC",
    b"_SYS_MSG_PRIORITY_",
    b"TIMER_OUT_MS",
    b"TIMER_DELIVER_MS",
    b"LB_ORIGIN",
)
"""Properties that columns of any record are made of."""
TopicTest = Callable[[pa.StringArray], pa.BooleanArray]
"""Which of some topics are wanted: asked of all at once, since a batch may have a hundred thousand."""
_PROPERTY_BYTES, _KEY_BYTES = 64, 160
"""Of memory for each property and key of a record, about."""


class Rejected(NamedTuple):
    """A record without rows but one in quarantine: physical offset, bytes, why."""

    offset: int
    size: int
    reason: str


class Records:
    """The records of a scan that have rows, with what several tables need of them worked out once.

    `delay_levels` are the broker's, ms, level 1 first; None where they are not known. `rejected` are the others; those that
    begin at `erased` offsets (ascending) are as if they were not there. Of these, `queue_ends` has the last of each queue:
    where a queue ends is known, whatever becomes of its messages.
    Raises TooMuchError for journal records with too many rows.
    """

    def __init__(
        self,
        broker: str,
        log_id: str,
        scan: Scan,
        delay_levels: Sequence[int] | None = None,
        erased: Offsets = NOTHING,
    ) -> None:
        self.broker = broker
        self.log_id = log_id
        self.delay_levels = delay_levels
        self.queue_ends: Records | None = None
        if len(erased) and (gone := np.isin(scan.physical_offset, erased)).any():
            ends = np.flatnonzero(gone & _last_of_queues(scan))
            if len(ends):
                self.queue_ends = Records(broker, log_id, subset(scan, ends), delay_levels)
            scan = subset(scan, np.flatnonzero(~gone))
        self.codes, names = topic_codes(scan)
        self.topic_names = pa.array(names, pa.string())
        self.journal = JournalRows()
        bad = self._bad(scan)
        self.rejected = [
            Rejected(int(scan.physical_offset[row]), int(scan.size[row]), reason)
            for row, reason in bad.items()
        ]
        if bad:
            kept = np.delete(np.arange(len(scan)), list(bad))
            scan, self.codes = subset(scan, kept), self.codes[kept]
        self.scan = scan
        self.all_properties = split_properties(scan)
        self.properties = dict(zip(_FOUND, self.all_properties.find(_FOUND), strict=True))
        self.key_words = split_words(scan.buffer, *self.properties[b"KEYS"])
        order = pc.sort_indices(self.topic_names).to_numpy()  # by code points, as texts compare everywhere
        self._ranks = np.empty(len(order), dtype=np.int32)
        self._ranks[order] = np.arange(len(order))

    @property
    def weight(self) -> int:
        """Bytes of memory that the rows take, about."""
        properties, words = self.all_properties.columns.shape[1], len(self.key_words[1])
        return int(self.scan.size.sum() + properties * _PROPERTY_BYTES + words * _KEY_BYTES)

    def topics(self, rows: NDArray[np.intp]) -> pa.Array:
        """Topics of some rows, as a dictionary array."""
        return pa.DictionaryArray.from_arrays(pa.array(self.codes[rows], pa.int32()), self.topic_names)

    def ranks(self, rows: NDArray[np.intp]) -> NDArray[np.int32]:
        """The place of some rows' topics in the order of all topics of the scan."""
        return self._ranks[self.codes[rows]]

    def value(self, name: bytes, rows: NDArray[np.intp]) -> pa.StringArray:
        """A property's value (null: absent) in some rows."""
        return text(self.scan.buffer, *self._slices(name, rows))

    def number(self, name: bytes, rows: NDArray[np.intp]) -> Longs:
        """A property's value as a number (`due.UNKNOWN`: absent or none) in some rows."""
        return due.numbers(self.scan.buffer, *self._slices(name, rows))

    def _slices(self, name: bytes, rows: NDArray[np.intp]) -> tuple[Longs, Longs]:
        """Start (-1: absent) and length of a property's value in some rows: few, unless it is one of `_FOUND`."""
        if name not in self.properties:
            return self.all_properties.take(rows).find([name])[0]
        starts, lengths = self.properties[name]
        return starts[rows], lengths[rows]

    def topic(self, row: int) -> str:
        """Of one record."""
        return str(self.topic_names[int(self.codes[row])])

    def rows_of(self, wanted: TopicTest) -> NDArray[np.bool_]:
        """Which records have a topic that is wanted."""
        chosen = wanted(self.topic_names).to_numpy(zero_copy_only=False)
        return chosen[self.codes] if len(chosen) else np.zeros(0, dtype=bool)

    def rows_on(self, topic: str) -> NDArray[np.bool_]:
        """Which records are on a topic."""
        return self.rows_of(lambda names: pc.equal(names, topic))

    def place(self, rows: NDArray[np.intp]) -> dict[str, pa.Array]:
        return {
            "broker": constant(self.broker, len(rows)),
            "log_id": constant(self.log_id, len(rows)),
            "physical_offset": pa.array(self.scan.physical_offset[rows]),
        }

    def queue(self, rows: NDArray[np.intp]) -> dict[str, pa.Array]:
        return {
            "topic": self.topics(rows),
            "queue_id": pa.array(self.scan.queue_id[rows], pa.int32()),
            "queue_offset": pa.array(self.scan.queue_offset[rows]),
        }

    def level_times(self, rows: NDArray[np.intp]) -> tuple[NDArray[np.bool_], Longs]:
        """Which rows wait for a delay level, and until when (`due.UNKNOWN`: not known)."""
        waiting = self.rows_on(due.SCHEDULE_TOPIC)[rows]
        if not waiting.any():
            return waiting, np.full(len(rows), due.UNKNOWN, dtype=np.int64)
        levels = np.full(len(rows), due.UNKNOWN, dtype=np.int64)
        levels[waiting] = self.number(b"DELAY", rows[waiting])
        return waiting & (levels > 0), due.level_times(
            self.scan.store_timestamp[rows], levels, self.delay_levels
        )

    def _bad(self, scan: Scan) -> dict[int, str]:
        """Rows of the scan that get no rows in tables, with the reason; reads the journal on the way."""
        bad = {}
        for row in np.flatnonzero(scan.size > LARGEST_RECORD).tolist():
            bad[row] = f"record of {scan.size[row]} bytes, at most {LARGEST_RECORD} have rows"
        for row in np.flatnonzero(~representable(scan.store_timestamp)).tolist():
            bad[row] = f"store time of {scan.store_timestamp[row]} ms is outside of the years 1 to 9999"
        doubtful = np.flatnonzero(self.rows_of(lambda names: pc.match_substring(names, "\ufffd")))
        bad |= {row: "the topic is no UTF-8" for row in doubtful.tolist() if not _is_text(scan, row)}
        self.journal.read(
            (row, _body(scan, row), self._key(scan, row))
            for row in np.flatnonzero(self.rows_on(JOURNAL_TOPIC)).tolist()
            if row not in bad
        )
        return bad | dict(self.journal.bad)

    def _key(self, scan: Scan, row: int) -> dict[str, object]:
        return {
            "broker": self.broker,
            "log_id": self.log_id,
            "physical_offset": int(scan.physical_offset[row]),
        }


def every_topic(topics: pa.StringArray) -> pa.BooleanArray:
    """The test that all topics pass."""
    return pa.repeat(pa.scalar(True), len(topics))


def subset(scan: Scan, rows: NDArray[np.intp]) -> Scan:
    """The same scan with some of its records, without its quarantine rows."""
    nothing = np.empty(0, dtype=np.int64)
    return Scan(
        scan.buffer,
        scan.base_offset,
        np.take(scan.rows.T, rows, axis=1).T,  # by column, as it was
        scan.next_offset,
        scan.ended,
        nothing,
        nothing,
        [],
    )


def _last_of_queues(scan: Scan) -> NDArray[np.bool_]:
    """Which records are the last of their queue in the scan."""
    codes, _ = topic_codes(scan)
    order = np.lexsort((scan.queue_offset, scan.queue_id, codes))
    queues = np.stack([codes[order], scan.queue_id[order]])
    last = np.ones(len(order), dtype=bool)
    last[:-1] = (queues[:, 1:] != queues[:, :-1]).any(axis=0)
    found = np.empty(len(order), dtype=bool)
    found[order] = last
    return found


def _body(scan: Scan, row: int) -> bytes:
    start = int(scan.body_start[row])
    return scan.buffer[start : start + int(scan.body_length[row])].tobytes()


def _is_text(scan: Scan, row: int) -> bool:
    start = int(scan.topic_start[row])
    try:
        scan.buffer[start : start + int(scan.topic_length[row])].tobytes().decode()
    except UnicodeDecodeError:
        return False
    return True
