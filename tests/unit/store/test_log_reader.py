"""A store read by path: its folder is listed when it changed, not for each look."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from lakebroker_testing.logs import written
from store import log_reader
from store.errors import OffsetOutOfRangeError
from store.log_reader import LogReader

SEGMENT = 1 << 20


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return written(tmp_path / "store", "broker-a", 1200, segment_size=SEGMENT)


def commit_log(store: Path) -> Path:
    return store / "commitlog"


def age(folder: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(folder, (then, then))


def test_a_folder_that_did_not_change_is_listed_once(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[Path] = []
    listing = log_reader.list_segments

    def counted(folder: Path) -> list[tuple[int, Path]]:
        listed.append(folder)
        return listing(folder)

    monkeypatch.setattr(log_reader, "list_segments", counted)
    age(commit_log(store), 60)
    reader = LogReader(store)
    segments = reader.segments()
    assert len(segments) > 1
    for _ in range(5):
        assert reader.min_offset == 0
        assert reader.segments() == segments
    assert listed == [commit_log(store)]
    reader.close()


@pytest.mark.parametrize("seconds", [0, 60])
def test_segments_that_come_and_go_are_seen_at_once(store: Path, seconds: float) -> None:
    age(commit_log(store), seconds)
    reader = LogReader(store)
    first, *_, last = reader.segments()
    changed = commit_log(store).stat()
    shutil.copy(last[2], commit_log(store) / f"{last[0] + SEGMENT:020}")
    if not seconds:  # within one step of the file system's clock
        os.utime(commit_log(store), ns=(changed.st_atime_ns, changed.st_mtime_ns))
    assert reader.segments()[-1][0] == last[0] + SEGMENT
    first[2].unlink()
    assert reader.min_offset == SEGMENT
    with pytest.raises(OffsetOutOfRangeError, match=f"oldest begins at {SEGMENT}"):
        reader.from_segment(0)
    reader.close()


def test_a_store_in_the_place_of_another_is_seen(store: Path, tmp_path: Path) -> None:
    age(commit_log(store), 60)
    copy = tmp_path / "copy"
    shutil.copytree(store, copy)
    (commit_log(copy) / f"{0:020}").unlink()
    reader = LogReader(store)
    assert reader.min_offset == 0
    stamp = commit_log(store).stat()
    shutil.rmtree(store)
    copy.rename(store)
    os.utime(commit_log(store), ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert reader.min_offset == SEGMENT
    reader.close()
