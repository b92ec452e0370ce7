"""Writing the journal: everything that changed in one turn of the event loop becomes one record.

Owns batching, snapshots and the callbacks of those who wait; what changes is said by the services. Runs on
the event loop; `schedule` runs what it is given at the end of the turn. Format: `proto/lakebroker/journal/v1/journal.proto`. A batch is appended at the end of the
turn, or at once when it has grown past `_EVENTS_A_RECORD`; a complete snapshot follows every
`snapshot_bytes` of log, in parts of about `_PART_BYTES`.
"""

from __future__ import annotations

import contextlib
import math
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import structlog

from broker_gateway.clock import monotonic_s, now_ms
from broker_gateway.delivery.queue_delivery import InFlight, QueueDelivery, QueueKey
from broker_gateway.delivery.table import DeliveryTable
from broker_gateway.metadata.catalog import GROUPS_FILE, MAX_QUEUES, TOPICS_FILE, Catalog, Group, Topic
from broker_gateway.metadata.data_version import DataVersion
from broker_gateway.metadata.names import JOURNAL_TOPIC
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb
from store.errors import StoreError, StoreReadOnlyError
from store.message_store import MessageStore
from store.record import PendingRecord, encode_properties, tags_code

log = structlog.get_logger(__name__)
VERSION = 1
EVENTS_TAG = "events"
SNAPSHOT_TAG = "snapshot"
_TAGS = {tag: (tags_code(tag), encode_properties({"TAGS": tag})) for tag in (EVENTS_TAG, SNAPSHOT_TAG)}
"""Tags code and properties of the journal's records."""
_EVENTS_A_RECORD = 1024
_IN_FLIGHT_A_PART = 1024
_SNAPSHOT_AGAIN_S = 10.0
_LOST_AGAIN_S = 0.5
_LONGEST_WAIT_S = 5.0
"""Between attempts to append when one failed, each longer than the one before: they make snapshots."""
_PART_BYTES = 256 * 1024
"""A record stays under 1 MiB, the least size of a segment, whatever names and ids are."""


