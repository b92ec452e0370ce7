"""A new log begun behind the one that a store has: who reads which of them, and what a crash on the way leads to."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lakebroker_testing import logs
from lakebroker_testing.crash_image import copy_at_rest
from lakebroker_testing.logs import pending
from store import message_store
from store.errors import ForeignFolderError, OffsetOutOfRangeError, OtherLogError, StoreDamagedError
from store.log.commit_log import CommitLog
from store.log.flush import FLUSHED_FILE
from store.log.owner import load_owner
from store.log.recovery import IDENTITY_FILE, load_identity
from store.log_source import FolderLog, LogSource, StoreLog
from store.message_store import MessageStore
from store.tools.verify import verify

SEGMENT = 1 << 16
FAR = 10_000_000
open_store = partial(logs.open_store, segment_size=SEGMENT, flush_interval_ms=60_000)


def written(root: Path, count: int = 30, **options: Any) -> MessageStore:
    """A store with more than a segment."""
    store = open_store(root, **options)
    for number in range(count):
        store.append([pending(body=b"%d" % number + bytes(5_000))])
    return store


def begin(store: MessageStore) -> None:
    """As a start of the gateway does it, but for the journal."""
    store.begin_log()
    raise_queue(store)
    store.append([pending(body=b"snapshot")])
    store.log_begun()


def raise_queue(store: MessageStore) -> None:
    following = store.index.max_offset("t", 0)
    store.index.leave_out("t", 0, following, max(FAR, following))


def bodies(store: MessageStore, start: int, count: int) -> list[bytes]:
    columns = store.index.entries("t", 0, start, count)
    return [
        bytes(store.record(offset, size).body).rstrip(b"\0")
        for offset, size in zip(columns.offsets.tolist(), columns.sizes.tolist(), strict=True)
        if size
    ]


def read(log: LogSource, log_id: str, start: int, end: int) -> int:
    """How many bytes are read."""
    return sum(len(data) for _, data in log.read(log_id, start, end))


def test_the_segments_stay_and_the_new_log_begins_at_a_segments_start(tmp_path: Path) -> None:
    store = written(tmp_path)
    former, end = store.log_id, store.max_offset
    begin(store)
    start = -(-end // SEGMENT) * SEGMENT
    assert store.log_id != former
    assert (store.own_from, store.min_offset) == (start, 0)
    assert store.index.max_offset("t", 0) == FAR + 1
    assert bodies(store, 0, 30) == [b"%d" % number for number in range(30)]
    assert bodies(store, FAR, 1) == [b"snapshot"]
    entries = store.index.entries("t", 0, FAR, 1)
    assert entries.offsets.tolist() == [start]
    store.close()
    store = open_store(tmp_path)
    assert store.recovered.unusable == []
    assert (store.own_from, store.index.max_offset("t", 0)) == (start, FAR + 1)
    assert bodies(store, 0, 30) == [b"%d" % number for number in range(30)]
    assert bodies(store, FAR - 1, 2) == [b"snapshot"]
    assert store.identity.former_log_ids == (former,)
    assert not store.identity.beginning
    store.close()
    assert verify(FolderLog(tmp_path, whole=True), queue_offsets=True).bad == []


def test_a_log_without_anything_begins_where_it_is(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    former = store.log_id
    begin(store)
    assert (store.own_from, store.identity.former_log_ids) == (0, (former,))
    assert bodies(store, FAR, 1) == [b"snapshot"]
    store.close()


def test_no_record_of_a_former_log_is_read_under_the_new_id(tmp_path: Path) -> None:
    store = written(tmp_path)
    former = store.log_id
    by_path = FolderLog(tmp_path)
    before = by_path.describe()
    assert before.log_id == former
    begin(store)
    for log in (StoreLog(store), by_path, FolderLog(tmp_path)):
        state = log.describe()
        assert (state.log_id, state.start, state.end) == (store.log_id, store.own_from, store.max_offset)
        assert read(log, state.log_id, state.start, state.end) == state.end - state.start
        with pytest.raises(OffsetOutOfRangeError, match=str(store.own_from)):
            read(log, state.log_id, 0, state.end)
        with pytest.raises(OffsetOutOfRangeError, match=str(store.own_from)):
            log.split(state.log_id, 0, state.end, 1 << 20)
        for call in (
            lambda log=log: read(log, former, 0, before.end),
            lambda log=log: log.split(former, 0, 1, 1),
        ):
            with pytest.raises(OtherLogError, match=store.log_id):
                call()
    whole = FolderLog(tmp_path, whole=True).describe()
    assert (whole.start, whole.end) == (0, store.max_offset)
    store.close()


def test_a_log_that_was_just_begun_has_nothing_to_read(tmp_path: Path) -> None:
    store = written(tmp_path)
    store.begin_log()
    for log in (StoreLog(store), FolderLog(tmp_path)):
        state = log.describe()
        assert state.start == state.end == store.own_from
    store.close()


STEPS: list[tuple[Any, str]] = [
    (message_store, "write_identity"),
    (message_store, "mark_folders"),
    (CommitLog, "fill_up"),
    (MessageStore, "append"),
    (MessageStore, "log_begun"),
]


@pytest.mark.parametrize("power_cut", [False, True])
def test_a_crash_at_any_step_leads_to_the_same_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, power_cut: bool
) -> None:
    """An image of the store is taken behind every step. In a power cut what was not flushed of the log is lost."""
    root, elsewhere = tmp_path / "store", tmp_path / "elsewhere"
    store = written(root, commit_log_paths=(elsewhere,))
    former, end = store.log_id, store.max_offset
    images: list[Path] = []
    flushed: list[int] = []

    def imaged(step: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            result = step(*arguments, **named)
            images.append(tmp_path / f"image-{len(images)}")
            copy_at_rest(root, images[-1] / "store")
            copy_at_rest(elsewhere, images[-1] / "elsewhere")
            flushed.append(store.flushed_offset)
            return result

        return call

    with monkeypatch.context() as patched:
        for owner, name in STEPS:
            patched.setattr(owner, name, imaged(getattr(owner, name)))
        begin(store)
    log_id, start = store.log_id, store.own_from
    store.close()
    assert len(images) == len(STEPS) + 1
    for image, known in zip(images, flushed, strict=True):
        shutil.rmtree(root)
        shutil.rmtree(elsewhere)
        shutil.copytree(image / "store", root)
        shutil.copytree(image / "elsewhere", elsewhere)
        if power_cut:
            lose_behind(elsewhere, max(known, end))
        store = open_store(root, commit_log_paths=(elsewhere,))
        assert store.recovered.unusable == []
        assert (store.log_id, store.own_from, store.identity.former_log_ids) == (log_id, start, (former,))
        assert store.max_offset >= start
        owner = load_owner(elsewhere)
        assert owner is not None
        assert owner.log_id == log_id
        if store.identity.beginning:
            raise_queue(store)
            store.append([pending(body=b"snapshot")])
            store.log_begun()
        assert store.index.entries("t", 0, FAR, 1).offsets.tolist() == [start]
        assert bodies(store, 0, 30) == [b"%d" % number for number in range(30)]
        store.close()
        assert verify(FolderLog(root, whole=True), queue_offsets=True).bad == []


def lose_behind(folder: Path, offset: int) -> None:
    """Zeroes what is behind a physical offset."""
    for path in folder.iterdir():
        if path.name.isdigit() and (begin := max(offset - int(path.name), 0)) < SEGMENT:
            with path.open("r+b") as file:
                file.seek(begin)
                file.write(bytes(SEGMENT - begin))


def test_segments_that_are_missing_are_named(tmp_path: Path) -> None:
    store = written(tmp_path)
    begin(store)
    store.close()
    for path in (tmp_path / FLUSHED_FILE, *sorted((tmp_path / "commitlog").iterdir())[1:]):
        path.unlink()
    with pytest.raises(StoreDamagedError, match="segments are missing"):
        open_store(tmp_path)


def test_the_identity_of_before_is_read_and_its_check_covers_what_is_new(tmp_path: Path) -> None:
    store = written(tmp_path)
    begin(store)
    store.close()
    path = tmp_path / IDENTITY_FILE
    data = json.loads(path.read_text())
    for name, value in (("own_from", 0), ("former_log_ids", []), ("beginning", True)):
        path.write_text(json.dumps({**data, name: value}))
        with pytest.raises(StoreDamagedError, match="crc32 does not match"):
            load_identity(tmp_path)
    for name in ("own_from", "former_log_ids", "beginning", "crc32"):
        del data[name]
    path.write_text(json.dumps(data))
    identity = load_identity(tmp_path)
    assert identity is not None
    assert (identity.own_from, identity.former_log_ids, identity.beginning) == (0, (), False)


def test_another_stores_folder_stays_refused(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    store = written(tmp_path / "a", commit_log_paths=(folder,))
    begin(store)
    store.close()
    other = open_store(tmp_path / "b", broker="other")
    begin(other)
    other.close()
    with pytest.raises(ForeignFolderError, match="another store's log"):
        open_store(tmp_path / "b", broker="other", commit_log_paths=(folder,))
