"""Topics and groups, written by one journal and read back from the log by another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from broker_gateway.delivery.queue_delivery import QueueKey
from broker_gateway.journal.resources import group_deleted, topic_deleted
from broker_gateway.journal.snapshot import SnapshotPace
from broker_gateway.metadata.catalog import GROUPS_FILE, TOPICS_FILE, Group, Topic
from broker_gateway.metadata.kept_fields import MOST_BYTES
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb
from tests.support.brokers.journaled import Journaled, batches, no_room, opened, parts

KEY, OTHER = QueueKey("g", "t", 0), QueueKey("g", "u", 0)
TOPIC = Topic("t", 3, 2, 4, ("FIFO", "NORMAL"), 1000, True, '{"topicSysFlag":1}')
GROUP = Group("g", 5, True, False, 2000, "10.0.0.1", '{"brokerId":7}')


def end(journaled: Journaled, *, snapshot: bool) -> None:
    journaled.journal.write()
    if snapshot:
        journaled.journal.write_snapshot()


@pytest.mark.parametrize("snapshot", [False, True])
def test_all_of_a_topic_and_a_group(tmp_path: Path, snapshot: bool) -> None:
    with opened(tmp_path) as before:
        before.catalog.put_topic(TOPIC)
        before.catalog.put_group(GROUP)
        end(before, snapshot=snapshot)
    with opened(tmp_path) as after:
        assert list(after.catalog.topics()) == [TOPIC]
        assert list(after.catalog.groups()) == [GROUP]
        assert after.catalog.versions == before.catalog.versions
        assert set(after.catalog.versions) == {TOPICS_FILE, GROUPS_FILE}


@pytest.mark.parametrize("snapshot", [False, True])
@pytest.mark.parametrize("again", [False, True])
def test_a_deleted_topic(tmp_path: Path, snapshot: bool, again: bool) -> None:
    with opened(tmp_path) as before:
        for topic in ("t", "u"):
            before.catalog.put_topic(Topic(topic, 1, 1))
            before.put(topic, 5)
        before.fly_unseen(KEY, 0, 1)
        before.fly_unseen(OTHER, 0)
        before.changes.removed([KEY], topic_deleted(before.catalog, Topic("t", 1, 1), [5]))
        before.deliveries.forget(KEY)
        before.store.index.begin_at("t", 0, 5)
        before.catalog.restore_topic(None, "t")
        if again:
            before.catalog.put_topic(Topic("t", 1, 1))
            before.put("t", 2)
        end(before, snapshot=snapshot)
    for _ in range(2):
        with opened(tmp_path) as after:
            assert after.deliveries.known(KEY) is None
            assert after.deliveries.known(OTHER) is not None
            assert (after.catalog.topic("t") is not None) is again
            assert after.catalog.topic("u") is not None
            index = after.store.index
            assert (index.min_offset("t", 0), index.max_offset("t", 0)) == (5, 7 if again else 5)
            assert index.min_offset("u", 0) == 0
            end(after, snapshot=True)


def test_a_deleted_topic_goes_on_higher_when_its_log_is_gone(tmp_path: Path) -> None:
    """The snapshot alone says where its queues ended."""
    with opened(tmp_path) as before:
        before.put("t", 5)
        before.store.index.begin_at("t", 0, 5)
        before.journal.write_snapshot()
        (change,) = [each for each in batches(before.store)[-1].topics if each.topic == "t"]
    assert change.deleted
    assert list(change.next_queue_offset) == list(change.first_queue_offset) == [5]


def test_a_deleted_group(tmp_path: Path) -> None:
    with opened(tmp_path) as before:
        before.catalog.put_group(Group("g"))
        before.put("t", 5)
        before.fly_unseen(KEY, 0)
        before.fly_unseen(QueueKey("h", "t", 0), 0)
        before.catalog.delete_group(
            "g", lambda group: before.changes.removed([KEY], group_deleted(before.catalog, group))
        )
        before.deliveries.forget(KEY)
    with opened(tmp_path) as after:
        assert after.catalog.group("g") is None
        assert after.catalog.versions == before.catalog.versions
        assert after.deliveries.known(KEY) is None
        assert after.deliveries.known(QueueKey("h", "t", 0)) is not None


def test_a_snapshot_in_the_turn_of_a_deletion_brings_no_group_back(tmp_path: Path) -> None:
    with opened(tmp_path, SnapshotPace(0)) as before:  # one is due whenever something is written
        before.catalog.put_group(Group("g"))
        for _ in range(1023):
            before.changes.offsets_changed(before.deliveries.queue(KEY))
        before.catalog.delete_group(
            "g", lambda group: before.changes.removed([], group_deleted(before.catalog, group))
        )
        before.journal.write_snapshot()
    with opened(tmp_path) as after:
        assert after.catalog.group("g") is None


@pytest.mark.parametrize("deleted", [False, True])
def test_what_was_lost_is_told_as_it_is(tmp_path: Path, deleted: bool) -> None:
    """Also when it is not there any more, because the change that was lost was taken back."""
    with opened(tmp_path) as before:
        before.store.inject("append", no_room())
        before.catalog.put_topic(TOPIC)
        before.catalog.put_group(GROUP)
        with pytest.raises(OSError, match="No space"):
            before.journal.write()
        if deleted:
            before.catalog.roll_back_topic(None, "t")
            before.catalog.roll_back_group(None, "g")
        before.catalog.put_topic(Topic("next", 1, 1))
        before.journal.write(at_once=True)
        (again,) = parts(before.store)
        assert [(each.topic, each.deleted) for each in again.topics] == [("t", deleted)]
        assert [(each.group, each.deleted) for each in again.groups] == [("g", deleted)]
        assert before.replayed() == before.told()


def test_versions_go_with_what_changed_and_are_in_every_part_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker_gateway.journal.snapshot.Snapshot.next_part.__defaults__", (3,))
    with opened(tmp_path) as journaled:
        journaled.catalog.put_topic(Topic("t", 1, 1))
        journaled.tick()
        journaled.catalog.put_group(Group("g"))
        journaled.catalog.put_group(Group("h"))
        journaled.tick()
        journaled.changes.offsets_changed(journaled.deliveries.queue(KEY))
        journaled.tick()
        assert [files(batch) for batch in batches(journaled.store)] == [
            [TOPICS_FILE],
            [TOPICS_FILE, GROUPS_FILE],
            [],
        ]
        journaled.journal.begin_snapshot()
        while journaled.next:
            journaled.tick()
        made = parts(journaled.store)
        assert len(made) > 2
        for part in made:
            assert len(set(files(part))) == len(files(part))
            assert (TOPICS_FILE in files(part)) or not (part.topics or part.groups)
            assert (GROUPS_FILE in files(part)) or not part.groups


def test_parts_of_a_snapshot_stay_small_whatever_is_kept(tmp_path: Path) -> None:
    """A segment may have 1 MiB, and a record stands in one."""
    others = json.dumps({"new": "x" * (MOST_BYTES - 10)}, separators=(",", ":"))
    assert len(others) == MOST_BYTES
    with opened(tmp_path) as before:
        for number in range(150):
            before.catalog.restore_topic(Topic(f"t{number}", 1, 1, others=others), f"t{number}")
            before.catalog.restore_group(Group(f"g{number}", others=others), f"g{number}")
        before.journal.write_snapshot()
        made = parts(before.store)
        assert len(made) > 4
        assert max(part.ByteSize() for part in made) < 1 << 19
    with opened(tmp_path) as after:
        assert {each.others for each in (*after.catalog.topics(), *after.catalog.groups())} == {others}
        assert len(list(after.catalog.topics())) == len(list(after.catalog.groups())) == 150


def files(batch: pb.Batch) -> list[str]:
    return [each.file for each in batch.data_versions]
