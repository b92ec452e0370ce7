"""Deletions and resets, written by one journal and read back from the log by another."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_gateway.delivery.queue_delivery import InFlight, QueueKey
from broker_gateway.delivery.table import DeliveryTable
from broker_gateway.journal.journal import Journal
from broker_gateway.journal.replay import records_from, replay
from broker_gateway.journal.snapshot import SnapshotPace
from broker_gateway.metadata.catalog import Catalog, Group, Topic
from broker_gateway.metadata.names import JOURNAL_TOPIC
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb
from store.log.record import Host, PendingRecord
from store.message_store import MessageStore
from store.opening import StoreOptions

KEY, OTHER = QueueKey("g", "t", 0), QueueKey("g", "u", 0)


class Opened:
    """A store with what its journal says. `pace`: when snapshots are begun."""

    pace = SnapshotPace(1 << 62)

    def __init__(self, root: Path) -> None:
        host = Host("127.0.0.1", 10911)
        self.store = MessageStore.open(
            root, StoreOptions(broker="b", cluster="c", store_host=host, segment_size=1 << 20)
        )
        self.catalog, self.deliveries = Catalog(), DeliveryTable(lambda topic, queue_id: 0)
        replay(self.store, self.catalog, self.deliveries)
        self.journal = Journal(
            self.store, self.catalog, self.deliveries, self.pace, lambda work: None, lambda work: None
        )
        self.catalog.listen(topic_changed=self.journal.topic, group_changed=self.journal.group)

    def put(self, topic: str, count: int) -> None:
        host = self.store.store_host.packed
        self.store.append([PendingRecord(topic, 0, b"x", b"", 1, host)] * count)

    def fly(self, key: QueueKey, *offsets: int) -> None:
        state = self.deliveries.queue(key)
        for offset in offsets:
            state.restore(InFlight(offset, 1, 1 << 60, 1, str(offset), "me"))
        state.restore_offsets(max(state.cursor, max(offsets) + 1), None)
        self.journal.moved(state)

    def close(self, *, snapshot: bool) -> None:
        self.journal.write()
        if snapshot:
            self.journal.write_snapshot()
        self.store.close()


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_reset(tmp_path: Path, snapshot: bool) -> None:
    before = Opened(tmp_path)
    before.put("t", 5)
    before.fly(KEY, 0, 1, 2)
    before.journal.reset({KEY: 1})
    before.deliveries.queue(KEY).reset(1)
    before.close(snapshot=snapshot)
    after = Opened(tmp_path)
    found = after.deliveries.known(KEY)
    assert found is not None
    assert (found.cursor, found.committed, len(found.in_flight)) == (1, 1, 0)
    after.close(snapshot=False)


@pytest.mark.parametrize("snapshot", [False, True])
@pytest.mark.parametrize("again", [False, True])
def test_a_deleted_topic(tmp_path: Path, snapshot: bool, again: bool) -> None:
    before = Opened(tmp_path)
    for topic in ("t", "u"):
        before.catalog.put_topic(Topic(topic, 1, 1))
        before.put(topic, 5)
    before.fly(KEY, 0, 1)
    before.fly(OTHER, 0)
    before.journal.removed([KEY], topic=Topic("t", 1, 1), first_offsets=[5])
    before.deliveries.forget(KEY)
    before.store.index.begin_at("t", 0, 5)
    before.catalog.restore_topic(None, "t")
    if again:
        before.catalog.put_topic(Topic("t", 1, 1))
        before.put("t", 2)
    before.close(snapshot=snapshot)
    for _ in range(2):
        after = Opened(tmp_path)
        assert after.deliveries.known(KEY) is None
        assert after.deliveries.known(OTHER) is not None
        assert (after.catalog.topic("t") is not None) is again
        assert after.catalog.topic("u") is not None
        index = after.store.index
        assert (index.min_offset("t", 0), index.max_offset("t", 0)) == (5, 7 if again else 5)
        assert index.min_offset("u", 0) == 0
        after.close(snapshot=True)


def test_a_deleted_topic_goes_on_higher_when_its_log_is_gone(tmp_path: Path) -> None:
    """The snapshot alone says where its queues ended."""
    before = Opened(tmp_path / "one")
    before.put("t", 5)
    before.store.index.begin_at("t", 0, 5)
    before.journal.write_snapshot()
    batch = pb.Batch.FromString(bytes(list(records_from(before.store, JOURNAL_TOPIC, 0, 0))[-1][1].body))
    before.close(snapshot=False)
    (change,) = [each for each in batch.topics if each.topic == "t"]
    assert change.deleted
    assert list(change.next_queue_offset) == list(change.first_queue_offset) == [5]


def test_a_deleted_group(tmp_path: Path) -> None:
    before = Opened(tmp_path)
    before.catalog.put_group(Group("g"))
    before.put("t", 5)
    before.fly(KEY, 0)
    before.fly(QueueKey("h", "t", 0), 0)
    before.journal.removed([KEY], group=Group("g"))
    before.catalog.restore_group(None, "g")
    before.deliveries.forget(KEY)
    before.close(snapshot=False)
    after = Opened(tmp_path)
    assert after.catalog.group("g") is None
    assert after.deliveries.known(KEY) is None
    assert after.deliveries.known(QueueKey("h", "t", 0)) is not None
    after.close(snapshot=False)


def refused(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_what_could_not_be_journaled_is_with_the_next_record_that_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one says how far the queue is: without the one that is lost, the message in between would be settled."""
    before = Opened(tmp_path)
    before.put("t", 5)
    with monkeypatch.context() as patched:
        patched.setattr(before.store, "append", refused)
        before.catalog.put_topic(Topic("lost", 2, 2))
        before.fly(KEY, 0)
        with pytest.raises(OSError, match="No space"):
            before.journal.write()
    before.fly(KEY, 1)
    with pytest.raises(OSError, match="No space"):
        before.journal.write()  # it is not tried at once
    monkeypatch.setattr("broker_gateway.journal.journal.monotonic_s", lambda: 1e12)
    before.fly(KEY, 2)
    before.journal.write()
    monkeypatch.undo()
    before.store.close()
    after = Opened(tmp_path)
    found = after.deliveries.known(KEY)
    assert found is not None
    assert (found.cursor, sorted(found.in_flight)) == (3, [0, 1, 2])
    assert after.catalog.topic("lost") == before.catalog.topic("lost")
    assert not any(each.cursor > 3 for each in after.deliveries.queues())
    after.close(snapshot=False)


