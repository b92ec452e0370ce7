"""A group's state on a queue as pieces of a snapshot, which stay small."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_gateway.delivery.in_flight import InFlight
from broker_gateway.delivery.lake_only import LakeMessage, LakeOnly
from broker_gateway.delivery.queue_delivery import QueueDelivery, QueueKey
from broker_gateway.delivery.table import DeliveryTable
from broker_gateway.journal.broker_journal import journal_at_rest
from broker_gateway.journal.contributor import Target
from broker_gateway.journal.delivery_snapshot import queue_pieces
from broker_gateway.metadata.catalog import Catalog
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb
from tests.support.brokers.journaled import opened, parts

KEY = QueueKey("g", "t", 0)
FAR_MS = 1 << 50


def test_records_stay_small_whatever_ids_are(tmp_path: Path) -> None:
    with opened(tmp_path) as journaled:
        journaled.fly(QueueKey("g", "t", 0), 900, message="\U0001f600" * 255, client="\U0001f600" * 255)
        journaled.journal.write_snapshot()
        assert max(part.ByteSize() for part in parts(journaled.store)) < 1 << 19
        assert journaled.replayed() == journaled.told()


def test_records_stay_small_whatever_ids_only_the_lake_has(tmp_path: Path) -> None:
    kept = LakeOnly(tuple(LakeMessage(offset, 1, "m" * 30_000) for offset in range(90)), ((90, 95), (97, 99)))
    with opened(tmp_path) as journaled:
        journaled.deliveries.restore(KEY, 100).restore_lake_only(kept)
        journaled.journal.write_snapshot()
        assert max(part.ByteSize() for part in parts(journaled.store)) < 1 << 19
        table = DeliveryTable(lambda topic, queue_id: 0)
        journal_at_rest(journaled.store, Catalog(), table).journal.replay()
        found = table.known(KEY)
        assert found is not None
        assert found.lake_only == kept


def pieces(table: DeliveryTable, state: QueueDelivery) -> Iterator[pb.QueueChange]:
    """Each piece of a queue, as soon as it is made."""
    target = Target()
    for units in queue_pieces(target, table, state):
        assert units >= 1
        (piece,) = target.part.queues
        target.part = pb.Batch()
        yield piece


def flying(table: DeliveryTable, count: int, message_id: str = "m") -> QueueDelivery:
    """A queue with so many messages in flight."""
    state = table.queue(KEY)
    for offset in range(count):
        state.restore(InFlight(offset, 1, FAR_MS, 7, message_id, "c", delivered_ms=1000))
    state.restore_offsets(count, None)
    return state


@pytest.fixture
def table() -> DeliveryTable:
    return DeliveryTable(lambda topic, queue_id: 0)


@pytest.mark.parametrize(("count", "sizes"), [(511, [511]), (1024, [512, 512]), (1025, [512, 512, 1])])
def test_a_queue_with_much_in_flight_has_several_pieces(
    table: DeliveryTable, count: int, sizes: list[int]
) -> None:
    found = list(pieces(table, flying(table, count)))
    assert [len(each.in_flight.queue_offset) for each in found] == sizes
    assert [offset for each in found for offset in each.in_flight.queue_offset] == list(range(count))
    assert [each.continued for each in found] == [False] + [True] * (len(sizes) - 1)
    assert {each.cursor for each in found} == {count}


def test_a_piece_has_the_offsets_of_its_queue_whether_messages_are_in_flight_or_not(
    table: DeliveryTable,
) -> None:
    state = flying(table, 1)
    state.commit_offset(7)
    (piece,) = pieces(table, state)
    assert (piece.cursor, piece.client_offset, len(piece.in_flight.queue_offset)) == (1, 7, 1)
    state.reset(5)
    (piece,) = pieces(table, state)
    assert (piece.consumer_group, piece.topic, piece.queue_id, piece.cursor) == (*KEY, 5)
    assert (piece.HasField("client_offset"), piece.HasField("in_flight")) == (False, False)


def test_a_piece_holds_one_message_however_long_its_ids_are(table: DeliveryTable) -> None:
    found = list(pieces(table, flying(table, 3, "m" * 100_000)))
    assert [list(each.in_flight.queue_offset) for each in found] == [[0], [1], [2]]


@pytest.mark.parametrize("again", [False, True])
def test_a_queue_that_is_forgotten_before_its_turn_has_no_piece(table: DeliveryTable, again: bool) -> None:
    """Also when there is another one of its name by then, which is a queue of its own."""
    found = pieces(table, flying(table, 3))
    table.forget(KEY)
    if again:
        flying(table, 3)
    assert list(found) == []


def in_the_lake(count: int) -> LakeOnly:
    """So many messages that had been handed out, and as many ranges behind them."""
    messages = [LakeMessage(2 * number, 1 + number % 3, f"m{number}") for number in range(count)]
    spans = [(3 * count + 2 * number, 3 * count + 2 * number + 1) for number in range(count)]
    return LakeOnly(tuple(messages), tuple(spans))


def test_what_only_the_lake_has_comes_back_whatever_its_size(tmp_path: Path) -> None:
    kept = {QueueKey("g", "t", number): in_the_lake(count) for number, count in enumerate((1, 512, 1300))}
    with opened(tmp_path) as journaled:
        for key, lake_only in kept.items():
            journaled.deliveries.restore(key, 10_000).restore_lake_only(lake_only)
        journaled.fly(QueueKey("g", "t", 2), 3)
        journaled.journal.write_snapshot()
        journaled.journal.write_snapshot()  # a second one replaces the first
        assert max(part.ByteSize() for part in parts(journaled.store)) < 1 << 19
        catalog, deliveries = Catalog(), DeliveryTable(lambda topic, queue_id: 0)
        journal_at_rest(journaled.store, catalog, deliveries).journal.replay()
        assert {state.key: state.lake_only for state in deliveries.queues()} == kept
        assert journaled.replayed() == journaled.told()


def test_a_reset_while_pieces_are_made_ends_them(table: DeliveryTable) -> None:
    state = table.restore(KEY, 10_000)
    state.restore_lake_only(in_the_lake(1300))
    found = pieces(table, state)
    assert [next(found).HasField("lake_only"), next(found).HasField("lake_only")] == [False, True]
    state.reset(5)
    assert list(found) == []


@pytest.mark.parametrize("crash_after", range(8))
def test_ranges_that_are_read_while_a_snapshot_is_written_come_back_as_they_are(
    tmp_path: Path, crash_after: int
) -> None:
    """Each tick writes a part of the snapshot, and hands out two messages of a range."""
    with opened(tmp_path) as journaled:
        state = journaled.deliveries.restore(KEY, 10_000)
        state.restore_lake_only(in_the_lake(1300))
        journaled.journal.write_snapshot()
        journaled.journal.begin_snapshot()
        for tick in range(crash_after):
            span = state.lake_only.next_span(0)
            assert span is not None
            plan = state.plan(32, 100_000)
            message = InFlight(span[0], 1, FAR_MS, 7 + tick, "m", "c")
            plan.delivered.append(message)
            plan.lake_read_to = span[0] + 1
            journaled.changes.events(
                state, pb.DELIVERED, [message], client_id="c", delivery_id=7 + tick, invisible_until_ms=FAR_MS
            )
            state.commit(plan)
            journaled.tick()
        table = DeliveryTable(lambda topic, queue_id: 0)
        journal_at_rest(journaled.store, Catalog(), table).journal.replay()
        found = table.known(KEY)
        assert found is not None
        assert found.lake_only == state.lake_only
        assert list(found.in_flight) == list(state.in_flight)
        assert found.committed == state.committed


@pytest.mark.parametrize("snapshot", [False, True])
def test_whether_a_group_reads_absences_comes_back(tmp_path: Path, snapshot: bool) -> None:
    new, before, reset = (QueueKey(group, "t", 0) for group in ("new", "before", "reset"))
    with opened(tmp_path) as journaled:
        journaled.store.index.leave_out("t", 0, 5, 9)
        for key in (before, reset):
            journaled.deliveries.restore(key, 3)
        journaled.changes.reset({reset: 1})
        journaled.deliveries.queue(reset).reset(1)
        for key in (new, before):
            journaled.changes.offsets_changed(journaled.deliveries.queue(key))
        journaled.tick()
        if snapshot:
            journaled.journal.write_snapshot()
        table = DeliveryTable(lambda topic, queue_id: 0)
        journal_at_rest(journaled.store, Catalog(), table).journal.replay()
        assert {state.key: state.reads_absences for state in table.queues()} == {
            new: True, before: False, reset: True,
        }  # fmt: skip
