"""Topics and consumer groups of the broker.

Owns their configuration in memory. Every change is announced to those who `listen`, the journal first;
replaying the journal calls `restore_topic`/`restore_group`, which announce nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from broker_gateway.metadata.auto_created_groups import AutoCreatedGroups
from broker_gateway.metadata.data_version import DataVersion
from broker_gateway.metadata.names import RETRY_PREFIX
from broker_gateway.runtime.clock import now_ms

READ = 4
WRITE = 2
INHERIT = 1
MAX_QUEUES = 1024
MAX_TOPICS = 100_000
MAX_GROUPS = 100_000
MAX_ATTEMPTS = (1 << 31) - 1
TOPICS_FILE = "topics.json"
GROUPS_FILE = "subscriptionGroup.json"
"""Whose data versions count up with every change of a topic, or of a group."""


class CatalogFullError(Exception):
    """A limit on the number of topics or groups is reached."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic: `read_queues`/`write_queues` queues, permission bits, accepted message types (empty: all).

    `order` is kept and shown; the order of a group's deliveries is the group's. `others`: what is only kept, see
    `topic_configuration.py`.
    """

    name: str
    read_queues: int
    write_queues: int
    permission: int = READ | WRITE
    accept_message_types: tuple[str, ...] = ()
    created_ms: int = 0
    order: bool = False
    others: str = ""

    @property
    def queues(self) -> int:
        """Queues that can be read, written or both; their ids are those below."""
        return max(self.read_queues, self.write_queues)

    @property
    def readable(self) -> bool:
        return bool(self.permission & READ)

    @property
    def writable(self) -> bool:
        return bool(self.permission & WRITE)


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group; `retry_max_times` deliveries follow the first before the dead-letter topic; below 0: as 0.

    `first_used_by`: the address that made it by using it; empty: it is an administrator's. `others`: its retry policy and
    what is only kept, see `group_configuration.py`.
    """

    name: str
    retry_max_times: int = 16
    fifo: bool = False
    consume_enabled: bool = True
    created_ms: int = 0
    first_used_by: str = ""
    others: str = ""

    @property
    def max_attempts(self) -> int:
        return min(self.retry_max_times + 1, MAX_ATTEMPTS)


