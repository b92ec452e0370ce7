"""Reading a store directory from another process, by path: only what the broker has published as flushed."""

from __future__ import annotations

import bisect
import itertools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from store.errors import OffsetOutOfRangeError, StoreDamagedError
from store.index.queue_index import NO_LIMIT
from store.kernels.code_folders import CODE_FOLDERS
from store.log.erased import ERASED_FILE, NOTHING, Offsets, read_erased
from store.log.flush import FLUSHED_FILE, read_flushed
from store.log.recovery import commit_log_folders, load_identity
from store.log.segment import Segment, list_segments
from store.scan import Scan, as_bytes, scan

_MOST_OPEN = 4
"""Segments mapped at a time, beside those that views are held of."""
_SETTLED_NS = 2_000_000_000
"""A folder's time stamp that is younger may hide a later change: file systems keep it in steps."""


_Stamp = tuple[int, int, int]
"""Of a folder or file: device, inode, and when it changed last, in nanoseconds; all 0 where none is."""


class LogReader:
    """The log in `root`. For a real RocketMQ store give `broker` and `log_id`, and `folders` where its log is elsewhere; its
    end is found by walking."""

    def __init__(
        self,
        root: Path,
        *,
        broker: str | None = None,
        log_id: str | None = None,
        folders: Sequence[Path] = (),
    ) -> None:
        self._root = root
        self._open: dict[int, Segment] = {}
        identity = load_identity(root)
        if identity is None and (broker is None or log_id is None):
            raise StoreDamagedError(
                f"{root} holds no lakebroker.json. A RocketMQ broker's store is served by `lakebroker sidecar --store {root}`, "
                "whose address is read as a gateway's; else give another path"
            )
        self.broker = broker or (identity.broker if identity else "")
        self.log_id = log_id or (identity.log_id if identity else "")
        self.own_from = identity.own_from if identity else 0
        """Where the log of this id begins: records before it, if there are any, are of former logs of the store."""
        self._named = log_id is not None
        self.cluster = identity.cluster if identity else "DefaultCluster"
        self._folders = list(folders) or commit_log_folders(root, identity)
        self._published = identity is not None
        self._segment_size = identity.segment_size if identity else 0
        self._listed: list[tuple[int, Path]] = []
        self._listed_at: list[_Stamp] = []
        self._erased = NOTHING
        self._erased_at: _Stamp | None = None
        if identity is not None:
            CODE_FOLDERS.read(root)

    @property
    def min_offset(self) -> int:
        self._unmap_deleted()
        found = self._found()
        return found[0][0] if found else 0

    @property
    def segment_size(self) -> int:
        """In bytes; 0 without segments. A real broker's are all of one size, too."""
        if not self._segment_size:
            self._segment_size = next((size for _, size, _ in self.segments()), 0)
        return self._segment_size

    @property
    def readable_offset(self) -> int:
        """Where readers must stop, as the broker published it; of the log that `log_id` names then."""
        self._unmap_deleted()
        if self._published:
            flushed = read_flushed(self._root / FLUSHED_FILE) or 0
            self.follow()  # behind it: what was flushed then is of this log, or of one before
            return flushed
        for start, _ in reversed(self._found()):  # a real broker makes segments ahead: those hold nothing
            segment = self._segment(start)
            found = scan(
                segment.view, segment.start, verify_crc=False, mode="tail", segment_size=segment.size
            )
            if found.next_offset > start:
                return found.next_offset
        return self.min_offset

    def follow(self) -> None:
        """Looks whether the store has begun another log. Raises StoreDamagedError."""
        if self._published and not self._named and (identity := load_identity(self._root)) is not None:
            self.log_id, self.own_from = identity.log_id, identity.own_from

    def erased(self) -> Offsets:
        """Where erased records of the store begin, ascending, as its gateway published them; of a real broker's store nothing.

        Raises StoreDamagedError.
        """
        if not self._published:
            return NOTHING
        stamp = _stamp(self._root / ERASED_FILE)  # each is a file of its own
        if stamp != self._erased_at:
            identity = load_identity(self._root)
            owned = (identity.log_id, *identity.former_log_ids) if identity else (self.log_id,)
            self._erased = read_erased(self._root, owned)
            self._erased_at = stamp
        return self._erased

    def unflushed(self) -> Iterator[Scan]:
        """Whole records behind the readable offset, as far as the next start of the broker would keep them."""
        if not self._published:
            return  # the end is that of the records
        at = self.readable_offset
        for start, path in self._found():
            if start + path.stat().st_size <= at:
                continue
            segment = self._segment(max(at, start))
            begin = max(at, start)
            found = scan(segment.view[begin - start :], begin, mode="tail", segment_size=segment.size)
            yield found
            if found.ended != "end":
                return

    def split(self, start: int, end: int, max_bytes: int, limit_bytes: int = NO_LIMIT) -> list[int]:
        """Boundaries of ranges of at most `max_bytes`, or one record; the first is `start`.

        The last is `end`, or the one at which `limit_bytes` are full. A range begins and ends at a record or
        within damage, never within a record. Costs the bytes between the first and the last boundary.
        """
        from store.kernels import walk  # compiled: loaded by who scans

        cuts = [start]
        while cuts[-1] < end and cuts[-1] - start < limit_bytes:
            begin = cuts[-1]
            segment = self._segment(begin)
            stop = min(end, segment.end)
            data = as_bytes(segment.view[begin - segment.start : stop - segment.start])
            room = min(start + limit_bytes - begin, len(data))
            if room == len(data) <= max_bytes:
                cuts.append(stop)  # one range: its reader walks the records, so this need not
                continue
            cuts.extend((walk.split(data, begin, 0, max_bytes, room, segment.size) + begin).tolist())
            if cuts[-1] < stop and start + limit_bytes < stop:
                break
        return cuts

    def read_chunks(self, start: int, end: int, chunk_bytes: int) -> Iterator[tuple[int, memoryview, int]]:
        """Whole records of [start, end) as (offset, bytes, offset of the next chunk)."""
        cuts = self.split(start, end, chunk_bytes)
        for begin, stop in itertools.pairwise(cuts):
            segment = self._segment(begin)
            yield begin, segment.view[begin - segment.start : stop - segment.start], stop

    def segments(self) -> list[tuple[int, int, Path]]:
        """First offset, bytes and path of every segment, ascending."""
        return [(start, path.stat().st_size, path) for start, path in self._found()]

    def from_segment(self, offset: int) -> tuple[int, memoryview]:
        """Where the segment of an offset begins, and its bytes. Raises OffsetOutOfRangeError."""
        segment = self._segment(offset)
        return segment.start, segment.view

    def close(self) -> None:
        for segment in self._open.values():
            segment.close()
        self._open.clear()

    def _found(self) -> list[tuple[int, Path]]:
        """As they were listed since the folders changed last."""
        stamps = [_stamp(folder) for folder in self._folders]
        if stamps != self._listed_at:
            self._listed = sorted(each for folder in self._folders for each in list_segments(folder))
            settled = time.time_ns() - max(changed for _, _, changed in stamps) > _SETTLED_NS
            self._listed_at = stamps if settled else []
        return self._listed

    def _unmap_deleted(self) -> None:
        """The broker's retention frees no disk as long as a reader has the files."""
        for segment in [each for each in self._open.values() if not each.path.exists()]:
            self._open.pop(segment.start).close()

    def _segment(self, offset: int) -> Segment:
        for segment in self._open.values():
            if segment.start <= offset < segment.end:
                return segment
        while len(self._open) >= _MOST_OPEN:
            self._open.pop(next(iter(self._open))).close()  # the one opened first
        placed = self._placed(offset)
        if placed is None:
            self._listed_at = []  # a clock that is not this machine's may have hidden a change
            placed = self._placed(offset)
        if placed is None:
            raise OffsetOutOfRangeError(
                f"physical offset {offset} is in no segment of {self._root}; the oldest begins at {self.min_offset}"
            )
        start, path = placed
        segment = Segment(path, start, path.stat().st_size, writable=False)
        self._open[start] = segment
        return segment

    def _placed(self, offset: int) -> tuple[int, Path] | None:
        """The segment that has an offset, by its first one."""
        found = self._found()
        position = bisect.bisect_right([start for start, _ in found], offset) - 1
        if position < 0 or offset >= found[position][0] + found[position][1].stat().st_size:
            return None
        return found[position]


def _stamp(place: Path) -> _Stamp:
    try:
        found = place.stat()
    except FileNotFoundError:
        return 0, 0, 0
    return found.st_dev, found.st_ino, found.st_mtime_ns
