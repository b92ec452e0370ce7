"""Topics and consumer groups in the journal, with where a topic's queues begin and end.

Owns `Batch.topics`, `groups` and `data_versions`. A record that has topics or groups has the versions of their files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from broker_gateway.journal.contributor import Contributor, Target
from broker_gateway.journal.journal import Journal
from broker_gateway.metadata.catalog import GROUPS_FILE, MAX_QUEUES, TOPICS_FILE, Catalog, Group, Topic
from broker_gateway.metadata.data_version import DataVersion
from broker_gateway.metadata.names import JOURNAL_TOPIC, RETRY_PREFIX
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb
from store.index.queue_index import QueueIndex
from store.lite_queues import lite_topic_of

_QUEUES_A_UNIT = 4
_QUEUES_COUNTED_A_UNIT = 16
_BYTES_A_UNIT = 2048
"""Of a configuration."""


class ResourceJournal(Contributor):
    """Notes in `journal` what changes in `catalog`."""

    def __init__(self, journal: Journal, catalog: Catalog, index: QueueIndex) -> None:
        self._journal = journal
        self._catalog = catalog
        self._index = index
        self._topics: list[pb.TopicChange] = []
        self._groups: list[pb.GroupChange] = []
        self._untold_topics: set[str] = set()
        self._untold_groups: set[str] = set()

    def topic(self, topic: Topic) -> None:
        """A topic was made or changed."""
        self._journal.make_room(1)
        self._topics.append(_topic_change(topic))
        self._journal.noted(1)

    def group(self, group: Group) -> None:
        """A group was made or changed."""
        self._journal.make_room(1)
        self._groups.append(_group_change(group))
        self._journal.noted(1)

    def rolled_back(self, topic: str, _group: Group | None) -> None:
        """A topic, or the group whose retry topic it is, is as before a change: one that is noted already is noted back."""
        group = topic.removeprefix(RETRY_PREFIX)
        if any(each.topic == topic for each in self._topics):
            self._topics.append(_topic_as_it_is(self._catalog, topic))
            self._journal.noted(1)
        if any(each.group == group for each in self._groups):
            self._groups.append(_group_as_it_is(self._catalog, group))
            self._journal.noted(1)

    # ----- what the journal asks for -----

    def fill(self, record: pb.Batch) -> Sequence[pb.Batch]:
        if self._topics or self._groups:
            record.topics.extend(self._topics)
            record.groups.extend(self._groups)
            _add_versions(record, self._catalog)
        return ()

    def written(self) -> None:
        self._topics.clear()
        self._groups.clear()
        self._untold_topics.clear()
        self._untold_groups.clear()

    def lost(self) -> None:
        self._untold_topics.update(each.topic for each in self._topics)
        self._untold_groups.update(each.group for each in self._groups)
        self._topics.clear()
        self._groups.clear()

    def retell(self, target: Target) -> Iterator[int]:
        """Topics and groups whose changes were lost, as they are."""
        for name in self._untold_topics:
            topic = self._catalog.topic(name)
            yield self._tell_topic(target.part, name, topic.queues if topic is not None else 0)
        for name in self._untold_groups:
            yield self._tell_group(target.part, name)

    def snapshot(self, target: Target) -> Iterator[int]:
        """Data versions, topics, groups. Lists of what there is are taken when it comes to them."""
        for file, version in list(self._catalog.versions.items()):
            target.part.data_versions.append(_version_change(file, version))
            yield 1
        counts: dict[str, int] = {}
        yield from self._count_queues(counts)
        for name, queues in counts.items():
            yield self._tell_topic(target.part, name, queues)
        for group in list(self._catalog.groups()):
            yield self._tell_group(target.part, group.name)

    def apply(self, record: pb.Batch) -> None:
        catalog = self._catalog
        for version in record.data_versions:
            catalog.versions[version.file] = DataVersion(
                version.state_version, version.counter, version.timestamp_ms
            )
        for topic in record.topics:
            catalog.restore_topic(None if topic.deleted else _topic(topic), topic.topic)
            for queue_id, next_offset in enumerate(topic.next_queue_offset):
                self._index.raise_next(topic.topic, queue_id, next_offset)
            for queue_id, first_offset in enumerate(topic.first_queue_offset):
                if first_offset:
                    self._index.begin_at(topic.topic, queue_id, first_offset)
            for absence in topic.absence:
                self._index.leave_out(topic.topic, absence.queue_id, absence.begin, absence.end)
        for group in record.groups:
            catalog.restore_group(None if group.deleted else _group(group), group.group)

    def _tell_topic(self, part: pb.Batch, name: str, queues: int) -> int:
        """A topic as it is, with where its queues begin and end; a deleted one goes on there if it is made again."""
        change = _topic_as_it_is(self._catalog, name)
        index = self._index
        change.next_queue_offset.extend([index.max_offset(name, queue) for queue in range(queues)])
        change.first_queue_offset.extend([index.begin(name, queue) for queue in range(queues)])
        for queue in range(queues):
            for begin, end in index.absences(name, queue):
                change.absence.add(queue_id=queue, begin=begin, end=end)
        part.topics.append(change)
        if len(part.topics) == 1:
            _add_versions(part, self._catalog)
        return 1 + queues // _QUEUES_A_UNIT + len(change.others) // _BYTES_A_UNIT

    def _tell_group(self, part: pb.Batch, name: str) -> int:
        """A consumer group as it is."""
        change = _group_as_it_is(self._catalog, name)
        part.groups.append(change)
        if len(part.groups) == 1:
            _add_versions(part, self._catalog)
        return 1 + len(change.others) // _BYTES_A_UNIT

    def _count_queues(self, counts: dict[str, int]) -> Iterator[int]:
        """How many queues every topic has or had; deleted ones too, which go on with higher offsets if made again."""
        for topic in list(self._catalog.topics()):
            counts[topic.name] = topic.queues
        for number, (name, queue_id) in enumerate(self._index.queues()):
            deleted = self._index.begin(name, queue_id) > 0
            if name != JOURNAL_TOPIC and queue_id < MAX_QUEUES and (deleted or lite_topic_of(name) is None):
                counts[name] = max(counts.get(name, 0), queue_id + 1)
            if number % _QUEUES_COUNTED_A_UNIT == 0:
                yield 1


def topic_deleted(catalog: Catalog, topic: Topic, first_offsets: Sequence[int]) -> pb.Batch:
    """That a topic is deleted; what its queues held is below `first_offsets`. For `DeliveryJournal.removed`."""
    record = pb.Batch()
    record.topics.add(topic=topic.name, deleted=True, first_queue_offset=first_offsets)
    _add_versions(record, catalog)
    return record


def lite_topics_deleted(ends: Mapping[str, int]) -> pb.Batch:
    """That lite topics are deleted: what their queues held is below these offsets. For `DeliveryJournal.removed`."""
    record = pb.Batch()
    for queue, end in ends.items():
        record.topics.add(topic=queue, deleted=True, first_queue_offset=[end])
    return record


def group_deleted(catalog: Catalog, group: Group) -> pb.Batch:
    """That a group is deleted. For `DeliveryJournal.removed`."""
    record = pb.Batch()
    record.groups.add(group=group.name, deleted=True)
    _add_versions(record, catalog)
    return record


def _add_versions(record: pb.Batch, catalog: Catalog) -> None:
    """The versions of the files that a record changes, where it does not have them: a group changes topics, its own."""
    told = {each.file for each in record.data_versions}
    if TOPICS_FILE not in told:
        record.data_versions.append(_version_change(TOPICS_FILE, catalog.topics_version))
    if record.groups and GROUPS_FILE not in told:
        record.data_versions.append(_version_change(GROUPS_FILE, catalog.groups_version))


def _version_change(file: str, version: DataVersion) -> pb.DataVersion:
    return pb.DataVersion(
        file=file,
        state_version=version.state_version,
        counter=version.counter,
        timestamp_ms=version.timestamp_ms,
    )


def _topic_as_it_is(catalog: Catalog, name: str) -> pb.TopicChange:
    topic = catalog.topic(name)
    return _topic_change(topic) if topic is not None else pb.TopicChange(topic=name, deleted=True)


def _group_as_it_is(catalog: Catalog, name: str) -> pb.GroupChange:
    group = catalog.group(name)
    return _group_change(group) if group is not None else pb.GroupChange(group=name, deleted=True)


def _topic_change(topic: Topic) -> pb.TopicChange:
    return pb.TopicChange(
        topic=topic.name,
        read_queues=topic.read_queues,
        write_queues=topic.write_queues,
        permission=topic.permission,
        accept_message_types=topic.accept_message_types,
        created_ms=topic.created_ms,
        order=topic.order,
        others=topic.others,
    )


def _topic(change: pb.TopicChange) -> Topic:
    return Topic(
        change.topic,
        change.read_queues,
        change.write_queues,
        change.permission,
        tuple(change.accept_message_types),
        change.created_ms,
        change.order,
        change.others,
    )


def _group_change(group: Group) -> pb.GroupChange:
    return pb.GroupChange(
        group=group.name,
        retry_max_times=group.retry_max_times,
        fifo=group.fifo,
        consume_enabled=group.consume_enabled,
        created_ms=group.created_ms,
        first_used_by=group.first_used_by,
        others=group.others,
    )


def _group(change: pb.GroupChange) -> Group:
    return Group(
        change.group,
        change.retry_max_times,
        change.fifo,
        change.consume_enabled,
        change.created_ms,
        change.first_used_by,
        change.others,
    )
