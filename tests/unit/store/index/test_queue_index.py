"""The queue index against a plain model, in memory and through its files."""

from __future__ import annotations

import os
import tempfile
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from zlib_ng import zlib_ng

from store.errors import StoreDamagedError
from store.index.checked_pages import MOST_OPEN
from store.index.file_run import FileRun
from store.index.live_run import LARGEST_GAP, LiveRun, QueueRows
from store.index.queue_index import QueueIndex
from store.index.run_file import DIRECTORY, HEADER, Key, columns_of, key_hash, list_runs
from store.index.time_search import BoundaryType
from store.index.write_run import write_run
from store.log.record import Host, PendingRecord
from store.message_store import MessageStore
from store.opening import StoreOptions
from tests.suite.evidence import rounds

SEGMENT = 1 << 20
HOST = Host("127.0.0.1", 10911)


class Model:
    """What the index must say: entries by queue and offset."""

    def __init__(self) -> None:
        self.queues: dict[tuple[str, int], dict[int, tuple[int, int, int]]] = {}
        self.next: dict[tuple[str, int], int] = {}
        self.starts: list[int] = []

    def put(self, key: tuple[str, int], queue_offset: int, offset: int, size: int, code: int) -> None:
        self.queues.setdefault(key, {})[queue_offset] = (offset, size, code)
        self.next[key] = queue_offset + 1
        self.starts.append(offset)


def same(index: QueueIndex, model: Model) -> None:
    assert index.record_starts().tolist() == model.starts
    assert len(index) == len(model.starts)
    for key, entries in model.queues.items():
        first, following = min(entries), model.next[key]
        assert (index.min_offset(*key), index.max_offset(*key)) == (first, following)
        wanted = [entries.get(offset, (None, 0, 0)) for offset in range(first, following)]
        found = index.entries(*key, first, following - first)
        assert found.sizes.tolist() == [each[1] for each in wanted]
        for position, each in enumerate(wanted):
            if each[1]:
                assert (found.offsets[position], found.codes[position]) == (each[0], each[2])
            if each[1] or position % 500 == 0:
                one = index.entries(*key, first + position, 1)
                assert one.sizes.tolist() == [each[1]]
        assert len(index.entries(*key, following, 5).offsets) == 0
    for number, start in enumerate(model.starts[:20]):
        assert index.is_record_start(start)
        assert not index.is_record_start(start + 1)
        assert index.records_from(start) == len(model.starts) - number
        assert index.records_from(start + 1) == len(model.starts) - number - 1
    if model.starts:
        assert (index.records_from(0), index.records_from(model.starts[-1] + 1)) == (len(model.starts), 0)


RECORDS = st.lists(
    st.tuples(
        st.sampled_from([("a", 0), ("a", 1), ("topic-ä", 0), ("z" * 200, 7)]),
        st.sampled_from([0, 0, 0, 0, 0, 0, 0, 0, 1, 3, LARGEST_GAP + 2]),
        st.integers(20, 3000),
        st.integers(-(1 << 63), (1 << 63) - 1),
    ),
    max_size=120,
)


@settings(max_examples=rounds(15, 40), deadline=None)
@given(RECORDS, st.integers(1, 100_000), st.booleans())
def test_entries_through_runs_and_files(
    records: list[tuple[tuple[str, int], int, int, int]], run_bytes: int, again: bool
) -> None:
    with tempfile.TemporaryDirectory() as name:
        index, model = QueueIndex(SEGMENT, run_bytes), Model()
        index.on_run(
            lambda run, following: index.replace(run, write_run(run, Path(name), "x" * 32, following))
        )
        offset = 0
        for key, gap, size, code in records:
            if model.next.get(key, 0) > 2 * LARGEST_GAP:
                gap = min(gap, 3)
            queue_offset = model.next.get(key, 0) + gap
            index.put(*key, queue_offset, offset, size, code, 0)
            model.put(key, queue_offset, offset, size, code)
            offset += size
        same(index, model)
        run, following = index.live_run()
        if len(run):
            write_run(run, Path(name), "x" * 32, following)
        loaded = QueueIndex(SEGMENT, run_bytes)
        files = list_runs(Path(name))
        for path in files:
            loaded.load(FileRun(path), followed=again and path != files[-1])
        same(loaded, model)
        loaded.grow()
        same(loaded, model)
        if again:
            loaded.put("a", 0, loaded.max_offset("a", 0), offset, 50, 1, 0)
            model.put(("a", 0), model.next.get(("a", 0), 0), offset, 50, 1)
            same(loaded, model)


