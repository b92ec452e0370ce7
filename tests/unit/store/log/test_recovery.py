"""A start on any log: the index comes back as the appends left it, damage costs what it must and no more."""

from __future__ import annotations

import itertools
import shutil
import struct
import tempfile
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakebroker_testing import logs
from store.errors import RecoveryStoppedError, StoreDamagedError
from store.index.queue_index import LARGEST_GAP, QueueIndex
from store.log import recovery
from store.log.flush import encode_flushed
from store.log.record import BLANK_MAGIC, SYS_COMMIT, SYS_PREPARED, SYS_ROLLBACK, Host, PendingRecord
from store.log.recovery import load_identity
from store.log_reader import LogReader
from store.log_source import FolderLog
from store.message_store import MessageStore
from store.opening import StoreOptions
from store.scan import scan
from store.tools.verify import verify
from tests.suite.evidence import rounds

SEGMENT = 1 << 16
HOST = Host("127.0.0.1", 10911)
BATCHES = st.lists(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "%DLQ%" + "g" * 150]),
            st.integers(0, 2),
            st.integers(0, 30_000),
            st.sampled_from([0, 0, 0, SYS_PREPARED, SYS_COMMIT, SYS_ROLLBACK]),
        ),
        min_size=1,
        max_size=5,
    ),
    min_size=1,
    max_size=12,
)


open_store = partial(logs.open_store, segment_size=SEGMENT, flush_interval_ms=60_000)


def fill(store: MessageStore, batches: list[list[tuple[str, int, int, int]]]) -> None:
    for batch in batches:
        store.append(
            [
                PendingRecord(topic, queue, b"x" * size, b"", 1, HOST.packed, flag)
                for topic, queue, size, flag in batch
            ]
        )


def contents(index: QueueIndex) -> tuple[list[int], dict[tuple[str, int], list[list[int]]]]:
    return index.record_starts().tolist(), {
        key: [column.tolist() for column in index.entries(*key, index.min_offset(*key), 1 << 20)]
        for key in sorted(index.queues())
    }


@pytest.mark.parametrize("scan_bytes", [64 << 20, 5_000])
def test_the_index_comes_back_as_it_was(scan_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "_SCAN_BYTES", scan_bytes)

    @settings(max_examples=rounds(10, 25), deadline=None)
    @given(BATCHES)
    def check(batches: list[list[tuple[str, int, int, int]]]) -> None:
        with tempfile.TemporaryDirectory() as name:
            store = open_store(Path(name))
            fill(store, batches)
            before, end = contents(store.index), store.max_offset
            store.close()
            store = open_store(Path(name))
            assert contents(store.index) == before
            assert store.max_offset == end
            assert not store.recovered.bad
            assert store.recovered.cut_at is None
            store.close()

    check()


