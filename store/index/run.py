"""Queue entries of one stretch of the log, a run: in memory while it grows, then a file under `lakeindex/`.

A run covers the physical offsets [start, end), never more than one segment of the log, and is written once its
records are on disk, as `store/index/run_file.py` has it.
"""

from __future__ import annotations

import bisect
import functools
import logging
import os
import struct
import threading
from array import array
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, NoReturn, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray
from zlib_ng import zlib_ng

from store.errors import StoreDamagedError, StoreError
from store.index.checked_pages import OPEN
from store.index.run_file import (
    DIRECTORY,
    HEADER,
    HOLE,
    MAGIC,
    PAGE_BYTES,
    VERSION,
    Directory,
    IndexFile,
    Key,
    Longs,
    checks_of,
    key_hash,
)
from store.log.permissions import open_new
from store.log.segment import sync_folder

log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")
Ints = NDArray[np.int32]
LARGEST_GAP = 4096
"""A run whose queue offsets jump further ahead ends before the jump."""
_FEW = 8
"""Entries that are faster one by one than as arrays."""


class Entries(NamedTuple):
    """Columns of consecutive queue entries: physical offsets, sizes (0: cannot be read), tags codes."""

    offsets: Longs
    sizes: Ints
    codes: Longs


class _Queue:
    """Rows of a queue's entries in a run, from queue offset `base` on."""

    __slots__ = ("base", "rows")

    def __init__(self, base: int, row: int) -> None:
        self.base = base
        self.rows = array("I", (row,))


