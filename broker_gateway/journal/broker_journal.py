"""The journal of a broker with all that stands in it: the one place where contributors are registered."""

from __future__ import annotations

from collections.abc import Callable

from broker_gateway.delivery.table import DeliveryTable
from broker_gateway.journal.deliveries import DeliveryJournal
from broker_gateway.journal.erasures import Erasures
from broker_gateway.journal.journal import Journal
from broker_gateway.journal.minute_stats import MinuteJournal
from broker_gateway.journal.resources import ResourceJournal
from broker_gateway.journal.snapshot import SnapshotPace
from broker_gateway.journal.taken_over import TakenOver
from broker_gateway.metadata.catalog import Catalog
from store.message_store import MessageStore


class BrokerJournal:
    """`journal` and its contributors, in the order of a record."""

    def __init__(
        self,
        store: MessageStore,
        catalog: Catalog,
        deliveries: DeliveryTable,
        pace: SnapshotPace,
        schedule: Callable[[Callable[[], None]], None],
        next_tick: Callable[[Callable[[], None]], object],
    ) -> None:
        """See `Journal` for what follows `deliveries`."""
        self.journal = Journal(store, pace, schedule, next_tick)
        self.resources = ResourceJournal(self.journal, catalog, store.index)
        self.erasures = Erasures(store)
        self.deliveries = DeliveryJournal(self.journal, deliveries, store.index, self.erasures.are_any)
        self.minutes = MinuteJournal(self.journal)
        self.taken_over = TakenOver()
        for each in (self.resources, self.deliveries, self.minutes, self.taken_over, self.erasures):
            self.journal.register(each)


def journal_at_rest(store: MessageStore, catalog: Catalog, deliveries: DeliveryTable) -> BrokerJournal:
    """That of a store without a broker: it has no ticks, and nothing is written but when somebody says so."""
    return BrokerJournal(
        store, catalog, deliveries, SnapshotPace(1 << 62), lambda work: None, lambda work: None
    )
