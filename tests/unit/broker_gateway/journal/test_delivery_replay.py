"""Deliveries read back from the journal: from changes, from pieces of a snapshot, and from moves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from broker_gateway.delivery.in_flight import InFlight, Status
from broker_gateway.delivery.queue_delivery import QueueKey
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb
from store.log.copies import ORIGIN_PROPERTY, Origin
from store.log.record import PendingRecord, encode_properties
from tests.support.brokers.journaled import Journaled, append_body, opened

KEY = QueueKey("g", "t", 0)
FAR_MS = 1 << 50


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_reset(tmp_path: Path, snapshot: bool) -> None:
    with opened(tmp_path) as before:
        before.put("t", 5)
        before.fly_unseen(KEY, 0, 1, 2)
        before.changes.reset({KEY: 1})
        before.deliveries.queue(KEY).reset(1)
        end(before, snapshot=snapshot)
    with opened(tmp_path) as after:
        found = after.deliveries.known(KEY)
        assert found is not None
        assert (found.cursor, found.committed, len(found.in_flight)) == (1, 1, 0)


def end(journaled: Journaled, *, snapshot: bool) -> None:
    journaled.journal.write()
    if snapshot:
        journaled.journal.write_snapshot()


@pytest.mark.parametrize("snapshot", [False, True])
def test_what_is_in_flight_is_as_it_was(tmp_path: Path, snapshot: bool) -> None:
    message = InFlight(3, 2, FAR_MS, 9, "id", "client", delivered_ms=1000)
    kinds = {
        3: message,
        4: replace(message, queue_offset=4, nacked=True, suspended=True),
        5: replace(message, queue_offset=5, nacked=True, status=Status.RETURNED),
    }
    with opened(tmp_path) as before:
        state = before.deliveries.queue(KEY)
        for each in kinds.values():
            before.changes.events(
                state,
                pb.NACKED if each.nacked else pb.DELIVERED,
                [each],
                client_id=each.client_id,
                delivery_id=each.delivery_id,
                invisible_until_ms=each.invisible_until_ms,
                timestamp_ms=1000,
            )
            state.restore(each)
        state.restore_offsets(6, 5)
        end(before, snapshot=snapshot)
    with opened(tmp_path) as after:
        found = after.deliveries.known(KEY)
        assert found is not None
        assert (found.cursor, found.client_offset) == (6, 5)
        told = {
            offset: replace(each, delivered_ms=0, earlier_ms=each.first_delivered_ms)
            for offset, each in found.in_flight.items()
        }
        assert told == {
            offset: replace(each, delivered_ms=0, earlier_ms=1000) for offset, each in kinds.items()
        }
        assert [each.queue_offset for each in found.returned] == [5]


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_move_settles_its_original(tmp_path: Path, snapshot: bool) -> None:
    """The copy is in the log; that its original is settled is noted behind it, and was not written any more."""
    with opened(tmp_path) as before:
        before.fly(KEY, 2)
        end(before, snapshot=snapshot)
        origin = Origin(group=KEY.group, topic=KEY.topic, queue_id=KEY.queue_id, queue_offset=0, attempt=1)
        properties = encode_properties({ORIGIN_PROPERTY: origin.encode()})
        host = before.store.store_host.packed
        before.store.append([PendingRecord("%DLQ%g", 0, b"x", properties, 1, host)])
        states, _, _ = before.replayed()
        assert list(states[KEY][2]) == [1]


def test_a_snapshot_that_stands_together_is_read(tmp_path: Path) -> None:
    """As it was written before: all parts in one append, changes that were pending in front of them."""
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
            append_body(journaled.store, batch.SerializeToString(), tag)
        states, _, _ = journaled.replayed()
        assert states == {QueueKey("g", "t", 0): (6, None, {1: (1, 3), 2: (1, 3), 4: (1, 3)})}


@pytest.mark.parametrize(
    ("kind", "left"), [(pb.ACKED, []), (pb.SKIPPED, []), (pb.DEAD_LETTERED, []), (pb.EXPIRED, [0])]
)
def test_every_end_of_a_delivery_settles_it_but_its_expiry(
    tmp_path: Path, kind: pb.EventKind, left: list[int]
) -> None:
    with opened(tmp_path) as before:
        before.fly(KEY, 1)
        state = before.deliveries.queue(KEY)
        before.changes.events(state, kind, list(state.in_flight.values()))
        before.tick()
        states, _, _ = before.replayed()
        assert list(states[KEY][2]) == left


def test_what_came_back_and_is_over_its_time_is_due_to_all(tmp_path: Path) -> None:
    with opened(tmp_path) as before:
        state = before.deliveries.queue(KEY)
        for offset, until in enumerate((1, FAR_MS)):
            message = InFlight(offset, 0, until, 9, "id", "client", nacked=True, status=Status.RETURNED)
            before.changes.events(state, pb.NACKED, [message], delivery_id=9, invisible_until_ms=until)
        state.restore_offsets(2, None)
        before.tick()
    with opened(tmp_path) as after:
        found = after.deliveries.known(KEY)
        assert found is not None
        assert [each.status for each in found.in_flight.values()] == [Status.INVISIBLE, Status.RETURNED]
        assert found.due(2) is found.in_flight[0]


def test_the_first_piece_of_a_queue_replaces_what_was_said_and_the_others_add_to_it(tmp_path: Path) -> None:
    with opened(tmp_path) as journaled:
        journaled.fly(KEY, 3)
        journaled.tick()
        for number, (offset, continued) in enumerate([(1, False), (4, True)]):
            part = pb.Batch(
                version=1,
                snapshot=pb.SnapshotPart(
                    snapshot_id="s", part=number, parts=2 * number, log_offset=0, in_place=True
                ),
            )
            flying = pb.InFlight(
                queue_offset=[offset],
                attempt=[1],
                invisible_until_ms=[FAR_MS],
                message_id=["m"],
                client_id=["c"],
                delivery_id=[3],
            )
            part.queues.add(
                consumer_group="g",
                topic="t",
                queue_id=0,
                cursor=5,
                client_offset=2,
                in_flight=flying,
                continued=continued,
            )
            append_body(journaled.store, part.SerializeToString(), "snapshot")
        states, _, _ = journaled.replayed()
        assert states == {KEY: (5, 2, {1: (1, 3), 4: (1, 3)})}


def test_a_copy_of_what_nobody_knows_settles_nothing(tmp_path: Path) -> None:
    """A group that is gone has no state for it; what does not say where it came from is no copy of ours."""
    with opened(tmp_path) as before:
        before.fly(KEY, 1)
        before.tick()
        gone = Origin(group="gone", topic=KEY.topic, queue_id=KEY.queue_id, queue_offset=0, attempt=1)
        host = before.store.store_host.packed
        for properties in (encode_properties({ORIGIN_PROPERTY: gone.encode()}), b""):
            before.store.append([PendingRecord("%DLQ%g", 0, b"x", properties, 1, host)])
        states, _, _ = before.replayed()
        assert {key: list(flying) for key, (_, _, flying) in states.items()} == {KEY: [0]}