def test_a_queue_made_again_counts_from_the_later_record_across_runs(tmp_path: Path) -> None:
    index = QueueIndex(SEGMENT, 100)
    for number in range(5):
        index.put("t", 0, number, number * 100, 100, number, 0)
    index.put("t", 0, 2, 500, 100, 9, 0)
    assert (index.min_offset("t", 0), index.max_offset("t", 0)) == (0, 3)
    assert index.entries("t", 0, 0, 10).offsets.tolist() == [0, 100, 500]


QUEUES = [("a", 0), ("b", 1)]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(QUEUES),
        st.sampled_from(["next", "next", "next", "gap", "again", "raised"]),
        st.integers(0, 9),
    ),
    min_size=1,
    max_size=60,
)


@settings(max_examples=rounds(25, 60), deadline=None)
@given(STEPS, st.integers(100, 900), st.booleans(), st.integers(0, 10))
def test_the_latest_record_of_an_offset_counts_whatever_a_queue_went_through(
    steps: list[tuple[Key, str, int]], run_bytes: int, followed: bool, dropped: int
) -> None:
    """Queues that jump ahead and are made again from any offset: against a table of the last record at each."""
    with tempfile.TemporaryDirectory() as name:
        index, held = QueueIndex(SEGMENT, run_bytes), {key: {} for key in QUEUES}
        following = dict.fromkeys(QUEUES, 0)
        index.on_run(lambda run, after: index.replace(run, write_run(run, Path(name), "x" * 32, after)))
        for number, (key, kind, by) in enumerate(steps):
            at = {"gap": following[key] + by, "again": max(following[key] - by, 0)}.get(kind, following[key])
            if kind == "raised":
                index.raise_next(*key, at + by)
                following[key] = max(following[key], at + by)
                continue
            index.put(*key, at, number * 100, 100, number, 0)
            held[key] = {offset: record for offset, record in held[key].items() if offset < at} | {
                at: number * 100
            }
            following[key] = at + 1
        run, after = index.live_run()
        if len(run):
            write_run(run, Path(name), "x" * 32, after)
        files = list_runs(Path(name))
        loaded = QueueIndex(SEGMENT, run_bytes)
        for path in files:
            loaded.load(FileRun(path), followed=followed and path != files[-1])
        for key, at in following.items():
            loaded.raise_next(*key, at)  # as the journal does
        below = files and FileRun(files[min(dropped, len(files) - 1)]).start
        for each, least in ((index, 0), (loaded, 0), (loaded, below)):
            if least:
                each.drop_below(least)
            for key in QUEUES:
                there = {offset: record for offset, record in held[key].items() if record >= least}
                assert each.max_offset(*key) == following[key]
                first = each.min_offset(*key)
                assert first <= min(there, default=following[key])
                found = each.entries(*key, first, following[key] - first)
                seen = zip(found.offsets.tolist(), found.sizes.tolist(), strict=True)
                assert {first + at: offset for at, (offset, size) in enumerate(seen) if size} == there


def test_memory_and_open_files_do_not_grow_with_runs(tmp_path: Path) -> None:
    index = QueueIndex(SEGMENT, 100)
    index.on_run(lambda run, following: index.replace(run, write_run(run, tmp_path, "x" * 32, following)))
    for number in range(3 * MOST_OPEN):
        index.put("t", 0, number, number * 100, 100, 0, 0)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(3 * MOST_OPEN):
        assert index.entries("t", 0, number, 1).offsets.tolist() == [number * 100]
    assert len(os.listdir("/proc/self/fd")) <= before + MOST_OPEN


