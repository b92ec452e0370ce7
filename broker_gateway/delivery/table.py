"""Delivery state of every group on every queue, and when the next message in flight is due."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable

from broker_gateway.delivery.queue_delivery import QueueDelivery, QueueKey


class DeliveryTable:
    """`QueueDelivery` by key; `first_offset` says where a group new to a queue begins."""

    def __init__(self, first_offset: Callable[[str, int], int]) -> None:
        self._queues: dict[QueueKey, QueueDelivery] = {}
        self._offers: dict[str, dict[str, set[int]]] = {}
        self._first_offset = first_offset
        self._due: list[tuple[int, QueueKey]] = []
        self._scheduled: dict[QueueKey, int] = {}

    def queue(self, key: QueueKey) -> QueueDelivery:
        """The state of `key`, made at first use."""
        state = self._queues.get(key)
        if state is None:
            state = self._queues[key] = QueueDelivery(key, self._first_offset(key.topic, key.queue_id))
        return state

    def known(self, key: QueueKey) -> QueueDelivery | None:
        """The state of `key` if the group has one."""
        return self._queues.get(key)

    def restore(self, key: QueueKey, cursor: int) -> QueueDelivery:
        """The state of `key` while replaying, with the cursor the journal says."""
        state = self._queues.get(key)
        if state is None:
            state = self._queues[key] = QueueDelivery(key, cursor)
        state.cursor = cursor
        return state

    def queues(self) -> Iterable[QueueDelivery]:
        return self._queues.values()

    def forget(self, key: QueueKey) -> None:
        """Removes the state of `key`; the group begins anew there."""
        self._queues.pop(key, None)
        self._scheduled.pop(key, None)
        self._offers.get(key.topic, _NOBODY).pop(key.group, None)

    def offer(self, topic: str, queue_id: int) -> None:
        """A message was appended to a queue: every group may find something there."""
        for offered in self._offers.get(topic, _NOBODY).values():
            offered.add(queue_id)

    def offered(self, group: str, topic: str, queues: int) -> set[int]:
        """The ids of the topic's queues where `group` may find something, of `queues` at the first use.

        Who has looked and found nothing, nor anything due, takes the id out.
        """
        groups = self._offers.setdefault(topic, {})
        offered = groups.get(group)
        if offered is None:
            offered = groups[group] = set(range(queues))
        return offered

    def schedule(self, state: QueueDelivery) -> None:
        """Remembers when `state` has something due; call it after every change of its messages."""
        due = state.next_due_ms()
        if due is None:
            return
        known = self._scheduled.get(state.key)
        if known is None or due < known:
            self._scheduled[state.key] = due
            heapq.heappush(self._due, (due, state.key))

    def next_due_ms(self) -> int | None:
        """When some queue next has a message due, ms since the epoch."""
        while self._due:
            due, key = self._due[0]
            if self._scheduled.get(key) == due:
                return due
            heapq.heappop(self._due)
        return None

    def pop_due(self, now_ms: int) -> list[QueueDelivery]:
        """Queues with a message due by now; the caller handles them and calls `schedule` again."""
        found = []
        while (due := self.next_due_ms()) is not None and due <= now_ms:
            _, key = heapq.heappop(self._due)
            del self._scheduled[key]
            self._offers.get(key.topic, _NOBODY).get(key.group, set()).add(key.queue_id)
            found.append(self._queues[key])
        return found


_NOBODY: dict[str, set[int]] = {}
