"""What `test_store.py` leaves open: blanks, full disks, recovery over several segments, readers by path."""

from __future__ import annotations

import shutil
import struct
import threading
from collections.abc import Set
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from lakebroker_testing import logs
from store.errors import (
    OffsetOutOfRangeError,
    RecordError,
    RecordTooLargeError,
    StoreDamagedError,
    StoreReadOnlyError,
)
from store.log.flush import Flusher, encode_flushed, read_flushed
from store.log.record import BLANK_MAGIC, SYS_COMMIT, SYS_PREPARED, SYS_ROLLBACK, Host, PendingRecord
from store.log.segment import list_segments
from store.log_reader import LogReader
from store.message_store import Appended, MessageStore
from store.opening import StoreOptions
from store.scan import scan
from tests.support.waiting import LIMIT_S, wait_until

SEGMENT = 1 << 16
HOST = Host("127.0.0.1", 10911)


def pending(body: bytes = b"body", topic: str = "t", queue_id: int = 0, sys_flag: int = 0) -> PendingRecord:
    return PendingRecord(topic, queue_id, body, b"", 1, Host("10.0.0.1", 5).packed, sys_flag)


open_store = partial(logs.open_store, segment_size=SEGMENT, flush_interval_ms=60_000)


def scanned_offsets(store: MessageStore) -> list[int]:
    return [offset for part in store.scan_from(store.min_offset) for offset in part.physical_offset.tolist()]


