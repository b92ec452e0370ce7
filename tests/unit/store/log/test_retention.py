"""What may go and when sends are refused; segments taken out under readers; a start after that."""

from __future__ import annotations

import gc
import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from lakebroker_testing import logs
from store.columns import BODY_CRC, BODY_LENGTH, COLUMNS, PendingColumns
from store.errors import OffsetOutOfRangeError
from store.index.time_search import BoundaryType
from store.log.record import Host, PendingRecord
from store.log.retention import Candidate, Disk, Rules, choose, refusal
from store.log_reader import LogReader
from store.message_store import MessageStore
from tests.support.waiting import wait_until

SEGMENT = 1 << 16
HOST = Host("127.0.0.1", 10911)
OLD = [Candidate(n * 100, (n + 1) * 100, 80 * 3600 - n) for n in range(5)]
YOUNG = [Candidate(n * 100, (n + 1) * 100, 3600 - n) for n in range(5)]
ALL = 1 << 40


@pytest.mark.parametrize(
    ("segments", "used", "hour", "keep_from", "count"),
    [
        (OLD, 0.1, 4, ALL, 4),
        (OLD, 0.1, 5, ALL, 0),
        (OLD, 0.76, 5, ALL, 4),
        (OLD, 0.1, 4, 200, 2),
        (OLD, 0.1, 4, 199, 1),
        (OLD, 0.99, 4, 0, 0),
        (YOUNG, 0.80, 4, ALL, 0),
        (YOUNG, 0.86, 5, ALL, 4),
        (YOUNG, 0.86, 5, 300, 3),
        (OLD[:2] + YOUNG[2:], 0.1, 4, ALL, 2),
        (OLD[:1], 0.99, 4, ALL, 0),
        ([], 0.99, 4, ALL, 0),
    ],
)
def test_what_may_go(segments: list[Candidate], used: float, hour: int, keep_from: int, count: int) -> None:
    assert choose(Rules(), segments, used, hour, keep_from) == count


def test_by_hand_at_a_time_and_never_forcibly() -> None:
    assert choose(Rules(), OLD, 0.1, 5, ALL, by_hand=True) == 4
    assert choose(Rules(at_a_time=2), OLD, 0.1, 4, ALL) == 2
    assert choose(Rules(forcibly=False), YOUNG, 0.99, 4, ALL) == 0


def test_a_refusal_names_disk_fill_and_option() -> None:
    assert refusal(Rules(), Disk(Path("/data"), 0.90)) is None
    why = refusal(Rules(), Disk(Path("/data"), 0.934))
    assert why is not None
    assert "/data" in why
    assert "93%" in why
    assert "diskSpaceWarningLevelRatio" in why


open_store = partial(logs.open_store, segment_size=SEGMENT, flush_interval_ms=5)


def fill(store: MessageStore, segments: int) -> list[int]:
    starts = []
    while store.max_offset < segments * SEGMENT:
        record = PendingRecord("t", len(starts) % 2, b"x" * 10_000, b"", 1, HOST.packed)
        starts.append(store.append([record])[0].physical_offset)
    return starts


def grow_old(store: MessageStore, *numbers: int) -> None:
    """Makes these segments old, once they are on disk: what is not stays, and a flush makes a file new."""
    store.flush()
    for number in numbers:
        os.utime(store.root / "commitlog" / f"{number * SEGMENT:020d}", (1, 1))


