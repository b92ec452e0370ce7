"""A complete snapshot of what the journal tells, made in parts of bounded work.

A part says how things are at the moment it is made, and stands in the log at that place. A replay applies it there: it
replaces what changes before it said of its queues, topics and groups, and changes behind it apply on top. So parts may
be made over many turns while everything goes on changing:

| what changes meanwhile                  | how a replay comes to know it |
|-----------------------------------------|-------------------------------|
| what a part to come is about            | by that part                  |
| what a part before was about            | by the change, behind it      |
| what was made after the snapshot began  | by its changes, all behind its beginning |
| what was removed after it began         | by the removal; no later part mentions it |

Of a queue with much in flight there are several pieces. The first replaces what was known, the others add to it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from broker_gateway.delivery.queue_delivery import InFlight, QueueDelivery, QueueKey, Status
from broker_gateway.delivery.table import DeliveryTable
from broker_gateway.metadata.catalog import MAX_QUEUES, Catalog, Group, Topic
from broker_gateway.metadata.data_version import DataVersion
from broker_gateway.metadata.names import JOURNAL_TOPIC
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb
from store.index.queue_index import QueueIndex

UNITS_A_PART = 128
"""Work in a part: a state, group or version counts 1, a queue or a message in flight a quarter."""
_A_UNIT = 4
_IN_FLIGHT_A_PIECE = 512
_IDS_A_PIECE = 64 << 10
GIVEN_BACK, SUSPENDED, RETURNED = 1, 2, 4
"""Flags of a message in flight."""
_IDS_A_UNIT = 256
"""Characters of ids. A part stays well under 1 MiB, the least size of a segment, whatever names and ids are."""


@dataclass(frozen=True, slots=True)
class SnapshotPace:
    """When a snapshot is begun: `log_bytes` behind the beginning of the one before, and not before it was at most
    `percent` of the log written since. So it costs in proportion to what happens, however much there is to tell."""

    log_bytes: int
    percent: int = 5

    def due(self, grown: int, last_size: int) -> bool:
        """Whether one is due when the log has grown by so many bytes since the beginning of the last, of `last_size` bytes."""
        return grown >= max(self.log_bytes, last_size * 100 // self.percent)


@dataclass(slots=True)
class Untold:
    """What changed in memory and could not be appended: the log is told how these are with the next record."""

    topics: set[str] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    queues: set[QueueKey] = field(default_factory=set)

    def add(self, batch: pb.Batch, queues: Iterable[QueueKey]) -> None:
        self.topics.update(each.topic for each in batch.topics)
        self.groups.update(each.group for each in batch.groups)
        self.queues.update(queues)


class Pieces:
    """Says in a batch how things are. Lists of what there is are taken at the first use of a method."""

    def __init__(self, catalog: Catalog, deliveries: DeliveryTable, index: QueueIndex) -> None:
        self._catalog = catalog
        self._deliveries = deliveries
        self._index = index

    def everything(self, target: _Target) -> Iterator[int]:
        """Data versions, topics, groups, every group's queues; yields the units of work of each step."""
        for file, version in list(self._catalog.versions.items()):
            target.part.data_versions.append(version_change(file, version))
            yield 1
        counts: dict[str, int] = {}
        yield from self._count_queues(counts)
        for name, queues in counts.items():
            yield self.topic(target.part, name, queues)
        for group in list(self._catalog.groups()):
            yield self.group(target.part, group.name)
        for state in list(self._deliveries.queues()):
            yield from self.queue(target, state)

    def topic(self, part: pb.Batch, name: str, queues: int) -> int:
        """A topic as it is, with where its queues begin and end; a deleted one goes on there if it is made again."""
        topic = self._catalog.topic(name)
        change = topic_change(topic or Topic(name, 0, 0), deleted=topic is None)
        index = self._index
        change.next_queue_offset.extend([index.max_offset(name, queue) for queue in range(queues)])
        change.first_queue_offset.extend([index.begin(name, queue) for queue in range(queues)])
        part.topics.append(change)
        return 1 + queues // _A_UNIT

    def group(self, part: pb.Batch, name: str) -> int:
        """A consumer group as it is."""
        group = self._catalog.group(name)
        part.groups.append(group_change(group or Group(name), deleted=group is None))
        return 1

    def queue(self, target: _Target, state: QueueDelivery) -> Iterator[int]:
        """A group's state on a queue, while it is the one that counts; in several pieces when much is in flight."""
        group, topic, queue_id = state.key
        offset, continued = 0, False
        while self._deliveries.known(state.key) is state:
            found = state.in_flight_from(offset, _IN_FLIGHT_A_PIECE)
            some = _within(found)
            if some or not continued:
                target.part.queues.add(
                    consumer_group=group,
                    topic=topic,
                    queue_id=queue_id,
                    cursor=state.cursor,
                    client_offset=state.client_offset,
                    in_flight=_in_flight(some) if some else None,
                    continued=continued,
                )
                yield 1 + len(some) // _A_UNIT + _ids(some) // _IDS_A_UNIT
            if len(some) == len(found) < _IN_FLIGHT_A_PIECE:
                return
            offset, continued = some[-1].queue_offset + 1, True

    def _count_queues(self, counts: dict[str, int]) -> Iterator[int]:
        """How many queues every topic has or had; deleted ones too, which go on with higher offsets if made again."""
        for topic in list(self._catalog.topics()):
            counts[topic.name] = max(topic.read_queues, topic.write_queues)
        for number, (name, queue_id) in enumerate(self._index.queues()):
            if name != JOURNAL_TOPIC and queue_id < MAX_QUEUES:
                counts[name] = max(counts.get(name, 0), queue_id + 1)
            if number % (4 * _A_UNIT) == 0:
                yield 1


