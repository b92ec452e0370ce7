"""Waiting receives, and who is served when something arrives.

There is a line of waiters for each topic and group. A call of the topic or group has its lines served:

| what | calls |
|---|---|
| an append, a change of the topic | the topic |
| a due redelivery | the topic and group |
| a change of the group | the group |

The lines called in one tick of the event loop are served in that tick, each until a waiter finds nothing. Work is
O(waiters served), so many in a tick. `schedule` gets a function to call later, when there is something to serve.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import structlog

log = structlog.get_logger(__name__)
T = TypeVar("T")
_SERVED_AT_ONCE = 256


class Wakeups(Generic[T]):
    """Lines of waiters; `serve(waiter)` tries to satisfy one and says whether it did.

    `offer(topic, queue_id)` is told of every queue that got a message, waiters or not.
    """

    def __init__(
        self, schedule: Callable[[Callable[[], None]], None], offer: Callable[[str, int], None]
    ) -> None:
        self._schedule = schedule
        self._offer = offer
        self._lines: dict[str, dict[str, OrderedDict[int, T]]] = {}
        self._topics_of: dict[str, set[str]] = {}
        """On which topics there is a line of a group."""
        self._named: dict[tuple[str, str], None] = {}
        self._scheduled = False
        self.waiting = 0
        self._serve: Callable[[T], bool] | None = None

    def serve_by(self, serve: Callable[[T], bool]) -> None:
        """Who serves a waiter from now on; before, none stands in a line."""
        self._serve = serve

    def enter(self, topic: str, group: str, waiter: T) -> None:
        """Puts a waiter at the end of its line."""
        groups = self._lines.setdefault(topic, {})
        line = groups.get(group)
        if line is None:
            line = groups[group] = OrderedDict()
            self._topics_of.setdefault(group, set()).add(topic)
        line[id(waiter)] = waiter
        self.waiting += 1

    def leave(self, topic: str, group: str, waiter: T) -> None:
        """Takes a waiter out of its line if it stands there."""
        groups = self._lines.get(topic)
        line = groups.get(group) if groups is not None else None
        if groups is None or line is None or line.pop(id(waiter), None) is None:
            return
        self.waiting -= 1
        if not line:
            del groups[group]
            if not groups:
                del self._lines[topic]
            topics = self._topics_of[group]
            topics.discard(topic)
            if not topics:
                del self._topics_of[group]

    def arrived(self, topic: str, queue_ids: Iterable[int]) -> None:
        """Messages were appended to these queues of `topic`: every group that waits there is served."""
        for queue_id in queue_ids:
            self._offer(topic, queue_id)
        self.topic_changed(topic)

    def topic_changed(self, topic: str) -> None:
        """Every group that waits there is served: there may be something, or nothing any more."""
        for group in self._lines.get(topic, ()):
            self.due(topic, group)

    def group_changed(self, group: str) -> None:
        """Those who wait for the group are served: they may not wait any longer."""
        for topic in self._topics_of.get(group, ()):
            self.due(topic, group)

    def due(self, topic: str, group: str) -> None:
        """Something is available to `group` on `topic`."""
        if group not in self._lines.get(topic, ()):
            return
        self._named[(topic, group)] = None
        if not self._scheduled:
            self._scheduled = True
            self._schedule(self.serve_named)

    def all(self) -> Iterable[T]:
        """Every waiter."""
        return [w for groups in self._lines.values() for line in groups.values() for w in line.values()]

    def serve_named(self) -> None:
        """Serves the lines that were named, so many waiters in all; the others next time."""
        named, self._named = self._named, {}
        self._scheduled = False
        left = _SERVED_AT_ONCE
        for topic, group in named:
            while left > 0 and (line := self._lines.get(topic, {}).get(group)) is not None:
                left -= 1
                waiter = next(iter(line.values()))
                if not self._served(topic, group, waiter):
                    if id(waiter) in line:  # else it went on its own
                        line.move_to_end(id(waiter))
                    break
                self.leave(topic, group, waiter)
            if left <= 0:
                self.due(topic, group)

    def _served(self, topic: str, group: str, waiter: T) -> bool:
        """One that cannot be served leaves its line: those behind it, and other lines, go on."""
        try:
            return self._serve is not None and self._serve(waiter)
        except Exception:
            log.exception("a waiting receive could not be served", topic=topic, group=group)
            return True