def test_a_look_up_reads_as_many_runs_as_the_log_has_digits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = QueueIndex(SEGMENT, 100)
    index.on_run(lambda run, following: index.replace(run, write_run(run, tmp_path, "x" * 32, following)))
    for number in range(512):
        key = ("rate_limited_log", 0) if number in (0, 300) else ("busy", number % 4)
        index.put(*key, index.max_offset(*key), number * 100, 100, 0, 0)
    looked: list[int] = []
    for name in ("find", "following"):
        real = getattr(FileRun, name)
        monkeypatch.setattr(
            FileRun, name, lambda run, key, real=real: looked.append(run.start) or real(run, key)
        )
    for topic, queue_id in [("rate_limited_log", 0), ("busy", 2)]:
        for start in (None, 0, 1):
            looked.clear()
            if start is None:
                index.min_offset(topic, queue_id)
            else:
                index.entries(topic, queue_id, start, 1)
            assert len(looked) <= 14


def test_a_search_goes_on_when_runs_are_deleted_meanwhile(tmp_path: Path) -> None:
    index = QueueIndex(SEGMENT, 100)
    index.on_run(lambda run, following: index.replace(run, write_run(run, tmp_path, "x" * 32, following)))
    for number in range(2 * MOST_OPEN):
        index.put("t", 0, number, number * 100, 100, 0, 0)
    search = index.at_time("t", 0, lambda offset, size: offset)
    for run in index.drop_below(100 * MOST_OPEN):
        run.delete()
    assert search(100 * MOST_OPEN + 500, BoundaryType.LOWER) == MOST_OPEN + 5


def test_a_file_that_is_gone_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    index = QueueIndex(SEGMENT, 100)
    index.on_run(lambda run, following: index.replace(run, write_run(run, tmp_path, "x" * 32, following)))
    for number in range(5):
        index.put("t", 0, number, number * 100, 100, 0, 0)
    (tmp_path / f"{0:020d}").unlink()
    with pytest.raises(StoreDamagedError, match="is gone; restart the broker"):
        index.entries("t", 0, 0, 1)


def test_offsets_raised_are_restored_from_the_newest_file(tmp_path: Path) -> None:
    index = QueueIndex(SEGMENT)
    index.put("t", 0, 0, 0, 100, 0, 0)
    index.raise_next("t", 0, 5)
    index.raise_next("other", 3, 8)
    run, following = index.live_run()
    loaded = QueueIndex(SEGMENT)
    loaded.load(write_run(run, tmp_path, "x" * 32, following))
    assert (loaded.max_offset("t", 0), loaded.max_offset("other", 3)) == (5, 8)
    assert (loaded.min_offset("t", 0), loaded.min_offset("other", 3)) == (0, 8)
    assert loaded.entries("t", 0, 0, 9).sizes.tolist() == [100, 0, 0, 0, 0]


