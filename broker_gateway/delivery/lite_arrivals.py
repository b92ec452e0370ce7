"""Which lite topics may have something for a lite consumer: those that got a message, or got one back, since it searched.

A lite consumer subscribes to up to thousands of lite topics, each a queue of its own (`store/lite_queues.py`). It searches
only those that are `ready`: so an append costs what has subscribed to that lite topic, and a search what came since the last.
A lite topic stays ready until a search finds that it has nothing more, or all that it has is with clients. No IO, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from broker_gateway.delivery.queue_delivery import QueueKey


@dataclass(slots=True, eq=False)
class LiteSubscriber:
    """A client of a group, with the queues of the lite topics of `parent` that it subscribes to. Receives of it wait in `line`.

    `events`: grows with everything that is offered. `updated_ms`: when it last said what it subscribes to.
    """

    group: str
    parent: str
    line: str
    queues: dict[str, None] = field(default_factory=dict)
    ready: dict[str, None] = field(default_factory=dict)
    events: int = 0
    updated_ms: int = 0


class LiteArrivals:
    """Subscribers by lite topic. `wake` is called with the line and group of one that was offered something."""

    def __init__(self, wake: Callable[[str, str], None]) -> None:
        self._wake = wake
        self._subscribers: dict[str, dict[str, dict[LiteSubscriber, None]]] = {}
        """By queue and group."""
        self.subscriptions = 0
        """Of all subscribers."""

    def subscribers(self, queue: str, group: str | None = None) -> list[LiteSubscriber]:
        """Those of a lite topic, of one group or all."""
        groups = self._subscribers.get(queue, {})
        found = groups.values() if group is None else (groups.get(group, {}),)
        return [each for some in found for each in some]

    def subscribe(self, subscriber: LiteSubscriber, queue: str, there: bool) -> None:
        """It may receive from a lite topic, which has something in the log if `there`; nothing when it does already."""
        if queue in subscriber.queues:
            return
        subscriber.queues[queue] = None
        groups = self._subscribers.setdefault(queue, {})
        groups.setdefault(subscriber.group, {})[subscriber] = None
        self.subscriptions += 1
        if there:
            self._offer(subscriber, queue)

    def unsubscribe(self, subscriber: LiteSubscriber, queue: str) -> None:
        """It receives from a lite topic no more."""
        if queue not in subscriber.queues:
            return
        del subscriber.queues[queue]
        subscriber.ready.pop(queue, None)
        self.subscriptions -= 1
        groups = self._subscribers[queue]
        del groups[subscriber.group][subscriber]
        if not groups[subscriber.group]:
            del groups[subscriber.group]
            if not groups:
                del self._subscribers[queue]

    def unsubscribe_all(self, subscriber: LiteSubscriber) -> None:
        for queue in list(subscriber.queues):
            self.unsubscribe(subscriber, queue)

    def offered(self, queue: str, group: str | None = None) -> None:
        """A lite topic got a message or, for one group, has some of its again."""
        for subscriber in self.subscribers(queue, group):
            self._offer(subscriber, queue)

    def nothing_left(self, key: QueueKey) -> None:
        """A group has searched a lite topic and found nothing more, nor anything due."""
        self._pass_by(self.subscribers(key.topic, key.group), key.topic)

    def _offer(self, subscriber: LiteSubscriber, queue: str) -> None:
        subscriber.ready[queue] = None
        subscriber.events += 1
        self._wake(subscriber.line, subscriber.group)

    @staticmethod
    def _pass_by(subscribers: Iterable[LiteSubscriber], queue: str) -> None:
        for subscriber in subscribers:
            subscriber.ready.pop(queue, None)
