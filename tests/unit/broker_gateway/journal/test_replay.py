"""What a replay gives to whom, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_gateway.journal.journal import Journal
from broker_gateway.journal.snapshot import SnapshotPace
from broker_gateway.metadata.names import JOURNAL_TOPIC
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb
from lakebroker_testing.faults import FaultyStore
from store.log.record import PendingRecord
from tests.support.brokers.journal_counts import Counted
from tests.support.brokers.journaled import opened_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FaultyStore]:
    with opened_store(tmp_path) as store:
        yield store


def put(store: FaultyStore, topic: str, body: str) -> None:
    store.append([PendingRecord(topic, 0, body.encode(), b"", 1, store.store_host.packed)])


def test_records_come_in_the_order_of_the_log(store: FaultyStore) -> None:
    """Those of the journal and of the topics that a contributor reads; those of others, never."""
    before = Counted(store)
    for number in range(3):
        before.one.count("a", number)
        before.other.count("b", number)
        before.tick()
        put(store, "read", f"message {number}")
        put(store, "another", "never read")
    after = Counted(store, topic="read")
    assert after.one.calls == ["a=0", "a=1", "a=2", "replayed"]
    assert after.other.calls == [
        *("b=0", "message 0", "b=1", "message 1", "b=2", "message 2"),
        "replayed",
    ]


def test_it_begins_at_the_newest_snapshot_that_is_complete(store: FaultyStore) -> None:
    before = Counted(store)
    before.one.count("a", 1)
    before.tick()
    put(store, "read", "before it")
    before.journal.write_snapshot()
    put(store, "read", "behind it")
    before.one.count("a", 2)
    before.tick()
    after = Counted(store, topic="read")
    assert after.one.calls == ["a=1", "a=2", "replayed"]
    assert after.other.calls == ["behind it", "replayed"]


def test_a_contributor_may_start_before_the_snapshot(store: FaultyStore) -> None:
    """It gets what lies between alone."""
    before = Counted(store)
    before.other.count("b", 1)
    before.tick()
    start = store.max_offset
    before.other.count("b", 2)
    before.one.count("a", 2)
    before.tick()
    put(store, "read", "before the snapshot")
    before.journal.write_snapshot()
    after = Counted(store, topic="read", start=start)
    assert after.one.calls == ["a=2", "replayed"]
    assert after.other.calls == ["b=2", "before the snapshot", "b=2", "replayed"]


def test_nobody_has_to_contribute(store: FaultyStore) -> None:
    Counted(store).journal.write_snapshot()
    journal = Journal(store, SnapshotPace(1 << 62), lambda work: None, lambda work: None)
    assert journal.replay().records == 1
    journal.write_snapshot()


@pytest.mark.parametrize("who", ["one", "other"])
def test_a_contributor_that_cannot_apply_stops_the_start(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    counted = Counted(store)
    getattr(counted, who).count("a", 1)
    counted.tick()

    def fails(record: pb.Batch) -> None:
        raise ValueError("a defect")

    monkeypatch.setattr(getattr(counted, who), "apply", fails)
    with pytest.raises(ValueError, match="a defect"):
        counted.journal.replay()


def test_where_queue_offsets_jump_nothing_is_left_out(store: FaultyStore) -> None:
    """A new log was begun, and a crash came before its first snapshot: the one before counts, and all behind it."""
    before = Counted(store)
    before.journal.write_snapshot()
    before.one.count("a", 1)
    before.tick()
    put(store, "read", "before it")
    store.begin_log()
    for topic in (JOURNAL_TOPIC, "read"):
        store.index.leave_out(topic, 0, store.index.max_offset(topic, 0), 2_000_000)
    before.one.count("a", 2)
    before.tick()
    put(store, "read", "behind it")
    after = Counted(store, topic="read")
    assert after.one.calls == ["a=1", "a=2", "replayed"]
    assert after.other.calls == ["before it", "behind it", "replayed"]
