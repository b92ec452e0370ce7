"""Writing the journal: everything that changed in one turn of the event loop becomes one record.

Owns batching, when snapshots are made, and the callbacks of those who wait; what changes is said by the services. Runs
on the event loop. Format: `proto/lakebroker/journal/v1/journal.proto`. A batch is appended at the end of the turn, or at
once when it has grown past `_EVENTS_A_RECORD`. A complete snapshot (`snapshot.py`) is begun when the log has grown
enough since the one before, and one part of it is appended a turn.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import structlog

from broker_gateway.delivery.queue_delivery import InFlight, QueueDelivery, QueueKey, Status
from broker_gateway.delivery.table import DeliveryTable
from broker_gateway.journal.snapshot import (
    Pieces,
    Snapshot,
    SnapshotPace,
    Untold,
    group_change,
    parts_of,
    topic_change,
    version_change,
)
from broker_gateway.metadata.catalog import GROUPS_FILE, TOPICS_FILE, Catalog, Group, Topic
from broker_gateway.metadata.names import JOURNAL_TOPIC
from broker_gateway.runtime.clock import monotonic_s, now_ms
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb
from store.errors import StoreError, StoreReadOnlyError
from store.log.record import PendingRecord, encode_properties, tags_code
from store.message_store import MessageStore

log = structlog.get_logger(__name__)
VERSION = 1
EVENTS_TAG = "events"
SNAPSHOT_TAG = "snapshot"
_TAGS = {tag: (tags_code(tag), encode_properties({"TAGS": tag})) for tag in (EVENTS_TAG, SNAPSHOT_TAG)}
"""Tags code and properties of the journal's records."""
_EVENTS_A_RECORD = 1024
_SNAPSHOT_AGAIN_S, _SNAPSHOT_LONGEST_WAIT_S = 10.0, 600.0
_LOST_AGAIN_S = 0.5
_LONGEST_WAIT_S = 5.0
"""Between attempts to append when one failed, each longer than the one before: they make snapshots."""