def test_a_blank_fills_the_segment_and_is_passed_over(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    placed = [store.append([pending(b"x" * 20_000)])[0] for _ in range(4)]
    blank = placed[2].physical_offset + placed[2].size
    assert placed[3].physical_offset == SEGMENT
    size, magic = np.frombuffer(store.read(blank, 8), dtype=">u4").tolist()
    assert (size, magic) == (SEGMENT - blank, BLANK_MAGIC)
    assert store.is_boundary(SEGMENT)
    assert not store.is_boundary(blank)
    assert scanned_offsets(store) == [p.physical_offset for p in placed]
    store.close()


@pytest.mark.parametrize("left", [8, 9, 107])
def test_a_record_must_leave_room_for_a_blank(tmp_path: Path, left: int) -> None:
    store = open_store(tmp_path)
    overhead = store.append([pending(b"")])[0].size
    body = SEGMENT - 2 * overhead - left
    fits = store.append([pending(b"x" * body)])[0]
    assert fits.physical_offset + fits.size == SEGMENT - left
    following = store.append([pending(b"")])[0]
    assert following.physical_offset == SEGMENT
    store.close()
    store = open_store(tmp_path)
    assert store.recovered.records == 3
    assert not store.recovered.bad
    assert store.append([pending()])[0].queue_offset == 3
    store.close()


def test_one_append_goes_over_several_segments(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    placed = store.append([pending(bytes([n]) * 30_000) for n in range(9)])
    assert [p.physical_offset // SEGMENT for p in placed] == [0, 0, 1, 1, 2, 2, 3, 3, 4]
    assert [p.queue_offset for p in placed] == list(range(9))
    for number, row in enumerate(placed):
        assert bytes(store.record(row.physical_offset, row.size).body) == bytes([number]) * 30_000
    store.close()


def test_no_room_for_a_segment_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    first = store.append([pending()])[0]
    in_the_way = tmp_path / "commitlog" / f"{2 * SEGMENT:020d}"
    in_the_way.touch()
    with pytest.raises(OSError, match="File exists"):
        store.append([pending(b"x" * 40_000) for _ in range(3)])
    assert store.max_offset == first.size
    assert store.index.max_offset("t", 0) == 1
    in_the_way.unlink()
    placed = [store.append([pending(bytes([n]) * 40_000)])[0] for n in range(3)]
    assert [p.physical_offset // SEGMENT for p in placed] == [0, 1, 2]
    expected = [first, *placed]
    assert scanned_offsets(store) == [p.physical_offset for p in expected]
    store.close()
    store = open_store(tmp_path)
    assert scanned_offsets(store) == [p.physical_offset for p in expected]
    assert store.index.max_offset("t", 0) == 4
    store.close()


def test_a_record_over_a_segment_or_properties_that_do_not_fit_change_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with pytest.raises(RecordTooLargeError, match=f"does not fit a segment of {SEGMENT}"):
        store.append([pending(b"x" * 10), pending(b"x" * SEGMENT)])
    long = pending(b"x")
    long.properties = b"a\x01" + b"x" * 32_767 + b"\x02"
    with pytest.raises(RecordError, match="at most 32767"):
        store.append([pending(b"x"), long])
    assert (store.max_offset, store.index.max_offset("t", 0)) == (0, 0)
    store.close()


def test_prepared_and_rolled_back_records_get_no_queue_entry(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    flags = [0, SYS_PREPARED, SYS_COMMIT, SYS_ROLLBACK, 0]
    offsets = [store.append([pending(sys_flag=flag)])[0].queue_offset for flag in flags]
    assert offsets == [0, 1, 1, 2, 2]
    before = [column.tolist() for column in store.index.entries("t", 0, 0, 9)]
    starts = store.index.record_starts().tolist()
    store.close()
    store = open_store(tmp_path)
    assert [column.tolist() for column in store.index.entries("t", 0, 0, 9)] == before
    assert store.index.record_starts().tolist() == starts
    store.close()


def crashed(folder: Path, flushed: int) -> None:
    """Leaves the store as a power cut would: `abort` stands, only `flushed` was published, no index was written."""
    (folder / "abort").write_text("1")
    shutil.rmtree(folder / "lakeindex")
    (folder / "flushed").write_bytes(encode_flushed(flushed))


def test_damage_above_the_flushed_offset_cuts_all_that_is_behind(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    placed = [store.append([pending(bytes([n]) * 20_000)])[0] for n in range(1, 10)]
    store.close()
    crashed(tmp_path, placed[1].physical_offset)
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(placed[2].physical_offset + 1000)
        file.write(b"\xff")
    store = open_store(tmp_path)
    assert not store.recovered.clean
    assert store.recovered.cut_at == store.max_offset == placed[2].physical_offset
    assert sorted(path.name for path in (tmp_path / "commitlog").iterdir()) == [f"{0:020d}"]
    again = store.append([pending(b"new")])[0]
    assert (again.physical_offset, again.queue_offset) == (placed[2].physical_offset, 2)
    store.close()
    store = open_store(tmp_path)
    assert store.recovered.cut_at is None
    assert scanned_offsets(store) == [p.physical_offset for p in placed[:2]] + [again.physical_offset]
    store.close()


def test_a_missing_roll_drops_the_segment_behind(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    placed = [store.append([pending(b"x" * 40_000)])[0] for _ in range(2)]
    store.close()
    crashed(tmp_path, placed[0].size)
    with (tmp_path / "commitlog" / f"{0:020d}").open(
        "r+b"
    ) as file:  # the page of the blank was never written
        file.seek(placed[0].size)
        file.write(bytes(8))
    store = open_store(tmp_path)
    assert store.max_offset == store.recovered.cut_at == placed[0].size
    assert store.append([pending()])[0].physical_offset == placed[0].size
    store.close()


def test_a_last_segment_without_its_size_is_removed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    end = store.append([pending()])[0].size
    store.close()
    (tmp_path / "commitlog" / f"{SEGMENT:020d}").write_bytes(b"")
    store = open_store(tmp_path)
    assert store.max_offset == end
    assert not (tmp_path / "commitlog" / f"{SEGMENT:020d}").exists()
    store.close()


def test_a_gap_between_segments_and_another_broker_are_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.append([pending(b"x" * 60_000) for _ in range(3)])
    store.close()
    with pytest.raises(StoreDamagedError, match="belongs to broker 'b'"):
        MessageStore.open(tmp_path, StoreOptions(broker="other", cluster="c", store_host=HOST))
    (tmp_path / "commitlog" / f"{SEGMENT:020d}").unlink()
    with pytest.raises(StoreDamagedError, match="restore the missing file"):
        open_store(tmp_path)


def test_the_first_segment_size_stays(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    log_id = store.log_id
    store.close()
    store = open_store(tmp_path, segment_size=1 << 20)
    assert (store.segment_size, store.log_id) == (SEGMENT, log_id)
    store.close()


def test_reads_outside_of_the_log_are_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    row = store.append([pending()])[0]
    for offset, size in [(0, row.size + 1), (-1, 4), (row.size, 1), (SEGMENT, 1), (0, -1)]:
        with pytest.raises(OffsetOutOfRangeError):
            store.read(offset, size)
    with pytest.raises(OffsetOutOfRangeError):
        list(store.read_chunks(0, row.size + 1, 100))
    store.close()


def test_readers_see_only_what_is_flushed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    reader = LogReader(tmp_path)
    # within a segment: the index of a full one asks for a flush
    store.append([pending(b"x" * 9000) for _ in range(6)])
    assert reader.readable_offset == 0
    store.flush()
    end = store.max_offset
    store.append([pending()])
    assert reader.readable_offset == end
    found = [
        offset
        for start, data, _ in reader.read_chunks(0, end, 20_000)
        for offset in scan(data, start).physical_offset.tolist()
    ]
    assert found == scanned_offsets(store)[:6]
    reader.close()
    store.close()
    assert LogReader(tmp_path).readable_offset > end


def test_the_side_file_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "flushed"
    assert read_flushed(path) is None
    path.write_bytes(encode_flushed(1 << 40))
    assert read_flushed(path) == 1 << 40
    path.write_bytes(encode_flushed(5)[:8] + encode_flushed(6)[8:])
    assert read_flushed(path) is None


def test_waiters_of_different_offsets_are_called_in_order(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    called: list[int] = []
    last = threading.Event()
    ends = [row.physical_offset + row.size for row in store.append([pending() for _ in range(5)])]
    for end in ends:
        store.wait_flushed(end, lambda error, end=end: called.append(end))  # type: ignore[misc]
    store.wait_flushed(ends[-1], lambda error: last.set())
    assert last.wait(LIMIT_S)
    assert called == ends
    store.close()
    with pytest.raises(StoreReadOnlyError, match="closed"):
        store.append([pending()])


def test_appending_nothing_is_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    nothing: list[Appended] = store.append([])
    assert nothing == []
    store.close()
    store.close()


def test_readers_on_other_threads_follow_over_rolls(tmp_path: Path) -> None:
    store = open_store(tmp_path, flush_interval_ms=1)
    problems: list[str] = []
    counts: list[int] = []
    stop = threading.Event()

    def follow() -> None:
        reader = LogReader(tmp_path)
        offset = count = 0
        try:
            while True:
                last = stop.is_set()
                end = reader.readable_offset
                for start, data, following in reader.read_chunks(offset, end, 10_000):
                    found = scan(data, start)
                    if found.bad_reason:
                        problems.append(f"{found.bad_reason} at {found.bad_offset.tolist()}")
                    count += len(found)
                    offset = following
                if last and offset == end:
                    break
        except Exception as error:
            problems.append(repr(error))
        counts.append(count)
        reader.close()

    readers = [threading.Thread(target=follow) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(300):
        store.append([pending(bytes([number % 256]) * (number * 37 % 5000)) for _ in range(2)])
    store.flush()
    stop.set()
    for reader in readers:
        reader.join()
    assert problems == []
    assert counts == [600, 600]
    assert store.max_offset > 10 * SEGMENT
    store.close()


def test_a_waiter_that_fails_leaves_the_others_and_the_flushing_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(tmp_path)
    store.append([pending()])
    store.wait_flushed(store.max_offset, lambda error: [][0])
    store.flush()
    store.append([pending()])
    store.flush()
    assert store.flushed_offset == store.max_offset
    store.close()
    assert not (tmp_path / "abort").exists()
    assert [record.getMessage() for record in caplog.records] == ["a callback of a flush failed"]


def test_a_log_over_several_folders(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    store = open_store(tmp_path / "store", commit_log_paths=folders)
    placed = [store.append([pending(bytes([n]) * 40_000)])[0] for n in range(5)]
    store.close()
    assert [[start // SEGMENT for start, _ in list_segments(each)] for each in folders] == [[0, 2, 4], [1, 3]]
    reader = LogReader(tmp_path / "store")
    found = [offset for offset, _, _ in reader.read_chunks(0, reader.readable_offset, SEGMENT)]
    assert found == [each.physical_offset for each in placed]
    reader.close()
    # a folder that is no longer wanted stays in the list while it holds segments
    store = open_store(tmp_path / "store", commit_log_paths=[tmp_path / "three"])
    assert scanned_offsets(store) == found
    store.append([pending(b"x" * 40_000)])
    store.close()
    assert [start // SEGMENT for start, _ in list_segments(tmp_path / "three")] == [5]
    store = open_store(tmp_path / "store", commit_log_paths=[tmp_path / "three"])
    assert len(scanned_offsets(store)) == 6
    store.close()


def test_the_next_segment_is_made_ahead_and_removed_when_not_used(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.append([pending(b"x" * 40_000)])
    ahead = tmp_path / "commitlog" / f"{SEGMENT:020d}"
    wait_until(lambda: ahead.exists() and ahead.stat().st_size == SEGMENT)
    store.close()
    assert not ahead.exists()


def test_the_checkpoint_is_kept_for_a_real_broker(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    last = store.append([pending()])[0]
    store.flush()
    store.close()
    times = struct.unpack(">5q", (tmp_path / "checkpoint").read_bytes()[:40])
    assert times == (last.store_timestamp, 0, 0, last.size, last.size)
    assert (tmp_path / "checkpoint").stat().st_size == 4096


def test_few_pages_wait_for_the_thorough_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Flusher] = []
    worth_it = Flusher._worth_it

    def counted(flusher: Flusher) -> bool:
        looks.append(flusher)
        return worth_it(flusher)

    def looked_twice() -> None:
        """Whatever the first look flushes, is flushed at the second."""
        before = len(looks)
        wait_until(lambda: len(looks) >= before + 2)

    monkeypatch.setattr(Flusher, "_worth_it", counted)
    store = open_store(tmp_path, flush_interval_ms=10, flush_least_pages=4, flush_thorough_ms=3_600_000)
    store.append([pending(b"x" * 5000)])
    looked_twice()
    assert store.flushed_offset == 0
    store.append([pending(b"x" * 20_000)])
    wait_until(lambda: store.flushed_offset == store.max_offset)
    before = store.flushed_offset
    store.append([pending()])
    looked_twice()
    assert store.flushed_offset == before
    store.flush()  # a caller that waits does not wait for the thorough flush
    assert store.flushed_offset == store.max_offset
    store.close()
    store = open_store(tmp_path, flush_interval_ms=10, flush_least_pages=4, flush_thorough_ms=200)
    store.append([pending()])
    wait_until(lambda: store.flushed_offset == store.max_offset)
    store.close()


def test_listeners_are_told_of_what_is_in_the_queues(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    told: list[tuple[str, set[int], int]] = []

    def fails(topic: str, queue_ids: Set[int]) -> None:
        raise ZeroDivisionError

    store.on_appended(fails)
    store.on_appended(lambda topic, ids: told.append((topic, set(ids), store.index.max_offset(topic, 1))))
    store.append([pending(queue_id=1), pending(queue_id=2), pending(topic="u"), pending(queue_id=1)])
    assert told == [("t", {1, 2}, 2), ("u", {0}, 0)]
    store.append([pending(sys_flag=SYS_PREPARED), pending(queue_id=3, sys_flag=SYS_ROLLBACK)])
    assert len(told) == 2
    store.append([pending(queue_id=3, sys_flag=SYS_COMMIT)])
    assert told[2:] == [("t", {3}, 2)]
    with pytest.raises(RecordTooLargeError):
        store.append([pending(b"x" * SEGMENT)])
    store.close()
    with pytest.raises(StoreReadOnlyError):
        store.append([pending()])
    assert len(told) == 3


def test_records_with_a_mark_are_given_once_each(tmp_path: Path) -> None:
    store = logs.open_store(tmp_path)
    mark = b"LB_ORIGIN\x01"
    bodies = [b"plain", mark * 3000, b"x" + mark, b"LB_ORIGI", mark + b"x" * 30_000, b"plain"]
    placed = [store.append([pending(body)])[0].physical_offset for body in bodies]
    found = [(each.physical_offset, bytes(each.body)) for each in store.records_with(mark, placed[2])]
    assert found == [(placed[2], bodies[2]), (placed[4], bodies[4])]
    assert [each.physical_offset for each in store.records_with(mark, 0)] == [placed[1], placed[2], placed[4]]
    store.close()
