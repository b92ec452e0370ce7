"""Queue entries of one stretch of the log, a run: in memory while it grows, then a file under `lakeindex/`.

A run covers the physical offsets [start, end), never more than one segment of the log, and is written once its
records are on disk, as `store/index_file.py` has it.
"""

from __future__ import annotations

import bisect
import os
import struct
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from zlib_ng import zlib_ng

from store.errors import StoreDamagedError
from store.index_file import (
    DIRECTORY,
    HEADER,
    HOLE,
    MAGIC,
    MAPPED,
    PAGE_BYTES,
    PIECE_BYTES,
    VERSION,
    WITHOUT_CHECKS,
    Key,
    Longs,
    Mapped,
    checks_of,
    columns_of,
    key_hash,
)
from store.permissions import open_new
from store.segment import sync_folder

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


class FileRun:
    """A run in a file. In memory are its bounds; the file is mapped, and open, only while it is looked at.

    Raises StoreDamagedError.
    """

    __slots__ = (
        "_checks_check",
        "_counts",
        "_names_bytes",
        "_sure",
        "_version",
        "deleted",
        "end",
        "last",
        "log_id",
        "path",
        "start",
    )

    def __init__(self, path: Path) -> None:
        self.path = path
        self.deleted = False
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < HEADER.size:
                raise StoreDamagedError(f"{path} has {size} bytes and is no index of the log")
            head = file.read(HEADER.size)
            (magic, self._version, log_id, self.start, self.end, *counts, names, checks, check) = (
                HEADER.unpack(head)
            )
            if magic != MAGIC or self._version not in (VERSION, WITHOUT_CHECKS):
                raise StoreDamagedError(f"{path} is no index of the log of version {VERSION}")
            self.log_id = log_id.decode("ascii", "replace")
            self._counts: tuple[int, int, int] = (counts[0], counts[1], counts[2])
            self._names_bytes = int(names)
            if min(names, *counts) < 0 or self._end_of_columns() + 4 * self._checks() > size:
                raise StoreDamagedError(f"{path} is shorter than its header says")
            seen = zlib_ng.crc32(head[:-4])
            left = self._columns_at() - HEADER.size - self._padding()
            while left and (piece := file.read(min(left, PIECE_BYTES))):
                seen, left = zlib_ng.crc32(piece, seen), left - len(piece)
            if check != seen:
                raise StoreDamagedError(f"the header or directory of {path} is damaged")
            self._checks_check = checks
            self._sure = bytearray()
            """Of each page of the columns whether it was checked."""
            self.last: int | None = None
            """The last record, unchecked."""
            if self._counts[0]:
                file.seek(self._columns_at() + 4 * (self._counts[0] - 1))
                self.last = int.from_bytes(file.read(4), "little") + self.start

    def __len__(self) -> int:
        return self._counts[0]

    def check(self) -> None:
        """Raises StoreDamagedError, and removes the file, when its columns are damaged; looks once at each page."""
        mapped, at, end = MAPPED.of(self), self._columns_at(), self._end_of_columns()
        mapped.expect(at, end)
        self._check(mapped, 0, end - at)

    def _check(self, mapped: Mapped, begin: int, end: int) -> None:
        """`check` of the pages with the bytes [begin, end) of the columns: before anything of them is used."""
        sure = self._sure
        if not sure:
            columns = memoryview(mapped.data)[self._columns_at() : self._end_of_columns()]
            has_checks = self._version != WITHOUT_CHECKS
            if zlib_ng.crc32(mapped.checks if has_checks else columns) != self._checks_check:
                raise self._damaged()
            sure = self._sure = bytearray((b"\0" if has_checks else b"\1") * self._pages())
        for page in range(begin // PAGE_BYTES, -(-end // PAGE_BYTES)):
            if not sure[page]:
                at = self._columns_at() + page * PAGE_BYTES
                stop = min(at + PAGE_BYTES, self._end_of_columns())
                mapped.expect(at, stop)
                if zlib_ng.crc32(memoryview(mapped.data)[at:stop]) != mapped.checks[page]:
                    raise self._damaged()
                sure[page] = 1

    def _damaged(self) -> StoreDamagedError:
        self.path.unlink(missing_ok=True)
        sync_folder(self.path.parent)
        return StoreDamagedError(
            f"{self.path} was damaged and is removed; restart the broker: it is made anew from the log"
        )

    def find(self, key: Key) -> tuple[int, int] | None:
        """First queue offset and number of the queue's entries; None when it has none here."""
        if self.deleted:
            return None
        row = MAPPED.of(self).row(key)
        return (row.base, row.entries) if row is not None and row.entries else None

    def following(self, key: Key) -> int:
        """The offset that the queue's next record got when the run ended; 0 for one that was not known."""
        if self.deleted:  # by another thread than the one that looks: as if it were older than the log
            return 0
        row = MAPPED.of(self).row(key)
        return row.following if row is not None else 0

    def entries(self, key: Key, low: int, high: int) -> Entries:
        """Entries by position in the queue, [low, high)."""
        mapped = MAPPED.of(self)
        row = mapped.row(key)
        if row is None:
            raise KeyError(key)
        low, high = row.first + low, row.first + min(high, row.entries)
        _, offsets_at, sizes_at, codes_at = mapped.places
        self._check(mapped, offsets_at + 4 * low, offsets_at + 4 * high)
        self._check(mapped, sizes_at + 4 * low, sizes_at + 4 * high)
        self._check(mapped, codes_at + 8 * low, codes_at + 8 * high)
        sizes = mapped.sizes[low:high].astype(np.int32)
        offsets = mapped.offsets[low:high].astype(np.int64) + self.start
        offsets[sizes == 0] = 0
        return Entries(offsets, sizes, mapped.codes[low:high].astype(np.int64))

    def next_offsets(self) -> Iterator[tuple[Key, int]]:
        """For every queue known when the run ended: the offset that its next record gets."""
        mapped = MAPPED.of(self)
        return zip(mapped.keys(), mapped.directory["next"].tolist(), strict=True)

    def bases(self) -> Iterator[tuple[Key, int]]:
        """For every queue with entries here: the first one's offset."""
        mapped = MAPPED.of(self)
        held = np.flatnonzero(mapped.directory["entries"])
        return zip(mapped.keys(held), mapped.directory["base"][held].tolist(), strict=True)

    def changes_since(self, before: FileRun) -> tuple[list[tuple[Key, int]], dict[Key, int]]:
        """Queues that began again, at an offset below where the run before left them; the next offsets it alone knew."""
        mapped, old = MAPPED.of(self), MAPPED.of(before)
        hashes, known = mapped.directory["hash"], np.ascontiguousarray(old.directory["hash"])
        gone = np.flatnonzero(~np.isin(known, hashes))
        forgotten = dict(zip(old.keys(gone), old.directory["next"][gone].tolist(), strict=True))
        held = np.flatnonzero(mapped.directory["entries"])
        if not len(known) or not len(held):
            return [], forgotten
        there = np.minimum(np.searchsorted(known, hashes[held]), len(known) - 1)
        lower = mapped.directory["base"][held] < old.directory["next"][there]
        again = held[lower & (known[there] == hashes[held])]
        return list(zip(mapped.keys(again), mapped.directory["base"][again].tolist(), strict=True)), forgotten

    def starts(self) -> Longs:
        """Physical offsets of all records, ascending; a copy."""
        starts: Longs = self._read().starts.astype(np.int64) + self.start
        return starts

    def floor(self, offset: int) -> int | None:
        """The last record at or before `offset`."""
        mapped = MAPPED.of(self)
        position = self._behind(mapped, offset)
        return self._start_at(mapped, position - 1) + self.start if position else None

    def above(self, offset: int) -> int | None:
        """The first record behind `offset`."""
        mapped = MAPPED.of(self)
        position = self._behind(mapped, offset)
        return self._start_at(mapped, position) + self.start if position < len(self) else None

    def live(self) -> LiveRun:
        """The run in memory again, to go on growing."""
        run = LiveRun(self.start)
        mapped = self._read()
        directory = mapped.directory
        offsets, starts = mapped.offsets.astype(np.int64) + self.start, self.starts()
        rows = np.searchsorted(starts, offsets)
        sizes = np.zeros(len(starts), dtype=np.int64)
        codes = np.zeros(len(starts), dtype=np.int64)
        whole = mapped.sizes > 0
        sizes[rows[whole]], codes[rows[whole]] = mapped.sizes[whole], mapped.codes[whole]
        if len(starts):
            run.extend(starts, sizes, codes)
        rows = np.where(whole, rows, HOLE).astype(np.uint32)
        for key, first, count, base in zip(
            mapped.keys(),
            directory["first"].tolist(),
            directory["entries"].tolist(),
            directory["base"].tolist(),
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
        MAPPED.forget(self)
        self.path.unlink(missing_ok=True)

    def map(self) -> Mapped:
        """The file, mapped; for `MAPPED`. Raises FileNotFoundError once it was deleted."""
        records, entries, queues = self._counts
        try:
            return Mapped(self.path, queues, self._columns_at(), records, entries, self._checks())
        except FileNotFoundError as error:
            if self.deleted:
                raise
            raise StoreDamagedError(
                f"{self.path} is gone; restart the broker: it is made anew from the log"
            ) from error

    def _read(self) -> Mapped:
        self.check()
        return MAPPED.of(self)

    def _start_at(self, mapped: Mapped, record: int) -> int:
        """Where a record starts, from the run's start on; its page is checked."""
        self._check(mapped, 4 * record, 4 * record + 4)
        return int(mapped.starts[record])

    def _behind(self, mapped: Mapped, offset: int) -> int:
        """How many records start at or before `offset`; looks into few pages."""
        relative = min(offset - self.start, 0xFFFFFFFF)
        firsts = range(0, len(self), PAGE_BYTES // 4)
        page = bisect.bisect_right(firsts, relative, key=lambda record: self._start_at(mapped, record)) - 1
        if page < 0:
            return 0
        some = mapped.starts[firsts[page] : firsts[page] + PAGE_BYTES // 4]
        return firsts[page] + int(np.searchsorted(some, np.uint32(relative), side="right"))

    def _pages(self) -> int:
        """Of the columns."""
        return -(-(self._end_of_columns() - self._columns_at()) // PAGE_BYTES)

    def _checks(self) -> int:
        return 0 if self._version == WITHOUT_CHECKS else self._pages()

    def _padding(self) -> int:
        return -(DIRECTORY.itemsize * self._counts[2] + self._names_bytes + HEADER.size) % 8

    def _columns_at(self) -> int:
        names_at = HEADER.size + DIRECTORY.itemsize * self._counts[2]
        return names_at + self._names_bytes + self._padding()

    def _end_of_columns(self) -> int:
        records, entries, _ = self._counts
        return columns_of(self._columns_at(), records, entries)[-1][1] + 8 * entries


Run = LiveRun | FileRun