class Journal:
    """Collects changes and appends them to the journal topic."""

    def __init__(
        self,
        store: MessageStore,
        catalog: Catalog,
        deliveries: DeliveryTable,
        pace: SnapshotPace,
        schedule: Callable[[Callable[[], None]], None],
        next_turn: Callable[[Callable[[], None]], object],
    ) -> None:
        """`schedule` runs what it is given at the end of the turn, `next_turn` in the next one."""
        self._store = store
        self._catalog = catalog
        self._deliveries = deliveries
        self._pieces = Pieces(catalog, deliveries, store.index)
        self._pace = pace
        self._schedule = schedule
        self._next_turn = next_turn
        self._snapshot: Snapshot | None = None
        """The one under way."""
        self._snapshot_at = 0
        self._snapshot_size = 0
        """Of the newest complete one of this run: where it begins, and its bytes."""
        self._snapshot_not_before = 0.0
        self._snapshot_wait_s = _SNAPSHOT_AGAIN_S
        self._unflushed: list[tuple[int, int]] = []
        self._needed_from = 0
        self._batch = pb.Batch(version=VERSION)
        self._changes: dict[QueueKey, tuple[QueueDelivery, pb.QueueChange]] = {}
        self._pending = 0
        self._scheduled = False
        self._read_only = False
        self._no_room = False
        self._lost: Exception | None = None
        """Why something noted is in memory only; None when nothing is."""
        self._untold = Untold()
        self._again_at = 0.0
        self._wait_s = _LOST_AGAIN_S
        self._waiting: list[Callable[[Exception | None], None]] = []

    def replayed_to(self, snapshot_offset: int) -> None:
        """Where the newest snapshot in the log stands, after a replay."""
        self._snapshot_at = self._needed_from = snapshot_offset

    def needed_from(self) -> int:
        """Where the newest complete snapshot that is on disk begins: a start reads nothing before it."""
        self._to_be_flushed()
        return self._needed_from

    def _to_be_flushed(self) -> bool:
        """Whether a complete snapshot is not on disk yet."""
        while self._unflushed and self._unflushed[0][1] <= self._store.flushed_offset:
            self._needed_from = self._unflushed.pop(0)[0]
        return bool(self._unflushed)

    def events(
        self,
        state: QueueDelivery,
        kind: pb.EventKind,
        messages: Sequence[InFlight],
        *,
        client_id: str = "",
        delivery_id: int = 0,
        invisible_until_ms: int = 0,
        timestamp_ms: int | None = None,
    ) -> None:
        """Adds one event for each message, all by one client; `messages` as they are behind it, alike but for their attempts.
        To be called before they happen; see `make_room`."""
        self.make_room(len(messages))
        at_ms = now_ms() if timestamp_ms is None else timestamp_ms
        self._note(state, kind, messages, client_id, delivery_id, invisible_until_ms, at_ms)

    def acked(self, settled: Iterable[tuple[QueueDelivery, Sequence[InFlight]]], client_id: str) -> None:
        """Adds that a client acknowledged messages of several queues, in one record: all of them or, raising what the
        append raised, none. To be called before they are settled."""
        settled = list(settled)
        self.make_room(sum(len(messages) for _, messages in settled))
        for state, messages in settled:
            self._note(state, pb.ACKED, messages, client_id, 0, 0, now_ms())

    def _note(
        self,
        state: QueueDelivery,
        kind: pb.EventKind,
        messages: Sequence[InFlight],
        client_id: str,
        delivery_id: int,
        invisible_until_ms: int,
        timestamp_ms: int,
    ) -> None:
        noted = self._change(state).events.add(
            kind=kind,
            timestamp_ms=timestamp_ms,
            client_id=client_id,
            delivery_id=delivery_id,
            invisible_until_ms=invisible_until_ms,
            queue_offset=[m.queue_offset for m in messages],
            attempt=[m.attempt for m in messages],
            message_id=[m.message_id for m in messages],
        )
        if kind == pb.NACKED:
            noted.suspended = messages[0].suspended
            noted.returned = messages[0].status == Status.RETURNED
        self._touched(len(messages))

    def make_room(self, count: int) -> None:
        """Writes what is pending when `count` more would make its record too long; raises what the append raised.

        So that what is noted together, and done when it is noted, stands in one record.
        """
        if self._pending and self._pending + count > _EVENTS_A_RECORD:
            self.write()

    def moved(self, *states: QueueDelivery) -> None:
        """Notes that offsets of `states` moved without an event: they are appended together, all or none."""
        self.make_room(len(states))
        for state in states:
            self._change(state)
        self._touched(len(states))

    def reset(self, cursors: Mapping[QueueKey, int]) -> None:
        """Appends that groups go on elsewhere, with nothing in flight, behind all that was noted; raises what the append
        raised. To be called before they do."""
        batch = pb.Batch()
        for (group, topic, queue_id), cursor in cursors.items():
            change = batch.queues.add(
                consumer_group=group,
                topic=topic,
                queue_id=queue_id,
                cursor=cursor,
                has_committed=True,
                committed=cursor,
            )
            change.events.add(kind=pb.RESET, timestamp_ms=now_ms())
        self._append_ahead(batch)

    def removed(
        self,
        keys: Sequence[QueueKey],
        *,
        topic: Topic | None = None,
        first_offsets: Sequence[int] = (),
        group: Group | None = None,
    ) -> None:
        """Appends that groups have no state on these queues any more, and that a topic, or a group, is deleted: in one go,
        behind all that was noted. What a deleted topic's queues held is below `first_offsets`.

        Raises what the append raised. To be called before they are removed.
        """
        batch = pb.Batch()
        for name, topic_name, queue_id in keys:
            batch.queues.add(consumer_group=name, topic=topic_name, queue_id=queue_id, removed=True)
        if topic is not None:
            change = topic_change(topic, deleted=True)
            change.first_queue_offset.extend(first_offsets)
            batch.topics.append(change)
        if group is not None:
            batch.groups.append(group_change(group, deleted=True))
        self._append_ahead(batch)

    def _append_ahead(self, whole: pb.Batch) -> None:
        """What is not done yet, all or nothing; in several records when it is much."""
        self.write(at_once=True)
        parts = _parts(whole.queues)
        if whole.topics or whole.groups:
            parts.append(pb.Batch(topics=whole.topics, groups=whole.groups))
        self._append([(self._finished(part), EVENTS_TAG) for part in parts])

    def topic(self, topic: Topic) -> None:
        """A topic was made or changed."""
        self.make_room(1)
        self._batch.topics.append(topic_change(topic))
        self._touched(1)

    def group(self, group: Group) -> None:
        """A group was made or changed."""
        self.make_room(1)
        self._batch.groups.append(group_change(group))
        self._touched(1)

    def stats(self, minutes: Iterable[pb.MinuteStats]) -> None:
        """Notes rows of statistics, in as many records as they need."""
        for minute in minutes:
            self.make_room(1)
            self._batch.stats.append(minute)
            self._touched(1)

    def after(self, callback: Callable[[Exception | None], None]) -> None:
        """Calls `callback` when everything noted so far is in the log, or with what the append raised."""
        if self._pending:
            self._waiting.append(callback)
        else:
            callback(None)

    @contextlib.contextmanager
    def kept(self, take_back: Callable[[], None]) -> Iterator[None]:
        """What is changed within is in the log afterwards. Else `take_back` is called, and what the append raised is raised."""
        try:
            yield
            self.write(at_once=True)
        except (StoreError, OSError):
            take_back()
            raise

    def write(self, *, at_once: bool = False) -> None:
        """Appends what is pending now; an error goes to those who wait and to the caller. A snapshot that is due follows.

        What could not be appended is in memory only. Later records, which say how far queues are, would make it settled:
        the next one that can be appended says how all of that is. It is not tried again for a while, unless `at_once`.
        """
        if not self._pending:
            return
        if self._lost is not None and not at_once and monotonic_s() < self._again_at:
            error = _same(self._lost)
            self._give_up(error)
            raise error
        self._append_pending()
        if self._snapshot is None and self._pace.due(
            self._store.max_offset - self._snapshot_at, self._snapshot_size
        ):
            self.begin_snapshot()

    def begin_snapshot(self) -> None:
        """Begins a complete snapshot, of which a part is appended each turn.

        Not while one is under way or not on disk yet, nor for a while after one failed.
        """
        if self._snapshot is not None or self._to_be_flushed() or monotonic_s() < self._snapshot_not_before:
            return
        self._snapshot = self._begun()
        self._next_turn(self._at_the_end)

    def _begun(self) -> Snapshot:
        """A start reads the journal from the log's end on: what is pending comes behind it."""
        return Snapshot(self._pieces, self._store.max_offset)

    def _at_the_end(self) -> None:
        self._schedule(self._write_part)

    def _write_part(self) -> None:
        """A failure is no error of anybody's call: it is tried again after a while, each time a longer one, since all of
        the parts are written anew."""
        try:
            self._append_part()
        except Exception as error:
            self._snapshot_not_before = monotonic_s() + self._snapshot_wait_s
            self._snapshot_wait_s = min(self._snapshot_wait_s * 2, _SNAPSHOT_LONGEST_WAIT_S)
            known = isinstance(error, (StoreError, OSError))
            log.error(
                "a snapshot could not be written; it is tried again",
                error=str(error),
                exc_info=None if known else error,
            )
        else:
            if self._snapshot is not None:
                self._next_turn(self._at_the_end)

    def _append_part(self) -> None:
        snapshot = self._snapshot
        if snapshot is None:  # one was written at once meanwhile
            return
        try:
            if self._pending:
                self._append_pending()
            self._append([(self._finished(snapshot.next_part()), SNAPSHOT_TAG)])
        except BaseException:
            self._snapshot = None
            raise
        if snapshot.complete:
            self._snapshot, self._snapshot_wait_s = None, _SNAPSHOT_AGAIN_S
            self._snapshot_at, self._snapshot_size = snapshot.log_offset, snapshot.size
            self._unflushed.append((snapshot.log_offset, self._store.max_offset))

    def write_snapshot(self) -> None:
        """Appends what is pending and the complete state, at once: data versions, topics, groups, every group's queues.

        For stops: it takes time in proportion to the state.
        """
        self._snapshot = self._begun()
        while self._snapshot is not None:
            self._append_part()

    def _told_again(self) -> list[pb.Batch]:
        """How everything is that the log was not told of."""
        queues = [
            (name, max(topic.read_queues, topic.write_queues) if (topic := self._catalog.topic(name)) else 0)
            for name in self._untold.topics
        ]
        known = (self._deliveries.known(key) for key in self._untold.queues)
        return parts_of(
            self._pieces, queues, self._untold.groups, [state for state in known if state is not None]
        )

    def _append_pending(self) -> None:
        """What is pending and, behind it, how everything is that the log was not told of."""
        changes = self._changes
        try:
            records = [(part, EVENTS_TAG) for part in self._taken()]
            if self._lost is not None:
                records += [(self._finished(part), SNAPSHOT_TAG) for part in self._told_again()]
            self._append(records)
        except Exception as error:
            self._lose(error)
            raise
        self._pending = 0
        self._batch, self._changes = pb.Batch(version=VERSION), {}
        waiting, self._waiting = self._waiting, []
        if self._lost is not None:
            self._lost, self._wait_s, self._untold = None, _LOST_AGAIN_S, Untold()
        for state, change in changes.values():
            if change.has_committed:
                state.journaled_committed = change.committed
        _tell(waiting, None)

    def _lose(self, error: Exception) -> None:
        self._lost = error
        read_only = isinstance(error, StoreReadOnlyError)  # for good
        self._again_at = math.inf if read_only else monotonic_s() + self._wait_s
        self._wait_s = min(self._wait_s * 2, _LONGEST_WAIT_S)
        self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """What is pending is not going to be appended."""
        self._untold.add(self._batch, self._changes)
        self._pending = 0
        self._batch, self._changes = pb.Batch(version=VERSION), {}
        waiting, self._waiting = self._waiting, []
        _tell(waiting, error)

    def _taken(self) -> list[pb.Batch]:
        """What is pending, as a record; several for more queues than one holds."""
        batch = self._finished(self._batch)
        for state, change in self._changes.values():
            change.cursor = state.cursor
            if state.client_offset is not None:
                change.client_offset = state.client_offset
            committed = state.consumer_offset
            if committed != state.journaled_committed:
                change.has_committed = True
                change.committed = committed
            batch.queues.append(change)
        rest = _parts(batch.queues[_EVENTS_A_RECORD:])
        del batch.queues[_EVENTS_A_RECORD:]
        return [batch, *map(self._finished, rest)]

    def _finished(self, batch: pb.Batch) -> pb.Batch:
        """With version, time, and the data versions of what it changes."""
        batch.version = VERSION
        batch.timestamp_ms = now_ms()
        if batch.topics or batch.groups:
            batch.data_versions.append(version_change(TOPICS_FILE, self._catalog.topics_version))
        if batch.groups:
            batch.data_versions.append(version_change(GROUPS_FILE, self._catalog.groups_version))
        return batch

    def _change(self, state: QueueDelivery) -> pb.QueueChange:
        known = self._changes.get(state.key)
        if known is None:
            group, topic, queue_id = state.key
            known = (state, pb.QueueChange(consumer_group=group, topic=topic, queue_id=queue_id))
            self._changes[state.key] = known
        return known[1]

    def _touched(self, count: int) -> None:
        self._pending += count
        if not self._scheduled:
            self._scheduled = True
            self._schedule(self._end_of_turn)

    def _end_of_turn(self) -> None:
        self._scheduled = False
        if not self._pending:
            return
        try:
            self.write()
        except StoreReadOnlyError as error:  # who waits was told; a traceback a turn would hold up receives
            if not self._read_only:
                self._read_only = True
                log.error("nothing is journaled any more; what is acknowledged is refused", error=str(error))
        except OSError as error:
            if not self._no_room:
                log.error("changes cannot be journaled; who waits for them is refused", error=str(error))
            self._no_room = True
        else:
            if self._no_room:
                log.info("changes are journaled again")
            self._no_room = False

    def _append(self, batches: Sequence[tuple[pb.Batch, str]]) -> None:
        """All of them or none."""
        host = self._store.store_host.packed
        self._store.append(
            [
                PendingRecord(
                    topic=JOURNAL_TOPIC,
                    queue_id=0,
                    body=batch.SerializeToString(),
                    properties=_TAGS[tag][1],
                    born_timestamp=batch.timestamp_ms,
                    born_host=host,
                    tags_code=_TAGS[tag][0],
                )
                for batch, tag in batches
            ]
        )


def _parts(queues: Sequence[pb.QueueChange]) -> list[pb.Batch]:
    """Changes of queues, as many as a record holds in each."""
    starts = range(0, len(queues), _EVENTS_A_RECORD)
    return [pb.Batch(queues=queues[start : start + _EVENTS_A_RECORD]) for start in starts]


def _tell(waiting: Iterable[Callable[[Exception | None], None]], error: Exception | None) -> None:
    """Calls those who waited for an append; what one of them raises is kept from the others."""
    for callback in waiting:
        try:
            callback(error)
        except Exception:
            log.exception("who waited for the journal failed")


def _same(error: Exception) -> Exception:
    """One to raise anew: a raised one keeps its traceback."""
    if isinstance(error, OSError):
        return OSError(error.errno, error.strerror)
    return type(error)(*error.args)
