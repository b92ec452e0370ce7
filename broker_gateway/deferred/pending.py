"""The records of system topics that are not done with, by when something is to be done for them.

The log alone says which those are: a record of one of the topics is pending until a copy of it is in the log that says where it
came from (`delivery/moves.py`), or a record that says it is done with. So a crash between the copy and whatever comes next
neither doubles nor loses a message.

A file has the entries as they were at a place of the log (`due_file.py`): a start reads the log from there on. Without it, or
with one that is damaged, a start reads all of the log.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence, Set

import numpy as np
import structlog

from broker_gateway.deferred.due_file import DueFileError, Saved, load, remove, save
from broker_gateway.deferred.due_table import Columns, DueTable, Longs, Sizes, key_of, offset_of, queue_of
from broker_gateway.deferred.put_off import PutOff
from broker_gateway.delivery.moves import ORIGIN_MARK
from broker_gateway.journal.contributor import Contributor
from broker_gateway.journal.snapshot import SnapshotPace
from broker_gateway.journal.taken_over import TakenOver
from broker_gateway.runtime.rate_limited_log import RateLimitedLog
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb
from store.errors import OffsetOutOfRangeError, RecordError, RecordTooLargeError
from store.log.copies import ORIGIN_PROPERTY, Origin, decode_origin
from store.log.record import PendingRecord, Record
from store.message_store import MessageStore

log = structlog.get_logger(__name__)
_LATEST_MS = 1 << 62
_A_GO_BYTES = 8 << 20
"""Of records that are copied in one append: others are served in between."""
_A_READ = 4096
"""Entries of a queue looked at in one go."""
_NEAR = 32
"""Queue offsets from a record to the next that is looked up with it."""


class Meaning(ABC):
    """What the records of a kind of deferred work say."""

    name: str
    """Of the kind, and of its file."""
    topics: frozenset[str]
    """Whose records are put off."""

    @abstractmethod
    def queue(self, topic: str, queue_id: int) -> int | None:
        """The number of a queue whose records are put off; None for others."""

    @abstractmethod
    def named(self, queue: int) -> tuple[str, int]:
        """Topic and queue id of such a number."""

    @abstractmethod
    def put_off(self, record: Record) -> PutOff | None:
        """Until when a record is put off; None for one that nothing is done for."""

    def ends(self, topic: str) -> bool:
        """Whether a record of the topic may say of others that they are done with."""
        return False

    def ended(self, record: Record) -> Iterable[int]:
        """The keys of those that it is said of."""
        return ()


class Pending(Contributor):
    """Those of one kind. Owns `table`; runs on the event loop."""

    def __init__(
        self, store: MessageStore, meaning: Meaning, pace: SnapshotPace, taken_over: TakenOver
    ) -> None:
        self._store = store
        self._meaning = meaning
        self._pace = pace
        self._taken_over = taken_over
        self.table = DueTable()
        self.unfit: set[int] = set()
        """Keys of those that cannot be copied, since they are too large: they stay, and so does their segment."""
        self._next: dict[int, int] = {}
        """By queue number, the queue offset from which on records were not taken in yet."""
        self._file: Saved | None = None
        self._file_size = 0
        self._from: int | None = None
        """Physical offset from which on the log is read at a start; None until that was looked at."""
        self._settled: set[int] = set()
        self._unread, self._too_large = RateLimitedLog("records"), RateLimitedLog("records")
        self._added: list[Callable[[int, Record], None]] = []
        self._done_with: Callable[[], Set[int]] = frozenset
        self._saving = False
        self._writing = threading.Lock()

    @property
    def name(self) -> str:
        return self._meaning.name

    @property
    def topics(self) -> frozenset[str]:
        return self._meaning.topics

    def put_off(self, record: Record) -> PutOff | None:
        """Until when a record is put off; None for one that nothing is done for."""
        return self._meaning.put_off(record)

    def on_added(self, listener: Callable[[int, Record], None]) -> None:
        """Has a listener told of each record that becomes pending, with its key; of those of the file too, once it was read."""
        self._added.append(listener)

    def on_saving(self, done_with: Callable[[], Set[int]]) -> None:
        """Leaves these keys out of the file: the log says that they are done with, and the table has them until that is on disk."""
        self._done_with = done_with

    # ----- while the broker runs -----

    def appended(self, topic: str, queue_ids: Set[int]) -> None:
        """Takes in what was appended to these queues: listens to the store."""
        if topic not in self._meaning.topics:
            return
        for queue_id in queue_ids:
            queue = self._meaning.queue(topic, queue_id)
            if queue is None:
                continue
            end = self._store.index.max_offset(topic, queue_id)
            for offset, record in self._records(topic, queue_id, self._next.get(queue, 0), end):
                if record is None:
                    continue
                if not self._used:  # the first of its kind: a start reads the log from here on
                    self._from, self._next[queue] = record.physical_offset, offset
                self._add(key_of(queue, offset), record)
                self._next[queue] = offset + 1
            self._next[queue] = end

    def catch_up(self) -> None:
        """Takes in what was appended while nobody listened."""
        index = self._store.index
        for topic, queue_id in index.queues():
            queue = self._meaning.queue(topic, queue_id)
            if queue is not None and self._next.get(queue, 0) < index.max_offset(topic, queue_id):
                self.appended(topic, {queue_id})

    def _add(self, key: int, record: Record) -> None:
        put_off = self._meaning.put_off(record)
        if put_off is None:
            return
        self.table.add(min(max(put_off.due, 0), _LATEST_MS), key, put_off.mark, record.size)
        for listener in self._added:
            listener(key, record)

    def remove(self, keys: Sequence[int], size: int | None = None) -> None:
        """These are done with. `size`: bytes of their records, where the caller knows; else the queue index is asked."""
        if not keys:
            return
        if size is None:
            size = int(self._sizes(np.array(sorted(keys), np.int64)).sum(dtype=np.int64))
        self.table.remove(keys, size)

    def erased(self, record: Record) -> None:
        """A record was erased: it is pending no more."""
        queue = self._meaning.queue(record.topic, record.queue_id)
        if queue is None or (put_off := self._meaning.put_off(record)) is None:
            return
        key, due = key_of(queue, record.queue_offset), min(max(put_off.due, 0), _LATEST_MS)
        if key in self.table.find(due, due, put_off.mark):
            self.table.remove([key], record.size)

    def _sizes(self, keys: Longs) -> Sizes:
        """Bytes of the records of keys that ascend, as the queue index has them."""
        sizes = np.zeros(len(keys), np.uint32)
        at = 0
        while at < len(keys):
            first = int(keys[at])
            topic, queue_id = self._meaning.named(queue_of(first))
            least = self._store.index.min_offset(topic, queue_id)
            if offset_of(first) < least:
                at = int(np.searchsorted(keys, first + least - offset_of(first)))
                continue
            end = int(np.searchsorted(keys, first + _A_READ))
            offsets = keys[at:end] - first
            found = self._store.index.every_entry(topic, queue_id, offset_of(first), int(offsets[-1]) + 1)
            known = offsets < len(found.sizes)
            sizes[at:end][known] = found.sizes[offsets[known]]
            at = end
        return sizes

    def record(self, key: int) -> Record | None:
        """The record of a key; None when it cannot be read, which is logged."""
        topic, queue_id = self._meaning.named(queue_of(key))
        offset = offset_of(key)
        return next((record for _, record in self._records(topic, queue_id, offset, offset + 1)), None)

    def some(self, keys: Sequence[int]) -> tuple[list[tuple[int, Record]], list[int]]:
        """The records of the first of these keys, as many as one append should have, and the keys that cannot be read."""
        found: list[tuple[int, Record]] = []
        unread: list[int] = []
        left = _A_GO_BYTES
        for key, record in self.records(keys):
            if record is None:
                unread.append(key)
                continue
            found.append((key, record))
            left -= record.size
            if left <= 0:
                break
        return found, unread

    def records(self, keys: Sequence[int]) -> Iterator[tuple[int, Record | None]]:
        """The records of keys, in their order, as `record`; neighbours are looked up together."""
        found: dict[int, Record | None] = {}
        ordered = sorted(keys)
        first = 0
        for at in range(1, len(ordered) + 1):
            if at < len(ordered) and ordered[at] - ordered[at - 1] <= _NEAR:
                continue
            some, first = ordered[first:at], at
            topic, queue_id = self._meaning.named(queue_of(some[0]))
            begin = offset_of(some[0])
            wanted = set(map(offset_of, some))
            for offset, record in self._records(topic, queue_id, begin, offset_of(some[-1]) + 1, wanted):
                found[some[0] - begin + offset] = record
        return ((key, found.get(key)) for key in keys)

    def replace(
        self,
        copies: Sequence[tuple[int, PendingRecord]],
        closing: Callable[[list[int]], list[PendingRecord]] = lambda keys: [],
    ) -> list[int]:
        """Appends copies, each of which settles the record of its key, and takes those out of the table; the keys that are done
        with. `closing` gives records that stand behind the copies of these keys, in the same append. A copy that is too large
        stays put off, and is `unfit`. Raises what concerns all of them."""
        if not copies:
            return []
        keys, end = [key for key, _ in copies], self._store.max_offset
        try:
            self._store.append([*(copy for _, copy in copies), *closing(keys)])
        except (RecordError, RecordTooLargeError) as error:
            if self._store.max_offset != end:
                raise
            if len(copies) > 1:
                middle = len(copies) // 2
                return self.replace(copies[:middle], closing) + self.replace(copies[middle:], closing)
            self.unfit.update(keys)
            self._too_large.happened(
                log.error,
                "a message that is put off cannot be copied, since its copy would be too large; it stays where it is, and its segment "
                "is kept: read it there, with lakebroker store inspect",
                topic=copies[0][1].topic,
                origin=self.origin(keys[0]).encode(),
                error=str(error),
            )
            return []
        self.remove(keys)
        return keys

    def origin(self, key: int) -> Origin:
        """What a copy of it says of where it came from."""
        topic, queue_id = self._meaning.named(queue_of(key))
        return Origin(queue_id, offset_of(key), 0, "", topic)

    def _records(
        self, topic: str, queue_id: int, start: int, end: int, wanted: Set[int] | None = None
    ) -> Iterator[tuple[int, Record | None]]:
        """Those of a queue from one queue offset to another, or of these only that are `wanted`."""
        index = self._store.index
        start = max(start, index.min_offset(topic, queue_id))
        for first in range(start, end, _A_READ):
            offsets, sizes, _ = index.entries(topic, queue_id, first, min(_A_READ, end - first))
            for position, (physical, size) in enumerate(zip(offsets.tolist(), sizes.tolist(), strict=True)):
                if wanted is not None and first + position not in wanted:
                    continue
                record = None
                if size:
                    try:
                        record = self._store.record(physical, size)
                    except (RecordError, OffsetOutOfRangeError) as error:
                        self._unread.happened(
                            log.error,
                            "a message that is put off cannot be read and is passed over; `lakebroker store verify` finds what is "
                            "damaged",
                            topic=topic,
                            queue_offset=first + position,
                            error=str(error),
                        )
                yield first + position, record

    # ----- the file -----

    async def save_if_due(self) -> None:
        """Writes the file when the log has grown enough since it was written. Raises OSError."""
        grown = self._store.max_offset - (self._from or 0)
        if self._used and not self._saving and self._pace.due(grown, self._file_size):
            await self.save()

    async def save_behind(self, physical_offset: int) -> None:
        """Sees to it that a start does not need the log below a physical offset: by the file or, on a disk that takes none, without
        one, so that a start reads all of the log that is left. Raises OSError when it cannot be removed either."""
        if not self._used or self._saving or (self._from or 0) >= physical_offset:
            return
        try:
            await self.save()
        except OSError as error:
            log.warning(
                "the file of what is put off cannot be written; the next start reads all of the log",
                kind=self._meaning.name,
                error=str(error),
            )
            remove(self._store.root, self._meaning.name)
            self._from, self._file_size = physical_offset, 0

    async def save(self) -> None:
        """Writes the file, on a thread. Raises OSError."""
        position, columns = self._now()
        self._saving = True
        try:
            size = await asyncio.to_thread(self._write, position, columns)
        finally:
            self._saving = False
        self._from, self._file_size = position, size

    def save_at_once(self) -> None:
        """Writes the file on this thread, for stops. Raises OSError."""
        if self._used:
            position, columns = self._now()
            self._from, self._file_size = position, self._write(position, columns)

    @property
    def _used(self) -> bool:
        return bool(self._next)

    def _now(self) -> tuple[int, Callable[[], Columns]]:
        """Where the log ends, and what gives the entries as they are now."""
        self.catch_up()
        entries, done_with = self.table.frozen(), set(self._done_with())
        return self._store.max_offset, lambda: entries().without(done_with)

    def _write(self, position: int, columns: Callable[[], Columns]) -> int:
        """The file must know nothing that a power cut takes out of the log. One at a time: a stop may come beside another."""
        with self._writing:
            saved = Saved(position, columns())
            self._store.flush()
            return save(self._store.root, self._meaning.name, self._store.log_id, saved)

    # ----- the journal's replay -----

    def starts_at(self, snapshot_offset: int) -> int:
        """From where the file knows nothing of the log; there is nothing to know without a record of the kind."""
        if self._from is None:
            self._from = self._first()
        elif not self._used:
            return snapshot_offset
        return min(self._from, snapshot_offset)

    def _first(self) -> int:
        """Where a start reads the log from."""
        store, meaning = self._store, self._meaning
        try:
            found = load(store.root, meaning.name, store.log_id)
            if found is not None and found.position > store.max_offset:
                raise DueFileError(
                    f"it knows the log up to {found.position}, which ends at {store.max_offset}"
                )
        except (DueFileError, OSError) as error:
            log.warning(
                "what is put off is looked for in all of the log", kind=meaning.name, error=str(error)
            )
            remove(store.root, meaning.name)  # it must not count once the log has grown past its place
            found = None
        if found is not None:
            self._file = found
            return found.position
        queues = [key for key in store.index.queues() if meaning.queue(*key) is not None]
        return store.min_offset if any(map(self._has_records, queues)) else store.max_offset

    def _has_records(self, queue: tuple[str, int]) -> bool:
        return self._store.index.min_offset(*queue) < self._store.index.max_offset(*queue)

    def reads(self, topic: str) -> bool:
        return self._meaning.ends(topic)

    def reads_marked(self) -> bytes:
        return ORIGIN_MARK

    def fill(self, record: pb.Batch) -> Iterable[pb.Batch]:
        return ()

    def written(self) -> None:
        pass

    def lost(self) -> None:
        pass

    def apply(self, record: pb.Batch) -> None:
        pass

    def apply_message(self, message: Record) -> None:
        self._settled.update(self._meaning.ended(message))

    def apply_marked(self, message: Record) -> None:
        origin = decode_origin(message.properties_map().get(ORIGIN_PROPERTY, ""))
        if origin is None or origin.group:
            return
        queue = self._meaning.queue(origin.topic, origin.queue_id)
        if queue is not None:
            self._settled.add(key_of(queue, origin.queue_offset))

    def replayed(self) -> None:
        """The entries of the file, and those behind it, without what is done with."""
        if self._from is None:
            self._from = self._first()
        settled, self._settled = self._settled, set()
        file, self._file = self._file, None
        if file is not None and file.position >= self._taken_over.offset:
            columns = file.columns.without(settled)
            if not file.sized:
                columns = columns.part(np.argsort(columns.key))
                columns = columns._replace(size=self._sizes(columns.key))
            self.table.add_columns(columns)
            self._tell_of_file()
        begin = max(self._from, self._taken_over.offset)
        store, index = self._store, self._store.index
        for topic, queue_id in index.queues():
            queue = self._meaning.queue(topic, queue_id)
            if queue is None:
                continue
            end = index.max_offset(topic, queue_id)
            start = end
            if begin < store.max_offset:
                start = index.first_behind(topic, queue_id, begin)
            for offset, record in self._records(topic, queue_id, start, end):
                key = key_of(queue, offset)
                if record is not None and record.physical_offset >= begin and key not in settled:
                    self._add(key, record)
            self._next[queue] = end

    def _tell_of_file(self) -> None:
        """In the order of their queues, as they became pending."""
        if not self._added:
            return
        for key in np.sort(self.table.columns().key).tolist():
            record = self.record(key)
            if record is not None:
                for listener in self._added:
                    listener(key, record)

    # ----- retention -----

    def below(self, physical_offset: int, most: int) -> list[int]:
        """Keys of at most so many records that stand below a physical offset."""
        if not len(self.table):
            return []
        limits = {
            queue: self._first_behind(*self._meaning.named(queue), physical_offset) for queue in self._next
        }
        return self.table.below(limits, most)

    def _first_behind(self, topic: str, queue_id: int, physical_offset: int) -> int:
        """The first queue offset whose record stands at or behind a physical offset."""
        index = self._store.index
        end = index.max_offset(topic, queue_id)
        for first in range(index.first_behind(topic, queue_id, physical_offset), end, _A_READ):
            offsets, sizes, _ = index.entries(topic, queue_id, first, min(_A_READ, end - first))
            behind = np.flatnonzero((offsets >= physical_offset) & (sizes > 0))
            if len(behind):
                return first + int(behind[0])
        return end