def test_segments_go_under_readers_and_a_start_begins_behind_them(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    starts = fill(store, 5)
    grow_old(store, 0, 1)
    view = store.read(starts[0], 100)
    before = bytes(view)
    chunks = store.read_chunks(0, store.max_offset, SEGMENT)
    _, chunk, _ = next(chunks)
    removed = store.retain(Rules(max_used=0.0, force=1.0, refuse=1.0), 0, store.max_offset)
    removed.dispose()
    assert store.min_offset == 2 * SEGMENT
    assert bytes(view) == before
    assert bytes(chunk[:100]) == before
    with pytest.raises(OffsetOutOfRangeError):
        store.read(starts[0], 100)
    kept = [start for start in starts if start >= 2 * SEGMENT]
    assert store.index.record_starts().tolist() == kept
    first = {queue: store.index.min_offset("t", queue) for queue in (0, 1)}
    assert sum(first.values()) == len(starts) - len(kept)
    assert sorted(path.name for path in (tmp_path / "commitlog").iterdir())[0] == f"{2 * SEGMENT:020d}"
    store.close()
    assert all(int(path.name) >= 2 * SEGMENT for path in (tmp_path / "lakeindex").iterdir())
    store = open_store(tmp_path)
    assert store.min_offset == 2 * SEGMENT
    assert store.index.record_starts().tolist() == kept
    assert {queue: store.index.min_offset("t", queue) for queue in (0, 1)} == first
    assert not store.recovered.bad
    assert not store.recovered.unusable
    assert store.append([PendingRecord("t", 0, b"", b"", 1, HOST.packed)])[0].queue_offset == len(starts[::2])
    reader = LogReader(tmp_path)
    assert reader.min_offset == 2 * SEGMENT
    reader.close()
    store.close()


def test_what_is_needed_stays(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 4)
    grow_old(store, 0, 1, 2)
    rules = Rules(max_used=0.0, force=1.0, refuse=1.0)
    assert not store.retain(rules, 0, SEGMENT - 1).segments
    assert store.expired(rules, 0) == 3 * SEGMENT
    assert [each.start for each in store.retain(rules, 0, 2 * SEGMENT).segments] == [0, SEGMENT]
    store.close()


def test_a_full_disk_refuses_and_takes_again(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 1)
    store.retain(Rules(refuse=0.0), 0, 0)
    assert "diskSpaceWarningLevelRatio" in (store.refusal or "")
    store.retain(Rules(refuse=1.0), 0, 0)
    assert store.refusal is None
    store.close()


def test_no_room_for_the_next_segment_refuses_before_this_one_is_full(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 1)
    at = store.max_offset // SEGMENT + 1
    in_the_way = tmp_path / "commitlog" / f"{at * SEGMENT:020d}"
    in_the_way.mkdir()
    while store.max_offset % SEGMENT < SEGMENT // 2 + 100:
        store.append([PendingRecord("t", 0, b"x" * 5000, b"", 1, HOST.packed)])
    assert "cannot be made" in wait_until(lambda: store.refusal or "")
    store.append([PendingRecord("journal", 0, b"x" * 5000, b"", 1, HOST.packed)])  # what is ours still fits
    in_the_way.rmdir()

    def accepted() -> bool:
        store.retain(Rules(refuse=1.0), 0, 0)
        return store.refusal is None

    wait_until(accepted)
    fill(store, at + 1)
    store.close()


def deleted_and_mapped(folder: Path) -> int:
    """Mappings and descriptors of deleted files below a folder."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    there = [each for each in maps if str(folder) in each and "(deleted)" in each]
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:
            continue
        if str(folder) in target and "(deleted)" in target:
            there.append(target)
    return len(there)


def test_deleted_segments_are_unmapped_at_once_but_for_views_of_them(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.load_compiled()
    body = b"of the first segment"
    rows = np.zeros((1, COLUMNS), dtype=np.int64)
    rows[0, BODY_LENGTH], rows[0, BODY_CRC] = len(body), -1
    for _ in range(2):  # the second one by columns, over an array of the segment
        store.append_columns([PendingColumns("t", 0, HOST.packed, body, b"", rows, len(body), 1)])
    fill(store, 4)
    grow_old(store, 0, 1, 2)
    search = store.at_time("t", 0)
    view = store.read(0, 200)
    before = bytes(view)
    removed = store.retain(Rules(max_used=0.0, force=1.0, refuse=1.0), 0, store.max_offset)
    assert len(removed.segments) == 3
    removed.dispose()
    assert deleted_and_mapped(tmp_path) == 2, "the mapping of what is being read, and its descriptor"
    assert bytes(view) == before
    view.release()
    assert deleted_and_mapped(tmp_path) == 0
    assert search(1, BoundaryType.LOWER) >= store.index.min_offset("t", 0)
    store.close()


def test_a_reader_by_path_frees_what_was_deleted_and_opens_few(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 12)
    grow_old(store, *range(10))
    reader = LogReader(tmp_path)
    descriptors = len(os.listdir("/proc/self/fd"))
    reader.split(0, reader.readable_offset, SEGMENT)
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 8
    reader.split(0, SEGMENT, SEGMENT)
    store.retain(Rules(max_used=0.0, force=1.0, refuse=1.0), 0, store.max_offset).dispose()
    assert reader.readable_offset == store.flushed_offset
    assert deleted_and_mapped(tmp_path) == 0
    reader.close()
    store.close()


def test_readers_that_are_not_closed_leave_no_descriptors(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 2)
    gc.collect()
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        list(LogReader(tmp_path).read_chunks(0, store.flushed_offset, SEGMENT))
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 4  # the flushing thread may look at some
    store.close()
