"""What all that calls do works on: the log, what is known, what is in flight, the journal, and the tick."""

from __future__ import annotations

from dataclasses import dataclass

from broker_gateway.delivery.queue_delivery import QueueDelivery, QueueKey
from broker_gateway.delivery.retry_topics import subscribed_topic
from broker_gateway.delivery.table import DeliveryTable
from broker_gateway.delivery.wakeups import Wakeups
from broker_gateway.journal.deliveries import DeliveryJournal
from broker_gateway.journal.erasures import Erasures
from broker_gateway.journal.journal import Journal
from broker_gateway.journal.minute_stats import MinuteStatistics
from broker_gateway.journal.snapshot import SnapshotPace
from broker_gateway.journal.taken_over import TakenOver
from broker_gateway.messaging.poll import Poll
from broker_gateway.metadata.catalog import Catalog
from broker_gateway.observability.metrics import Metrics
from broker_gateway.runtime.tick import Tick
from store.message_store import MessageStore


@dataclass(frozen=True, slots=True)
class Core:
    """One broker's."""

    store: MessageStore
    catalog: Catalog
    deliveries: DeliveryTable
    journal: Journal
    changes: DeliveryJournal
    """What happens to deliveries, in the journal."""
    taken_over: TakenOver
    erasures: Erasures
    wakeups: Wakeups[Poll]
    tick: Tick
    pace: SnapshotPace
    """Of the journal's snapshots, and of other files that say how things are."""
    metrics: Metrics
    minutes: MinuteStatistics

    def made_room(self, state: QueueDelivery) -> None:
        """Messages of a queue were settled, or are with no client: those are served who were turned away from it since it was
        full, or since another message's turn was before theirs."""
        if state.freed():
            self.came_back(state.key)

    def came_back(self, key: QueueKey) -> None:
        """A group may have messages of a queue again: those who wait for some are served."""
        self.deliveries.arrivals.came_back(key)
        self.wakeups.due(subscribed_topic(key), key.group)
