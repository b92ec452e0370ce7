"""Where readers of a real broker's log must stop, while the broker goes on writing it.

A real broker publishes no such place: segments are preallocated, and behind the end are zeros. So the end is found by
walking the records from the last end on. Nothing counts before it is whole (header, lengths, its own offset, CRC of the
body or of the record) and this process has synced the segment, so that neither a power cut nor the broker's recovery
takes back what a lake has: recovery cuts the log at the first record that is not whole.

| what stands at the end | then |
|---|---|
| zeros, or a record that is not whole | waited for |
| a whole record with no other behind it, and no CRC of its own over all of it | it counts when it is the same for `SETTLE_S`: a writer copies in order, but its body's CRC covers only the body |
| a blank, and the next segment begins with a record | the next segment follows. Before that, the blank may be left over as well |
| a record stored before this host started, behind one stored since | the end: left over from before a power cut, behind where the broker cut the log. It will be written over |
| nothing whole for `PATIENCE_S`, and records behind it that were stored since this host started | damage: passed over, as the running broker does. Who reads the range puts it into quarantine |
| the oldest segments deleted | the beginning follows |
| a segment that cannot be synced | StoreDamagedError from then on: the system tells of a lost page once |
| the last record that counted has changed, or the log ends before it | StoreDamagedError: records were lost, or it is another log |

Whether something was stored before or since the host started is told by the store timestamps, and only a power cut or a
crash of the system leaves such records: what a killed process wrote is in the page cache. A store whose disk moved here
after the crash of another host is recovered by its broker before the sidecar is started.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from zlib_ng import zlib_ng

from store.errors import StoreDamagedError
from store.kernels import row
from store.log.record import BLANK_MAGIC, MAGIC_V1, MAGIC_V2
from store.log.segment import Segment, sync_folder
from store.scan import Scan, scan

SETTLE_S = 0.05
PATIENCE_S = 30.0
STEP_BYTES = 16 << 20
"""Of the log that are walked at a time, or one record."""
_WALKED_AT_FIRST = 3
"""Segments: as many as a real broker's recovery reads after a clean stop. Those before are taken as they are."""
_MAGICS = (MAGIC_V1, MAGIC_V2)
_HEAD_BYTES = 16 << 20
"""Hold the first record of a segment."""


class File(NamedTuple):
    """A segment."""

    start: int
    size: int
    path: Path

    @property
    def end(self) -> int:
        return self.start + self.size


@dataclass(frozen=True, slots=True)
class Served:
    """What readers may have: all below `end`. `last_*` are place, bytes and CRC-32 of the last record (-1: none yet), by
    which the log is known again; `newest_ms` is the newest store timestamp."""

    end: int
    last_offset: int = -1
    last_size: int = 0
    last_crc: int = 0
    newest_ms: int = 0


