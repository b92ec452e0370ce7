"""Reading the journal back at start: the newest complete snapshot, then what follows it, in the order of the log.

The time this takes depends on the log since that snapshot, not on what was consumed before.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from broker_gateway.journal.contributor import Contributor
from broker_gateway.journal.record import SNAPSHOT_TAG, decode
from broker_gateway.metadata.names import JOURNAL_TOPIC
from store.log.record import Record, tags_code
from store.message_store import MessageStore


@dataclass(frozen=True, slots=True)
class Replayed:
    """Where the snapshot used stands (0: none) and how many records were applied after it."""

    snapshot_offset: int
    records: int


def replay(store: MessageStore, contributors: Sequence[Contributor]) -> Replayed:
    """Has every contributor apply what is in the log from its start on; raises JournalVersionError."""
    offset, snapshot_id = newest_snapshot(store)
    starts = [(each, each.starts_at(offset)) for each in contributors]
    begin = min((start for _, start in starts), default=offset)
    all_begun = max((start for _, start in starts), default=offset)
    records = 0
    for at, mark, record in heapq.merge(*_sources(store, begin, starts), key=lambda item: item[0]):
        records += 1
        concerned = contributors if at >= all_begun else [each for each, start in starts if at >= start]
        if mark:
            for each in concerned:
                if each.reads_marked() == mark:
                    each.apply_marked(record)
        elif record.topic == JOURNAL_TOPIC:
            _apply(record, snapshot_id, concerned)
        else:
            for each in concerned:
                if each.reads(record.topic):
                    each.apply_message(record)
    for each in contributors:
        each.replayed()
    return Replayed(offset, records)


def _apply(record: Record, snapshot_id: str, contributors: Sequence[Contributor]) -> None:
    """Changes, or a part of a snapshot where it stands. Parts that stand together count of the chosen one only."""
    batch = decode(record)
    if batch is None:
        return
    if batch.HasField("snapshot"):
        part = batch.snapshot
        if not part.in_place and part.snapshot_id != snapshot_id:
            return
    for each in contributors:
        each.apply(batch)


def newest_snapshot(store: MessageStore) -> tuple[int, str]:
    """Where a replay begins, and the id of the newest complete snapshot; 0 and an empty one without."""
    code = tags_code(SNAPSHOT_TAG)
    low, high = store.index.min_offset(JOURNAL_TOPIC, 0), store.index.max_offset(JOURNAL_TOPIC, 0)
    found: dict[str, tuple[int, int]] = {}  # by id: parts seen, parts there are
    while high > low:
        start = max(low, high - 4096)
        offsets, sizes, codes = store.index.entries(JOURNAL_TOPIC, 0, start, high - start)
        for position in range(len(offsets) - 1, -1, -1):
            if codes[position] != code or not sizes[position]:
                continue
            batch = decode(store.record(int(offsets[position]), int(sizes[position])))
            if batch is None:
                continue
            part = batch.snapshot
            seen, there_are = found.get(part.snapshot_id, (0, 0))
            seen, there_are = seen + 1, max(there_are, part.parts)
            if seen == there_are and part.snapshot_id:
                return part.log_offset, part.snapshot_id
            found[part.snapshot_id] = (seen, there_are)
        high = start
    return 0, ""


def _sources(
    store: MessageStore, offset: int, starts: Sequence[tuple[Contributor, int]]
) -> list[Iterator[tuple[int, bytes, Record]]]:
    """Records by their physical offsets, those that are read for a mark with it, else with none."""
    topics = [
        (topic, queue)
        for topic, queue in store.index.queues()
        if topic == JOURNAL_TOPIC or any(each.reads(topic) for each, _ in starts)
    ]
    marks: dict[bytes, int] = {}
    for each, start in starts:
        if mark := each.reads_marked():
            marks[mark] = min(start, marks.get(mark, start))
    return [
        *(_marked(store, mark, start) for mark, start in marks.items()),
        *(_unmarked(store, topic, queue, offset) for topic, queue in topics),
    ]


def _marked(store: MessageStore, mark: bytes, start: int) -> Iterator[tuple[int, bytes, Record]]:
    return ((record.physical_offset, mark, record) for record in store.records_with(mark, start))


def _unmarked(
    store: MessageStore, topic: str, queue_id: int, offset: int
) -> Iterator[tuple[int, bytes, Record]]:
    return ((at, b"", record) for at, record in records_from(store, topic, queue_id, offset))


def records_from(store: MessageStore, topic: str, queue_id: int, offset: int) -> Iterator[tuple[int, Record]]:
    """Records of a queue at or above a physical offset, in order, each with its own."""
    index = store.index
    start, high = index.first_behind(topic, queue_id, offset), index.max_offset(topic, queue_id)
    for first in range(start, high, 4096):
        offsets, sizes, _ = index.entries(topic, queue_id, first, min(4096, high - first))
        if not sizes.any():  # where a log was begun anew, millions may be missing
            continue
        for physical, size in zip(offsets.tolist(), sizes.tolist(), strict=True):
            if physical >= offset and size:
                yield physical, store.record(physical, size)