class Journal:
    """Collects changes and appends them to the journal topic."""

    def __init__(
        self,
        store: MessageStore,
        catalog: Catalog,
        deliveries: DeliveryTable,
        snapshot_bytes: int,
        schedule: Callable[[Callable[[], None]], None],
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._deliveries = deliveries
        self._snapshot_bytes = snapshot_bytes
        self._schedule = schedule
        self._snapshot_at = 0
        self._snapshot_not_before = 0.0
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
        self._again_at = 0.0
        self._wait_s = _LOST_AGAIN_S
        self._waiting: list[Callable[[Exception | None], None]] = []

    def replayed_to(self, snapshot_offset: int) -> None:
        """Where the newest snapshot in the log stands, after a replay."""
        self._snapshot_at = self._needed_from = snapshot_offset

    def needed_from(self) -> int:
        """Where the newest complete snapshot that is on disk begins: a start reads nothing before it."""
        while self._unflushed and self._unflushed[0][1] <= self._store.flushed_offset:
            self._needed_from = self._unflushed.pop(0)[0]
        return self._needed_from

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
        """Adds one event for each message, all by one client."""
        change = self._change(state)
        change.events.add(
            kind=kind,
            timestamp_ms=now_ms() if timestamp_ms is None else timestamp_ms,
            client_id=client_id,
            delivery_id=delivery_id,
            invisible_until_ms=invisible_until_ms,
            queue_offset=[m.queue_offset for m in messages],
            attempt=[m.attempt for m in messages],
            message_id=[m.message_id for m in messages],
        )
        self._touched(len(messages))

    def moved(self, state: QueueDelivery) -> None:
        """Notes that the cursor of `state` moved without an event."""
        self._change(state)
        self._touched(1)

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
            change = _topic_change(topic, deleted=True)
            change.first_queue_offset.extend(first_offsets)
            batch.topics.append(change)
        if group is not None:
            batch.groups.append(_group_change(group, deleted=True))
        self._append_ahead(batch)

    def _append_ahead(self, whole: pb.Batch) -> None:
        """What is not done yet, all or nothing; in several records when it is much."""
        self.write(at_once=True)
        parts = [
            pb.Batch(queues=whole.queues[start : start + _EVENTS_A_RECORD])
            for start in range(0, len(whole.queues), _EVENTS_A_RECORD)
        ]
        if whole.topics or whole.groups:
            parts.append(pb.Batch(topics=whole.topics, groups=whole.groups))
        self._append([(self._finished(part), EVENTS_TAG) for part in parts])

    def topic(self, topic: Topic) -> None:
        """A topic was made or changed."""
        self._batch.topics.append(_topic_change(topic))
        self._touched(1)

    def group(self, group: Group) -> None:
        """A group was made or changed."""
        self._batch.groups.append(_group_change(group))
        self._touched(1)

    def stats(self, minutes: Iterable[pb.MinuteStats]) -> None:
        before = len(self._batch.stats)
        self._batch.stats.extend(minutes)
        if added := len(self._batch.stats) - before:
            self._touched(added)

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
        the next one that can be appended has a snapshot with it. That is not tried again for a while, unless `at_once`.
        """
        if not self._pending:
            return
        if self._lost is not None and not at_once and monotonic_s() < self._again_at:
            error = _same(self._lost)
            self._give_up(error)
            raise error
        self._append_pending(with_snapshot=self._lost is not None)
        if self._store.max_offset - self._snapshot_at >= self._snapshot_bytes:
            self._try_snapshot()

    def _try_snapshot(self) -> None:
        """A failure is no error of what was written before: it is tried again after a while."""
        now = monotonic_s()
        if now < self._snapshot_not_before:
            return
        try:
            self.write_snapshot()
        except (StoreError, OSError) as error:
            self._snapshot_not_before = now + _SNAPSHOT_AGAIN_S
            log.error("a snapshot could not be written; it is tried again", error=str(error))

    def write_snapshot(self) -> None:
        """Appends what is pending and the complete state: data versions, topics, groups, every group's queues."""
        self._append_pending(with_snapshot=True)

    def _append_pending(self, *, with_snapshot: bool) -> None:
        changes = self._changes
        offset = self._store.max_offset
        try:
            records = [(self._taken(), EVENTS_TAG)] if self._pending else []
            if with_snapshot:  # what is pending is replayed on top of it, and changes nothing
                records += [(part, SNAPSHOT_TAG) for part in self._snapshot_of(offset)]
            self._append(records)
        except Exception as error:
            self._lose(error)
            raise
        self._pending = 0
        self._batch, self._changes = pb.Batch(version=VERSION), {}
        waiting, self._waiting = self._waiting, []
        if with_snapshot:
            self._lost, self._wait_s = None, _LOST_AGAIN_S
            self._snapshot_at = offset
            self._unflushed.append((offset, self._store.max_offset))
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
        self._pending = 0
        self._batch, self._changes = pb.Batch(version=VERSION), {}
        waiting, self._waiting = self._waiting, []
        _tell(waiting, error)

    def _taken(self) -> pb.Batch:
        """What is pending, as a record."""
        batch = self._finished(self._batch)
        for state, change in self._changes.values():
            change.cursor = state.cursor
            committed = state.committed
            if committed != state.journaled_committed:
                change.has_committed = True
                change.committed = committed
            batch.queues.append(change)
        return batch

    def _finished(self, batch: pb.Batch) -> pb.Batch:
        """With version, time, and the data versions of what it changes."""
        batch.version = VERSION
        batch.timestamp_ms = now_ms()
        if batch.topics or batch.groups:
            batch.data_versions.append(_version_change(TOPICS_FILE, self._catalog.topics_version))
        if batch.groups:
            batch.data_versions.append(_version_change(GROUPS_FILE, self._catalog.groups_version))
        return batch

    def _snapshot_of(self, offset: int) -> list[pb.Batch]:
        """The complete state; a start reads the journal from that physical offset on."""
        parts = list(self._snapshot_parts())
        snapshot_id = uuid.uuid4().hex
        for number, part in enumerate(parts):
            part.version = VERSION
            part.timestamp_ms = now_ms()
            part.snapshot.snapshot_id = snapshot_id
            part.snapshot.part = number
            part.snapshot.parts = len(parts)
            part.snapshot.log_offset = offset
        return parts

    def _change(self, state: QueueDelivery) -> pb.QueueChange:
        known = self._changes.get(state.key)
        if known is None:
            group, topic, queue_id = state.key
            known = (state, pb.QueueChange(consumer_group=group, topic=topic, queue_id=queue_id))
            self._changes[state.key] = known
        return known[1]

    def _touched(self, count: int) -> None:
        self._pending += count
        if self._pending >= _EVENTS_A_RECORD:
            self.write()
        elif not self._scheduled:
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

    def _snapshot_parts(self) -> Iterable[pb.Batch]:
        """The complete state in batches of about `_PART_BYTES`; at least one."""
        part, size = pb.Batch(), 0
        for piece in self._snapshot_pieces():
            part.MergeFrom(piece)
            size += piece.ByteSize()
            if size >= _PART_BYTES:
                yield part
                part, size = pb.Batch(), 0
        yield part

    def _queues(self) -> dict[str, int]:
        """How many queues every topic has or had; deleted ones too, which go on with higher offsets if made again."""
        queues = {topic.name: max(topic.read_queues, topic.write_queues) for topic in self._catalog.topics()}
        for name, queue_id in self._store.index.queues():
            if name != JOURNAL_TOPIC and queue_id < MAX_QUEUES:
                queues[name] = max(queues.get(name, 0), queue_id + 1)
        return queues

    def _snapshot_pieces(self) -> Iterable[pb.Batch]:
        for file, version in self._catalog.versions.items():
            yield pb.Batch(data_versions=[_version_change(file, version)])
        for name, queues in self._queues().items():
            topic = self._catalog.topic(name)
            change = _topic_change(topic or Topic(name, 0, 0), deleted=topic is None)
            index = self._store.index
            change.next_queue_offset.extend(index.max_offset(name, queue) for queue in range(queues))
            change.first_queue_offset.extend(index.begin(name, queue) for queue in range(queues))
            yield pb.Batch(topics=[change])
        for group in self._catalog.groups():
            yield pb.Batch(groups=[_group_change(group)])
        for state in self._deliveries.queues():
            for queue in _queue_snapshots(state):
                yield pb.Batch(queues=[queue])


def _tell(waiting: Iterable[Callable[[Exception | None], None]], error: Exception | None) -> None:
    """Calls those who waited for an append; what one of them raises is kept from the others."""
    for callback in waiting:
        try:
            callback(error)
        except Exception:
            log.exception("who waited for the journal failed")


def _queue_snapshots(state: QueueDelivery) -> Iterable[pb.QueueChange]:
    """The state of a queue, in several changes when much is in flight."""
    group, topic, queue_id = state.key
    messages = list(state.in_flight.values())
    for start in range(0, max(len(messages), 1), _IN_FLIGHT_A_PART):
        some = messages[start : start + _IN_FLIGHT_A_PART]
        yield pb.QueueChange(
            consumer_group=group,
            topic=topic,
            queue_id=queue_id,
            cursor=state.cursor,
            in_flight=pb.InFlight(
                queue_offset=[m.queue_offset for m in some],
                attempt=[m.attempt for m in some],
                invisible_until_ms=[m.invisible_until_ms for m in some],
                delivery_id=[m.delivery_id for m in some],
                message_id=[m.message_id for m in some],
                client_id=[m.client_id for m in some],
            ),
        )


def _version_change(file: str, version: DataVersion) -> pb.DataVersion:
    return pb.DataVersion(
        file=file,
        state_version=version.state_version,
        counter=version.counter,
        timestamp_ms=version.timestamp_ms,
    )


def _topic_change(topic: Topic, *, deleted: bool = False) -> pb.TopicChange:
    if deleted:
        return pb.TopicChange(topic=topic.name, deleted=True)
    return pb.TopicChange(
        topic=topic.name,
        read_queues=topic.read_queues,
        write_queues=topic.write_queues,
        permission=topic.permission,
        accept_message_types=topic.accept_message_types,
        created_ms=topic.created_ms,
        order=topic.order,
    )


def _group_change(group: Group, *, deleted: bool = False) -> pb.GroupChange:
    if deleted:
        return pb.GroupChange(group=group.name, deleted=True)
    return pb.GroupChange(
        group=group.name,
        retry_max_times=group.retry_max_times,
        fifo=group.fifo,
        consume_enabled=group.consume_enabled,
        created_ms=group.created_ms,
    )


def _same(error: Exception) -> Exception:
    """One to raise anew: a raised one keeps its traceback."""
    if isinstance(error, OSError):
        return OSError(error.errno, error.strerror)
    return type(error)(*error.args)
