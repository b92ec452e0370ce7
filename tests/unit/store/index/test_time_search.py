"""Queue offsets by time, against a plain walk: in memory, from files, across both, with holes and with damage."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakebroker_testing import logs
from store.index.live_run import LARGEST_GAP
from store.index.queue_index import QueueIndex
from store.index.run_file import list_runs
from store.index.time_search import BoundaryType
from store.log.record import Host, PendingRecord
from store.log.retention import Rules
from store.message_store import MessageStore
from tests.suite.evidence import rounds
from tests.support.waiting import wait_until

LOWER, UPPER = BoundaryType.LOWER, BoundaryType.UPPER
HOST = Host("127.0.0.1", 10911)
SEGMENT = 1 << 16


class Clock:
    """Stands where it is put."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms = 0
        monkeypatch.setattr(time, "time_ns", lambda: self.now_ms * 1_000_000)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


open_store = partial(
    logs.open_store,
    segment_size=SEGMENT,
    time_ns=lambda: time.time_ns(),  # a `Clock`, once there is one
)


def put(store: MessageStore, body: bytes = b"x", topic: str = "t", host: Host = HOST) -> None:
    store.append([PendingRecord(topic, 0, body, b"", 1, host.packed, 0x10 if ":" in host.ip else 0)])


def offset_at(store: MessageStore, timestamp_ms: int, boundary: BoundaryType = LOWER) -> int:
    return store.at_time("t", 0)(timestamp_ms, boundary)


@pytest.mark.parametrize(
    ("timestamp_ms", "lower", "upper"),
    [
        (99, 0, 0),
        (100, 0, 2),
        (150, 3, 2),
        (200, 3, 3),
        (299, 4, 3),
        (300, 4, 5),
        (301, 6, 5),
        (1 << 60, 6, 5),
    ],
)
def test_lower_and_upper_bounds_are_the_originals(
    tmp_path: Path, clock: Clock, timestamp_ms: int, lower: int, upper: int
) -> None:
    store = open_store(tmp_path)
    for clock.now_ms in (100, 100, 100, 200, 300, 300):
        put(store, host=Host("2001:db8::1", 1))
        put(store, topic="other")
    assert offset_at(store, timestamp_ms, LOWER) == lower
    assert offset_at(store, timestamp_ms, UPPER) == upper
    store.close()


def test_an_empty_queue_is_where_it_begins(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert offset_at(store, 5, LOWER) == offset_at(store, 5, UPPER) == 0
    store.index.raise_next("t", 0, 7)
    assert offset_at(store, 5, LOWER) == offset_at(store, 5, UPPER) == 7
    store.close()


def test_over_memory_and_files_and_behind_what_was_deleted(tmp_path: Path, clock: Clock) -> None:
    store = open_store(tmp_path, index_run_bytes=SEGMENT // 4, flush_interval_ms=1)
    for clock.now_ms in range(1000, 1400):
        put(store, b"x" * 1000, topic="t" if clock.now_ms % 4 else "other")
    times = [each for each in range(1000, 1400) if each % 4]
    wait_until(lambda: len(list_runs(tmp_path / "lakeindex")) >= 20, "most of the runs as files")

    def everywhere(least: int) -> None:
        for asked in range(990, 1410, rounds(7, 1)):
            lower = sum(each < asked for each in times)
            upper = sum(each <= asked for each in times) - 1
            assert offset_at(store, asked, LOWER) == max(lower, least), asked
            assert offset_at(store, asked, UPPER) == max(upper, least), asked

    everywhere(0)
    held = store.at_time("t", 0)
    store.flush()
    rules = Rules(reserved_s=-math.inf, at_a_time=2)
    segments = store.retain(rules, 0, store.max_offset, by_hand=True).segments
    assert len(segments) == 2
    least = store.index.min_offset("t", 0)
    assert least > 50
    everywhere(least)
    for segment in segments:
        segment.close()
    assert held(times[0], LOWER) == least, "a search begun before finds what is left"
    assert held(times[-1], LOWER) == len(times) - 1
    store.close()


def test_damage_and_holes_are_passed_over(tmp_path: Path, clock: Clock) -> None:
    store = open_store(tmp_path)
    for clock.now_ms in range(100):
        put(store)
    store.index.raise_next("t", 0, 100 + LARGEST_GAP // 2)
    for clock.now_ms in range(100, 200):
        put(store)
    behind = 100 + LARGEST_GAP // 2
    assert store.index.max_offset("t", 0) == behind + 100
    assert offset_at(store, 99) == 99
    assert offset_at(store, 100) == behind
    assert offset_at(store, 150) == behind + 50
    assert offset_at(store, 99, UPPER) == 99
    damaged = int(store.index.entries("t", 0, behind + 50, 1).offsets[0])
    store.read(damaged + 4, 4)[:] = b"????"
    assert offset_at(store, 150) == behind + 51
    assert offset_at(store, 150, UPPER) == behind + 49
    store.close()


@settings(max_examples=60)
@given(
    steps=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), min_size=1, max_size=60),
    gaps=st.dictionaries(st.integers(0, 59), st.integers(1, 40), max_size=3),
)
def test_any_queue_against_a_walk(steps: list[tuple[int, int]], gaps: dict[int, int]) -> None:
    index = QueueIndex(1 << 20, 1000, 1 << 20)
    now = offset = position = 0
    times: dict[int, int] = {}
    entries: list[tuple[int, int]] = []
    for number, (later, count) in enumerate(steps):
        now += later
        position += gaps.get(number, 0)
        for _ in range(count):
            index.put("t", 0, position, offset, 100, 0, 0)
            times[offset] = now
            entries.append((position, now))
            offset, position = offset + 100, position + 1
    find: Callable[[int, BoundaryType], int] = index.at_time("t", 0, lambda at, size: times[at])
    for asked in range(-1, now + 2):
        lower = next((at for at, then in entries if then >= asked), entries[-1][0] + 1)
        upper = next((at for at, then in reversed(entries) if then <= asked), entries[0][0])
        assert find(asked, LOWER) == lower
        assert find(asked, UPPER) == upper
