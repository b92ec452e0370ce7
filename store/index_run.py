"""Queue entries of one stretch of the log, a run: in memory while it grows, then a file under `lakeindex/`.

A run covers the physical offsets [start, end), never more than one segment of the log, and is written once its
records are on disk. Its file is named by `start` in 20 digits and holds, little-endian:

| section | per | columns |
|---|---|---|
| header | file | magic, version, log id, start, end, records, entries, queues, bytes of names, CRC-32 of the columns, CRC-32 of header, directory and names |
| directory | queue, by (hash, queue id) | hash of topic and queue id, topic (where in the names, length), queue id, first queue offset, first entry, entries, next queue offset |
| names | topic | UTF-8 |
| starts | record | physical offset - start (u4) |
| offsets, sizes, codes | entry, by queue | physical offset - start (u4), size (i4; 0: cannot be read), tags code (i8) |

The directory names every queue the log knew, also those without an entry in the run, with the offset that their
next record gets: the newest file alone restores those. The columns are checked when they are first read, so that
a start need not read them all.
"""

from __future__ import annotations

import bisect
import hashlib
import mmap
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
from store.permissions import open_new
from store.segment import sync_folder

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Key = tuple[str, int]
"""Topic and queue id."""
MOST_MAPPED = 64
"""Files of runs that are mapped, and open, at a time."""
LARGEST_GAP = 4096
"""A run whose queue offsets jump further ahead ends before the jump."""
_MAGIC = b"LKINDEX1"
_VERSION = 2
_HEADER = struct.Struct("<8sI4x32sqqqqqqII")
_DIRECTORY = np.dtype(
    [
        ("hash", "<u8"),
        ("name_start", "<u4"),
        ("name_length", "<u2"),
        ("pad", "<u2"),
        ("queue_id", "<i4"),
        ("entries", "<u4"),
        ("base", "<i8"),
        ("first", "<i8"),
        ("next", "<i8"),
    ]
)
_HOLE = 0xFFFFFFFF
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

    __slots__ = ("_codes", "_offsets", "_sizes", "end", "queues", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        self.end = start
        self.queues: dict[Key, _Queue] = {}
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
            rows.extend([_HOLE] * gap)
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

    def entries(self, key: Key, low: int, high: int) -> Entries:
        """Entries by position in the queue, [low, high)."""
        some = self.queues[key].rows[low:high]
        if len(some) <= _FEW and _HOLE not in some:
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
                if row != _HOLE:
                    few.offsets[position], few.sizes[position] = self._offsets[row], self._sizes[row]
                    few.codes[position] = self._codes[row]
            return few
        rows = np.frombuffer(some, dtype=np.uint32) if some else np.empty(0, dtype=np.uint32)
        if _HOLE in some:
            held = np.flatnonzero(rows != _HOLE)
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
        header = _HEADER.pack(
            _MAGIC,
            _VERSION,
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
        held = np.flatnonzero(order != _HOLE)
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
        header = header[:-8] + struct.pack("<I", zlib_ng.crc32(whole))
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
        directory = np.zeros(len(keys), dtype=_DIRECTORY)
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
    """A run in a file, mapped: what is not read costs no memory. Raises StoreDamagedError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < _HEADER.size:
                raise StoreDamagedError(f"{path} has {size} bytes and is no index of the log")
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        (
            magic,
            version,
            log_id,
            self.start,
            self.end,
            self.records,
            entries,
            queues,
            names,
            columns_check,
            check,
        ) = _HEADER.unpack_from(self._map)
        if magic != _MAGIC or version != _VERSION:
            raise StoreDamagedError(f"{path} is no index of the log of version {_VERSION}")
        self.log_id = log_id.decode("ascii", "replace")
        at = _HEADER.size
        sizes = (queues * _DIRECTORY.itemsize, names)
        if min(queues, names, entries, self.records) < 0 or at + sum(sizes) > size:
            raise StoreDamagedError(f"{path} is shorter than its header says")
        if check != zlib_ng.crc32(
            memoryview(self._map)[at : at + sum(sizes)], zlib_ng.crc32(self._map[: at - 4])
        ):
            raise StoreDamagedError(f"the header or directory of {path} is damaged")
        self._directory = np.frombuffer(self._map, dtype=_DIRECTORY, count=queues, offset=at)
        self._names = bytes(self._map[at + sizes[0] : at + sum(sizes)])
        at += sum(sizes)
        at += -at % 8
        self._unchecked: tuple[int, int] | None = (at, columns_check)
        columns = []
        for kind, count in (("<u4", self.records), ("<u4", entries), ("<i4", entries), ("<i8", entries)):
            at += -at % 8
            if at + count * np.dtype(kind).itemsize > size:
                raise StoreDamagedError(f"{path} is shorter than its header says")
            columns.append(np.frombuffer(self._map, dtype=kind, count=count, offset=at))
            at += columns[-1].nbytes
        self._columns = columns
        self._hashes = np.ascontiguousarray(self._directory["hash"])

    def __len__(self) -> int:
        return int(self.records)

    def check(self) -> None:
        """Raises StoreDamagedError, and removes the file, when its columns are damaged; looks once."""
        if self._unchecked is None:
            return
        at, check = self._unchecked
        if zlib_ng.crc32(memoryview(self._map)[at:]) != check:
            self.path.unlink(missing_ok=True)
            sync_folder(self.path.parent)
            raise StoreDamagedError(
                f"{self.path} was damaged and is removed; restart the broker: it is made anew from the log"
            )
        self._unchecked = None

    @property
    def last(self) -> int | None:
        """The last record, unchecked."""
        return int(self._columns[0][-1]) + int(self.start) if len(self._columns[0]) else None

    @property
    def _starts(self) -> NDArray[Any]:
        self.check()
        return self._columns[0]

    @property
    def _offsets(self) -> NDArray[Any]:
        self.check()
        return self._columns[1]

    @property
    def _sizes(self) -> NDArray[Any]:
        self.check()
        return self._columns[2]

    @property
    def _codes(self) -> NDArray[Any]:
        self.check()
        return self._columns[3]

    def find(self, key: Key) -> tuple[int, int] | None:
        """First queue offset and number of the queue's entries; None when it has none here."""
        row = self._row(key)
        if row is None or not self._directory["entries"][row]:
            return None
        return int(self._directory["base"][row]), int(self._directory["entries"][row])

    def entries(self, key: Key, low: int, high: int) -> Entries:
        """Entries by position in the queue, [low, high)."""
        row = self._row(key)
        if row is None:
            raise KeyError(key)
        count, first = int(self._directory["entries"][row]), int(self._directory["first"][row])
        low, high = first + low, first + min(high, count)
        sizes = self._sizes[low:high].astype(np.int32)
        offsets = self._offsets[low:high].astype(np.int64) + self.start
        offsets[sizes == 0] = 0
        return Entries(offsets, sizes, self._codes[low:high].astype(np.int64))

    def next_offsets(self) -> Iterator[tuple[Key, int]]:
        """For every queue known when the run ended: the offset that its next record gets."""
        directory = self._directory
        topics: dict[int, str] = {}
        for start, length, queue_id, following in zip(
            directory["name_start"].tolist(),
            directory["name_length"].tolist(),
            directory["queue_id"].tolist(),
            directory["next"].tolist(),
            strict=True,
        ):
            topic = topics.get(start)
            if topic is None:
                topic = topics[start] = self._names[start : start + length].decode("utf-8", "replace")
            yield (topic, queue_id), following

    def starts(self) -> Longs:
        """Physical offsets of all records, ascending; a copy."""
        starts: Longs = self._starts.astype(np.int64) + self.start
        return starts

    def floor(self, offset: int) -> int | None:
        """The last record at or before `offset`."""
        position = self._behind(offset)
        return int(self._starts[position - 1]) + int(self.start) if position else None

    def above(self, offset: int) -> int | None:
        """The first record behind `offset`."""
        position = self._behind(offset)
        return int(self._starts[position]) + int(self.start) if position < len(self._starts) else None

    def live(self) -> LiveRun:
        """The run in memory again, to go on growing."""
        run = LiveRun(self.start)
        directory = self._directory
        offsets, starts = self._offsets.astype(np.int64) + self.start, self.starts()
        rows = np.searchsorted(starts, offsets)
        sizes = np.zeros(len(starts), dtype=np.int64)
        codes = np.zeros(len(starts), dtype=np.int64)
        whole = self._sizes > 0
        sizes[rows[whole]], codes[rows[whole]] = self._sizes[whole], self._codes[whole]
        if len(starts):
            run.extend(starts, sizes, codes)
        rows = np.where(whole, rows, _HOLE).astype(np.uint32)
        keys = (key for key, _ in self.next_offsets())
        for key, first, count, base in zip(
            keys,
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

    def _behind(self, offset: int) -> int:
        relative = min(max(offset - self.start, -1), 0xFFFFFFFF)
        return 0 if relative < 0 else int(np.searchsorted(self._starts, np.uint32(relative), side="right"))

    def _row(self, key: Key) -> int | None:
        topic, queue_id = key
        wanted = np.uint64(key_hash(key))
        row = int(np.searchsorted(self._hashes, wanted))
        while row < len(self._hashes) and self._hashes[row] == wanted:
            entry = self._directory[row]
            start = int(entry["name_start"])
            name = self._names[start : start + int(entry["name_length"])]
            if int(entry["queue_id"]) == queue_id and name == topic.encode():
                return row
            row += 1
        return None


Run = LiveRun | FileRun


def key_hash(key: Key) -> int:
    """64 bits of topic and queue id, the same in every process."""
    topic, queue_id = key
    digest = hashlib.blake2b(topic.encode() + queue_id.to_bytes(4, "little", signed=True), digest_size=8)
    return int.from_bytes(digest.digest(), "little")


def list_runs(folder: Path) -> list[Path]:
    """Files of runs, ascending by start."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if len(path.name) == 20 and path.name.isdigit())
