"""Snapshots made in parts over many turns: whatever happens between the parts, a replay finds things as they are."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker_gateway.delivery.queue_delivery import InFlight, QueueKey
from broker_gateway.delivery.table import DeliveryTable
from broker_gateway.journal import journal as journal_module
from broker_gateway.journal import snapshot as snapshot_module
from broker_gateway.journal.journal import Journal
from broker_gateway.journal.replay import records_from, replay
from broker_gateway.journal.snapshot import SnapshotPace
from broker_gateway.metadata.catalog import Catalog, Group, Topic
from broker_gateway.metadata.names import JOURNAL_TOPIC
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb
from store.log.record import Host, PendingRecord
from store.message_store import MessageStore
from store.opening import StoreOptions

State = dict[QueueKey, tuple[int, int | None, dict[int, tuple[int, int]]]]


class Journaled:
    """A journal over a store, with the turns of an event loop run by hand."""

    def __init__(self, store: MessageStore, pace: SnapshotPace | None = None) -> None:
        self.store = store
        self.catalog, self.deliveries = Catalog(), DeliveryTable(lambda topic, queue_id: 0)
        self.now: list[object] = []
        self.next: list[object] = []
        self.journal = Journal(
            store,
            self.catalog,
            self.deliveries,
            pace or SnapshotPace(1 << 62),
            self.now.append,
            self.next.append,
        )
        self.catalog.listen(topic_changed=self.journal.topic, group_changed=self.journal.group)

    def turn(self) -> None:
        """Ends a turn: what was noted is journaled, and a part of the snapshot under way is written."""
        starting, self.next[:] = list(self.next), []
        for work in starting:
            work()  # type: ignore[operator]
        ending, self.now[:] = list(self.now), []
        for work in ending:
            work()  # type: ignore[operator]

    def told(self) -> tuple[State, dict[str, Topic], dict[str, Group]]:
        """What there is, in memory."""
        return told(self.catalog, self.deliveries)

    def replayed(self) -> tuple[State, dict[str, Topic], dict[str, Group]]:
        """What a start would find."""
        catalog, deliveries = Catalog(), DeliveryTable(lambda topic, queue_id: 0)
        replay(self.store, catalog, deliveries)
        return told(catalog, deliveries)

    def fly(self, key: QueueKey, count: int, **ids: str) -> None:
        state = self.deliveries.queue(key)
        for _ in range(count):
            message = InFlight(state.cursor, 1, 1 << 50, 7, ids.get("message", "m"), ids.get("client", "c"))
            self.journal.events(
                state, pb.DELIVERED, [message], client_id="c", delivery_id=7, invisible_until_ms=1 << 50
            )
            state.restore(message)
            state.restore_offsets(message.queue_offset + 1, None)


def told(catalog: Catalog, deliveries: DeliveryTable) -> tuple[State, dict[str, Topic], dict[str, Group]]:
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
def opened(folder: Path, pace: SnapshotPace | None = None) -> Iterator[Journaled]:
    host = Host("127.0.0.1", 10911)
    store = MessageStore.open(
        folder, StoreOptions(broker="b", cluster="c", store_host=host, segment_size=1 << 22)
    )
    try:
        yield Journaled(store, pace)
    finally:
        store.close()


KEYS = [QueueKey(group, topic, queue) for group in "gh" for topic in "tu" for queue in range(2)]
KEY = st.sampled_from(KEYS)
STEP = st.one_of(
    st.tuples(st.just("fly"), KEY, st.integers(1, 5)),
    st.tuples(st.just("settle"), KEY, st.integers(0, 7)),
    st.tuples(st.just("nack"), KEY, st.integers(0, 7)),
    st.tuples(st.just("commit"), KEY, st.integers(0, 7)),
    st.tuples(st.just("reset"), KEY, st.integers(0, 5)),
    st.tuples(st.just("forget"), KEY, st.just(0)),
    st.tuples(st.just("topic"), KEY, st.integers(1, 4)),
    st.tuples(st.just("group"), KEY, st.integers(1, 4)),
    st.tuples(st.just("delete"), KEY, st.just(0)),
    st.tuples(st.just("turn"), KEY, st.just(0)),
    st.tuples(st.just("snapshot"), KEY, st.just(0)),
    st.tuples(st.just("fail"), KEY, st.just(0)),
)


@contextmanager
def small_parts() -> Iterator[None]:
    """Parts of a piece or two, so that much goes on between them."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(snapshot_module.Snapshot.next_part, "__defaults__", (1,))
        patched.setattr(snapshot_module, "_IN_FLIGHT_A_PIECE", 2)
        patched.setattr(journal_module, "_LOST_AGAIN_S", 0.0)
        patched.setattr(journal_module, "_SNAPSHOT_AGAIN_S", 0.0)
        yield


