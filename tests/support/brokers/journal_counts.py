"""Two contributors that know nothing of a broker: numbers by name. Each owns one field of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from broker_gateway.journal.contributor import Contributor, Target
from broker_gateway.journal.journal import Journal
from broker_gateway.journal.snapshot import SnapshotPace
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb
from lakebroker_testing.faults import FaultyStore
from store.log.record import Record
from tests.support.brokers.journaled import NEVER, Turns


class Counts(Contributor):
    """Numbers, in `Batch.groups`. `calls` is what was asked of it; what stands in `failing` raises."""

    def __init__(self, journal: Journal, *, topic: str = "", start: int | None = None) -> None:
        self.numbers: dict[str, int] = {}
        self.calls: list[str] = []
        self.failing: dict[str, Exception] = {}
        self._journal = journal
        self._topic = topic
        self._start = start
        self._noted: list[str] = []
        self._untold: set[str] = set()

    def count(self, name: str, number: int) -> None:
        """Sets a number."""
        self._journal.make_room(1)
        self.numbers[name] = number
        self._noted.append(name)
        self._journal.noted(1)

    def fill(self, record: pb.Batch) -> Sequence[pb.Batch]:
        for name in self._noted:
            self._tell(record, name)
        self._met("fill")
        return ()

    def written(self) -> None:
        self._noted.clear()
        self._untold.clear()

    def lost(self) -> None:
        self._untold.update(self._noted)
        self._noted.clear()

    def snapshot(self, target: Target) -> Iterator[int]:
        for name in list(self.numbers):
            self._met(f"snapshot of {name}")
            self._tell(target.part, name)
            yield 1

    def retell(self, target: Target) -> Iterator[int]:
        for name in sorted(self._untold):
            self._met(f"again {name}")
            self._tell(target.part, name)
            yield 1

    def apply(self, record: pb.Batch) -> None:
        for name, number in self._told(record):
            self.calls.append(f"{name}={number}")
            self.numbers[name] = number

    def starts_at(self, snapshot_offset: int) -> int:
        return snapshot_offset if self._start is None else min(self._start, snapshot_offset)

    def reads(self, topic: str) -> bool:
        return topic == self._topic

    def apply_message(self, message: Record) -> None:
        self.calls.append(bytes(message.body).decode())

    def replayed(self) -> None:
        self.calls.append("replayed")

    def _met(self, what: str) -> None:
        self.calls.append(what)
        if what in self.failing:
            raise self.failing[what]

    def _tell(self, record: pb.Batch, name: str) -> None:
        record.groups.add(group=name, retry_max_times=self.numbers[name])

    def _told(self, record: pb.Batch) -> list[tuple[str, int]]:
        return [(each.group, each.retry_max_times) for each in record.groups]


class OtherCounts(Counts):
    """The same, in `Batch.topics`."""

    def _tell(self, record: pb.Batch, name: str) -> None:
        record.topics.add(topic=name, read_queues=self.numbers[name])

    def _told(self, record: pb.Batch) -> list[tuple[str, int]]:
        return [(each.topic, each.read_queues) for each in record.topics]


class Counted(Turns):
    """A journal with both, as a start finds them. `topic`, `start`: what the second reads, and from where."""

    def __init__(
        self, store: FaultyStore, pace: SnapshotPace = NEVER, *, topic: str = "", start: int | None = None
    ) -> None:
        super().__init__()
        self.store = store
        self.journal = Journal(store, pace, self.now.append, self.next.append)
        self.one, self.other = Counts(self.journal), OtherCounts(self.journal, topic=topic, start=start)
        self.journal.register(self.one)
        self.journal.register(self.other)
        self.journal.replay()

    def numbers(self) -> tuple[dict[str, int], dict[str, int]]:
        return self.one.numbers, self.other.numbers
