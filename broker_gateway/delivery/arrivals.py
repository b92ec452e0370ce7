"""Where a consumer group may find something: what of a topic was appended, or came back, since it searched last.

An append is noted once, however many groups search the topic: its queue goes to the end of a line, under the next
number of one count. A group has the number up to which it has compared, and the queues that it has not seen the end
of. So an append costs the same for one group and for thousands, and a search costs what came since the last one.

Nothing is lost between a search and the wait behind it. `last` changes with everything offered, and a receive that searched
for several ticks compares it before it waits (`Taker.missed`). A waiting receive is woken by `Wakeups.arrived`, which
also notes the append here.
"""

from __future__ import annotations

from broker_gateway.delivery.lite_arrivals import LiteArrivals
from broker_gateway.delivery.queue_delivery import QueueKey
from store.lite_queues import PREFIX


class _Searched:
    """What one group searches of a topic: `queues` may hold something for it, after all that came up to `compared`."""

    __slots__ = ("compared", "queues")

    def __init__(self, queues: set[int], compared: int) -> None:
        self.queues = queues
        self.compared = compared


class _Topic:
    """`last` number of anything offered; `appended`: of each queue's last append, ascending."""

    __slots__ = ("appended", "groups", "last")

    def __init__(self, last: int) -> None:
        self.last = last
        self.appended: dict[int, int] = {}
        self.groups: dict[str, _Searched] = {}

    def queues_of(self, searched: _Searched) -> set[int]:
        """The queues a group is to search, with what was appended since it compared."""
        if searched.compared != self.last:
            for queue_id, number in reversed(self.appended.items()):
                if number <= searched.compared:
                    break
                searched.queues.add(queue_id)
            searched.compared = self.last
        return searched.queues


class Arrivals:
    """Topics that some group has searched; of others nothing is kept, since a first search is at every queue."""

    def __init__(self) -> None:
        self._topics: dict[str, _Topic] = {}
        self._count = 0
        self.lite: LiteArrivals | None = None
        """Told of what comes to queues of lite topics: nobody searches those as queues of a topic."""

    def appended(self, topic: str, queue_id: int) -> None:
        """A message was appended to a queue: every group may find something there."""
        known = self._topics.get(topic)
        if known is None:
            if self.lite is not None and topic.startswith(PREFIX):
                self.lite.offered(topic)
            return
        self._count += 1
        known.last = self._count
        known.appended.pop(queue_id, None)  # it goes to the end
        known.appended[queue_id] = self._count

    def came_back(self, key: QueueKey) -> None:
        """Something of a queue can be had again by one group."""
        known = self._topics.get(key.topic)
        if known is None:
            if self.lite is not None and key.topic.startswith(PREFIX):
                self.lite.offered(key.topic, key.group)
            return
        self._count += 1
        known.last = self._count
        searched = known.groups.get(key.group)
        if searched is not None:  # else its first search is at every queue
            searched.queues.add(key.queue_id)

    def last(self, topic: str) -> int:
        """A number that grows whenever something of a topic is offered."""
        known = self._topics.get(topic)
        return 0 if known is None else known.last

    def queues_to_search(self, group: str, topic: str, queues: int) -> set[int]:
        """The ids of the topic's queues where `group` may find something, of `queues` at its first search.

        Who has searched and found nothing says so (`nothing_left`).
        """
        known = self._topics.get(topic)
        if known is None:
            self._count += 1
            known = self._topics[topic] = _Topic(self._count)
        searched = known.groups.get(group)
        if searched is None:
            searched = known.groups[group] = _Searched(set(range(queues)), known.last)
        return known.queues_of(searched)

    def nothing_left(self, key: QueueKey) -> None:
        """A group has searched a queue and found nothing more, nor anything due."""
        known = self._topics.get(key.topic)
        if known is None and self.lite is not None:
            self.lite.nothing_left(key)
        searched = None if known is None else known.groups.get(key.group)
        if known is not None and searched is not None:
            known.queues_of(searched).discard(key.queue_id)

    def queues_changed(self, topic: str) -> None:
        """A topic has another number of queues: every group searches all of them."""
        known = self._topics.get(topic)
        if known is not None:
            self._count += 1
            self._topics[topic] = _Topic(self._count)

    def forget(self, group: str, topic: str) -> None:
        """A group begins anew on a topic."""
        known = self._topics.get(topic)
        if known is None:
            return
        known.groups.pop(group, None)
        if not known.groups:
            del self._topics[topic]