class Catalog:
    """The broker's topics and groups by name; `versions` of a real broker's files, by the file's name."""

    def __init__(self) -> None:
        self._topics: dict[str, Topic] = {}
        self._groups: dict[str, Group] = {}
        self.auto_created = AutoCreatedGroups()
        self.versions: dict[str, DataVersion] = {}
        self._topic_changed: list[Callable[[Topic], None]] = []
        self._topic_deleted: list[Callable[[Topic], None]] = []
        self._group_changed: list[Callable[[Group], None]] = []
        self._rolled_back: list[Callable[[str, Group | None], None]] = []
        self._removed: list[Callable[[str], None]] = []

    def listen(
        self,
        *,
        topic_changed: Callable[[Topic], None] | None = None,
        topic_deleted: Callable[[Topic], None] | None = None,
        group_changed: Callable[[Group], None] | None = None,
        rolled_back: Callable[[str, Group | None], None] | None = None,
        removed: Callable[[str], None] | None = None,
    ) -> None:
        """Has a part told of changes from now on, each behind those that listen already.

        The catalog calls `topic_deleted` before it removes a topic; a listener that raises there keeps the topic. It calls
        `rolled_back` when a change could not be journaled: with the topic, or with a group's retry topic and the group;
        `removed` after a topic, or a group with its retry topic, is gone.
        """
        self._topic_changed += [topic_changed] if topic_changed is not None else []
        self._topic_deleted += [topic_deleted] if topic_deleted is not None else []
        self._group_changed += [group_changed] if group_changed is not None else []
        self._rolled_back += [rolled_back] if rolled_back is not None else []
        self._removed += [removed] if removed is not None else []

    def topic(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def group(self, name: str) -> Group | None:
        return self._groups.get(name)

    def topics(self) -> Iterable[Topic]:
        return self._topics.values()

    def groups(self) -> Iterable[Group]:
        return self._groups.values()

    @property
    def topics_version(self) -> DataVersion:
        return self.versions.get(TOPICS_FILE, DataVersion())

    @property
    def groups_version(self) -> DataVersion:
        return self.versions.get(GROUPS_FILE, DataVersion())

    def count_topics_version(self) -> None:
        """Something about topics changed that name servers should hear of."""
        self.versions[TOPICS_FILE] = self.topics_version.next(now_ms())

    def _count_groups_version(self) -> None:
        self.versions[GROUPS_FILE] = self.groups_version.next(now_ms())

    def check_room_for_topics(self, names: Iterable[str]) -> None:
        """Raises CatalogFullError when there may not be topics of all these names, too."""
        _check_room("topics", self._topics, names, MAX_TOPICS)

    def check_room_for_groups(self, names: Iterable[str]) -> None:
        """Raises CatalogFullError when there may not be groups of all these names, too."""
        _check_room("groups", self._groups, names, MAX_GROUPS)

    def put_topic(self, topic: Topic, *, shrink: bool = False) -> tuple[Topic, bool]:
        """Creates or changes a topic; queues never become fewer unless `shrink`. Returns it and whether it is new.

        Raises CatalogFullError at `MAX_TOPICS`, and what a listener raises: the topic is as it was then.
        """
        known = self._topics.get(topic.name)
        self.check_room_for_topics([topic.name])
        if known is not None:
            topic = replace(
                topic,
                read_queues=topic.read_queues if shrink else max(topic.read_queues, known.read_queues),
                write_queues=topic.write_queues if shrink else max(topic.write_queues, known.write_queues),
                created_ms=known.created_ms,
            )
        if topic != known:
            self._topics[topic.name] = topic
            self.count_topics_version()
            try:
                for listener in self._topic_changed:
                    listener(topic)
            except BaseException:
                self.roll_back_topic(known, topic.name)
                raise
        return topic, known is None

    def put_group(self, group: Group) -> tuple[Group, bool]:
        """Creates or changes a group. Returns it and whether it is new; CatalogFullError at `MAX_GROUPS`, or when too many
        were made on first use and it would be another. As `put_topic` when a listener raises."""
        known = self._groups.get(group.name)
        self.check_room_for_groups([group.name])
        if known is not None:
            group = replace(group, created_ms=known.created_ms)
        elif group.first_used_by:
            refusal = self.auto_created.refusal(group.name, group.first_used_by)
            if refusal is not None:
                raise CatalogFullError(refusal)
        if group != known:
            self._set_group(group, group.name)
            self._count_groups_version()
            if known is None:
                self.count_topics_version()  # its retry topic is new
            try:
                for listener in self._group_changed:
                    listener(group)
            except BaseException:
                self.roll_back_group(known, group.name)
                raise
        return group, known is None

    def delete_topic(self, name: str) -> Topic | None:
        """Removes a topic; what it was."""
        topic = self._topics.get(name)
        if topic is not None:
            self.count_topics_version()
            for listener in self._topic_deleted:
                listener(topic)
            del self._topics[name]
            self._tell_removed(name)
        return topic

    def delete_group(self, name: str, journal: Callable[[Group], None]) -> Group | None:
        """Removes a group, once `journal` returned; what it was."""
        group = self._groups.get(name)
        if group is not None:
            self.count_topics_version()
            self._count_groups_version()
            journal(group)
            self._set_group(None, name)
            self._tell_removed(RETRY_PREFIX + name)
        return group

    def roll_back_topic(self, before: Topic | None, name: str) -> None:
        """Sets a topic (None: removes it) as it was before a change that could not be journaled."""
        self.restore_topic(before, name)
        self.count_topics_version()
        self._tell_rolled_back(name, None)

    def roll_back_group(self, before: Group | None, name: str) -> None:
        """Sets a group (None: removes it) as it was before a change that could not be journaled."""
        self.restore_group(before, name)
        self.count_topics_version()
        self._tell_rolled_back(RETRY_PREFIX + name, before)

    def _tell_removed(self, topic: str) -> None:
        for listener in self._removed:
            listener(topic)

    def _tell_rolled_back(self, topic: str, group: Group | None) -> None:
        for listener in self._rolled_back:
            listener(topic, group)

    def restore_topic(self, topic: Topic | None, name: str) -> None:
        """Sets (None: removes) a topic from the journal."""
        if topic is None:
            self._topics.pop(name, None)
        else:
            self._topics[name] = topic

    def restore_group(self, group: Group | None, name: str) -> None:
        """Sets (None: removes) a group from the journal."""
        self._set_group(group, name)

    def _set_group(self, group: Group | None, name: str) -> None:
        if group is None:
            self._groups.pop(name, None)
        else:
            self._groups[name] = group
        self.auto_created.set_group(name, "" if group is None else group.first_used_by)


def _check_room(what: str, known: Mapping[str, object], names: Iterable[str], most: int) -> None:
    new = {name for name in names if name not in known}
    if new and len(known) + len(new) > most:
        raise CatalogFullError(
            f"{len(known)} of {most} {what} exist; delete some before creating {min(new)!r}"
            + (f" and {len(new) - 1} more" if len(new) > 1 else "")
        )
