"""What the journal does for who contributes to it: records, all or none, snapshots, and what was lost told again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broker_gateway.journal import journal as journal_module
from broker_gateway.journal import snapshot as snapshot_module
from broker_gateway.journal.snapshot import SnapshotPace
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb
from lakebroker_testing.faults import FaultyStore
from tests.support.brokers.journal_counts import Counted
from tests.support.brokers.journaled import batches, no_room, opened, opened_store, parts


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FaultyStore]:
    with opened_store(tmp_path) as store:
        yield store


class Time:
    """The journal's monotonic clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(journal_module, "monotonic_s", lambda: self.now)


def written(store: FaultyStore) -> list[list[str]]:
    """Names in each record."""
    return [
        [each.topic for each in batch.topics] + [each.group for each in batch.groups]
        for batch in batches(store)
    ]


# ----- a tick -----


def test_a_turn_is_one_record_for_all_who_contribute(store: FaultyStore) -> None:
    counted = Counted(store)
    heard: list[Exception | None] = []
    counted.other.count("b", 2)
    counted.one.count("a", 1)
    counted.other.count("c", 3)
    counted.journal.after(heard.append)
    assert (batches(store), heard) == ([], [])
    counted.tick()
    assert (written(store), heard) == ([["b", "c", "a"]], [None])
    counted.tick()
    assert len(written(store)) == 1, "nothing was noted"
    assert Counted(store).numbers() == counted.numbers()


def test_who_waits_for_nothing_is_told_at_once(store: FaultyStore) -> None:
    heard: list[Exception | None] = []
    Counted(store).journal.after(heard.append)
    assert heard == [None]


def test_what_would_make_a_record_too_long_is_in_the_next(store: FaultyStore) -> None:
    counted = Counted(store)
    for number in range(1500):
        (counted.one if number % 2 else counted.other).count(f"n{number}", number)
    assert [len(each) for each in written(store)] == [1024]
    counted.tick()
    assert [len(each) for each in written(store)] == [1024, 476]
    assert Counted(store).numbers() == counted.numbers()


def test_what_is_not_done_yet_comes_behind_what_was_noted(store: FaultyStore) -> None:
    counted = Counted(store)
    counted.one.count("noted", 1)
    counted.journal.append_first(
        [pb.Batch(groups=[pb.GroupChange(group=name)]) for name in ("first", "second")]
    )
    assert written(store) == [["noted"], ["first"], ["second"]]


def test_what_is_not_done_yet_is_not_told_again(store: FaultyStore) -> None:
    counted = Counted(store)
    store.inject("append", no_room())
    with pytest.raises(OSError, match="No space"):
        counted.journal.append_first([pb.Batch(groups=[pb.GroupChange(group="never")])])
    counted.one.count("noted", 1)
    counted.tick()
    assert written(store) == [["noted"]]


# ----- failures -----


