"""Where a receive searches: the queues of its topic that may have something for its group, and retry topics that a real
broker left."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence, Set

from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.delivery.queue_delivery import QueueKey
from broker_gateway.delivery.retry_topics import RetryQueues
from broker_gateway.messaging.checks import shown
from broker_gateway.messaging.core import Core
from broker_gateway.messaging.outcome import Reason, ServiceError
from broker_gateway.messaging.poll import Poll, check_may_receive
from broker_gateway.messaging.resources import Resources
from broker_gateway.metadata.catalog import Group
from broker_gateway.metadata.group_configuration import priority_factor
from broker_gateway.metadata.message_types import by_priority
from broker_gateway.metadata.names import RETRY_PREFIX
from broker_gateway.runtime.clock import now_ms

_LITE_TOPICS_AT_ONCE = 1024
"""That a search has in memory: a wildcard group may have all of a topic's to search."""


class SearchedQueues:
    """Of every poll, each time that it searches."""

    def __init__(self, core: Core, resources: Resources) -> None:
        self._store = core.store
        self._deliveries = core.deliveries
        self._resources = resources
        self._first = itertools.count()
        self._retry_queues: RetryQueues | None = None
        core.store.on_appended(self._appended)
        self._highest_first = True

    def configure(self, config: GatewayConfig) -> None:
        """Takes what may change while the broker runs."""
        self._highest_first = config.broker.priority_order_asc

    def _appended(self, topic: str, queue_ids: Set[int]) -> None:
        """What 4.x consumers had sent back to a real broker comes to its retry topic when its delay level is over."""
        if topic.startswith(RETRY_PREFIX) and self._retry_queues is not None:
            for queue_id in queue_ids:
                self._retry_queues.add(topic, queue_id)

    def begin(self, poll: Poll) -> list[int | str | QueueKey]:
        """Where there may be something, what comes first last. It begins with another queue each time; of a topic by priority
        with the most urgent, and ends with retry topics, as often as the group's `priority.factor` says.

        To be called behind `refresh`. TOO_MANY_REQUESTS when the group may not begin on so many.
        """
        if poll.lite is not None and poll.lite_line is not None:
            poll.seen, poll.lite_topics_left = poll.lite_line.events, len(poll.lite_line)
            if poll.lite_topics_left:
                poll.lite.searched_ms = now_ms()
            return self.go_on(poll)
        queues = poll.topic.read_queues
        if poll.group.first_used_by:
            more = queues - self._deliveries.queues_of(poll.group.name, poll.topic.name)
            if more > 0:
                self._resources.check_queues(poll.group, more)
        offered = self._deliveries.arrivals.queues_to_search(poll.group.name, poll.topic.name, queues)
        own = [queue_id for queue_id in offered if queue_id < queues]
        retries = self._retries(poll)
        poll.seen = self._arrivals(poll, retries)
        retried = [key for key in retries if key.queue_id in self._offered(key)] if retries else []
        if by_priority(poll.topic) and not poll.group.fifo and _by_urgency(poll.group):
            return [*retried, *sorted(own, reverse=not self._highest_first)]
        if len(own) > 1:
            first = next(self._first) % len(own)
            own = own[first:] + own[:first]
        return [*own, *retried]

    def go_on(self, poll: Poll) -> list[int | str | QueueKey]:
        """The next lite topics of a search that began with more of them than it may have in memory; none when it had all."""
        if poll.lite_line is None or not poll.lite_topics_left:
            return []
        found = poll.lite_line.some(min(poll.lite_topics_left, _LITE_TOPICS_AT_ONCE))
        poll.lite_topics_left = max(poll.lite_topics_left - _LITE_TOPICS_AT_ONCE, 0) if found else 0
        return [*reversed(found)]

    def missed(self, poll: Poll) -> bool:
        """Whether something was offered since the search began that ended with nothing."""
        if poll.lite_line is not None:
            return poll.seen != poll.lite_line.events
        return poll.seen != self._arrivals(poll, self._retries(poll))

    def refresh(self, poll: Poll) -> None:
        """Topic and group may have changed, or gone, since the poll searched last; then its search begins anew.
        TOPIC_NOT_FOUND, CONSUMER_GROUP_NOT_FOUND, FORBIDDEN; MESSAGE_NOT_FOUND for a lite consumer whose line is another now, so
        that it asks again."""
        if poll.lite is not None and poll.lite.line is not poll.lite_line:
            raise ServiceError(
                Reason.MESSAGE_NOT_FOUND, "what the client subscribes to has changed; receive again"
            )
        catalog = self._resources.catalog
        topic, group = catalog.topic(poll.topic.name), catalog.group(poll.group.name)
        if topic is None:
            raise ServiceError(Reason.TOPIC_NOT_FOUND, f"topic {shown(poll.topic.name)} was deleted")
        if group is None:
            raise ServiceError(
                Reason.CONSUMER_GROUP_NOT_FOUND, f"consumer group {shown(poll.group.name)} was deleted"
            )
        if topic is not poll.topic or group is not poll.group:
            check_may_receive(topic, group)
            poll.topic, poll.group = topic, group
            poll.left.clear()

    def _arrivals(self, poll: Poll, retries: Sequence[QueueKey]) -> int:
        arrivals, topic = self._deliveries.arrivals.last, poll.topic.name
        return (
            arrivals(topic) + sum(map(arrivals, {key.topic for key in retries}))
            if retries
            else arrivals(topic)
        )

    def _retries(self, poll: Poll) -> Sequence[QueueKey]:
        if self._retry_queues is None:  # the journal is replayed by now
            self._retry_queues = RetryQueues(self._store.index.queues())
        return self._retry_queues.of(poll.group.name, poll.topic.name)

    def _offered(self, key: QueueKey) -> set[int]:
        """The ids of the queues of a retry topic where the group may find something."""
        assert self._retry_queues is not None
        return self._deliveries.arrivals.queues_to_search(
            key.group, key.topic, self._retry_queues.count(key.topic)
        )


def _by_urgency(group: Group) -> bool:
    """Whether this search is one of those that look at queues by priority: drawn anew each time, as in `PopMessageProcessor`."""
    return random.randrange(100) < priority_factor(group)
