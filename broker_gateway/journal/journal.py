"""Writing the journal: everything that changed in one turn of the event loop becomes one record.

Owns batching, snapshots and the callbacks of those who wait; what changes is said by the services. Runs on
the event loop; `schedule` runs what it is given at the end of the turn. Format: `proto/lakebroker/journal/v1/journal.proto`. A batch is appended at the end of the
turn, or at once when it has grown past `_EVENTS_A_RECORD`; a complete snapshot follows every
`snapshot_bytes` of log, in parts of about `_PART_BYTES`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import structlog

from broker_gateway.clock import now_ms
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
        self.write(snapshot=False)
        for (group, topic, queue_id), cursor in cursors.items():
            change = self._batch.queues.add(
                consumer_group=group,
                topic=topic,
                queue_id=queue_id,
                cursor=cursor,
                has_committed=True,
                committed=cursor,
            )
            change.events.add(kind=pb.RESET, timestamp_ms=now_ms())
        self._pending += len(cursors)
        self.write(snapshot=False)

    def removed(self, keys: Sequence[QueueKey]) -> None:
        """Appends that groups have no state on these queues any more, behind all that was noted; raises what the append
        raised. To be called before they are removed."""
        self.write(snapshot=False)
        for start in range(0, len(keys), _EVENTS_A_RECORD):
            some = keys[start : start + _EVENTS_A_RECORD]
            for group, topic, queue_id in some:
                self._batch.queues.add(consumer_group=group, topic=topic, queue_id=queue_id, removed=True)
            self._pending += len(some)
            self.write(snapshot=False)

    def topic(self, topic: Topic, *, first_offsets: Sequence[int] | None = None) -> None:
        """A topic was made or changed; with `first_offsets`, deleted: what its queues held is below them."""
        change = _topic_change(topic, deleted=first_offsets is not None)
        change.first_queue_offset.extend(first_offsets or ())
        self._batch.topics.append(change)
        self._touched(1)

    def group(self, group: Group, *, deleted: bool = False) -> None:
        self._batch.groups.append(_group_change(group, deleted=deleted))
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
            self.write()
        except (StoreError, OSError):
            take_back()
            raise

    async def written(self) -> None:
        """Returns when everything noted so far is in the log; raises what the append raised."""
        done: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.after(lambda error: None if done.done() else done.set_result(error))
        error = await done
        if error is not None:
            raise error

    def write(self, *, snapshot: bool = True) -> None:
        """Appends what is pending now; an error goes to those who wait and to the caller, and what was pending is lost.

        A snapshot that is due follows, unless the caller is yet to do what it noted.
        """
        if not self._pending:
            return
        batch, self._batch = self._batch, pb.Batch(version=VERSION)
        changes, self._changes = self._changes, {}
        waiting, self._waiting = self._waiting, []
        self._pending = 0
        batch.timestamp_ms = now_ms()
        if batch.topics or batch.groups:
            batch.data_versions.append(_version_change(TOPICS_FILE, self._catalog.topics_version))
        if batch.groups:
            batch.data_versions.append(_version_change(GROUPS_FILE, self._catalog.groups_version))
        for state, change in changes.values():
            change.cursor = state.cursor
            committed = state.committed
            if committed != state.journaled_committed:
                change.has_committed = True
                change.committed = committed
            batch.queues.append(change)
        try:
            self._append([batch], EVENTS_TAG)
        except Exception as error:
            for callback in waiting:
                callback(error)
            raise
        for state, change in changes.values():
            if change.has_committed:
                state.journaled_committed = change.committed
        for callback in waiting:
            callback(None)
        if snapshot and self._store.max_offset - self._snapshot_at >= self._snapshot_bytes:
            self._try_snapshot()

    def _try_snapshot(self) -> None:
        """A failure is no error of what was written before: it is tried again after a while."""
        now = time.monotonic()
        if now < self._snapshot_not_before:
            return
        try:
            self.write_snapshot()
        except (StoreError, OSError) as error:
            self._snapshot_not_before = now + _SNAPSHOT_AGAIN_S
            log.error("a snapshot could not be written; it is tried again", error=str(error))

    def write_snapshot(self) -> None:
        """Appends the complete state: data versions, topics, groups, every group's queues."""
        self.write()
        offset = self._store.max_offset
        parts = list(self._snapshot_parts())
        snapshot_id = uuid.uuid4().hex
        for number, part in enumerate(parts):
            part.version = VERSION
            part.timestamp_ms = now_ms()
            part.snapshot.snapshot_id = snapshot_id
            part.snapshot.part = number
            part.snapshot.parts = len(parts)
            part.snapshot.log_offset = offset
        self._append(parts, SNAPSHOT_TAG)
        self._snapshot_at = offset
        self._unflushed.append((offset, self._store.max_offset))

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

    def _append(self, batches: Sequence[pb.Batch], tag: str) -> None:
        code, properties = _TAGS[tag]
        host = self._store.store_host.packed
        self._store.append(
            [
                PendingRecord(
                    topic=JOURNAL_TOPIC,
                    queue_id=0,
                    body=batch.SerializeToString(),
                    properties=properties,
                    born_timestamp=batch.timestamp_ms,
                    born_host=host,
                    tags_code=code,
                )
                for batch in batches
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