def test_what_was_lost_is_told_again_as_it_is_by_then(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one append with the changes that come next."""
    time, counted = Time(monkeypatch), Counted(store)
    heard: list[Exception | None] = []
    store.inject("append", no_room())
    counted.one.count("a", 1)
    counted.other.count("b", 1)
    counted.journal.after(heard.append)
    counted.tick()
    assert isinstance(heard.pop(), OSError)
    counted.one.count("a", 2)
    counted.journal.after(heard.append)
    counted.tick()
    assert isinstance(heard.pop(), OSError), "it is not tried again at once"
    time.now += 1
    appends = store.calls["append"]
    counted.one.count("c", 3)
    counted.journal.after(heard.append)
    counted.tick()
    assert heard == [None]
    assert written(store) == [["c"], ["b", "a"]]
    assert store.calls["append"] == appends + 1
    assert Counted(store).numbers() == counted.numbers() == ({"a": 2, "c": 3}, {"b": 1})
    counted.one.count("d", 4)
    counted.tick()
    assert written(store)[2:] == [["d"]], "told once"


@pytest.mark.parametrize("who", ["one", "other"])
def test_a_contributor_that_raises_at_a_record_loses_nothing_of_others(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    time, counted = Time(monkeypatch), Counted(store)
    heard: list[Exception | None] = []
    failing = getattr(counted, who).failing
    failing["fill"] = ValueError("a defect")
    counted.one.count("a", 1)
    counted.other.count("b", 2)
    counted.journal.after(heard.append)
    with pytest.raises(ValueError, match="a defect"):
        counted.tick()
    assert [str(each) for each in heard] == ["a defect"]
    assert written(store) == []
    failing.clear()
    time.now += 1
    counted.one.count("c", 3)
    counted.tick()
    assert written(store) == [["c"], ["b", "a"]]
    assert Counted(store).numbers() == counted.numbers()


def test_a_contributor_that_raises_when_it_tells_again_is_asked_again(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    time, counted = Time(monkeypatch), Counted(store)
    store.inject("append", no_room())
    counted.one.count("a", 1)
    counted.tick()
    counted.one.failing["again a"] = ValueError("a defect")
    time.now += 1
    counted.other.count("b", 2)
    with pytest.raises(ValueError, match="a defect"):
        counted.tick()
    counted.one.failing.clear()
    time.now += 10
    counted.other.count("c", 3)
    counted.tick()
    assert written(store) == [["c"], ["b", "a"]]
    assert Counted(store).numbers() == counted.numbers()


def test_what_is_not_kept_is_rolled_back(store: FaultyStore) -> None:
    counted = Counted(store)
    rolled_back: list[int] = []
    counted.one.count("a", 1)
    counted.journal.keep(lambda: rolled_back.append(1))
    assert (written(store), rolled_back) == ([["a"]], [])

    def roll_back() -> None:
        counted.one.numbers["a"] = 1

    store.inject("append", no_room())
    counted.one.count("a", 2)
    with pytest.raises(OSError, match="No space"):
        counted.journal.keep(roll_back)
    counted.other.count("b", 1)
    counted.journal.keep(roll_back)
    assert Counted(store).numbers() == counted.numbers() == ({"a": 1}, {"b": 1})


# ----- snapshots -----


def test_a_snapshot_has_the_pieces_of_all_in_their_order(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_module.Snapshot.next_part, "__defaults__", (2,))
    counted = Counted(store)
    for number in range(3):
        counted.one.count(f"a{number}", number)
        counted.other.count(f"b{number}", number)
    counted.tick()
    counted.journal.begin_snapshot()
    counted.tick()
    counted.one.count("a0", 10)
    counted.other.count("b0", 10)
    while counted.next:
        counted.tick()
    made = parts(store)
    told = [[*(each.group for each in part.groups), *(each.topic for each in part.topics)] for part in made]
    assert told == [["a0", "a1"], ["a2", "b0"], ["b1", "b2"], []]
    assert [part.snapshot.parts for part in made] == [0, 0, 0, 4]
    assert Counted(store).numbers() == counted.numbers()


def test_a_contributor_that_raises_while_a_snapshot_is_written(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changes go on being journaled, a start does without that snapshot, and a later one is whole."""
    monkeypatch.setattr(snapshot_module.Snapshot.next_part, "__defaults__", (2,))
    time, counted = Time(monkeypatch), Counted(store)
    for number in range(3):
        counted.one.count(f"a{number}", number)
        counted.other.count(f"b{number}", number)
    counted.tick()
    counted.other.failing["snapshot of b1"] = ValueError("a defect")
    counted.journal.begin_snapshot()
    with capture_logs() as logs:
        while counted.next:
            counted.one.count("a0", counted.one.numbers["a0"] + 1)
            counted.tick()
    assert [each["event"] for each in logs] == ["a snapshot could not be written; it is tried again"]
    assert [part.snapshot.parts for part in parts(store)] == [0, 0]
    assert counted.one.numbers["a0"] == 3
    found = Counted(store)
    assert found.numbers() == counted.numbers()
    assert found.journal.needed_from() == 0
    counted.other.failing.clear()
    time.now += 10
    begin = store.max_offset
    counted.journal.begin_snapshot()
    while counted.next:
        counted.tick()
    found = Counted(store)
    assert found.numbers() == counted.numbers()
    assert found.journal.needed_from() == begin


@pytest.mark.parametrize("error", [no_room(), ValueError("a defect")])
def test_a_snapshot_that_fails_is_tried_again_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    time = Time(monkeypatch)

    def fails(self: object, units: int = 0) -> pb.Batch:
        raise error

    with opened(tmp_path) as journaled:
        with monkeypatch.context() as patched:
            patched.setattr(snapshot_module.Snapshot, "next_part", fails)
            for wait in (10, 20, 40):
                journaled.journal.begin_snapshot()
                journaled.tick()
                journaled.journal.begin_snapshot()
                assert journaled.next == [], "not at once"
                time.now += wait
        journaled.journal.begin_snapshot()
        journaled.tick()
        assert [part.snapshot.parts for part in parts(journaled.store)] == [1]


def test_a_snapshot_is_begun_when_the_log_has_grown(store: FaultyStore) -> None:
    counted = Counted(store, SnapshotPace(1, 100))
    counted.one.count("a", 1)
    counted.tick()
    assert counted.next, "a part of it is for the next tick"
    counted.tick()
    assert [part.snapshot.parts for part in parts(store)] == [1]


def test_the_log_is_needed_from_the_newest_snapshot_on_disk(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed = 0
    monkeypatch.setattr(FaultyStore, "flushed_offset", property(lambda store: flushed))
    counted = Counted(store)
    counted.one.count("a", 1)
    counted.journal.write()
    begin = store.max_offset
    counted.journal.write_snapshot()
    flushed = store.max_offset - 1
    assert counted.journal.needed_from() == 0
    counted.journal.begin_snapshot()
    assert not counted.next, "one is to be flushed first"
    flushed = store.max_offset
    assert counted.journal.needed_from() == begin


def test_the_log_is_needed_from_where_a_contributor_starts(store: FaultyStore) -> None:
    counted = Counted(store)
    counted.one.count("a", 1)
    counted.journal.write()
    start = store.max_offset
    counted.one.count("a", 2)
    counted.journal.write()
    begin = store.max_offset
    counted.journal.write_snapshot()
    assert Counted(store).journal.needed_from() == begin
    assert Counted(store, start=start).journal.needed_from() == start