@settings(max_examples=rounds(20, 60), deadline=None)
@given(BATCHES, st.floats(0, 1), st.floats(0, 1), st.binary(min_size=1, max_size=20))
def test_damage_anywhere_keeps_every_other_flushed_record(
    batches: list[list[tuple[str, int, int, int]]], where: float, flushed_at: float, piece: bytes
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = open_store(folder)
        fill(store, batches)
        starts, end = store.index.record_starts().tolist(), store.max_offset
        store.close()
        flushed = [*starts, end][int(flushed_at * len(starts))]
        (folder / "flushed").write_bytes(encode_flushed(flushed))
        shutil.rmtree(folder / "lakeindex")  # what it covers is not scanned again
        at = int(where * (end - 1))
        with (folder / "commitlog" / f"{at - at % SEGMENT:020d}").open("r+b") as file:
            file.seek(at % SEGMENT)
            file.write(piece[: SEGMENT - at % SEGMENT])
        store = open_store(folder)
        found = set(store.index.record_starts().tolist())
        assert store.max_offset >= flushed
        assert found <= set(starts)
        for start, stop in zip(starts, [*starts[1:], end], strict=True):
            touched = start < at + len(piece) and at < stop
            if stop <= flushed and not touched:
                assert start in found, "a whole record below the flushed offset is never lost"
        again = store.append([PendingRecord("new", 0, b"", b"", 1, HOST.packed)])[0]
        store.close()
        store = open_store(folder)
        assert set(store.index.record_starts().tolist()) == found | {again.physical_offset}
        store.close()


@pytest.mark.parametrize("size", [8, 200, 20_000, 1 << 20, 0x7FFFFFFF])
@pytest.mark.parametrize("number", [0, 7, -1])
def test_a_blank_in_mid_segment_costs_no_other_record(tmp_path: Path, size: int, number: int) -> None:
    """`number` is the record of the first segment in whose place it stands; -1: the blank that fills the segment."""
    store = open_store(tmp_path)
    fill(store, [[("a", 0, 900, 0)] for _ in range(150)])
    starts, end = store.index.record_starts().tolist(), store.max_offset
    store.close()
    shutil.rmtree(tmp_path / "lakeindex")  # what it covers is not scanned again
    last = max(start for start in starts if start < SEGMENT)
    at = starts[number] if number >= 0 else last + starts[1]
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(at)
        file.write(struct.pack(">iI", size, BLANK_MAGIC))
    store = open_store(tmp_path)
    expected = [start for start in starts if start != at]
    assert store.index.record_starts().tolist() == expected
    assert [offset for offset, _, _ in store.recovered.bad] == [at]
    cuts = store.split(0, end, 5000)
    store.close()
    reader = LogReader(tmp_path)
    found = verify(FolderLog(tmp_path), queue_offsets=True)
    assert (found.records, [each.offset for each in found.bad]) == (len(expected), [at])
    for some in (cuts, reader.split(0, end, 5000)):
        assert max(stop - start for start, stop in itertools.pairwise(some)) <= 5000
        inside = {start for start in expected if start + starts[1] <= end}
        for start, stop in itertools.pairwise(some):
            for offset, data, _ in reader.read_chunks(start, stop, 1 << 20):
                inside -= set(scan(data, offset, segment_size=SEGMENT).physical_offset.tolist())
        assert not inside
    reader.close()


@pytest.mark.parametrize("clean", [True, False])
def test_a_scan_that_is_stopped_leaves_the_store_as_it_was(tmp_path: Path, clean: bool) -> None:
    store = open_store(tmp_path)
    fill(store, [[("a", 0, 30_000, 0)]] * 5)
    before, end = contents(store.index), store.max_offset
    store.close()
    for path in (tmp_path / "lakeindex").iterdir():
        path.unlink()  # what it covers is not scanned again
    if not clean:
        (tmp_path / "abort").write_text("1")
        (tmp_path / "flushed").write_bytes(encode_flushed(0))
    kept = {
        path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != "abort"
    }
    calls = []

    def stop(done: int, total: int) -> None:
        calls.append((done, total))
        if len(calls) == 2:
            raise RecoveryStoppedError("enough")

    with pytest.raises(RecoveryStoppedError, match="enough"):
        MessageStore.open(
            tmp_path,
            StoreOptions(broker="b", cluster="c", store_host=HOST, segment_size=SEGMENT, progress=stop),
        )
    assert len(calls) == 2
    assert (tmp_path / "abort").exists() is not clean
    assert {
        path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != "abort"
    } == kept
    store = open_store(tmp_path)
    assert store.recovered.clean is clean
    assert (contents(store.index), store.max_offset) == (before, end)
    store.close()


def test_a_gap_in_a_queue_reads_as_unreadable_entries() -> None:
    index = QueueIndex()
    index.put("t", 0, 5, 100, 10, 1, 0)
    index.put("t", 0, 8, 200, 20, 2, 0)
    offsets, sizes, codes = index.entries("t", 0, 5, 10)
    assert sizes.tolist() == [10, 0, 0, 20]
    assert (offsets[[0, 3]].tolist(), codes[[0, 3]].tolist()) == ([100, 200], [1, 2])
    assert (index.min_offset("t", 0), index.max_offset("t", 0)) == (5, 9)
    assert [len(column) for column in index.entries("t", 0, 4, 1)] == [0, 0, 0]
    assert [len(column) for column in index.entries("t", 0, 9, 1)] == [0, 0, 0]


def test_a_queue_that_begins_anew_counts_from_the_later_record() -> None:
    index = QueueIndex()
    for queue_offset in range(5):
        index.put("t", 0, queue_offset, 100 * queue_offset, 10, 0, 0)
    index.put("t", 0, 2, 900, 11, 0, 0)
    assert index.entries("t", 0, 0, 9)[1].tolist() == [10, 10, 11]
    index.put("t", 0, 3 + LARGEST_GAP + 1, 1000, 12, 0, 0)
    assert (index.min_offset("t", 0), index.max_offset("t", 0)) == (0, 3 + LARGEST_GAP + 2)
    assert index.entries("t", 0, 3 + LARGEST_GAP, 9)[1].tolist() == [0, 12]
    assert index.entries("t", 0, 2, 1 << 20)[1].tolist() == [11, *[0] * (LARGEST_GAP + 1), 12]


def test_the_next_offset_can_be_raised_but_not_lowered() -> None:
    index = QueueIndex()
    index.raise_next("t", 0, 7)
    assert index.max_offset("t", 0) == 7
    index.raise_next("t", 0, 3)
    assert index.max_offset("t", 0) == 7
    index.put("t", 0, 7, 0, 10, 0, 0)
    index.raise_next("t", 0, 10)
    assert (index.min_offset("t", 0), index.max_offset("t", 0)) == (7, 10)
    assert index.entries("t", 0, 7, 9)[1].tolist() == [10, 0, 0]
    index.raise_next("t", 1, 0)
    assert ("t", 1) not in index.queues()


def test_starts_align_and_split() -> None:
    index = QueueIndex()
    for number in range(2000):
        index.put("t", 0, number, 10 * number, 10, 0, 0)
    assert index.is_record_start(10)
    assert not index.is_record_start(11)
    assert (index.align(11), index.align(19_990), index.align(19_991)) == (20, 19_990, None)
    assert index.split(0, 20_000, 5_001) == [0, 5_000, 10_000, 15_000, 20_000]
    assert index.split(100, 130, 1) == [100, 110, 120, 130]
    assert index.split(50, 50, 10) == [50]


@pytest.mark.parametrize("clean", [True, False])
def test_behind_the_end_of_a_clean_stop_nothing_is_read(tmp_path: Path, clean: bool) -> None:
    store = open_store(tmp_path)
    fill(store, [[("a", 0, 100, 0)]] * 3)
    before, end = contents(store.index), store.max_offset
    store.close()
    if not clean:
        (tmp_path / "abort").write_text("1")
    beyond = SEGMENT - 5
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(beyond)
        file.write(b"x")
    store = open_store(tmp_path)
    assert (contents(store.index), store.max_offset, store.recovered.clean) == (before, end, clean)
    assert store.recovered.bytes_scanned == (0 if clean else SEGMENT - end)
    store.close()
    left = (tmp_path / "commitlog" / f"{0:020d}").read_bytes()[beyond : beyond + 1]
    assert left == (b"x" if clean else b"\0"), (
        "after a crash the rest is zeroed, after a clean stop not even looked at"
    )


@pytest.mark.parametrize("behind", ["index", "flushed"])
def test_what_another_broker_wrote_before_its_clean_stop_is_kept(tmp_path: Path, behind: str) -> None:
    """It keeps neither our index nor our flushed offset."""
    store = open_store(tmp_path)
    fill(store, [[("a", 0, 100, 0)]] * 3)
    store.close()
    kept = {path: path.read_bytes() for path in (tmp_path / "lakeindex").iterdir()}
    flushed = (tmp_path / "flushed").read_bytes()
    store = open_store(tmp_path)
    fill(store, [[("a", 0, 100, 0)]] * 2)
    before, end = contents(store.index), store.max_offset
    store.close()
    for path in (tmp_path / "lakeindex").iterdir():
        path.unlink()
    if behind == "index":
        for path, data in kept.items():
            path.write_bytes(data)
    (tmp_path / "flushed").write_bytes(flushed)
    store = open_store(tmp_path)
    assert (contents(store.index), store.max_offset) == (before, end)
    store.close()


def files_of(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def three_segments(root: Path, clean: bool = True) -> tuple[list[Path], int]:
    """A store that was stopped, or looks as after a crash: its segments and its end."""
    store = open_store(root)
    fill(store, [[("a", 0, 30_000, 0)]] * 5)
    end = store.max_offset
    store.close()
    if not clean:
        (root / "abort").write_text("1")
    segments = sorted((root / "commitlog").iterdir())
    assert len(segments) == 3
    return segments, end


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("loss", ["gone", "empty", "half of it, zeros"])
def test_a_last_segment_that_is_lost_is_no_end_of_the_log(tmp_path: Path, loss: str, clean: bool) -> None:
    (_, _, last), end = three_segments(tmp_path, clean)
    whole = last.read_bytes()
    if loss == "gone":
        last.unlink()
    else:
        last.write_bytes(bytes(0 if loss == "empty" else SEGMENT // 2))
    left = files_of(tmp_path)
    with pytest.raises(StoreDamagedError) as refused:
        open_store(tmp_path)
    assert str(refused.value) == (
        f"the log in {tmp_path}/commitlog ends at physical offset {2 * SEGMENT}, but up to {end} it was on disk: segment "
        f"{last.name} is missing or empty; restore it from a copy. To go on without its messages, remove "
        f"{tmp_path}/lakebroker.json: the log gets another id then, and a lake keeps it beside the old one"
    )
    assert files_of(tmp_path) == left, "nothing was changed"
    last.write_bytes(whole)
    store = open_store(tmp_path)
    assert (store.max_offset, store.recovered.clean) == (end, clean)
    store.close()


@pytest.mark.parametrize("kept", [0, 1])
def test_several_segments_that_are_lost_are_named(tmp_path: Path, kept: int) -> None:
    segments, end = three_segments(tmp_path)
    for path in segments[kept:]:
        path.unlink()
    with pytest.raises(StoreDamagedError) as refused:
        open_store(tmp_path)
    assert f"ends at physical offset {kept * SEGMENT}, but up to {end} it was on disk: segments " in str(
        refused.value
    )
    first = f"{segments[kept].name} to " if kept else "up to "
    assert f"segments {first}{segments[2].name} are missing or empty; restore them" in str(refused.value)


def test_a_log_goes_on_without_what_was_lost_as_another_log(tmp_path: Path) -> None:
    segments, _ = three_segments(tmp_path)
    segments[2].unlink()
    before = load_identity(tmp_path)
    (tmp_path / "lakebroker.json").unlink()
    for _ in range(2):
        store = open_store(tmp_path)
        after = store.identity
        assert before is not None
        assert before.log_id != after.log_id
        assert (store.max_offset, store.flushed_offset) == (2 * SEGMENT, 2 * SEGMENT)
        assert len(store.index) == 4
        assert store.recovered.bad == []
        store.close()
    assert load_identity(tmp_path) == after


def test_a_segment_that_a_crash_left_without_its_size_behind_a_full_one_is_removed(tmp_path: Path) -> None:
    segments, _ = three_segments(tmp_path, clean=False)
    segments[2].write_bytes(b"")
    (tmp_path / "flushed").write_bytes(encode_flushed(2 * SEGMENT))
    shutil.rmtree(tmp_path / "lakeindex")
    store = open_store(tmp_path)
    assert store.max_offset == 2 * SEGMENT
    assert not segments[2].exists()
    store.close()


def test_segments_behind_the_end_are_removed_from_the_last_one_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a crash on the way leaves no gap."""
    store = open_store(tmp_path)
    fill(store, [[("a", 0, 30_000, 0)]] * 8)
    store.close()
    (tmp_path / "flushed").write_bytes(encode_flushed(0))
    (tmp_path / "abort").write_text("1")
    shutil.rmtree(tmp_path / "lakeindex")
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.write(bytes(100))
    removed: list[str] = []
    unlink = Path.unlink

    def noted(path: Path, missing_ok: bool = False) -> None:
        if path.parent.name == "commitlog":
            removed.append(path.name)
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", noted)
    open_store(tmp_path).close()
    assert len(removed) > 1
    assert removed == sorted(removed, reverse=True)