def test_a_topic_with_many_states_is_deleted_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Opened(tmp_path)
    before.catalog.put_topic(Topic("t", 1, 1))
    keys = [QueueKey(f"g{number}", "t", 0) for number in range(2400)]
    for key in keys:
        before.journal.moved(before.deliveries.queue(key))
    before.journal.write()
    append, calls = before.store.append, 0

    def fails_later(records: list[PendingRecord]) -> object:
        nonlocal calls
        calls += 1
        if calls > 1:
            refused()
        return append(records)

    monkeypatch.setattr(before.store, "append", fails_later)
    before.journal.removed(keys, topic=Topic("t", 1, 1), first_offsets=[0])
    assert calls == 1
    monkeypatch.undo()
    before.store.close()
    after = Opened(tmp_path)
    assert list(after.deliveries.queues()) == []
    assert after.catalog.topic("t") is None
    after.close(snapshot=False)


def test_a_snapshot_in_the_turn_of_a_deletion_brings_no_group_back(tmp_path: Path) -> None:
    before = Opened(tmp_path)
    before.catalog.put_group(Group("g"))
    before.journal._pace = SnapshotPace(0)  # one is due whenever something is written
    for _ in range(1023):
        before.journal.moved(before.deliveries.queue(KEY))
    before.catalog.delete_group("g", lambda group: before.journal.removed([], group=group))
    before.journal.write_snapshot()
    before.store.close()
    after = Opened(tmp_path)
    assert after.catalog.group("g") is None
    after.close(snapshot=False)
