"""Which records of a lake are meant by keys or message ids: those that have one, and every copy that a broker made of them, in any
topic (retries, dead letters, timers, halves), and clients' traces of them. `store/log/copies.py` says what counts, for brokers and here.

`message_index` and `messages` are both looked at, since either may have been left out of some batches:

| read | where |
|---|---|
| `message_index` | row groups within whose least and greatest key one of the keys or ids is |
| topics and flags of `messages` | everywhere: copies that name their message in a property only, and what was rolled back, have no such rows |
| ids, keys and properties of `messages` | row groups with such records, and with those that `message_index` named; all, where it was left out of a batch |

Of a copy that only `message_index` has, nothing but its own id and keys are known. A 4.x id names a place, which brokers take whatever
id the message there has; of such a one only `messages` tells. A row group is in memory at a time; Python compares what has one of the
keys or ids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from store.log.copies import ID, KEYS, ORIGIN_IDS, Meant, is_of_copies
from store.log.erased import Offsets
from store.log.record import SYS_ROLLBACK, SYS_TRANSACTION_MASK, place_of
from store.trace_topics import TRACE_PREFIX, TRACE_TOPIC
from structured_streaming.commit.upkeep_log import add_to_upkeep, read_upkeep
from structured_streaming.erased import NOTHING_ERASED, PLACE, Erased, Mask
from structured_streaming.maintenance.age import LATE
from structured_streaming.maintenance.left_out import batches_without
from structured_streaming.maintenance.maintained_table import MaintainedTable
from structured_streaming.maintenance.reading import Part, parts
from structured_streaming.stated import extremes, may_hold_any
from structured_streaming.storage.folder import Folder
from structured_streaming.tables import MESSAGE_INDEX, MESSAGES
from structured_streaming.upkeep import INDEXED, row

_INDEX_COLUMNS = (*PLACE, "topic", "key_type", "key")
_COLUMNS = (*PLACE, "topic", "message_id", "keys", "properties", "store_host")


@dataclass(slots=True)
class Found:
    """Records, how many of each topic, and their message ids."""

    records: Erased = NOTHING_ERASED
    topics: Counter[str] = field(default_factory=Counter)
    ids: set[str] = field(default_factory=set)


class ErasureSearch:
    """In a lake. Calls raise LakeError, OSError."""

    def __init__(self, lake: Folder) -> None:
        self._lake = lake
        self.found = Found()
        self._indexed_batches: dict[str, int] | None = None
        self._looked_at: datetime | None = None
        self._traced = set[str]()

    def add(self, topic: str, keys: Collection[str], ids: Collection[str]) -> None:
        """Finds messages of a topic with one of the keys or ids, and their copies; no topic: with one of the ids, of any."""
        meant = Meant(topic, keys, ids)
        before = len(meant.known)
        self._look(meant, meant.keys | meant.asked)
        if len(meant.known) > before:
            self._look(meant, meant.known)

    def add_traces(self, ids: Collection[str]) -> None:
        """Finds clients' traces of messages with these ids, and nothing else of them."""
        if fresh := set(ids) - self._traced:
            self._traced |= fresh
            self._look(Meant("", (), (), fresh), fresh)

    def note(self) -> None:
        """Has `upkeep` say which batches were looked at, for the next search; where it is to say something new, or of another day."""
        if self._indexed_batches is not None and self._looked_at is not None:
            add_to_upkeep(self._lake, row(INDEXED, versions=self._indexed_batches, at=self._looked_at))
            self._looked_at = None

    def messages_at(self, places: Erased) -> list[dict[str, Any]]:
        """What `messages` has at these places: where, topic and id."""
        found = list[dict[str, Any]]()
        if not len(places):
            return found
        table = MaintainedTable(self._lake, MESSAGES)
        for file in table.files:
            if places.may_be_in(file.statistics):
                for part in parts(table.folder, file, table.snapshot.schema):
                    rows = part.read([*PLACE, "topic", "message_id"])
                    found += rows.filter(pa.array(places.rows(rows))).to_pylist()
        return found

    def take(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Takes messages, as `messages_at` gives them, whatever they have."""
        places = [MESSAGES.schema.field(name) for name in PLACE]
        found = Erased.in_rows(pa.Table.from_pylist(list(rows), pa.schema(places)))
        self.found.records = self.found.records.together(found)

    def _look(self, meant: Meant, values: Collection[str]) -> None:
        """Takes what counts of that which has one of the values as a key or an id; `meant` may know more ids then."""
        named, named_so = self._indexed(meant, values)
        placed = {place for each in values if (place := place_of(each)) is not None}
        offsets = np.unique(np.array([offset for _, offset in placed], np.int64))
        table = MaintainedTable(self._lake, MESSAGES)
        for file in table.files:
            for part in parts(table.folder, file, table.snapshot.schema):
                if self._may_count(part, named, offsets):
                    rows = part.read(_COLUMNS)
                    may = named.rows(rows) | _has_any(rows["keys"], values) | _names(rows, values)
                    if len(offsets):
                        may |= np.isin(rows["physical_offset"].to_numpy(), offsets)
                    self._judge(rows.filter(pa.array(may)), meant, {(str(host), at) for host, at in placed})
        if len(alone := named_so.without(self.found.records)):  # of batches without `messages`
            self._take_indexed(alone, meant)

    def _indexed(self, meant: Meant, values: Collection[str]) -> tuple[Erased, Erased]:
        """Places that `message_index` names with one of the values, and those of them that count by that alone."""
        named, so, ordered = [NOTHING_ERASED], [NOTHING_ERASED], sorted(values)
        table = MaintainedTable(self._lake, MESSAGE_INDEX)
        for file in table.files:
            if not may_hold_any(file.statistics, "key", ordered):
                continue
            for part in parts(table.folder, file, table.snapshot.schema):
                if not may_hold_any(part.statistics(["key"]), "key", ordered):
                    continue
                rows = part.read(_INDEX_COLUMNS)
                rows = rows.filter(pa.array(_in(rows["key"], values)))
                of_topic = _is(rows["topic"], meant.topic)
                key, unique = _is(rows["key_type"], KEYS), _is(rows["key_type"], ID)
                counts = key & _in(rows["key"], meant.keys) & of_topic
                counts |= unique & _in(rows["key"], meant.asked) & of_topic
                counts |= unique & _in(rows["key"], meant.known)
                counts |= _in(rows["key"], meant.known | meant.traced) & _of_traces(rows["topic"])
                named.append(Erased.in_rows(rows))
                so.append(Erased.in_rows(rows.filter(pa.array(counts))))
        return _all_of(named), _all_of(so)

    def _take_indexed(self, places: Erased, meant: Meant) -> None:
        """Takes what `message_index` alone has at places, which count."""
        table = MaintainedTable(self._lake, MESSAGE_INDEX)
        for file in table.files:
            if places.may_be_in(file.statistics):
                for part in parts(table.folder, file, table.snapshot.schema):
                    rows = part.read(_INDEX_COLUMNS)
                    some = rows.filter(pa.array(places.rows(rows)))
                    self._take(some, "key")
                    if meant.topic:
                        meant.known.update(some.filter(pc.equal(some["key_type"], ID))["key"].to_pylist())

    def _may_count(self, part: Part, named: Erased, offsets: Offsets) -> bool:
        """Whether a row group of `messages` may have what counts: at these places, or at these offsets, or as `message_index` does not
        have it."""
        stated = part.statistics(PLACE)
        first, last = extremes(stated, "physical_offset")
        if first is None or last is None or named.may_be_in(stated) or self._is_left_out():
            return True
        if np.searchsorted(offsets, first) < np.searchsorted(offsets, last, side="right"):
            return True
        rows = part.read(["topic", "sys_flag"])
        ends = pc.bit_wise_and(rows["sys_flag"], SYS_TRANSACTION_MASK)
        return any(map(is_of_copies, pc.unique(rows["topic"]).to_pylist())) or bool(
            pc.any(pc.equal(ends, SYS_ROLLBACK)).as_py()
        )

    def _is_left_out(self) -> bool:
        """Whether `message_index` was left out of a batch."""
        if self._indexed_batches is None:
            upkeep, now = read_upkeep(self._lake), datetime.now(UTC)
            known, at = upkeep.indexed_batches, upkeep.indexed_at
            self._indexed_batches = batches_without(self._lake, MESSAGE_INDEX, known, at)
            if at is None or now - at > LATE or self._indexed_batches.keys() != known.keys():
                self._looked_at = now
        return MESSAGE_INDEX.name in self._indexed_batches

    def _judge(self, rows: pa.Table, meant: Meant, placed: Collection[tuple[str, int]]) -> None:
        """Takes those of rows of `messages` that count, or are of the topic and at a place, by store host and offset."""
        names = ("topic", "message_id", "properties", "store_host", "physical_offset")
        found = []
        for topic, message_id, pairs, *place in zip(*(rows[name].to_pylist() for name in names), strict=True):
            properties = dict(pairs or ())
            is_meant = tuple(place) in placed and meant.is_of_topic(topic, properties)
            if is_meant:
                meant.known.add(message_id)
            found.append(is_meant or meant.counts(topic, message_id, properties))
        self._take(rows.filter(pa.array(found, pa.bool_())), "message_id")

    def _take(self, rows: pa.Table, id_column: str) -> None:
        its = Erased.in_rows(rows)
        fresh = its.without(self.found.records)
        if len(fresh):
            firsts = rows.filter(pa.array(fresh.rows(rows)))
            each = firsts.group_by([*PLACE, "topic"], use_threads=False).aggregate([])
            self.found.topics.update(each["topic"].to_pylist())
            self.found.records = self.found.records.together(fresh)
        if id_column == "key":
            rows = rows.filter(pc.equal(rows["key_type"], ID))
        self.found.ids.update(each for each in rows[id_column].to_pylist() if each)


def _all_of(parts: list[Erased]) -> Erased:
    while len(parts) > 1:
        parts = [
            parts[at].together(parts[at + 1]) if at + 1 < len(parts) else parts[at]
            for at in range(0, len(parts), 2)
        ]
    return parts[0]


def _in(column: pa.ChunkedArray, values: Collection[str]) -> Mask:
    found: Mask = pc.is_in(column, pa.array(sorted(values), pa.string()), skip_nulls=True).to_numpy()
    return found


def _is(column: pa.ChunkedArray, value: str) -> Mask:
    found: Mask = pc.fill_null(pc.equal(column, value), False).to_numpy()
    return found


def _of_traces(topics: pa.ChunkedArray) -> Mask:
    its = pc.or_(pc.equal(topics, TRACE_TOPIC), pc.starts_with(topics, TRACE_PREFIX))
    found: Mask = pc.fill_null(its, False).to_numpy()
    return found


def _names(rows: pa.Table, ids: Collection[str]) -> Mask:
    """Which rows of `messages` have one of the ids, under any of the names that an id has."""
    found = _in(rows["message_id"], ids)
    for name in ORIGIN_IDS:
        found |= _in(pc.map_lookup(rows["properties"], name, "last"), ids)
    return found


def _has_any(lists: pa.ChunkedArray, values: Collection[str]) -> Mask:
    """Which lists have one of the values."""
    found = np.zeros(len(lists), dtype=bool)
    if values:
        its = pc.list_parent_indices(lists).to_numpy()[_in(pc.list_flatten(lists), values)]
        found[its] = True
    return found
