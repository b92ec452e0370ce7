"""Delivery state of every group on every queue, and when the next message in flight is due."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Set

from broker_gateway.delivery.arrivals import Arrivals
from broker_gateway.delivery.queue_delivery import NEVER, QueueDelivery, QueueKey
from broker_gateway.delivery.retry_topics import lite_number
from store.lite_queues import PREFIX


class DeliveryTable:
    """`QueueDelivery` by key; `first_offset` says where a group new to a queue begins.

    The table calls `counted(group, 1)` when it makes a state and `counted(group, -1)` when it forgets one.
    """

    def __init__(
        self,
        first_offset: Callable[[str, int], int],
        counted: Callable[[str, int], None] = lambda group, change: None,
    ) -> None:
        self._queues: dict[QueueKey, QueueDelivery] = {}
        self._index = _Index()
        self.arrivals = Arrivals()
        self.first_offset = first_offset
        self._counted = counted
        self._due: list[tuple[int, QueueKey]] = []

    def queue(self, key: QueueKey) -> QueueDelivery:
        """The state of `key`, made at first use."""
        state = self._queues.get(key)
        if state is None:
            state = self._made(key, self.first_offset(key.topic, key.queue_id))
            state.restore_reads_absences(True)
        return state

    def known(self, key: QueueKey) -> QueueDelivery | None:
        """The state of `key` if the group has one."""
        return self._queues.get(key)

    def restore(self, key: QueueKey, cursor: int, client_offset: int | None = None) -> QueueDelivery:
        """The state of `key` while replaying, with the offsets the journal says."""
        state = self._queues.get(key) or self._made(key, cursor)
        state.restore_offsets(cursor, client_offset)
        return state

    def _made(self, key: QueueKey, cursor: int) -> QueueDelivery:
        state = self._queues[key] = QueueDelivery(key, cursor, self.schedule)
        self._index.add(key)
        self._counted(key.group, 1)
        return state

    def queues(self) -> Iterable[QueueDelivery]:
        return self._queues.values()

    def groups_of(self, topic: str) -> Set[str]:
        """Groups with a state on a topic."""
        return self._index.by_topic.get(topic, _NOBODY).keys()

    def queue_ids(self, group: str, topic: str) -> Set[int]:
        """The ids of a topic's queues where a group has a state."""
        return self._index.by_topic.get(topic, _NOBODY).get(group, _NO_IDS)

    def queues_of(self, group: str, topic: str) -> int:
        """How many queues of a topic a group has a state on."""
        return len(self.queue_ids(group, topic))

    def lite_states(self, group: str, number: int) -> list[QueueDelivery]:
        """A group's states on queues of lite topics with a number (`lite_number`): one, seldom more."""
        return [self._queues[key] for key in self._index.by_number.get((group, number), ())]

    def topics_of(self, group: str) -> Set[str]:
        """Topics where a group has a state."""
        return self._index.by_group.get(group, _NOTHING)

    def topics_by_group(self) -> Mapping[str, Set[str]]:
        """`topics_of` for every group that has a state."""
        return dict(self._index.by_group)

    def keys_of_topic(self, topic: str) -> list[QueueKey]:
        """Every state on a topic."""
        groups = self._index.by_topic.get(topic, _NOBODY)
        return [QueueKey(group, topic, queue_id) for group, queues in groups.items() for queue_id in queues]

    def keys_of_group(self, group: str) -> list[QueueKey]:
        """Every state of a group."""
        by_topic = self._index.by_topic
        return [
            QueueKey(group, topic, queue_id)
            for topic in self.topics_of(group)
            for queue_id in by_topic[topic][group]
        ]

    def forget(self, key: QueueKey) -> None:
        """Removes the state of `key`; the group begins anew there."""
        state = self._queues.pop(key, None)
        if state is not None:
            self._index.remove(key)
            self._counted(key.group, -1)
            state.reset(state.cursor)  # who holds it still must not give anything of it back
        self.arrivals.forget(key.group, key.topic)

    def schedule(self, state: QueueDelivery) -> None:
        """Remembers when `state` has something due; a state tells of what is due earlier by itself."""
        due = state.next_due_ms()
        if due is None or due >= state.scheduled_ms or self._queues.get(state.key) is not state:
            return
        state.scheduled_ms = due
        heapq.heappush(self._due, (due, state.key))

    def next_due_ms(self) -> int | None:
        """When some queue next has a message due, ms since the epoch."""
        while self._due:
            due, key = self._due[0]
            state = self._queues.get(key)
            if state is not None and state.scheduled_ms == due:
                return due
            heapq.heappop(self._due)
        return None

    def pop_due(self, now_ms: int) -> QueueDelivery | None:
        """A queue with a message due by now; the caller handles it and calls `schedule` again."""
        due = self.next_due_ms()
        if due is None or due > now_ms:
            return None
        state = self._queues[heapq.heappop(self._due)[1]]
        state.scheduled_ms = NEVER
        self.arrivals.came_back(state.key)
        return state


class _Index:
    """Which groups have a state on a topic, with its queues' ids, and on which topics a group has one."""

    def __init__(self) -> None:
        self.by_topic: dict[str, dict[str, set[int]]] = {}
        self.by_group: dict[str, set[str]] = {}
        self.by_number: dict[tuple[str, int], tuple[QueueKey, ...]] = {}
        """Queues of lite topics by group and number."""

    def add(self, key: QueueKey) -> None:
        self.by_topic.setdefault(key.topic, {}).setdefault(key.group, set()).add(key.queue_id)
        self.by_group.setdefault(key.group, set()).add(key.topic)
        if key.topic.startswith(PREFIX):
            numbered = key.group, lite_number(key.topic)
            self.by_number[numbered] = (*self.by_number.get(numbered, ()), key)

    def remove(self, key: QueueKey) -> None:
        if key.topic.startswith(PREFIX):
            numbered = key.group, lite_number(key.topic)
            others = tuple(each for each in self.by_number.pop(numbered) if each != key)
            if others:
                self.by_number[numbered] = others
        groups = self.by_topic[key.topic]
        queues = groups[key.group]
        queues.discard(key.queue_id)
        if queues:
            return
        del groups[key.group]
        if not groups:
            del self.by_topic[key.topic]
        topics = self.by_group[key.group]
        topics.discard(key.topic)
        if not topics:
            del self.by_group[key.group]


_NOBODY: dict[str, set[int]] = {}
_NOTHING: frozenset[str] = frozenset()
_NO_IDS: frozenset[int] = frozenset()