class Refusing:
    """Makes the next append of a store fail."""

    def __init__(self, store: MessageStore) -> None:
        self._append = store.append
        self.armed = False
        store.append = self  # type: ignore[method-assign, assignment]

    def __call__(self, records: Sequence[PendingRecord]) -> object:
        if self.armed:
            self.armed = False
            raise OSError(28, "No space left on device")
        return self._append(records)


@given(st.lists(STEP, max_size=60))
@example(
    [
        ("fly", KEYS[0], 5),
        ("snapshot", KEYS[0], 0),
        ("turn", KEYS[0], 0),
        ("reset", KEYS[0], 0),
        ("fly", KEYS[0], 2),
    ]
)
@example([("fly", KEYS[0], 3), ("fail", KEYS[0], 0), ("turn", KEYS[0], 0), ("fly", KEYS[1], 1)])
@settings(max_examples=60, deadline=None)
def test_a_replay_finds_things_as_they_are(steps: list[tuple[str, QueueKey, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder, small_parts(), opened(Path(folder)) as journaled:
        refusing = Refusing(journaled.store)
        for step in steps:
            try:
                take(journaled, refusing, *step)
            except OSError:
                continue  # the change was not made
        refusing.armed = False
        while journaled.journal._snapshot is not None or journaled.next:
            journaled.turn()
        journaled.journal.moved(journaled.deliveries.queue(KEYS[0]))
        journaled.journal.write(at_once=True)
        assert journaled.replayed() == journaled.told()


def take(journaled: Journaled, refusing: Refusing, what: str, key: QueueKey, number: int) -> None:
    journal, deliveries = journaled.journal, journaled.deliveries
    state = deliveries.known(key)
    flying = None if state is None else list(state.in_flight.values())
    match what:
        case "fly":
            journaled.fly(key, number)
        case "settle" if state is not None and flying and number < len(flying):
            journal.events(state, pb.ACKED, [flying[number]], client_id="c")
            state.settle(flying[number])
        case "nack" if state is not None and flying and number < len(flying):
            before = flying[number]
            after = replace(
                before,
                attempt=before.attempt + 1,
                delivery_id=before.delivery_id + 1,
                invisible_until_ms=1 << 51,
            )
            journal.events(
                state, pb.NACKED, [after], delivery_id=after.delivery_id, invisible_until_ms=1 << 51
            )
            state.replace(before, after)
        case "commit" if state is not None:
            journal.moved(state)
            state.commit_offset(number)
        case "reset" if state is not None:
            journal.reset({key: number})
            state.reset(number)
        case "forget" if state is not None:
            journal.removed([key])
            deliveries.forget(key)
        case "topic":
            journaled.catalog.put_topic(Topic(key.topic, number, number))
        case "group":
            journaled.catalog.put_group(Group(key.group, number))
        case "delete" if journaled.catalog.group(key.group) is not None:
            journaled.catalog.delete_group(key.group, lambda group: journal.removed([], group=group))
        case "turn":
            journaled.turn()
        case "snapshot":
            journal.begin_snapshot()
        case "fail":
            refusing.armed = True


def parts(store: MessageStore) -> list[pb.Batch]:
    batches = [
        pb.Batch.FromString(bytes(record.body)) for _, record in records_from(store, JOURNAL_TOPIC, 0, 0)
    ]
    return [batch for batch in batches if batch.HasField("snapshot")]


def test_a_snapshot_is_written_a_part_a_turn(tmp_path: Path) -> None:
    with opened(tmp_path) as journaled:
        for number in range(3000):
            journaled.deliveries.queue(QueueKey(f"g{number}", "t", 0))
        journaled.journal.begin_snapshot()
        turns = 0
        while journaled.journal._snapshot is not None:
            before = len(parts(journaled.store))
            journaled.turn()
            assert len(parts(journaled.store)) == before + 1
            turns += 1
        assert turns > 10
        written = parts(journaled.store)
        assert [part.snapshot.parts for part in written] == [0] * (turns - 1) + [turns]
        assert sum(len(part.queues) for part in written) == 3000
        assert journaled.replayed() == journaled.told()


def test_an_unfinished_snapshot_does_not_count(tmp_path: Path) -> None:
    with opened(tmp_path) as journaled:
        for number in range(1000):
            journaled.fly(QueueKey(f"g{number}", "t", 0), 1)
        journaled.turn()
        journaled.journal.begin_snapshot()
        journaled.turn()
        assert 0 < len(parts(journaled.store)) < 3
        assert journaled.replayed() == journaled.told()


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("a defect")])
def test_a_snapshot_that_fails_is_tried_again_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    now = 1000.0
    monkeypatch.setattr(journal_module, "monotonic_s", lambda: now)

    def fails(self: object, units: int = 0) -> pb.Batch:
        raise error

    with opened(tmp_path) as journaled:
        with monkeypatch.context() as patched:
            patched.setattr(snapshot_module.Snapshot, "next_part", fails)
            for wait in (10, 20, 40):
                journaled.journal.begin_snapshot()
                journaled.turn()
                assert journaled.journal._snapshot is None
                journaled.journal.begin_snapshot()
                assert journaled.journal._snapshot is None, "not at once"
                now += wait
        journaled.journal.begin_snapshot()
        journaled.turn()
        assert [part.snapshot.parts for part in parts(journaled.store)] == [1]


def test_statistics_of_many_topics_fill_several_records(tmp_path: Path) -> None:
    with opened(tmp_path) as journaled:
        journaled.journal.stats(
            pb.MinuteStats(topic=f"t{n}" + "x" * 200, minute_ms=60_000) for n in range(5000)
        )
        journaled.turn()
        records = [record for _, record in records_from(journaled.store, JOURNAL_TOPIC, 0, 0)]
        batches = [pb.Batch.FromString(bytes(record.body)) for record in records]
        assert sum(len(batch.stats) for batch in batches) == 5000
        assert max(len(record.body) for record in records) < 1 << 19


def test_records_stay_small_whatever_ids_are(tmp_path: Path) -> None:
    with opened(tmp_path) as journaled:
        journaled.fly(QueueKey("g", "t", 0), 900, message="\U0001f600" * 255, client="\U0001f600" * 255)
        journaled.journal.write_snapshot()
        assert max(part.ByteSize() for part in parts(journaled.store)) < 1 << 19
        assert journaled.replayed() == journaled.told()


@pytest.mark.parametrize(
    ("grown", "last", "due"),
    [(63, 0, False), (64, 0, True), (64, 4, False), (79, 4, False), (80, 4, True)],
)
def test_snapshots_take_a_share_of_the_log(grown: int, last: int, due: bool) -> None:
    assert SnapshotPace(64, 5).due(grown, last) is due


def test_a_snapshot_that_stands_together_is_read(tmp_path: Path) -> None:
    """As it was written before: all parts in one append, changes that were pending in front of them."""
    host = Host("127.0.0.1", 10911).packed
    with opened(tmp_path) as journaled:
        offset = journaled.store.max_offset
        pending = pb.Batch(version=1)
        change = pending.queues.add(consumer_group="g", topic="t", queue_id=0, cursor=6)
        change.events.add(kind=pb.ACKED, queue_offset=[0], attempt=[1], message_id=["m"])
        batches = [pending]
        for number, offsets in enumerate(([1, 2], [4])):
            part = pb.Batch(
                version=1, snapshot=pb.SnapshotPart(snapshot_id="s", part=number, parts=2, log_offset=offset)
            )
            columns = {"attempt": [1] * len(offsets), "invisible_until_ms": [9] * len(offsets)}
            ids = {
                "message_id": ["m"] * len(offsets),
                "client_id": ["c"] * len(offsets),
                "delivery_id": [3] * len(offsets),
            }
            flying = pb.InFlight(queue_offset=offsets, **columns, **ids)
            part.queues.add(consumer_group="g", topic="t", queue_id=0, cursor=6, in_flight=flying)
            batches.append(part)
        for batch in batches:
            tag = "snapshot" if batch.HasField("snapshot") else "events"
            code, properties = journal_module._TAGS[tag]
            body = batch.SerializeToString()
            journaled.store.append(
                [PendingRecord(JOURNAL_TOPIC, 0, body, properties, 1, host, tags_code=code)]
            )
        states, _, _ = journaled.replayed()
        assert states == {QueueKey("g", "t", 0): (6, None, {1: (1, 3), 2: (1, 3), 4: (1, 3)})}
