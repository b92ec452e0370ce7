"""What the tests of the journal share: a broker's journal over a real store, whose turns the test runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from broker_gateway.delivery.in_flight import InFlight
from broker_gateway.delivery.queue_delivery import QueueKey
from broker_gateway.delivery.table import DeliveryTable
from broker_gateway.journal.broker_journal import BrokerJournal, journal_at_rest
from broker_gateway.journal.replay import records_from
from broker_gateway.journal.snapshot import SnapshotPace
from broker_gateway.metadata.catalog import Catalog, Group, Topic
from broker_gateway.metadata.names import JOURNAL_TOPIC
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb
from lakebroker_testing.faults import FaultyStore
from store.log.record import Host, PendingRecord, encode_properties, tags_code
from store.message_store import MessageStore
from store.opening import StoreOptions

NEVER = SnapshotPace(1 << 62)
State = dict[QueueKey, tuple[int, int | None, dict[int, tuple[int, int]]]]
Told = tuple[State, dict[str, Topic], dict[str, Group]]


def no_room() -> OSError:
    return OSError(28, "No space left on device")


class Turns:
    """Turns of an event loop, run by hand."""

    def __init__(self) -> None:
        self.now: list[Callable[[], None]] = []
        self.next: list[Callable[[], None]] = []

    def tick(self) -> None:
        """Ends a tick: what was noted is journaled, and a part of the snapshot under way is written."""
        starting, self.next[:] = list(self.next), []
        for work in starting:
            work()
        ending, self.now[:] = list(self.now), []
        for work in ending:
            work()


class Journaled(Turns):
    """The journal of a broker, with what it keeps as a start finds it."""

    def __init__(self, store: FaultyStore, pace: SnapshotPace = NEVER) -> None:
        super().__init__()
        self.store = store
        self.catalog, self.deliveries = Catalog(), DeliveryTable(lambda topic, queue_id: 0)
        noted = BrokerJournal(store, self.catalog, self.deliveries, pace, self.now.append, self.next.append)
        self.journal, self.changes, self.minutes = noted.journal, noted.deliveries, noted.minutes
        self.erasures, self.taken_over = noted.erasures, noted.taken_over
        self.journal.replay()
        self.catalog.listen(topic_changed=noted.resources.topic, group_changed=noted.resources.group)

    def told(self) -> Told:
        """What there is, in memory."""
        return told(self.catalog, self.deliveries)

    def replayed(self) -> Told:
        """What a start would find."""
        catalog, deliveries = Catalog(), DeliveryTable(lambda topic, queue_id: 0)
        journal_at_rest(self.store, catalog, deliveries).journal.replay()
        return told(catalog, deliveries)

    def fly(self, key: QueueKey, count: int, **ids: str) -> None:
        """Hands out so many messages of a queue."""
        state = self.deliveries.queue(key)
        for _ in range(count):
            message = InFlight(state.cursor, 1, 1 << 50, 7, ids.get("message", "m"), ids.get("client", "c"))
            self.changes.events(
                state, pb.DELIVERED, [message], client_id="c", delivery_id=7, invisible_until_ms=1 << 50
            )
            state.restore(message)
            state.restore_offsets(message.queue_offset + 1, None)

    def fly_unseen(self, key: QueueKey, *offsets: int) -> None:
        """Has messages in flight, of which the journal hears no more than that the queue moved."""
        state = self.deliveries.queue(key)
        for offset in offsets:
            state.restore(InFlight(offset, 1, 1 << 60, 1, str(offset), "me"))
        state.restore_offsets(max(state.cursor, max(offsets) + 1), None)
        self.changes.offsets_changed(state)

    def put(self, topic: str, count: int) -> None:
        """Stores messages."""
        host = self.store.store_host.packed
        self.store.append([PendingRecord(topic, 0, b"x", b"", 1, host)] * count)


def told(catalog: Catalog, deliveries: DeliveryTable) -> Told:
    states = {
        state.key: (
            state.cursor,
            state.client_offset,
            {offset: (m.attempt, m.delivery_id) for offset, m in state.in_flight.items()},
        )
        for state in deliveries.queues()
    }
    return (
        states,
        {each.name: each for each in catalog.topics()},
        {each.name: each for each in catalog.groups()},
    )


@contextmanager
def opened_store(folder: Path) -> Iterator[FaultyStore]:
    host = Host("127.0.0.1", 10911)
    store = FaultyStore.open(
        folder, StoreOptions(broker="b", cluster="c", store_host=host, segment_size=1 << 22)
    )
    assert isinstance(store, FaultyStore)
    try:
        yield store
    finally:
        store.close()


@contextmanager
def opened(folder: Path, pace: SnapshotPace = NEVER) -> Iterator[Journaled]:
    with opened_store(folder) as store:
        yield Journaled(store, pace)


def append_body(store: MessageStore, body: bytes, tag: str = "events") -> None:
    """Appends a record to the journal as somebody else wrote it."""
    host, properties = store.store_host.packed, encode_properties({"TAGS": tag})
    store.append([PendingRecord(JOURNAL_TOPIC, 0, body, properties, 1, host, tags_code=tags_code(tag))])


def batches(store: MessageStore) -> list[pb.Batch]:
    """What the journal's records hold."""
    return [pb.Batch.FromString(bytes(each.body)) for _, each in records_from(store, JOURNAL_TOPIC, 0, 0)]


def parts(store: MessageStore) -> list[pb.Batch]:
    """Those of snapshots, and what was told again."""
    return [batch for batch in batches(store) if batch.HasField("snapshot")]
