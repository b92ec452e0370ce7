"""Erasures in the journal: what a start knows of them, and for how long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from broker_gateway.delivery.table import DeliveryTable
from broker_gateway.journal import erasures
from broker_gateway.journal.broker_journal import BrokerJournal, journal_at_rest
from broker_gateway.journal.erasures import Erasures, Log, records
from broker_gateway.journal.record import decode
from broker_gateway.metadata.catalog import Catalog
from broker_gateway.metadata.names import JOURNAL_TOPIC
from lakebroker_testing.faults import FaultyStore
from lakebroker_testing.logs import pending
from tests.support.brokers.journaled import opened_store

ASKED_MS = 1_700_000_000_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FaultyStore]:
    with opened_store(tmp_path) as store:
        yield store


def started(store: FaultyStore) -> BrokerJournal:
    """As a start does it."""
    journaled = journal_at_rest(store, Catalog(), DeliveryTable(lambda topic, queue_id: 0))
    journaled.journal.replay()
    return journaled


def erase(journaled: BrokerJournal, log: Log, offsets: Sequence[int]) -> None:
    batches = records(log, offsets, ASKED_MS)
    journaled.journal.append_first(batches)
    journaled.erasures.add(each for batch in batches for each in batch.erasures)


def own(store: FaultyStore) -> Log:
    return Log(store.broker, store.log_id, own=True)


def another(store: FaultyStore, log_id: str = "b" * 32) -> Log:
    return Log(store.broker, log_id, own=False)


def test_a_start_knows_what_was_erased_by_records_and_by_snapshots(store: FaultyStore) -> None:
    placed = store.append([pending() for _ in range(4)])
    at = [each.physical_offset for each in placed]
    journaled = started(store)
    erase(journaled, own(store), at[1:2])
    erase(journaled, own(store), at[3:])
    erase(journaled, another(store), [7, 9])
    for _ in range(3):
        assert store.erased.offsets.tolist() == [at[1], at[3]]
        assert journaled.erasures.of("b" * 32).tolist() == [7, 9]
        assert journaled.erasures.of(store.log_id).tolist() == [at[1], at[3]]
        assert journaled.erasures.of("c").tolist() == []
        assert journaled.erasures.not_yet(own(store), at) == [at[0], at[2]]
        sizes = store.index.entries("t", 0, 0, 4).sizes
        assert (sizes > 0).tolist() == [True, False, True, False]
        store.erased.hold(store.erased.offsets[:0])
        journaled.journal.write_snapshot()
        journaled = started(store)


def told(store: FaultyStore) -> list[tuple[int, list[int]]]:
    """Version and erased offsets of the journal's records that have any."""
    offsets, sizes, _ = store.index.entries(JOURNAL_TOPIC, 0, 0, 10_000)
    batches = [decode(store.record(int(at), int(size))) for at, size in zip(offsets, sizes, strict=True)]
    return [
        (batch.version, [offset for each in batch.erasures for offset in each.physical_offset])
        for batch in batches
        if batch is not None and batch.erasures
    ]


def test_many_go_in_records_of_bounded_length(store: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erasures, "A_RECORD", 10)
    journaled = started(store)
    erase(journaled, another(store), range(25))
    journaled.journal.write_snapshot()
    found = told(store)
    assert {version for version, _ in found} == {3}
    assert [len(offsets) for _, offsets in found] == [10, 10, 5, 10, 10, 5]
    assert [offset for _, some in found[:3] for offset in some] == list(range(25))


def test_records_without_erasures_say_nothing_of_them(store: FaultyStore) -> None:
    journaled = started(store)
    journaled.journal.write_snapshot()
    assert told(store) == []


def test_of_what_the_log_has_no_more_the_latest_are_known(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasures, "MOST_ELSEWHERE", 5)
    journaled = started(store)
    erase(journaled, another(store, "old"), range(4))
    erase(journaled, another(store, "new"), range(3))
    for _ in range(2):
        known: Erasures = journaled.erasures
        assert known.of("new").tolist() == [0, 1, 2]
        assert known.of("old").tolist() == [2, 3]
        journaled.journal.write_snapshot()
        journaled = started(store)
    erase(journaled, another(store, "newest"), range(9))
    assert journaled.erasures.of("newest").tolist() == [4, 5, 6, 7, 8]
    assert journaled.erasures.of("new").tolist() == []


def test_of_what_was_erased_before_nothing_is_made_anew_but_the_list(store: FaultyStore) -> None:
    at = [each.physical_offset for each in store.append([pending() for _ in range(4)])]
    journaled = started(store)
    erase(journaled, own(store), [at[0], at[2]])
    places = store.erased.places
    erase(journaled, own(store), [at[1], at[2]])
    assert store.erased.places is places
    assert places == set(at[:3])
    before = store.erased.offsets
    assert before.tolist() == at[:3]
    erase(journaled, own(store), at[:2])
    journaled.journal.write_snapshot()
    assert store.erased.offsets is before


def test_a_segment_that_goes_leaves_what_the_lake_has(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = [each.physical_offset for each in store.append([pending() for _ in range(3)])]
    journaled = started(store)
    erase(journaled, own(store), at)
    monkeypatch.setattr(type(store), "min_offset", property(lambda self: at[2]))
    journaled.journal.write_snapshot()
    assert store.erased.offsets.tolist() == at[2:]
    assert journaled.erasures.of(store.log_id).tolist() == at


def test_a_store_keeps_them_under_a_new_id(store: FaultyStore) -> None:
    at = [each.physical_offset for each in store.append([pending() for _ in range(3)])]
    journaled = started(store)
    erase(journaled, own(store), at[:2])
    former = store.log_id
    store.begin_log()
    again = started(store)
    assert store.erased.offsets.tolist() == at[:2]
    assert again.erasures.of(former).tolist() == at[:2]
    assert again.erasures.of(store.log_id).tolist() == []