def test_retention_drops_whole_runs(tmp_path: Path) -> None:
    index = QueueIndex(SEGMENT, 1000)
    index.on_run(lambda run, following: index.replace(run, write_run(run, tmp_path, "x" * 32, following)))
    for number in range(100):
        index.put("t", number % 2, number // 2, number * 100, 100, 0, 0)
    gone = index.drop_below(5000)
    assert [run.start for run in gone] == [0, 1000, 2000, 3000, 4000]
    assert (index.min_offset("t", 0), index.max_offset("t", 0)) == (25, 50)
    assert len(index.entries("t", 0, 0, 5).offsets) == 0
    assert index.entries("t", 0, 25, 2).offsets.tolist() == [5000, 5200]
    assert index.record_starts()[0] == 5000


@pytest.mark.parametrize("at", [0, 9, 20, 60, 97, 130, 200, -1])
def test_a_damaged_file_is_refused_not_believed(tmp_path: Path, at: int) -> None:
    index = QueueIndex(SEGMENT)
    for number in range(50):
        index.put("topic", number % 3, number // 3, number * 100, 100, 0, 0)
    run, following = index.live_run()
    path = write_run(run, tmp_path, "x" * 32, following).path
    data = bytearray(path.read_bytes())
    if at < 0:
        del data[-9:]
    else:
        data[at] ^= 0x55
    path.write_bytes(data)
    with pytest.raises(StoreDamagedError):
        FileRun(path)


def large_run(folder: Path, records: int = 300_000) -> FileRun:
    """A run of records of 100 bytes, over three queues."""
    run = LiveRun(0)
    for queue_id in range(3):
        offsets = np.arange(queue_id, records, 3, dtype=np.int64)
        run.queues["t", queue_id] = QueueRows(0, int(offsets[0]))
        run.queues["t", queue_id].rows = array("I", offsets.astype(np.uint32).tobytes())
    every = np.arange(records, dtype=np.int64)
    run.extend(100 * every, np.full(records, 100), every * 7)
    return write_run(run, folder, "log", {})


def test_a_look_up_checks_what_it_reads_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = large_run(tmp_path)
    checked: list[int] = []
    real = zlib_ng.crc32

    def counted(data: Any, *rest: int) -> int:
        checked.append(memoryview(data).nbytes)
        return real(data, *rest)

    monkeypatch.setattr("store.index.run_file.zlib_ng.crc32", counted)
    looks: list[Callable[[], object]] = [
        lambda: run.entries(("t", 1), 50_000, 50_032),
        lambda: run.floor(15_000_050),
        lambda: run.above(25_000_050),
        lambda: run.count_from(5_000_050),
    ]
    for look in looks:
        checked.clear()
        look()
        assert sum(checked) <= 1 << 20, f"{sum(checked)} bytes of {run.path.stat().st_size} were read at once"
        checked.clear()
        look()
        assert not checked, "it was checked before"
    run.check()
    assert run.starts().tolist() == list(range(0, 30_000_000, 100))


def test_a_damaged_page_is_noticed_before_anything_of_it_is_told(tmp_path: Path) -> None:
    path = large_run(tmp_path, 60_000).path
    whole = path.read_bytes()
    keys = [("t", queue_id) for queue_id in range(3)]
    raised = 0
    for at in range(len(whole) - 1, HEADER.size, -len(whole) // 200):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        path.write_bytes(damaged)
        try:
            run = FileRun(path)
        except StoreDamagedError:
            continue
        for position in range(0, 20_000, 4_999):
            for key in keys:
                try:
                    found = run.entries(key, position, position + 2)
                    number = 3 * position + key[1]
                    assert found.offsets.tolist() == [100 * number, 100 * (number + 3)], at
                    assert (found.sizes.tolist(), found.codes.tolist()) == (
                        [100, 100],
                        [7 * number, 7 * (number + 3)],
                    )
                    assert run.floor(100 * number + 99) == 100 * number
                    assert run.above(100 * number) == 100 * (number + 1)
                except StoreDamagedError:
                    raised += 1
        path.write_bytes(damaged)  # what was noticed is removed
        again = FileRun(path)
        with pytest.raises(StoreDamagedError, match="is damaged"):
            again.check()
    assert raised > 200


def test_hashes_do_not_change() -> None:
    assert key_hash(("topic", 3)) == key_hash(("topic", 3)) != key_hash(("topic", 4))


def without_checks(path: Path) -> None:
    """Makes a file one of version 2: no checks of pages, and a CRC of all columns in the header."""
    data = path.read_bytes()
    fields = list(HEADER.unpack_from(data))
    records, entries, queues, names = fields[5:9]
    at = HEADER.size + DIRECTORY.itemsize * queues + names
    columns_at = at + -at % 8
    kept = data[HEADER.size : columns_of(columns_at, records, entries)[-1][1] + 8 * entries]
    fields[1], fields[9] = 2, zlib_ng.crc32(kept[columns_at - HEADER.size :])
    head = HEADER.pack(*fields)[:-4]
    check = zlib_ng.crc32(kept[: at - HEADER.size], zlib_ng.crc32(head))
    path.write_bytes(head + check.to_bytes(4, "little") + kept)


def open_store(root: Path, **options: int) -> MessageStore:
    return MessageStore.open(
        root,
        StoreOptions(
            broker="b", cluster="c", store_host=HOST, segment_size=SEGMENT, flush_interval_ms=5, **options
        ),
    )


def pending(number: int) -> PendingRecord:
    return PendingRecord(f"t{number % 5}", number % 3, b"x" * 500, b"", 1, HOST.packed)


def test_a_start_scans_only_what_the_files_do_not_cover(tmp_path: Path) -> None:
    store = open_store(tmp_path, index_run_bytes=100_000)
    for number in range(8000):
        store.append([pending(number)])
    starts, end = store.index.record_starts().tolist(), store.max_offset
    store.close()
    store = open_store(tmp_path, index_run_bytes=100_000)
    assert store.recovered.bytes_scanned < SEGMENT, "a clean stop leaves nothing but the empty tail"
    assert store.recovered.records == 8000
    assert (store.index.record_starts().tolist(), store.max_offset) == (starts, end)
    store.append([pending(8000)])
    store.close()
    # a missing file, a foreign one and a damaged one are made anew
    runs = list_runs(tmp_path / "lakeindex")
    runs[3].unlink()
    runs[5].write_bytes(b"nothing")
    (tmp_path / "lakeindex" / f"{7:020d}").write_bytes(runs[0].read_bytes())
    store = open_store(tmp_path, index_run_bytes=100_000)
    assert len(store.recovered.unusable) == 2
    assert len(store.index) == 8001
    assert store.index.record_starts().tolist()[:-1] == starts
    store.close()
    store = open_store(tmp_path, index_run_bytes=100_000)
    assert not store.recovered.unusable
    assert store.recovered.bytes_scanned < SEGMENT
    store.close()


def test_the_start_after_an_upgrade_reads_the_files_of_the_version_before(tmp_path: Path) -> None:
    store = open_store(tmp_path, index_run_bytes=100_000)
    for number in range(2000):
        store.append([pending(number)])
    starts = store.index.record_starts().tolist()
    store.close()
    files = list_runs(tmp_path / "lakeindex")
    for path in files:
        without_checks(path)
    store = open_store(tmp_path, index_run_bytes=100_000)
    assert store.recovered.unusable == []
    assert store.recovered.bytes_scanned < SEGMENT
    assert store.index.record_starts().tolist() == starts
    assert store.index.entries("t1", 1, 0, 200).sizes.all()
    store.append([pending(2000)])
    store.close()
    store = open_store(tmp_path, index_run_bytes=100_000)
    assert (store.recovered.unusable, len(store.index)) == ([], 2001)
    store.close()


def test_a_damaged_file_of_the_version_before_is_noticed_at_the_first_look(tmp_path: Path) -> None:
    path = large_run(tmp_path, 60_000).path
    without_checks(path)
    whole = path.read_bytes()
    assert FileRun(path).entries(("t", 1), 10, 12).offsets.tolist() == [3100, 3400]
    for damaged in (whole[:-1] + bytes([whole[-1] ^ 1]), whole[:-8]):
        path.write_bytes(damaged)
        with pytest.raises(StoreDamagedError):
            FileRun(path).entries(("t", 1), 10, 12)


def test_a_file_whose_last_record_is_not_in_the_log_is_not_believed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    placed = [store.append([pending(number)])[0] for number in range(100)]
    store.close()
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as file:  # as after another broker cut the log
        file.seek(placed[50].physical_offset)
        file.write(bytes(SEGMENT - placed[50].physical_offset))
    (tmp_path / "flushed").unlink()
    store = open_store(tmp_path)
    assert store.max_offset == placed[50].physical_offset
    assert len(store.index) == 50
    store.close()