def boot_ms() -> int:
    """When this host started, ms since the epoch; 0 where the system does not say."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1000 for line in lines if line.startswith("btime ")), 0)


def first_walked(files: Sequence[File]) -> int:
    """Where the end of a log is looked for that nobody served yet. Raises StoreDamagedError for what is no log of
    RocketMQ, OSError."""
    holding = [file for file in files if _head(file.path) != (0, 0)]
    if not holding:
        return files[0].start if files else 0
    size, magic = _head(holding[0].path)
    if magic not in (*_MAGICS, BLANK_MAGIC):
        raise StoreDamagedError(
            f"{holding[0].path} does not begin with a record of RocketMQ (size {size}, magic {magic:#x}); give the store of a "
            "broker that keeps its log in commitlog, not DLedger's"
        )
    return holding[-_WALKED_AT_FIRST:][0].start


def check_segments(files: Sequence[File], root: Path) -> None:
    """Raises StoreDamagedError for what is no log of a real broker."""
    for before, after in itertools.pairwise(files):
        if after.size != before.size:
            raise StoreDamagedError(
                f"segment {after.path} has {after.size} bytes, those before {before.size}: a broker's are all of one "
                f"size; look at {root} with `lakebroker store verify`"
            )
        if after.start != before.end:
            raise StoreDamagedError(
                f"behind {before.path} comes the segment of offset {after.start}, expected {before.end}; restore the "
                "missing file"
            )


class LogEnd:
    """The end of the log whose segments `files` lists, ascending; `served` is what another process has come to.

    Blocks; one thread at a time. Raises StoreDamagedError, OSError.
    """

    def __init__(
        self,
        files: Callable[[], list[File]],
        served: Served | None = None,
        since_ms: int | None = None,
        settle_s: float = SETTLE_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._files = files
        self._settle_s, self._patience_s = settle_s, patience_s
        self._since_ms = boot_ms() if since_ms is None else since_ms
        """When this host started."""
        self._settling = (-1, 0, 0.0)
        """Offset and CRC-32 of a last record, and since when it is so."""
        self._stuck = (-1, 0.0)
        """Where nothing whole stands, and since when."""
        self._synced = -1
        """The segment whose name is on disk."""
        self._failed = ""
        listed = files()
        first = first_walked(listed)
        self.served = served if served is not None else Served(first)
        if self.served.end < first:
            self.served = replace(self.served, end=first)
        for file in listed:
            if file.start < self.served.end:
                with contextlib.suppress(FileNotFoundError):  # deleted since
                    self._sync(file)

    @property
    def settles(self) -> bool:
        """Whether a whole record stands behind the end that does not count yet."""
        return self._settling[0] >= self.served.end

    def advance(self) -> bool:
        """Goes on by what was written since, at most STEP_BYTES; whether it did."""
        if self._failed:
            raise StoreDamagedError(self._failed)
        files = self._files()
        self._check(files)
        if not files:
            return False
        at = max(self.served.end, files[0].start)
        file = next((file for file in files if file.start <= at < file.end), None)
        if file is None:  # the next segment is not made yet
            return False
        segment = Segment(file.path, file.start, file.size, writable=False)
        try:
            return self._walk(files, file, segment.view, at)
        finally:
            segment.close()

    def _check(self, files: Sequence[File]) -> None:
        """Raises StoreDamagedError unless the log still is what was served."""
        served = self.served
        end = files[-1].end if files else 0
        if served.end > end:
            raise StoreDamagedError(self._lost(f"it ends at {end}"))
        file = next((file for file in files if file.start <= served.last_offset < file.end), None)
        if served.last_offset < 0 or file is None:
            return  # deleted by the broker's retention
        with file.path.open("rb") as opened:
            found = os.pread(opened.fileno(), served.last_size, served.last_offset - file.start)
        if zlib_ng.crc32(found) != served.last_crc:
            raise StoreDamagedError(
                self._lost(f"another record or none stands at {served.last_offset}, where its last one was")
            )

    def _lost(self, why: str) -> str:
        return (
            f"this is not the log any more that was served up to {self.served.end}: {why}. Restore the segments; or stop the "
            "sidecar and give it a new state folder: the log gets another id then, and a lake keeps it beside the old one"
        )

    def _walk(self, files: Sequence[File], file: File, view: memoryview, at: int) -> bool:
        begin = at - file.start
        found = scan(view[begin : begin + STEP_BYTES], at, mode="tail", segment_size=file.size)
        if not len(found) and found.ended == "torn" and begin + STEP_BYTES < file.size:
            found = scan(view[begin:], at, mode="tail", segment_size=file.size)
        count = self._not_left_over(found)
        if not count and (len(found) or found.next_offset == at):
            return self._damage(files, file, view, at, zeros=found.ended == "zero" and not len(found))
        end = (
            int(found.physical_offset[count]) if count < len(found) else self._end_of(found, files, file, at)
        )
        if count == len(found) and count and not self._is_done(found, file, end):
            count -= 1
            end = int(found.physical_offset[count])
        if end == at:
            return False  # the last record settles, or a blank may be left over
        self._sync(file)
        self.served = self._after(found, count, end)
        return True

    def _not_left_over(self, found: Scan) -> int:
        """How many records stand before the first that was stored before the host started, behind one stored since."""
        times = found.store_timestamp
        newest = np.maximum.accumulate(np.concatenate(([self.served.newest_ms], times)))[:-1]
        left_over = np.flatnonzero((times < self._since_ms) & (newest >= self._since_ms))
        return int(left_over[0]) if len(left_over) else len(found)

    def _end_of(self, found: Scan, files: Sequence[File], file: File, at: int) -> int:
        """Where a walk from `at` ended; before a blank, unless the log goes on in the next segment."""
        last = len(found) - 1
        end = int(found.physical_offset[last] + found.size[last]) if len(found) else at
        goes_on = any(each.start == file.end and _head(each.path)[1] in _MAGICS for each in files)
        return found.next_offset if goes_on else end

    def _is_done(self, found: Scan, file: File, end: int) -> bool:
        """Whether the last record of a walk, which ended at `end`, is written to its end."""
        last = len(found) - 1
        place, size = int(found.physical_offset[last]), int(found.size[last])
        if end > place + size or end == file.end:  # a blank follows, or nothing can
            return True
        if found.rows[last, row.CRC_EXPECTED] >= 0:
            return True
        start = int(found.rows[last, row.POSITION])
        crc = zlib_ng.crc32(found.buffer.data[start : start + size])
        offset, known, since = self._settling
        if (offset, known) != (place, crc):
            self._settling = (place, crc, time.monotonic())
            return False
        return time.monotonic() - since >= self._settle_s

    def _after(self, found: Scan, count: int, end: int) -> Served:
        if not count:
            return replace(self.served, end=end)
        last = count - 1
        start, size = int(found.rows[last, row.POSITION]), int(found.size[last])
        crc = zlib_ng.crc32(found.buffer.data[start : start + size])
        newest = max(self.served.newest_ms, int(found.store_timestamp[:count].max()))
        return Served(end, int(found.physical_offset[last]), size, crc, newest)

    def _sync(self, file: File) -> None:
        """The segment's bytes on disk, and its name."""
        fd = os.open(file.path, os.O_RDONLY)
        try:
            os.fdatasync(fd)
        except OSError as error:
            self._failed = (
                f"segment {file.path} could not be synced ({error}): what was written may be lost; look after the disk, let the "
                "broker recover its log, and start the sidecar again"
            )
            raise StoreDamagedError(self._failed) from error
        finally:
            os.close(fd)
        if self._synced != file.start:
            sync_folder(file.path.parent)
            self._synced = file.start

    def _damage(self, files: Sequence[File], file: File, view: memoryview, at: int, *, zeros: bool) -> bool:
        """Passes over what is not whole, once that is so for PATIENCE_S and the broker goes on behind it."""
        now = time.monotonic()
        if self._stuck[0] != at:
            self._stuck = (at, now)
        if now - self._stuck[1] < self._patience_s:
            return False
        self._stuck = (at, now)  # where the broker does not go on, it is looked at again after that time
        following = -1 if zeros else self._next_in(file, view, at)
        passed = [file]
        for later in files if following < 0 else ():
            if later.start > file.start:
                passed.append(later)
                if self._begins_with_new(later):
                    following = later.start
                    break
        if following < 0:
            return False
        for each in passed:
            self._sync(each)
        self.served = replace(self.served, end=following)
        return True

    def _next_in(self, file: File, view: memoryview, at: int) -> int:
        """The next record of the log in the segment; -1 where none was stored since the host started."""
        found = scan(view[at - file.start :], at, segment_size=file.size)
        behind = found.physical_offset > at
        new = behind & (found.store_timestamp >= self._since_ms)
        if not new.any():
            return -1
        counts = new if self.served.newest_ms >= self._since_ms else behind
        return int(found.physical_offset[np.flatnonzero(counts)[0]])

    def _begins_with_new(self, file: File) -> bool:
        """Whether a segment begins with a record stored since the host started."""
        if _head(file.path)[1] not in _MAGICS:
            return False
        with file.path.open("rb") as opened:
            head = opened.read(_HEAD_BYTES)
        found = scan(head, file.start, mode="tail", segment_size=file.size)
        return len(found) > 0 and int(found.store_timestamp[0]) >= self._since_ms


def _head(path: Path) -> tuple[int, int]:
    """Size and magic code that a segment begins with."""
    with path.open("rb") as file:
        data = file.read(8)
    return int.from_bytes(data[:4], "big"), int.from_bytes(data[4:], "big")