class LiveRun:
    """A run in memory: columns of all its records in log order, and for each queue which rows are its entries."""

    __slots__ = ("_codes", "_offsets", "_sizes", "end", "next_offsets", "queues", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        self.end = start
        self.queues: dict[Key, _Queue] = {}
        self.next_offsets: Mapping[Key, int] = {}
        """Of every queue of the log, once the run has ended."""
        self._offsets = array("q")
        self._sizes = array("i")
        self._codes = array("q")

    def __len__(self) -> int:
        return len(self._offsets)

    def put(self, offset: int, size: int, code: int) -> int:
        """Adds a record; returns its row."""
        row = len(self._offsets)
        self._offsets.append(offset)
        self._sizes.append(size)
        self._codes.append(code)
        self.end = offset + size
        return row

    def drop(self, row: int) -> None:
        """Takes out the last record, whose row this is."""
        del self._offsets[row:], self._sizes[row:], self._codes[row:]

    def extend(self, offsets: Longs, sizes: Longs, codes: Longs) -> int:
        """Adds records in bulk; returns the row of the first."""
        row = len(self._offsets)
        self._offsets.frombytes(np.ascontiguousarray(offsets, dtype=np.int64).tobytes())
        self._sizes.frombytes(np.ascontiguousarray(sizes, dtype=np.int32).tobytes())
        self._codes.frombytes(np.ascontiguousarray(codes, dtype=np.int64).tobytes())
        self.end = int(offsets[-1] + sizes[-1])
        return row

    def goes_on(self, key: Key, queue_offset: int) -> bool:
        """Whether `queue_offset` is the one behind the queue's last entry here."""
        queue = self.queues.get(key)
        return queue is not None and queue_offset == queue.base + len(queue.rows)

    def put_columns(self, key: Key, offsets: Longs, sizes: Longs, codes: Longs) -> None:
        """Adds records that are the queue's next entries."""
        row = self.extend(offsets, sizes, codes)
        self.queues[key].rows.extend(range(row, row + len(offsets)))

    def entry(self, key: Key, queue_offset: int, row: int) -> bool:
        """Makes a row the entry at `queue_offset`; False when the offset jumps too far ahead for this run.

        An offset that is taken already means that the queue was made again: the later record counts.
        """
        queue = self.queues.get(key)
        if queue is None:
            self.queues[key] = _Queue(queue_offset, row)
            return True
        rows = queue.rows
        position = queue_offset - queue.base
        gap = position - len(rows)
        if gap == 0:
            rows.append(row)
        elif gap > LARGEST_GAP:
            return False
        elif gap > 0:
            rows.extend([HOLE] * gap)
            rows.append(row)
        elif position < 0:
            self.queues[key] = _Queue(queue_offset, row)
        else:
            del rows[position:]
            rows.append(row)
        return True

    def entries_in_bulk(self, key: Key, queue_offsets: Longs, rows: Longs) -> bool:
        """`entry` for consecutive offsets behind the queue's last; False when they are not that."""
        queue = self.queues.get(key)
        first = int(queue_offsets[0])
        if len(queue_offsets) > 1 and (np.diff(queue_offsets) != 1).any():
            return False
        if queue is None:
            queue = self.queues[key] = _Queue(first, int(rows[0]))
            rows = rows[1:]
        elif first != queue.base + len(queue.rows):
            return False
        queue.rows.frombytes(rows.astype(np.uint32).tobytes())
        return True

    def shape(self, key: Key, base: int, count: int) -> None:
        """Gives a queue as many entries from `base` on; those that are missing are holes."""
        queue = self.queues.get(key)
        if queue is not None and (queue.base, len(queue.rows)) == (base, count):
            return
        shaped = self.queues[key] = _Queue(base, HOLE)
        shaped.rows *= count
        for offset, row in enumerate(queue.rows, queue.base) if queue is not None else ():
            if 0 <= offset - base < count:
                shaped.rows[offset - base] = row

    def find(self, key: Key) -> tuple[int, int] | None:
        """First queue offset and number of the queue's entries; None when it has none here."""
        queue = self.queues.get(key)
        return (queue.base, len(queue.rows)) if queue is not None else None

    def following(self, key: Key) -> int:
        """The offset that the queue's next record got when the run ended; 0 for one that was not known."""
        return self.next_offsets.get(key, 0)

    def entries(self, key: Key, low: int, high: int) -> Entries:
        """Entries by position in the queue, [low, high)."""
        some = self.queues[key].rows[low:high]
        if len(some) <= _FEW and HOLE not in some:
            offsets, sizes, codes = self._offsets, self._sizes, self._codes
            return Entries(
                np.array([offsets[row] for row in some], dtype=np.int64),
                np.array([sizes[row] for row in some], dtype=np.int32),
                np.array([codes[row] for row in some], dtype=np.int64),
            )
        if len(some) <= _FEW:  # no array is looked into as a whole: it could not grow meanwhile
            few = Entries(
                np.zeros(len(some), dtype=np.int64),
                np.zeros(len(some), dtype=np.int32),
                np.zeros(len(some), dtype=np.int64),
            )
            for position, row in enumerate(some):
                if row != HOLE:
                    few.offsets[position], few.sizes[position] = self._offsets[row], self._sizes[row]
                    few.codes[position] = self._codes[row]
            return few
        rows = np.frombuffer(some, dtype=np.uint32) if some else np.empty(0, dtype=np.uint32)
        if HOLE in some:
            held = np.flatnonzero(rows != HOLE)
            found = Entries(
                np.zeros(len(rows), dtype=np.int64),
                np.zeros(len(rows), dtype=np.int32),
                np.zeros(len(rows), dtype=np.int64),
            )
            found.offsets[held] = np.asarray(self._offsets)[rows[held]]
            found.sizes[held] = np.asarray(self._sizes)[rows[held]]
            found.codes[held] = np.asarray(self._codes)[rows[held]]
            return found
        return Entries(
            np.asarray(self._offsets)[rows], np.asarray(self._sizes)[rows], np.asarray(self._codes)[rows]
        )

    def starts(self) -> Longs:
        """Physical offsets of all records, ascending; a copy."""
        return np.array(self._offsets, dtype=np.int64)

    def floor(self, offset: int) -> int | None:
        """The last record at or before `offset`."""
        position = bisect.bisect_right(self._offsets, offset)
        return self._offsets[position - 1] if position else None

    def above(self, offset: int) -> int | None:
        """The first record behind `offset`."""
        position = bisect.bisect_right(self._offsets, offset)
        return self._offsets[position] if position < len(self._offsets) else None

    def write(self, folder: Path, log_id: str, next_offsets: Mapping[Key, int]) -> FileRun:
        """Writes the run, whole or not at all, and gives it as it is on disk. Raises OSError."""
        names, directory, order = self._directory(next_offsets)
        header = HEADER.pack(
            MAGIC,
            VERSION,
            log_id.encode(),
            self.start,
            self.end,
            len(self._offsets),
            len(order),
            len(directory),
            len(names),
            0,
            0,
        )
        offsets = np.asarray(self._offsets)
        held = np.flatnonzero(order != HOLE)
        columns: list[NDArray[Any]] = [(offsets - self.start).astype("<u4")]
        sources: list[tuple[NDArray[Any], str]] = [
            (offsets - self.start, "<u4"),
            (np.asarray(self._sizes), "<i4"),
            (np.asarray(self._codes), "<i8"),
        ]
        for source, kind in sources:
            column = np.zeros(len(order), dtype=kind)
            column[held] = source[order[held]]
            columns.append(column)
        whole = bytearray()
        for column in columns:
            whole += column.tobytes()
            whole += b"\0" * (-len(whole) % 8)
        checks = checks_of(memoryview(whole))
        header = header[:-8] + struct.pack("<I", zlib_ng.crc32(checks))
        check = zlib_ng.crc32(names, zlib_ng.crc32(directory.tobytes(), zlib_ng.crc32(header)))
        header += struct.pack("<I", check)
        path = folder / f"{self.start:020d}"
        staged = path.with_suffix(".tmp")
        with open_new(staged, "wb") as file:
            file.write(header)
            file.write(directory.tobytes())
            file.write(names)
            file.write(b"\0" * (-file.tell() % 8))
            file.write(whole)
            file.write(checks)
            file.flush()
            os.fsync(file.fileno())
        staged.rename(path)
        sync_folder(folder)
        return FileRun(path)

    def _directory(
        self, next_offsets: Mapping[Key, int]
    ) -> tuple[bytes, NDArray[np.void], NDArray[np.uint32]]:
        """Names, directory and the rows of all entries in its order."""
        names = bytearray()
        places: dict[str, tuple[int, int]] = {}
        keys = list({**dict.fromkeys(self.queues), **next_offsets})
        directory = np.zeros(len(keys), dtype=DIRECTORY)
        for number, (topic, queue_id) in enumerate(keys):
            place = places.get(topic)
            if place is None:
                encoded = topic.encode()
                place = places[topic] = (len(names), len(encoded))
                names += encoded
            queue = self.queues.get((topic, queue_id))
            base, count = (queue.base, len(queue.rows)) if queue is not None else (0, 0)
            following = next_offsets.get((topic, queue_id), base + count)
            row = (key_hash((topic, queue_id)), *place, 0, queue_id, count, base, 0, following)
            directory[number] = row
        by_hash = np.lexsort((directory["queue_id"], directory["hash"]))
        directory = directory[by_hash]
        counts = directory["entries"].astype(np.int64)
        directory["first"] = np.cumsum(counts) - counts
        rows = b"".join(
            self.queues[keys[number]].rows.tobytes() for number in by_hash if keys[number] in self.queues
        )
        return bytes(names), directory, np.frombuffer(rows, dtype=np.uint32)


_MENDING = threading.RLock()
_MOST_REMADE = 3
"""Times that a file is made anew before its disk is given up."""


def mended(look: Callable[Concatenate[FileRun, P], T]) -> Callable[Concatenate[FileRun, P], T]:
    """A look at a run's file that is repeated on a new one when it finds damage."""

    @functools.wraps(look)
    def call(run: FileRun, /, *args: P.args, **kwargs: P.kwargs) -> T:
        file = run.file
        try:
            return look(run, *args, **kwargs)
        except FileNotFoundError:
            if run.deleted:
                raise
            run.mend(file, f"{run.path} is gone")
        except StoreDamagedError as error:
            run.mend(file, str(error))
        return look(run, *args, **kwargs)

    return call


class FileRun:
    """A run in a file: see `store/index/run_file.py` for what of it is in memory.

    What is damaged is made anew by `remake`, where there is one, before the look goes on; else the file is removed.
    Raises StoreDamagedError; FileNotFoundError once it was deleted.
    """

    __slots__ = ("_remade", "deleted", "end", "file", "last", "log_id", "path", "remake", "start")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.deleted = False
        self.file = IndexFile(path)
        self.start, self.end, self.log_id = int(self.file.start), int(self.file.end), self.file.log_id
        self.last = self.file.last
        """The last record, unchecked."""
        self.remake: Callable[[FileRun], None] | None = None
        """Writes the file anew from the log. Raises StoreError, OSError."""
        self._remade = 0

    def __len__(self) -> int:
        return self.file.counts[0]

    def check(self) -> None:
        """Raises StoreDamagedError when the columns are damaged."""
        self.file.check()

    def mend(self, file: IndexFile, reason: str) -> None:
        """Makes the file anew, unless another thread did, after a look at `file` found it damaged.

        Raises StoreDamagedError when it cannot; it is removed then, so that the next start makes it anew.
        """
        with _MENDING:
            if self.file is not file:
                return
            if self.deleted:
                raise FileNotFoundError(self.path)
            error = StoreDamagedError(f"{reason}; restart the broker: it is made anew from the log")
            if self.remake is None or self._remade >= _MOST_REMADE:
                if self._remade == _MOST_REMADE:
                    log.error("%s; mend its disk: it was made anew %d times", error, self._remade)
                    self._remade += 1
                self._give_up(error)
            self._remade += 1
            try:
                self.remake(self)
                self.file = IndexFile(self.path)
            except (StoreError, OSError, ValueError) as failed:  # ValueError: the segment was closed
                if self.deleted:
                    raise FileNotFoundError(self.path) from failed
                log.error("%s: now it cannot be (%s)", error, failed)
                self._remade = _MOST_REMADE + 1
                self._give_up(error)
            OPEN.forget(file)
        log.warning("%s: it was made anew from the log", reason)

    def _give_up(self, error: StoreDamagedError) -> NoReturn:
        self.path.unlink(missing_ok=True)
        sync_folder(self.path.parent)
        raise error

    @mended
    def find(self, key: Key) -> tuple[int, int] | None:
        """First queue offset and number of the queue's entries; None when it has none here."""
        if self.deleted:
            return None
        row = self.file.row(key)
        return (row.base, row.entries) if row is not None and row.entries else None

    @mended
    def following(self, key: Key) -> int:
        """The offset that the queue's next record got when the run ended; 0 for one that was not known."""
        if self.deleted:  # by another thread than the one that looks: as if it were older than the log
            return 0
        row = self.file.row(key)
        return row.following if row is not None else 0

    @mended
    def entries(self, key: Key, low: int, high: int) -> Entries:
        """Entries by position in the queue, [low, high)."""
        file = self.file
        if self.deleted:
            raise FileNotFoundError(self.path)
        row = file.row(key)
        if row is None:
            raise KeyError(key)
        low, high = row.first + low, row.first + min(high, row.entries)
        _, offsets_at, sizes_at, codes_at = file.places
        sizes = np.frombuffer(file.columns(sizes_at + 4 * low, sizes_at + 4 * high), "<i4").astype(np.int32)
        offsets = np.frombuffer(file.columns(offsets_at + 4 * low, offsets_at + 4 * high), "<u4").astype(
            np.int64
        )
        offsets += self.start
        offsets[sizes == 0] = 0
        codes = np.frombuffer(file.columns(codes_at + 8 * low, codes_at + 8 * high), "<i8")
        return Entries(offsets, sizes, codes.astype(np.int64))

    @mended
    def directory(self) -> Directory:
        """A copy of the directory and the names."""
        return self.file.directory()

    def next_offsets(self) -> Iterator[tuple[Key, int]]:
        """For every queue known when the run ended: the offset that its next record gets."""
        directory = self.directory()
        return zip(directory.keys(), directory.rows["next"].tolist(), strict=True)

    def bases(self) -> Iterator[tuple[Key, int]]:
        """For every queue with entries here: the first one's offset."""
        directory = self.directory()
        held = np.flatnonzero(directory.rows["entries"])
        return zip(directory.keys(held), directory.rows["base"][held].tolist(), strict=True)

    def changes_since(self, before: FileRun) -> tuple[list[tuple[Key, int]], dict[Key, int]]:
        """Queues that began again, at an offset below where the run before left them; the next offsets it alone knew."""
        directory, old = self.directory(), before.directory()
        rows, hashes, known = directory.rows, directory.rows["hash"], np.ascontiguousarray(old.rows["hash"])
        gone = np.flatnonzero(~np.isin(known, hashes))
        forgotten = dict(zip(old.keys(gone), old.rows["next"][gone].tolist(), strict=True))
        held = np.flatnonzero(rows["entries"])
        if not len(known) or not len(held):
            return [], forgotten
        there = np.minimum(np.searchsorted(known, hashes[held]), len(known) - 1)
        lower = rows["base"][held] < old.rows["next"][there]
        again = held[lower & (known[there] == hashes[held])]
        return list(zip(directory.keys(again), rows["base"][again].tolist(), strict=True)), forgotten

    @mended
    def starts(self) -> Longs:
        """Physical offsets of all records, ascending; a copy."""
        starts: Longs = np.frombuffer(self.file.columns(0, 4 * len(self)), "<u4").astype(np.int64)
        return starts + self.start

    @mended
    def floor(self, offset: int) -> int | None:
        """The last record at or before `offset`."""
        position = self._behind(offset)
        return self._start_at(position - 1) + self.start if position else None

    @mended
    def above(self, offset: int) -> int | None:
        """The first record behind `offset`."""
        position = self._behind(offset)
        return self._start_at(position) + self.start if position < len(self) else None

    @mended
    def live(self) -> LiveRun:
        """The run in memory again, to go on growing."""
        run, file = LiveRun(self.start), self.file
        directory, entries = file.directory(), file.counts[1]
        _, offsets_at, sizes_at, codes_at = file.places
        offsets = (
            np.frombuffer(file.columns(offsets_at, offsets_at + 4 * entries), "<u4").astype(np.int64)
            + self.start
        )
        sizes_there = np.frombuffer(file.columns(sizes_at, sizes_at + 4 * entries), "<i4")
        codes_there = np.frombuffer(file.columns(codes_at, codes_at + 8 * entries), "<i8")
        starts = self.starts()
        rows = np.searchsorted(starts, offsets)
        sizes = np.zeros(len(starts), dtype=np.int64)
        codes = np.zeros(len(starts), dtype=np.int64)
        whole = sizes_there > 0
        sizes[rows[whole]], codes[rows[whole]] = sizes_there[whole], codes_there[whole]
        if len(starts):
            run.extend(starts, sizes, codes)
        rows = np.where(whole, rows, HOLE).astype(np.uint32)
        for key, first, count, base in zip(
            directory.keys(),
            directory.rows["first"].tolist(),
            directory.rows["entries"].tolist(),
            directory.rows["base"].tolist(),
            strict=True,
        ):
            if count:
                queue = run.queues[key] = _Queue(base, 0)
                queue.rows = array("I", rows[first : first + count].tobytes())
        run.end = self.end
        return run

    def delete(self) -> None:
        """Removes the file; who still looks finds nothing in it."""
        self.deleted = True
        OPEN.forget(self.file)
        self.path.unlink(missing_ok=True)

    def _start_at(self, record: int) -> int:
        """Where a record starts, from the run's start on."""
        return int.from_bytes(self.file.columns(4 * record, 4 * record + 4), "little")

    def _behind(self, offset: int) -> int:
        """How many records start at or before `offset`; looks into few pages."""
        relative = min(offset - self.start, 0xFFFFFFFF)
        firsts = range(0, len(self), PAGE_BYTES // 4)
        page = bisect.bisect_right(firsts, relative, key=self._start_at) - 1
        if page < 0:
            return 0
        first = firsts[page]
        some = self.file.columns(4 * first, 4 * min(first + PAGE_BYTES // 4, len(self)))
        return first + int(np.searchsorted(np.frombuffer(some, "<u4"), np.uint32(relative), side="right"))


Run = LiveRun | FileRun
