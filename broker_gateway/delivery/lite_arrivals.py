"""Which lite topics may have something for a lite consumer: those that got a message, or got one back, since it searched.

A lite consumer subscribes to up to thousands of lite topics, each a queue of its own (`store/lite_queues.py`). It searches
only those that are `ready` in its line: so an append costs what has subscribed to that lite topic, and a search what came since
the last. A lite topic stays ready until a search finds that it has nothing more, or all that it has is with clients.

The consumers of a wildcard group receive from every lite topic of their topic. They share one line, so an append costs one step for
each such group, however many clients it has; the line has at most as many entries as the topic has lite topics. No IO, no clock.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from broker_gateway.delivery.queue_delivery import QueueKey
from store.lite_queues import LiteTopic, lite_topic_of


class LiteLine:
    """Where receives wait (`name`), and the queues of lite topics that may have something for them.

    `ready`: those queues, the next to be searched first. `events`: grows with everything that is offered.
    """

    __slots__ = ("_rest", "events", "name", "parent", "ready")

    def __init__(self, name: str, parent: str, rest: Iterable[str] = ()) -> None:
        self.name = name
        self.parent = parent
        self.ready: dict[str, None] = {}
        self.events = 0
        self._rest = dict.fromkeys(rest)
        """Names of lite topics that are ready too, and are no entries yet."""

    def __len__(self) -> int:
        return len(self.ready) + len(self._rest)

    def some(self, most: int) -> list[str]:
        """At most so many queues to search next. Where there are more, these go to the end of the line."""
        ready, rest = self.ready, self._rest
        while rest and len(ready) < most:
            ready[LiteTopic(self.parent, rest.popitem()[0]).queue] = None
        if len(ready) <= most:
            return list(ready)
        found = list(itertools.islice(ready, most))
        for queue in found:
            del ready[queue]
            ready[queue] = None
        return found

    def drop(self, lite: LiteTopic) -> None:
        """It is not to be searched: it is no more."""
        self.ready.pop(lite.queue, None)
        self._rest.pop(lite.name, None)


@dataclass(slots=True, eq=False)
class LiteSubscriber:
    """A client of a group, with the queues of the lite topics of `parent` that it subscribes to.

    `line` is what its receives search: its own, or that of all clients of its wildcard group. `updated_ms`: when it last said
    what it subscribes to; `searched_ms`: when a receive of it last had lite topics to search, 0: never.
    """

    client_id: str
    group: str
    parent: str
    own_line: LiteLine
    queues: dict[str, None] = field(default_factory=dict)
    shared_line: LiteLine | None = None
    updated_ms: int = 0
    searched_ms: int = 0

    @property
    def line(self) -> LiteLine:
        return self.own_line if self.shared_line is None else self.shared_line

    @property
    def subscribes(self) -> bool:
        """Whether it receives from any lite topic."""
        return bool(self.queues) or self.shared_line is not None

    def receives_from(self, lite: LiteTopic) -> bool:
        """Whether it receives from a lite topic, which need not be there."""
        return lite.queue in self.queues or (self.shared_line is not None and lite.parent == self.parent)


class _Wildcard:
    """A group that receives from every lite topic of a topic: its clients, and the line that they share."""

    __slots__ = ("line", "members")

    def __init__(self, line: LiteLine) -> None:
        self.line = line
        self.members: dict[LiteSubscriber, None] = {}


class LiteArrivals:
    """Subscribers by lite topic. `wake` is called with the line and group of one that was offered something."""

    def __init__(self, wake: Callable[[str, str], None]) -> None:
        self._wake = wake
        self._subscribers: dict[str, dict[str, dict[LiteSubscriber, None]]] = {}
        """By queue and group."""
        self._wildcards: dict[str, dict[str, _Wildcard]] = {}
        """By topic and group."""
        self.subscriptions = 0
        """Of all subscribers; one that receives from every lite topic counts once."""

    def subscribers(self, queue: str, group: str | None = None) -> list[LiteSubscriber]:
        """Those that named a lite topic, of one group or all."""
        groups = self._subscribers.get(queue, {})
        found = groups.values() if group is None else (groups.get(group, {}),)
        return [each for some in found for each in some]

    def wildcard_groups(self, parent: str) -> list[str]:
        """Groups with clients that receive from every lite topic of a topic."""
        return list(self._wildcards.get(parent, ()))

    def subscribe(self, subscriber: LiteSubscriber, queue: str, there: bool) -> None:
        """It may receive from a lite topic, which has something in the log if `there`; nothing when it does already."""
        if queue in subscriber.queues:
            return
        subscriber.queues[queue] = None
        groups = self._subscribers.setdefault(queue, {})
        groups.setdefault(subscriber.group, {})[subscriber] = None
        self.subscriptions += 1
        if there:
            self._offer(subscriber.own_line, subscriber.group, queue)

    def unsubscribe(self, subscriber: LiteSubscriber, queue: str) -> None:
        """It receives from a lite topic no more."""
        if queue not in subscriber.queues:
            return
        del subscriber.queues[queue]
        subscriber.own_line.ready.pop(queue, None)
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
        self._leave(subscriber)

    def subscribe_to_all(self, subscriber: LiteSubscriber, names: Iterable[str]) -> None:
        """It may receive from every lite topic of its topic, of which these are there; nothing when it does already."""
        if subscriber.shared_line is not None:
            return
        groups = self._wildcards.setdefault(subscriber.parent, {})
        wildcard = groups.get(subscriber.group)
        if wildcard is None:
            line = LiteLine(f"%LITE%{subscriber.parent}", subscriber.parent, names)
            wildcard = groups[subscriber.group] = _Wildcard(line)
        wildcard.members[subscriber] = None
        subscriber.shared_line = wildcard.line
        self.subscriptions += 1
        self._wake(subscriber.own_line.name, subscriber.group)  # what waits there is in the wrong line now

    def _leave(self, subscriber: LiteSubscriber) -> None:
        line = subscriber.shared_line
        if line is None:
            return
        subscriber.shared_line = None
        self.subscriptions -= 1
        groups = self._wildcards[subscriber.parent]
        members = groups[subscriber.group].members
        del members[subscriber]
        if not members:
            del groups[subscriber.group]
            if not groups:
                del self._wildcards[subscriber.parent]
        self._wake(line.name, subscriber.group)

    def offered(self, queue: str, group: str | None = None) -> None:
        """A lite topic got a message or, for one group, has some of its again."""
        for subscriber in self.subscribers(queue, group):
            self._offer(subscriber.own_line, subscriber.group, queue)
        for name, wildcard in self._wildcards_of(queue, group):
            self._offer(wildcard.line, name, queue)

    def nothing_left(self, key: QueueKey) -> None:
        """A group has searched a lite topic and found nothing more, nor anything due."""
        for subscriber in self.subscribers(key.topic, key.group):
            subscriber.own_line.ready.pop(key.topic, None)
        for _, wildcard in self._wildcards_of(key.topic, key.group):
            wildcard.line.ready.pop(key.topic, None)

    def deleted(self, queue: str) -> None:
        """A lite topic is no more: nobody is to search it. Those that named it have unsubscribed."""
        lite = lite_topic_of(queue)
        if lite is None:
            return
        for _, wildcard in self._wildcards_of(queue, None):
            wildcard.line.drop(lite)

    def _wildcards_of(self, queue: str, group: str | None) -> list[tuple[str, _Wildcard]]:
        lite = lite_topic_of(queue) if self._wildcards else None
        groups = None if lite is None else self._wildcards.get(lite.parent)
        if not groups:
            return []
        if group is None:
            return list(groups.items())
        return [(group, groups[group])] if group in groups else []

    def _offer(self, line: LiteLine, group: str, queue: str) -> None:
        line.ready[queue] = None
        line.events += 1
        self._wake(line.name, group)
