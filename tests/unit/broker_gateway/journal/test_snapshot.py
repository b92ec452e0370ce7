"""Snapshots made in parts over many ticks: whatever happens between the parts, a replay finds things as they are."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker_gateway.delivery.in_flight import InFlight
from broker_gateway.delivery.queue_delivery import QueueKey
from broker_gateway.journal import delivery_snapshot
from broker_gateway.journal import journal as journal_module
from broker_gateway.journal import snapshot as snapshot_module
from broker_gateway.journal.resources import group_deleted
from broker_gateway.journal.snapshot import SnapshotPace
from broker_gateway.metadata.catalog import Group, Topic
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb
from tests.suite.evidence import rounds
from tests.support.brokers.journaled import Journaled, no_room, opened, parts

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
    st.tuples(st.just("tick"), KEY, st.just(0)),
    st.tuples(st.just("snapshot"), KEY, st.just(0)),
    st.tuples(st.just("fail"), KEY, st.just(0)),
)


@contextmanager
def small_parts() -> Iterator[None]:
    """Parts of a piece or two, so that much goes on between them."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(snapshot_module.Snapshot.next_part, "__defaults__", (1,))
        patched.setattr(delivery_snapshot, "_IN_FLIGHT_A_PIECE", 2)
        patched.setattr(journal_module, "_LOST_AGAIN_S", 0.0)
        patched.setattr(journal_module, "_SNAPSHOT_AGAIN_S", 0.0)
        yield


@given(st.lists(STEP, max_size=60))
@example(
    [
        ("fly", KEYS[0], 5),
        ("snapshot", KEYS[0], 0),
        ("tick", KEYS[0], 0),
        ("reset", KEYS[0], 0),
        ("fly", KEYS[0], 2),
    ]
)
@example([("fly", KEYS[0], 3), ("fail", KEYS[0], 0), ("tick", KEYS[0], 0), ("fly", KEYS[1], 1)])
@settings(max_examples=rounds(25, 60), deadline=None)
def test_a_replay_finds_things_as_they_are(steps: list[tuple[str, QueueKey, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder, small_parts(), opened(Path(folder)) as journaled:
        for step in steps:
            try:
                take(journaled, *step)
            except OSError:
                continue  # the change was not made
        journaled.store.heal()
        while journaled.next:  # a snapshot is under way, too
            journaled.tick()
        journaled.changes.offsets_changed(journaled.deliveries.queue(KEYS[0]))
        journaled.journal.write(at_once=True)
        assert journaled.replayed() == journaled.told()


def release(journaled: Journaled, key: QueueKey, before: InFlight) -> None:
    after = replace(
        before,
        attempt=before.attempt + 1,
        delivery_id=before.delivery_id + 1,
        invisible_until_ms=1 << 51,
    )
    state = journaled.deliveries.queue(key)
    journaled.changes.events(
        state, pb.NACKED, [after], delivery_id=after.delivery_id, invisible_until_ms=1 << 51
    )
    state.replace(before, after)


def take(journaled: Journaled, what: str, key: QueueKey, number: int) -> None:
    changes, deliveries = journaled.changes, journaled.deliveries
    state = deliveries.known(key)
    flying = None if state is None else list(state.in_flight.values())
    match what:
        case "fly":
            journaled.fly(key, number)
        case "settle" if state is not None and flying and number < len(flying):
            changes.events(state, pb.ACKED, [flying[number]], client_id="c")
            state.settle(flying[number])
        case "nack" if state is not None and flying and number < len(flying):
            release(journaled, key, flying[number])
        case "commit" if state is not None:
            changes.offsets_changed(state)
            state.commit_offset(number)
        case "reset" if state is not None:
            changes.reset({key: number})
            state.reset(number)
        case "forget" if state is not None:
            changes.removed([key])
            deliveries.forget(key)
        case "topic":
            journaled.catalog.put_topic(Topic(key.topic, number, number))
        case "group":
            journaled.catalog.put_group(Group(key.group, number))
        case "delete" if journaled.catalog.group(key.group) is not None:
            journaled.catalog.delete_group(
                key.group, lambda group: changes.removed([], group_deleted(journaled.catalog, group))
            )
        case "tick":
            journaled.tick()
        case "snapshot":
            journaled.journal.begin_snapshot()
        case "fail":
            journaled.store.inject("append", no_room())


def test_a_snapshot_is_written_a_part_a_turn(tmp_path: Path) -> None:
    with opened(tmp_path) as journaled:
        for number in range(3000):
            journaled.deliveries.queue(QueueKey(f"g{number}", "t", 0))
        journaled.journal.begin_snapshot()
        ticks = 0
        while journaled.next:
            before = len(parts(journaled.store))
            journaled.tick()
            assert len(parts(journaled.store)) == before + 1
            ticks += 1
        assert ticks > 10
        written = parts(journaled.store)
        assert [part.snapshot.parts for part in written] == [0] * (ticks - 1) + [ticks]
        assert sum(len(part.queues) for part in written) == 3000
        assert journaled.replayed() == journaled.told()


def test_an_unfinished_snapshot_does_not_count(tmp_path: Path) -> None:
    with opened(tmp_path) as journaled:
        for number in range(1000):
            journaled.fly(QueueKey(f"g{number}", "t", 0), 1)
        journaled.tick()
        journaled.journal.begin_snapshot()
        journaled.tick()
        assert 0 < len(parts(journaled.store)) < 3
        assert journaled.replayed() == journaled.told()


@pytest.mark.parametrize(
    ("grown", "last", "due"),
    [(63, 0, False), (64, 0, True), (64, 4, False), (79, 4, False), (80, 4, True)],
)
def test_snapshots_take_a_share_of_the_log(grown: int, last: int, due: bool) -> None:
    assert SnapshotPace(64, 5).due(grown, last) is due
