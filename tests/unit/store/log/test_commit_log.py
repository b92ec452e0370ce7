"""What a process that ends in the middle of an append leaves in the segments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from store.log.allocator import Allocator
from store.log.commit_log import CommitLog
from store.log.page_cache import PageCache
from store.log.record import Host, PendingRecord
from store.log.segment import Segment
from store.scan import scan

SEGMENT = 1 << 12
HOST = Host("127.0.0.1", 10911).packed
RECORD = PendingRecord("t", 0, bytes(1000), b"", 1, HOST)


class Watched:
    """The bytes of a segment, and what a start would find in the folder behind each write into them."""

    def __init__(self, view: memoryview, folder: Path, found: list[int]) -> None:
        self._view = view
        self._folder = folder
        self._found = found

    def __setitem__(self, where: slice, data: bytes) -> None:
        self._view[where] = data
        log = b"".join(path.read_bytes() for path in sorted(self._folder.iterdir()))
        self._found.append(len(scan(log, 0, mode="tail", segment_size=SEGMENT)))

    def release(self) -> None:
        self._view.release()


class WatchedAllocator(Allocator):
    def __init__(self, folder: Path) -> None:
        super().__init__([folder], SEGMENT, PageCache(0, 0.0, 0))
        self.found: list[int] = []
        self.taken: list[Segment] = []

    def take(self, start: int) -> Segment:
        segment = super().take(start)
        segment.view = Watched(segment.view, self.folders[0], self.found)  # type: ignore[assignment]
        self.taken.append(segment)
        return segment


@pytest.fixture
def allocator(tmp_path: Path) -> Iterator[WatchedAllocator]:
    made = WatchedAllocator(tmp_path)
    yield made
    made.close()
    for segment in made.taken:
        segment.close()


@pytest.mark.parametrize("segments", [1, 2, 3])
def test_a_batch_is_there_as_a_whole_or_not_at_all(allocator: WatchedAllocator, segments: int) -> None:
    """Also one that goes over into other segments."""
    log = CommitLog(allocator, [], 0, segment_size=SEGMENT, store_host=HOST, append_crc=True)
    log.append([RECORD], [0], 1)
    allocator.found.clear()
    records = 3 * segments
    log.append([RECORD] * (records - 1), range(1, records), 1)
    assert len(log.segments) == segments
    assert (set(allocator.found[:-1]), allocator.found[-1]) == ({1}, records)
