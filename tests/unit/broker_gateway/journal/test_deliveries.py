"""Deliveries, written by one journal and read back from the log by another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from broker_gateway.delivery.in_flight import InFlight
from broker_gateway.delivery.queue_delivery import QueueKey
from broker_gateway.journal.record import EVENTS_A_RECORD
from broker_gateway.journal.resources import topic_deleted
from broker_gateway.metadata.catalog import Topic
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb
from tests.support.brokers.journaled import batches, no_room, opened

KEY = QueueKey("g", "t", 0)
FAR_MS = 1 << 50


def test_what_could_not_be_journaled_is_with_the_next_record_that_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one says how far the queue is: without the one that is lost, the message in between would be settled."""
    with opened(tmp_path) as before:
        before.put("t", 5)
        before.store.inject("append", no_room())
        before.catalog.put_topic(Topic("lost", 2, 2))
        before.fly_unseen(KEY, 0)
        with pytest.raises(OSError, match="No space"):
            before.journal.write()
        before.fly_unseen(KEY, 1)
        with pytest.raises(OSError, match="No space"):
            before.journal.write()  # it is not tried at once
        monkeypatch.setattr("broker_gateway.journal.journal.monotonic_s", lambda: 1e12)
        before.fly_unseen(KEY, 2)
        before.journal.write()
        monkeypatch.undo()
    with opened(tmp_path) as after:
        found = after.deliveries.known(KEY)
        assert found is not None
        assert (found.cursor, sorted(found.in_flight)) == (3, [0, 1, 2])
        assert after.catalog.topic("lost") == before.catalog.topic("lost")
        assert not any(each.cursor > 3 for each in after.deliveries.queues())


def test_what_is_done_though_there_was_no_room_to_note_it_is_with_the_next_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a receive whose client hung up gives back what it took, whatever the log says to that."""
    with opened(tmp_path) as before:
        before.put("t", 1)
        before.fly_unseen(KEY, 0)
        before.journal.write()
        before.journal.noted(EVENTS_A_RECORD)
        before.store.inject("append", no_room())
        state = before.deliveries.known(KEY)
        assert state is not None
        (message,) = state.in_flight.values()
        changed = replace(message, attempt=7, invisible_until_ms=FAR_MS)
        with pytest.raises(OSError, match="No space"):
            before.changes.events(state, pb.NACKED, [changed])
        state.replace(message, changed)
        monkeypatch.setattr("broker_gateway.journal.journal.monotonic_s", lambda: 1e12)
        before.journal.noted(1)
        before.journal.write()
        monkeypatch.undo()
    with opened(tmp_path) as after:
        found = after.deliveries.known(KEY)
        assert found is not None
        assert [each.attempt for each in found.in_flight.values()] == [7]


@pytest.mark.parametrize("failing", [False, True])
def test_a_topic_with_many_states_is_deleted_whole_or_not_at_all(tmp_path: Path, failing: bool) -> None:
    with opened(tmp_path) as before:
        before.catalog.put_topic(Topic("t", 1, 1))
        keys = [QueueKey(f"g{number}", "t", 0) for number in range(2400)]
        for key in keys:
            before.changes.offsets_changed(before.deliveries.queue(key))
        before.journal.write()
        appends = before.store.calls["append"]
        deleted = topic_deleted(before.catalog, Topic("t", 1, 1), [0])
        if failing:
            before.store.inject("append", no_room())
            with pytest.raises(OSError, match="No space"):
                before.changes.removed(keys, deleted)
        else:
            before.changes.removed(keys, deleted)
        assert before.store.calls["append"] == appends + 1
    with opened(tmp_path) as after:
        assert len(list(after.deliveries.queues())) == (2400 if failing else 0)
        assert (after.catalog.topic("t") is not None) is failing


def test_queues_that_moved_together_are_appended_together(tmp_path: Path) -> None:
    """More of them than a record holds; other changes of the tick stand in the first."""
    with opened(tmp_path) as before:
        before.catalog.put_topic(Topic("t", 1, 1))
        states = [before.deliveries.queue(QueueKey(f"g{number}", "t", 0)) for number in range(2400)]
        appends = before.store.calls["append"]
        before.changes.offsets_changed(*states)
        before.journal.write()
        assert before.store.calls["append"] == appends + 2, "the topic, then all of them"
        assert [len(batch.queues) for batch in batches(before.store)] == [0, 1024, 1024, 352]
        assert before.replayed() == before.told()


def test_offsets_are_those_of_the_end_of_the_turn(tmp_path: Path) -> None:
    with opened(tmp_path) as before:
        state = before.deliveries.queue(KEY)
        before.changes.offsets_changed(state)
        state.commit_offset(7)
        assert state.journaled_committed == -1
        before.tick()
        assert state.journaled_committed == 7
        state.restore(InFlight(7, 1, FAR_MS, 1, "m", "c"))
        state.restore_offsets(8, None)
        before.changes.offsets_changed(state)
        before.tick()
        first, second = (batch.queues[0] for batch in batches(before.store))
        assert (first.cursor, first.has_committed, first.committed) == (7, True, 7)
        assert (second.cursor, second.has_committed) == (8, False), "it did not change"


def test_acknowledgements_of_several_queues_are_in_one_record(tmp_path: Path) -> None:
    keys = [QueueKey("g", "t", queue) for queue in range(2)]
    with opened(tmp_path) as before:
        for key in keys:
            before.fly(key, 600)
        before.tick()
        written = len(batches(before.store))
        states = [before.deliveries.queue(key) for key in keys]
        before.changes.offsets_changed(*states)
        settled = [(state, list(state.in_flight.values())[:500]) for state in states]
        before.changes.acked(settled, "c")
        for state, messages in settled:
            for message in messages:
                state.settle(message)
        before.tick()
        (batch,) = batches(before.store)[written:]
        assert [len(each.events[0].queue_offset) for each in batch.queues] == [500, 500]
        assert before.replayed() == before.told()
