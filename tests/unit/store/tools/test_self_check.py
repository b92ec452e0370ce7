"""Damage that the look at a running store finds, and what it must not take for damage."""

from __future__ import annotations

import asyncio
import math
import os
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
import structlog

from broker_gateway.maintenance.self_check import SelfCheck
from lakebroker_testing import logs
from store.index.run_file import list_runs
from store.index.time_search import BoundaryType
from store.log.record import Host, PendingRecord
from store.log.retention import Rules
from store.message_store import MessageStore
from store.tools.self_check import MAX_DAMAGE, NEWEST, Found, self_check
from tests.support.waiting import wait_until

SEGMENT = 1 << 16
HOST = Host("127.0.0.1", 10911)


open_store = partial(logs.open_store, segment_size=SEGMENT, flush_interval_ms=1)


def put(store: MessageStore, count: int, topic: str = "t", queue_id: int = 0, body: bytes = b"x") -> None:
    for _ in range(count):
        store.append([PendingRecord(topic, queue_id, body, b"", 1, HOST.packed)])


def look(store: MessageStore) -> Found:
    return self_check(store, 0, 1000).run()


def wait_for_files(folder: Path, count: int) -> None:
    wait_until(lambda: len(list_runs(folder / "lakeindex")) >= count)


def damage_at(store: MessageStore, topic: str, queue_offset: int, at: int, data: bytes) -> int:
    offset = int(store.index.entries(topic, 0, queue_offset, 1).offsets[0])
    store.read(offset + at, len(data))[:] = data
    return offset


def test_a_whole_store_has_no_damage_in_memory_and_in_files(tmp_path: Path) -> None:
    store = open_store(tmp_path, index_run_bytes=SEGMENT // 4)
    put(store, 5, "idle")
    put(store, 300, body=b"x" * 1000)
    store.index.raise_next("t", 0, 310)
    put(store, 1)
    wait_for_files(tmp_path, 15)
    found = look(store)
    assert (found.places, found.damage) == (0, [])
    assert (found.segments, found.queues) == (len(store.segments), 2)
    assert found.entries == NEWEST + 1, "two of the newest of t are holes"
    store.close()
    store = open_store(tmp_path)
    assert look(store).places == 0
    assert look(store).entries == NEWEST + 1
    store.close()


@pytest.mark.parametrize(
    ("at", "data", "reason"),
    [
        (4, b"????", "no whole record"),
        (0, (4000).to_bytes(4, "big"), "no whole record"),
        (12, (9).to_bytes(4, "big"), "there is record 9 of queue 9 of topic 't'"),
        (20, (8).to_bytes(8, "big"), "there is record 8 of queue 0 of topic 't'"),
        (28, (1).to_bytes(8, "big"), "says it is at 1"),
        (89, b"u", "there is record 9 of queue 0 of topic 'u'"),
    ],
)
def test_an_entry_that_points_at_something_else_is_described(
    tmp_path: Path, at: int, data: bytes, reason: str
) -> None:
    store = open_store(tmp_path)
    put(store, 10, body=b"")
    offset = damage_at(store, "t", 9, at, data)
    found = look(store)
    assert found.places == 1
    assert found.damage[0].startswith(f"entry 9 of queue 0 of topic 't' points at physical offset {offset}, ")
    assert reason in found.damage[0]
    store.close()


def test_segments_missing_shorter_or_out_of_their_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path)
    put(store, 300, body=b"x" * 1000)
    names = sorted(path.name for path in (tmp_path / "commitlog").iterdir())
    (tmp_path / "commitlog" / names[1]).rename(tmp_path / "gone")
    os.truncate(store.segments[-1].path, SEGMENT + 1)
    monkeypatch.setattr(MessageStore, "segments", [*store.segments[:2], *store.segments[3:]])
    found = look(store)
    assert (found.segment_places, found.places) == (3, 0)
    assert f"{names[1]} cannot be looked at" in found.damage[0]
    assert f"has {SEGMENT + 1} bytes, expected {SEGMENT}" in found.damage[1]
    assert f"expected offset {2 * SEGMENT}" in found.damage[2]
    store.close()


def test_what_retention_takes_away_meanwhile_is_no_damage(tmp_path: Path) -> None:
    store = open_store(tmp_path, index_run_bytes=SEGMENT // 4)
    put(store, 5, "idle")
    put(store, 300, body=b"x" * 1000)
    wait_for_files(tmp_path, 15)
    check = self_check(store, 0, 1000)
    store.flush()
    store.retain(Rules(reserved_s=-math.inf, at_a_time=2), 0, store.max_offset, by_hand=True).dispose()
    assert store.min_offset == 2 * SEGMENT
    damage_at(store, "t", 299, 4, b"????")
    found = check.run()
    assert [text[:9] for text in found.damage] == ["entry 299"]
    store.close()


def test_descriptions_are_bounded_and_places_counted(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for number in range(MAX_DAMAGE + 10):
        put(store, 1, f"t{number}")
        damage_at(store, f"t{number}", 0, 4, b"????")
    found = look(store)
    assert (found.places, len(found.damage), found.unsaid) == (MAX_DAMAGE + 10, MAX_DAMAGE, 10)
    store.close()


def test_looks_go_round_all_queues_and_tell_each_damage_once(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for number in range(7):
        put(store, 1, f"t{number}")
    damage_at(store, "t5", 0, 4, b"????")
    check = SelfCheck(store, most=3)

    async def look_six_times() -> list[int]:
        return [(await check.run_once()).places for _ in range(6)]

    with structlog.testing.capture_logs() as logs:
        assert asyncio.run(look_six_times()) == [0, 1, 0, 0, 1, 0]
        assert check.runs == 6
        check = SelfCheck(store, most=7)
        asyncio.run(check.run_once())
        asyncio.run(check.run_once())
    assert check.damaged == 1
    told = [each["what"] for each in logs if each["log_level"] == "error"]
    assert len(told) == 2, "once by each"
    assert all("'t5'" in each for each in told)
    store.close()


def test_looking_and_searching_by_time_beside_a_writer(tmp_path: Path) -> None:
    """Arrays that somebody looks into as a whole cannot grow: the writer would fail."""
    store = open_store(tmp_path, segment_size=1 << 24)
    put(store, 1)
    stop = threading.Event()
    errors: list[str] = []
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def work() -> None:
        try:
            while not stop.is_set():
                errors.extend(look(store).damage)
                store.at_time("t", 0)(time.time_ns() // 1_000_000 - 1, BoundaryType.LOWER)
        except Exception as error:
            errors.append(repr(error))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10_000):
            put(store, 1, body=b"")
            store.index.raise_next("t", 0, store.index.max_offset("t", 0) + 3)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
    assert errors == []
    store.close()