class _Target:
    """The batch that is being filled."""

    def __init__(self) -> None:
        self.part = pb.Batch()


class Snapshot:
    """One snapshot under way. `log_offset` is where a replay begins: the log's end when it was begun."""

    def __init__(self, pieces: Pieces, log_offset: int) -> None:
        self.log_offset = log_offset
        self.complete = False
        """Whether the last part has been made."""
        self.size = 0
        """Of the parts made, bytes."""
        self._id = uuid.uuid4().hex
        self._made = 0
        self._target = _Target()
        self._steps = pieces.everything(self._target)

    def next_part(self, units: int = UNITS_A_PART) -> pb.Batch:
        """The next part: what comes behind it in the log applies on top of it."""
        part = self._target.part = pb.Batch()
        while units > 0:
            step = next(self._steps, None)
            if step is None:
                self.complete = True
                break
            units -= step
        self._made += 1
        part.snapshot.CopyFrom(
            pb.SnapshotPart(
                snapshot_id=self._id,
                part=self._made - 1,
                parts=self._made if self.complete else 0,
                log_offset=self.log_offset,
                in_place=True,
            )
        )
        self.size += part.ByteSize()
        return part


def parts_of(
    pieces: Pieces, topics: Iterable[tuple[str, int]], groups: Iterable[str], states: Iterable[QueueDelivery]
) -> list[pb.Batch]:
    """How these topics (each with its number of queues), groups and states are, in parts that belong to no snapshot."""
    target = _Target()
    parts: list[pb.Batch] = []

    def steps() -> Iterator[int]:
        for name, queues in topics:
            yield pieces.topic(target.part, name, queues)
        for name in groups:
            yield pieces.group(target.part, name)
        for state in states:
            yield from pieces.queue(target, state)

    units = 0
    for step in steps():
        units += step
        if units >= UNITS_A_PART:
            parts.append(target.part)
            target.part, units = pb.Batch(), 0
    parts.append(target.part)
    for part in parts:
        part.snapshot.in_place = True
    return parts


def _within(messages: list[InFlight]) -> list[InFlight]:
    """As many of them as a piece holds, at least one."""
    kept = len(messages)
    while kept > 1 and _ids(messages[:kept]) > _IDS_A_PIECE:
        kept //= 2
    return messages[:kept]


def _ids(messages: list[InFlight]) -> int:
    return sum([len(each.message_id) + len(each.client_id) for each in messages])


def _in_flight(messages: list[InFlight]) -> pb.InFlight:
    return pb.InFlight(
        queue_offset=[m.queue_offset for m in messages],
        attempt=[m.attempt for m in messages],
        invisible_until_ms=[m.invisible_until_ms for m in messages],
        delivery_id=[m.delivery_id for m in messages],
        message_id=[m.message_id for m in messages],
        client_id=[m.client_id for m in messages],
        first_delivered_ms=[m.first_delivered_ms for m in messages],
        flags=flags if any(flags := [_flags(m) for m in messages]) else None,
    )


def _flags(message: InFlight) -> int:
    returned = message.status == Status.RETURNED
    return message.given_back * GIVEN_BACK | message.suspended * SUSPENDED | returned * RETURNED


def version_change(file: str, version: DataVersion) -> pb.DataVersion:
    return pb.DataVersion(
        file=file,
        state_version=version.state_version,
        counter=version.counter,
        timestamp_ms=version.timestamp_ms,
    )


def topic_change(topic: Topic, *, deleted: bool = False) -> pb.TopicChange:
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


def group_change(group: Group, *, deleted: bool = False) -> pb.GroupChange:
    if deleted:
        return pb.GroupChange(group=group.name, deleted=True)
    return pb.GroupChange(
        group=group.name,
        retry_max_times=group.retry_max_times,
        fifo=group.fifo,
        consume_enabled=group.consume_enabled,
        created_ms=group.created_ms,
        first_used_by=group.first_used_by,
    )
